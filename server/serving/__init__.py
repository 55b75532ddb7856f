"""Calls under way: rows leave in batches, and come back as answers. The shell around `scheduling`."""
