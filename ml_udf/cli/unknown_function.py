"""What to say when a query calls a function that DuckDB does not know: which model functions there are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

__all__ = ["unknown_function"]

_UNKNOWN = re.compile(r"Scalar Function with name \"?(.+?)\"? does not exist")
_MOST_NAMES = 20


def unknown_function(message: str, functions: Sequence[str]) -> tuple[str, str] | None:
    """What is wrong, and what to do; None where DuckDB's `message` is of something else.

    functions: what the server has under names of SQL
    """
    found = _UNKNOWN.search(message)
    if found is None:
        return None
    name = found[1]
    problem = f"there is no function {name}, neither of DuckDB nor of the server"
    if not functions:
        return (
            problem,
            "the server has none yet: train and deploy one (docs/training.md), or `ml-udf import` a model",
        )
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in functions], n=3)
    listed = ", ".join(sorted(functions)[:_MOST_NAMES]) + (", …" if len(functions) > _MOST_NAMES else "")
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        problem,
        f"{meant}The server has {listed}. One that is missing there must be deployed (docs/training.md)",
    )
