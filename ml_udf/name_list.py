"""Several names as SQL gives them: a list, or a text. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ml_udf.errors import BadOption

__all__ = ["names_of"]

# Of a PostgreSQL array's text form: a quoted element, or a bare one, and what ends it.
_ELEMENT = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^"{},\\]+?))\s*(,|$)', re.DOTALL)


def names_of(given: object, argument: str) -> list[str]:
    """The names in an argument of an SQL function: 'a', 'a, b', '{a,"b, c"}', or a list; None is none.

    A name with a comma, or that begins with a brace, is written in a list. Raises `BadOption`.
    """
    if given is None:
        return []
    names: Sequence[object]
    if isinstance(given, str):
        text = given.strip()
        is_array = text.startswith("{") and text.endswith("}")
        names = _elements(text, argument) if is_array else [name.strip() for name in text.split(",")]
    elif isinstance(given, Sequence) and not isinstance(given, bytes):
        names = given
    else:
        raise _refused(argument, f"is {given!r}")
    found = []
    for name in names:
        if not isinstance(name, str):
            raise _refused(argument, f"has {'a NULL' if name is None else repr(name)} in it")
        if not name.strip():
            raise _refused(argument, "has an empty name in it" if len(names) > 1 else "is an empty text")
        found.append(name)
    return found


def _elements(array: str, argument: str) -> list[str | None]:
    inner = array[1:-1]
    found: list[str | None] = []
    place, is_more = 0, bool(inner.strip())
    while is_more:
        element = _ELEMENT.match(inner, place)
        if element is None:
            raise _refused(argument, f"is {array!r}, which is no array of texts")
        quoted, bare, end = element.groups()
        if quoted is not None:
            found.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            found.append(None if bare.upper() == "NULL" else bare)
        place, is_more = element.end(), end == ","
    return found


def _refused(argument: str, what: str) -> BadOption:
    return BadOption(f"{argument!r} {what}", hint=f"{argument} => 'a', 'a, b', or an array of texts")
