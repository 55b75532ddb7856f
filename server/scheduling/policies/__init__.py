"""Batching policies: one file each, chosen by name. Pure."""
