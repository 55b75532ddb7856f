"""Compiles the modules in C, where a compiler and Python's headers are. Standard library only.

Run as a script it builds each in its place; with a folder, all of them there, so that they watch their memory
and fail to get some when told to. A package's build calls `build`, and goes on without what cannot be built.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ANSWERS",
    "EXTENSIONS",
    "FRONT",
    "HOW_TO_BUILD",
    "Extension",
    "NotBuilt",
    "build",
    "c_compiler",
    "is_current",
    "python_headers",
    "run_compiler",
]

HOW_TO_BUILD = "with a C compiler and Python's headers: python -m server.extensions, or install ml_udf again"
_SERVER = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_SANITIZED = (
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-DEXTENSION_FAULTS",
)
_TIMEOUT_S = 300.0


class NotBuilt(Exception):
    """What is missing, or the compiler's last words."""


@dataclass(frozen=True)
class Extension:
    """A module in C. title: in words · folder: of its sources, and of what is made of them"""

    name: str
    title: str
    folder: Path
    sources: tuple[str, ...]
    headers: tuple[str, ...]

    @property
    def file(self) -> str:
        """Of the module, as this Python looks for it."""
        return f"{self.name}{sysconfig.get_config_var('EXT_SUFFIX')}"


FRONT = Extension(
    "_front",
    "the native front",
    _SERVER / "http" / "native",
    ("front.c", "acceptor.c", "connection.c", "recogniser.c"),
    ("acceptor.h", "connection.h", "recogniser.h"),
)
ANSWERS = Extension(
    "_answers",
    "the native store of kept answers",
    _SERVER / "cache" / "native",
    ("module.c", "table.c"),
    ("answers.h", "siphash.h"),
)
EXTENSIONS = (FRONT, ANSWERS)


def build(extension: Extension, folder: Path | None = None, more_flags: Sequence[str] = ()) -> Path:
    """Compile it, into `folder` in the place of its own; returns its file, there whole or not at all.

    Raises `NotBuilt`.
    """
    if not sys.platform.startswith("linux"):
        raise NotBuilt(f"{extension.title} is built on Linux alone")
    folder = (folder or extension.folder).resolve()
    include = python_headers()
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{extension.name}-") as name:
        made = Path(name) / extension.file
        command = [c_compiler(), *_FLAGS, *more_flags, f"-I{include}", *extension.sources, "-o", str(made)]
        run_compiler(command, extension.folder)
        made.replace(folder / extension.file)
    return folder / extension.file


def is_current(extension: Extension) -> bool:
    """Whether it is built in its place, and not older than its sources."""
    try:
        built = (extension.folder / extension.file).stat().st_mtime_ns
    except OSError:
        return False
    sources = (extension.folder / name for name in (*extension.sources, *extension.headers))
    return all(source.stat().st_mtime_ns <= built for source in sources)


def python_headers() -> Path:
    """The folder of Python.h. Raises `NotBuilt`."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise NotBuilt(
            f"Python's headers are missing from {include}: apt-get install python3-dev, or the like"
        )
    return include


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Run it there. Raises `NotBuilt` with the compiler's last words."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotBuilt(f"the compiler cannot be run: {exc}") from exc
    if done.returncode:
        raise NotBuilt(f"the compiler failed: {done.stderr.strip()[-2000:]}")


def c_compiler() -> str:
    """The command. Raises `NotBuilt`."""
    for command in ("cc", "gcc", "clang"):
        if shutil.which(command) is not None:
            return command
    raise NotBuilt("there is no C compiler: apt-get install gcc, or the like")


if __name__ == "__main__":
    try:
        for each in EXTENSIONS:
            if len(sys.argv) > 1:
                Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
                print(build(each, Path(sys.argv[1]), _SANITIZED))  # noqa: T201  # a script's word
            else:
                print(build(each))  # noqa: T201  # a script's word
    except NotBuilt as error:
        sys.exit(str(error))
