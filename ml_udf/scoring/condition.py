"""Whether a text can be nothing but one condition, once it stands in parentheses. Pure.

Looks at no grammar: the database does. It sees that the text cannot end what is around it (a parenthesis, a
statement) and begin something else. What the engines, or a session's settings, read in different ways is
refused: a backslash before a quote, a dollar in a name, a comment within a comment.
"""

from __future__ import annotations

import re

from ml_udf.errors import BadOption

__all__ = ["check_condition"]

_PIECE = re.compile(
    r"""
      (?P<text>   '(?:[^'\\]|''|\\[^'])*' | "(?:[^"]|"")*" )
    | (?P<dollar> (?<![\w$])(?<![^\x00-\x7f])(?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag) )
    | (?P<note>   --[^\r\n]* | /\*(?:(?!/\*)(?!\*/).)*\*/ )
    | (?P<open>   [(\[{] )
    | (?P<close>  [)\]}] )
    | (?P<word>   [^\W\d]\w* | \d\w* )
    | (?P<odd>    ['";\\$\x00] | /\* | \*/ )
    | (?P<other>  . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PAIRS = {")": "(", "]": "[", "}": "{"}


def check_condition(text: str) -> None:
    """Raise `BadOption` for a text that could be more than a condition."""
    opened: list[str] = []
    at = 0
    while at < len(text):
        found = _PIECE.match(text, at)
        assert found is not None  # the last alternative takes anything
        kind, piece = found.lastgroup, found.group()
        if kind == "tag":
            kind = "dollar"
        if kind == "open":
            opened.append(piece)
        elif kind == "close":
            if not opened or opened.pop() != _PAIRS[piece]:
                raise _refused(text, f"nothing has opened the {piece!r} at character {at + 1}")
        elif kind == "odd":
            raise _refused(text, f"{piece!r} at character {at + 1} has no place in one")
        at = found.end()
    if opened:
        raise _refused(text, f"{opened[-1]!r} is not closed")
    if not text.strip():
        raise _refused(text, "it is empty")


def _refused(text: str, why: str) -> BadOption:
    shown = text if len(text) <= 80 else text[:79] + "…"
    return BadOption(
        f"{shown!r} is not one condition: {why}", hint="condition => 'age > 30', SQL over the table's columns"
    )
