"""The classes of a model or function in a reply: how many there are, and which only where that is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from server.errors import BadOption

__all__ = ["asks_for_classes", "told_classes"]

_ANSWERS = {"": False, "0": False, "false": False, "1": True, "true": True}


def asks_for_classes(request: Request, *, by_default: bool = False) -> bool:
    """Whether `?classes=true` stands in the request's query. Raises `BadOption` for another word."""
    asked = request.query_params.get("classes")
    if asked is None:
        return by_default
    if asked not in _ANSWERS:
        raise BadOption(f"'classes' of the query must be true or false, not {asked[:100]!r}")
    return _ANSWERS[asked]


def told_classes(classes: Sequence[str], *, listed: bool) -> dict[str, Any]:
    """The fields of a reply. A model of a thousand classes would fill every reply with them."""
    return {"class_count": len(classes)} | ({"classes": list(classes)} if listed else {})
