"""Calls of functions that are made of functions."""
