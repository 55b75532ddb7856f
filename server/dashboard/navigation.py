"""The pages that stand in the head of every page: (name, path below the root)."""

from __future__ import annotations

__all__ = ["NAVIGATION"]

NAVIGATION = (
    ("Overview", ""),
    ("Functions", "functions"),
    ("Models", "models"),
    ("Data and training", "training"),
    ("SQL", "sql"),
    ("Who", "who"),
)
