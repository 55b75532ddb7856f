"""The audit trail as files: a line of JSON for each entry, rotated by size. Blocking.

Several servers may share a home: a line is written at once, and who rotates has the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

from server.access.audit_entry import AuditEntry

__all__ = ["AuditFile"]

_MOST_BYTES = 16 << 20
_FILES = 8


class AuditFile:
    """`audit.jsonl` and, older, `audit.jsonl.1` to `.7`, in a folder that is its owner's alone."""

    def __init__(self, folder: Path, *, most_bytes: int = _MOST_BYTES, files: int = _FILES) -> None:
        self._path = folder / "audit.jsonl"
        self._most_bytes = most_bytes
        self._files = files

    def append(self, entries: Iterable[AuditEntry]) -> None:
        """Add lines; they are on the disk when it returns. Raises OSError."""
        text = "".join(json.dumps(entry.to_json(), separators=(",", ":")) + "\n" for entry in entries)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._path.parent / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._size() + len(text) > self._most_bytes:
                self._rotate()
            before = self._size()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                with os.fdopen(descriptor, "w") as out:
                    out.write(text)
                    out.flush()
                    os.fsync(out.fileno())
            except OSError:
                # Half a line would spoil the next one.
                os.truncate(self._path, before)
                raise

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _rotate(self) -> None:
        for number in range(self._files - 2, -1, -1):
            old = self._path if number == 0 else self._numbered(number)
            if old.exists():
                old.replace(self._numbered(number + 1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
