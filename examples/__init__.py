"""Whole examples, each runnable."""
