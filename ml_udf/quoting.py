"""Names as SQL identifiers: one spelling for every engine. Pure."""

from __future__ import annotations

__all__ = ["qualified", "quoted"]


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def qualified(*parts: str) -> str:
    """`"schema"."table"`."""
    return ".".join(map(quoted, parts))
