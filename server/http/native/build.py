"""Compiles the extension module, where a compiler and Python's headers are. Standard library only.

Run as a script it builds the module in its place; with a folder, there, so that it watches its memory and
fails to get some when told to. A package's build calls `build`, and goes on without it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MODULE", "NotBuilt", "build", "is_current"]

HERE = Path(__file__).parent
MODULE = f"_front{sysconfig.get_config_var('EXT_SUFFIX')}"
_SOURCES = ("front.c", "connection.c", "recogniser.c")
_HEADERS = ("connection.h", "recogniser.h")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_SANITIZED = (
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-DFRONT_FAULTS",
)
_TIMEOUT_S = 300.0


class NotBuilt(Exception):
    """What is missing, or the compiler's last words."""


def build(folder: Path = HERE, more_flags: Sequence[str] = ()) -> Path:
    """Compile the module into `folder`; returns its file, which is there whole or not at all.

    Raises `NotBuilt`.
    """
    if not sys.platform.startswith("linux"):
        raise NotBuilt("the native front runs on Linux alone: it is made on epoll")
    folder = folder.resolve()
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise NotBuilt(
            f"Python's headers are missing from {include}: apt-get install python3-dev, or the like"
        )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".front-") as name:
        made = Path(name) / MODULE
        command = [_compiler(), *_FLAGS, *more_flags, f"-I{include}", *_SOURCES, "-o", str(made)]
        try:
            done = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise NotBuilt(f"the compiler cannot be run: {exc}") from exc
        if done.returncode:
            raise NotBuilt(f"the compiler failed: {done.stderr.strip()[-2000:]}")
        made.replace(folder / MODULE)
    return folder / MODULE


def is_current(folder: Path = HERE) -> bool:
    """Whether the module in `folder` is not older than its sources."""
    try:
        built = (folder / MODULE).stat().st_mtime_ns
    except OSError:
        return False
    return all((HERE / name).stat().st_mtime_ns <= built for name in (*_SOURCES, *_HEADERS))


def _compiler() -> str:
    for command in ("cc", "gcc", "clang"):
        if shutil.which(command) is not None:
            return command
    raise NotBuilt("there is no C compiler: apt-get install gcc, or the like")


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
            print(build(Path(sys.argv[1]), _SANITIZED))  # noqa: T201  # a script's word
        else:
            print(build())  # noqa: T201  # a script's word
    except NotBuilt as error:
        sys.exit(str(error))
