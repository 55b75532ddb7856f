"""Tuning of one model: what the next trial is, what became of the last. Pure, but for the journal on disk."""
