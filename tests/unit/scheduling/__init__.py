"""Promises of the scheduler: its policies, its core, its simulator."""
