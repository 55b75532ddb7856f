"""Registered queries and their frozen rows."""
