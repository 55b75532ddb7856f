"""Which front serves, and why: what was asked for, what is built, what is spoken.

Pure, but for a look at whether the module can be imported.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

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
    """The front for `--front asked`. Raises `FrontMissing`."""
    if asked == "python":
        return ChosenFront("python", "--front python asks for it")
    if asked == "auto":
        return ChosenFront("python", "--front auto is python as yet: the native one is new; --front native")
    if has_tls:
        raise FrontMissing(
            "--front native speaks no TLS; give --front python, or let a proxy do TLS (--allow-plain)"
        )
    try:
        for module in _MODULES:
            importlib.import_module(module)
    except ImportError as error:
        raise FrontMissing(
            f"--front native is not built here ({error}); with a C compiler and Python's headers: "
            "python -m server.http.native.build, or install ml_udf again; else --front python"
        ) from error
    return ChosenFront("native", "--front native asks for it")
