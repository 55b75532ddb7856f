"""Arrays made of a snapshot, on disk: written once, memory-mapped by every process that trains on them.

    open(key, write) ─ there? ─→ mapped      SNAPSHOT's folder/.arrays/KEY/arrays.json, NAME, NAME, …
                       else write → renamed into place

What is mapped is the kernel's to keep in memory or not; a process holds the rows it works on. The folder is
bounded in bytes: what was opened least lately goes first; what a process that was killed has begun goes after
a day. Knows no texts and no tables.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayStore", "ArrayWriter", "Arrays"]

_MOST_BYTES = 16 << 30  # of one dataset
_TRIES = 3  # another process may throw a folder away before it is opened
_FACTS = "arrays.json"
_COMING = ".coming-"
_ABANDONED_S = 86_400.0  # without a byte more: whoever wrote it was killed

Arrays = Mapping[str, NDArray[Any]]


class ArrayWriter:
    """Appends rows to arrays, by name. All rows of an array have the same type and shape."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._forms: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.facts: dict[str, Any] = {}  # what else is to be known of them; JSON

    def append(self, name: str, rows: NDArray[Any]) -> None:
        """Add [n, …] rows. Raises `OSError`, `ValueError` for rows of another form."""
        form = (rows.dtype.str, rows.shape[1:])
        if self._forms.setdefault(name, form) != form:
            raise ValueError(f"the array {name} has rows of {self._forms[name]}, not of {form}")
        if name not in self._files:
            self._files[name] = open(self._folder / name, "wb", opener=_private)  # noqa: SIM115 (closed in __exit__)
        self._files[name].write(rows.tobytes())

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        if kind is None:
            with open(self._folder / _FACTS, "w", encoding="utf-8", opener=_private) as facts:
                json.dump({"forms": self._forms, "facts": self.facts}, facts)


class ArrayStore:
    """The arrays of the snapshots that lie in one folder, at most `most_bytes` of them, and the newest."""

    def __init__(self, snapshot: str, most_bytes: int = _MOST_BYTES) -> None:
        self._snapshot = Path(snapshot)
        self._folder = self._snapshot.parent / ".arrays"
        self._most_bytes = most_bytes

    def open(self, key: str, write: Callable[[ArrayWriter], None]) -> tuple[Arrays, dict[str, Any]]:
        """The arrays of the snapshot under `key`, and the facts of their writer.

        write: called where they are not there. The arrays are read-only, so that they count for no limit of
        this process's memory. Raises `OSError`, and what `write` raises.
        """
        rows = self._snapshot.stat()  # a snapshot's file is never changed; another one may take its place
        named = hashlib.sha256(f"{rows.st_size} {rows.st_mtime_ns} {key}".encode()).hexdigest()
        place = self._folder / f"{self._snapshot.stem}-{named[:24]}"
        for _ in range(_TRIES):
            if not (place / _FACTS).exists():
                self._make(place, write)
            with contextlib.suppress(FileNotFoundError):
                return _mapped(place)
        raise OSError(f"the arrays {place} were thrown away while they were opened; is the disk too small?")

    def _make(self, place: Path, write: Callable[[ArrayWriter], None]) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        coming = Path(tempfile.mkdtemp(prefix=_COMING, dir=self._folder))
        try:
            with ArrayWriter(coming) as writer:
                write(writer)
            with contextlib.suppress(OSError):  # another process was faster: its arrays are the same
                coming.rename(place)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
        self._make_room(place)

    def _make_room(self, newest: Path) -> None:
        for coming in self._folder.glob(f"{_COMING}*"):
            if time.time() - _written(coming) > _ABANDONED_S:
                shutil.rmtree(coming, ignore_errors=True)
        known = [place for place in self._folder.iterdir() if not place.name.startswith(".")]
        sizes = {place: _size(place) for place in known}
        over = sum(sizes.values()) - self._most_bytes
        for place in sorted(known, key=_opened):
            if over <= 0 or place == newest:
                continue
            # Who has it mapped keeps it: the kernel frees a file's blocks after its last reader.
            shutil.rmtree(place, ignore_errors=True)
            over -= sizes[place]


def _mapped(place: Path) -> tuple[Arrays, dict[str, Any]]:
    os.utime(place)
    stored = json.loads((place / _FACTS).read_text(encoding="utf-8"))
    return {name: _array(place / name, *form) for name, form in stored["forms"].items()}, stored["facts"]


def _array(path: Path, form: str, shape: list[int]) -> NDArray[Any]:
    kind = np.dtype(form)
    row_bytes = kind.itemsize * math.prod(shape)
    rows = path.stat().st_size // row_bytes if row_bytes else 0
    if not rows:  # a file of no bytes cannot be mapped
        return np.zeros((0, *shape), kind)
    return np.asarray(np.memmap(path, kind, mode="r", shape=(rows, *shape)))


def _size(place: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in place.iterdir())
    return 0


def _written(place: Path) -> float:
    """When something was last written there, in Unix time."""
    with contextlib.suppress(OSError):
        return max(path.stat().st_mtime for path in (place, *place.iterdir()))
    return time.time()


def _opened(place: Path) -> float:
    with contextlib.suppress(OSError):
        return place.stat().st_mtime
    return 0.0


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
