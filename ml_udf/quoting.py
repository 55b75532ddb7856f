"""Names as SQL identifiers, texts as SQL literals: one spelling for every engine. Pure."""

from __future__ import annotations

__all__ = ["literal", "qualified", "quoted"]


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def qualified(*parts: str) -> str:
    """`"schema"."table"`."""
    return ".".join(map(quoted, parts))


def literal(text: str) -> str:
    """An SQL literal that every session reads the same, whatever standard_conforming_strings is."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
