"""Names as SQL writes them, and as identifiers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ml_udf.errors import BadOption

__all__ = ["found_name", "split_name"]

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s".]+))\s*(\.|\Z)')


def split_name(text: str) -> list[str]:
    """`shop."Food"` → ["shop", "Food"]; what is not quoted is folded to lower case. Raises `BadOption`."""
    parts: list[str] = []
    at = 0
    while at < len(text) or not parts or text[at - 1] == ".":
        found = _PART.match(text, at)
        if found is None:
            raise BadOption(f"{text!r} is not a name", hint='write it as in SQL: food, shop.food, "Food"')
        within, plain, _ = found.groups()
        parts.append(plain.lower() if within is None else within.replace('""', '"'))
        at = found.end()
    return parts


def found_name(asked: str, names: Iterable[str]) -> str | None:
    """Which of `names` the caller means: the very same, else as SQL would read it."""
    known = list(names)
    if asked in known:
        return asked
    try:
        (folded,) = split_name(asked)
    except ValueError:  # several parts
        return None
    except BadOption:
        return None
    if folded in known:
        return folded
    alike = [name for name in known if name.lower() == folded.lower()]
    return alike[0] if len(alike) == 1 else None
