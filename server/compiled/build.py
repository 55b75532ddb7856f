"""`python -m server.compiled.build`: compiles the modules that decide, by mypyc and a C compiler.

What it makes is in `made/`, a folder for each kind of Python, whole or not at all: a small module for each of
`COMPILED`, the library that they share, and a manifest of the sources.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from server.compiled.finder import choose_core
from server.compiled.modules import COMPILED, LIBRARY, MANIFEST, ROOT, SUFFIX, digests, folder, source_of
from server.extensions import NotBuilt, c_compiler, python_headers, run_compiler

if TYPE_CHECKING:
    from setuptools import Extension

__all__ = ["build", "main"]

_GROUP = LIBRARY.removesuffix("__mypyc")
# No fused multiply-add: what is decided is the same to the last digit, compiled or not.
_FLAGS = ("-O2", "-fwrapv", "-ffp-contract=off", "-fPIC", "-DNDEBUG", "-w")
_MYPY = ("--config-file=", "--explicit-package-bases", "--namespace-packages", "--ignore-missing-imports")


def main() -> None:
    """Build what is not current; exits with what is missing."""
    if choose_core("auto").name == "compiled":
        return
    try:
        print(build())  # noqa: T201  # a script's word
    except (NotBuilt, OSError) as error:  # a folder that may not be written to, too
        sys.exit(f"the core is not compiled, and decides in Python: {error}")


def build() -> Path:
    """Compile all; returns the folder. Raises `NotBuilt`."""
    command = (c_compiler(), *_FLAGS, f"-I{python_headers()}")
    before = digests()
    place = folder()
    place.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-") as name:
        written, made = Path(name) / "c", Path(name) / "made"
        made.mkdir()
        library, *modules = _c_sources(written)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda source: _object(command, library, source), library.sources))
            _link(command, library, objects, made)
            for _ in pool.map(lambda each: _link(command, each, each.sources, made), modules):
                pass
        told = {"mypy": version("mypy"), "compiled": list(COMPILED), "sources": before}
        (made / MANIFEST).write_text(json.dumps(told, indent=1))
        shutil.rmtree(place, ignore_errors=True)
        made.replace(place)
    return place


def _c_sources(written: Path) -> list[Extension]:
    """Let mypyc write C: of the library that all share, and of each module, which is a door to it."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise NotBuilt(f"mypy and setuptools are missing ({error})") from error
    paths = [str(source_of(module).relative_to(ROOT)) for module in COMPILED]
    here = Path.cwd()
    os.chdir(ROOT)  # modules are named by their paths from here
    try:
        # A file of C for each module, so that every processor compiles some: half the time of one for all.
        found = mypycify([*_MYPY, *paths], target_dir=str(written), group_name=_GROUP, multi_file=True)
    except SystemExit as error:
        raise NotBuilt(f"mypyc ended with {error.code}: it does not take the sources") from error
    finally:
        os.chdir(here)
    return sorted(found, key=lambda each: each.name != LIBRARY)


def _object(command: Sequence[str], extension: Extension, source: str) -> str:
    made = f"{source}.o"
    run_compiler([*command, "-c", *_folders(extension), source, "-o", made], ROOT)
    return made


def _link(command: Sequence[str], extension: Extension, sources: Sequence[str], made: Path) -> None:
    out = made / f"{extension.name}{SUFFIX}"
    run_compiler([*command, "-shared", *_folders(extension), *sources, "-o", str(out)], ROOT)


def _folders(extension: Extension) -> list[str]:
    return [f"-I{each}" for each in extension.include_dirs]


if __name__ == "__main__":
    main()
