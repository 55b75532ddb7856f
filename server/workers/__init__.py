"""Pools of worker processes."""
