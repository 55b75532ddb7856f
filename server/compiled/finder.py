"""Python finds the compiled modules where they are current, and else their sources. Standard library only.

`ML_UDF_CORE`: `python` leaves them aside; `compiled` fails where they cannot serve; unset is `auto`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from server.compiled.modules import COMPILED, LIBRARY, MANIFEST, SUFFIX, digests, folder

__all__ = [
    "CORES",
    "HOW_TO_COMPILE",
    "ChosenCore",
    "CoreMissing",
    "choose_core",
    "chosen_core",
    "install",
    "manifest",
]

CORES = ("auto", "compiled", "python")
HOW_TO_COMPILE = "with a C compiler, mypy and setuptools: python -m server.compiled.build"


@dataclass(frozen=True)
class ChosenCore:
    """name: compiled or python · why: in words for an operator"""

    name: str
    why: str


_chosen = ChosenCore("python", "nothing was chosen yet")


class CoreMissing(ImportError):
    """The compiled modules were asked for and cannot serve; the text says why, and what to do.

    Its `name` is the variable that asks, by which who runs a program knows it without importing the server.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, name="ML_UDF_CORE")


class CompiledFinder:
    """Finds the modules of the manifest in their folder."""

    def __init__(self, modules: frozenset[str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname not in self._modules:
            return None
        return importlib.util.spec_from_file_location(fullname, folder() / f"{fullname}{SUFFIX}")


def choose_core(asked: str) -> ChosenCore:
    """Who decides for `ML_UDF_CORE=asked`. Raises `CoreMissing`."""
    if asked == "python":
        return ChosenCore("python", "ML_UDF_CORE=python asks for it")
    if asked not in CORES:
        raise CoreMissing(f"ML_UDF_CORE={asked} is none of {', '.join(CORES)}")
    why = _unusable()
    if why is None:
        return ChosenCore(
            "compiled", "it is built here" if asked == "auto" else f"ML_UDF_CORE={asked} asks for it"
        )
    if asked == "auto":
        return ChosenCore("python", f"the compiled one {why}; {HOW_TO_COMPILE}")
    raise CoreMissing(f"ML_UDF_CORE=compiled: it {why}; {HOW_TO_COMPILE}; else ML_UDF_CORE=python")


def manifest() -> dict[str, Any]:
    """What was compiled: `mypy`, its version; `compiled`; `sources`, their digests.

    Raises OSError where there is none, ValueError where it cannot be read.
    """
    found: dict[str, Any] = json.loads((folder() / MANIFEST).read_text())
    return found


def install() -> None:
    """Choose, once a process: before any module of the core is imported. Raises `CoreMissing`."""
    global _chosen
    _chosen = choose_core(os.environ.get("ML_UDF_CORE", "auto"))
    if _chosen.name == "compiled":
        sys.meta_path.insert(0, CompiledFinder(frozenset((*COMPILED, LIBRARY))))


def _unusable() -> str | None:
    """What is wrong with what was compiled; None if nothing is."""
    try:
        found = manifest()
        made, made_of = found["compiled"], found["sources"]
    except OSError:
        return "is not built here"
    except (ValueError, KeyError, TypeError) as error:
        return f"has a manifest that cannot be read ({error!r})"
    is_current = made == list(COMPILED) and made_of == digests()
    return None if is_current else "was made of other sources than these"


def chosen_core() -> ChosenCore:
    """What this process decides by."""
    return _chosen
