"""Which front serves, and why: what was asked for, what is built, what is spoken.

Pure, but for a look at whether the module can be imported.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from server.extensions import HOW_TO_BUILD

__all__ = ["FRONTS", "ChosenFront", "FrontMissing", "choose_front"]

FRONTS = ("auto", "native", "python")
_MODULES = (
    "server.http.native._front",
    "server.http.native.acceptor",
)  # of older sources: fails


@dataclass(frozen=True, slots=True)
class ChosenFront:
    """name: native or python · why: in words for an operator"""

    name: str
    why: str


class FrontMissing(Exception):
    """The front that was asked for cannot serve; the text says why, and what to do."""


def choose_front(asked: str, *, has_tls: bool) -> ChosenFront:
    """The front for `--front asked`: `auto` is native where it can serve. Raises `FrontMissing`."""
    if asked == "python":
        return ChosenFront("python", "--front python asks for it")
    is_auto = asked == "auto"
    if has_tls:
        if is_auto:
            return ChosenFront("python", "the native one speaks no TLS")
        raise FrontMissing(
            "--front native speaks no TLS; give --front python, or let a proxy do TLS (--allow-plain)"
        )
    try:
        for module in _MODULES:
            importlib.import_module(module)
    except ImportError as error:
        if is_auto:
            return ChosenFront("python", f"the native one is not built here ({error}); {HOW_TO_BUILD}")
        raise FrontMissing(
            f"--front native is not built here ({error}); {HOW_TO_BUILD}; else --front python"
        ) from error
    return ChosenFront("native", "it is built here" if is_auto else "--front native asks for it")
