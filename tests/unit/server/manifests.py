"""Manifests for the tests of the registry."""

from __future__ import annotations

from typing import Any

CLASSES = ["laksa", "pizza", "satay"]


def manifest(name: str = "net", version: int = 1, **fields: Any) -> dict[str, Any]:
    """A valid manifest of a model without weights."""
    return {
        "format": 1,
        "name": name,
        "version": version,
        "task": "text-classification",
        "runtime": "torch",
        "architecture": "hashing",
        "classes": CLASSES,
        "input": {"form": "text"},
        "accuracy": 0.9,
        **fields,
    }
