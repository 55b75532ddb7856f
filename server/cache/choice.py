"""Which store of kept answers serves, and why: what was asked for, what is built. Pure, but for an import."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from server.extensions import HOW_TO_BUILD

__all__ = ["STORES", "ChosenStore", "StoreMissing", "choose_store"]

STORES = ("auto", "native", "python")


@dataclass(frozen=True, slots=True)
class ChosenStore:
    """name: native or python · why: in words for an operator"""

    name: str
    why: str


class StoreMissing(Exception):
    """The store that was asked for cannot serve; the text says why, and what to do."""


def choose_store(asked: str) -> ChosenStore:
    """The store for `--answer-store asked`: `auto` is native where it is built. Raises `StoreMissing`."""
    if asked == "python":
        return ChosenStore("python", "--answer-store python asks for it")
    try:
        importlib.import_module("server.cache.native.native_store")  # of an older build: fails
    except ImportError as error:
        why = f"is not built here ({error}); {HOW_TO_BUILD}"
        if asked == "auto":
            return ChosenStore("python", f"the native one {why}")
        raise StoreMissing(f"--answer-store native {why}; else --answer-store python") from error
    return ChosenStore(
        "native", "it is built here" if asked == "auto" else "--answer-store native asks for it"
    )
