"""JSON as everybody takes it who gets to see it later: browsers, PostgreSQL, other parsers. Pure.

Python's own reads more than that, and writes it again: infinite numbers, and halves of surrogate pairs.
"""

from __future__ import annotations

import json
import re

__all__ = ["check_plain"]

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def check_plain(content: object) -> None:
    """Raises ValueError, which says what in it is not for everybody."""
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise ValueError("it holds a number that is infinite, or none") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ValueError(f"it holds half of a surrogate pair, {exc.object[exc.start]!a}") from None
    if _NUL.search(text):
        raise ValueError("it holds a NUL character")
