"""The journal file of a job's studies: its locks, and what is done about lines that are half written."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock  # it is public in the documentation only

from server.errors import ServiceError

__all__ = ["MasterLock", "open_journal", "read_journal"]


def open_journal(path: str) -> JournalStorage:
    """The journal at `path`, which is made if there is none. Raises `OSError`.

    The half line that a loss of power or a full disk left at its end was never answered for: it is cut off.
    """
    lock = _Lock(f"{path}.lock")
    lock.acquire()
    try:
        _cut_half_line(path)
    finally:
        lock.release()
    return JournalStorage(_Backend(path, lock_obj=lock))


def read_journal(path: str) -> JournalStorage | None:
    """The journal at `path`, to be read only; None where there is none. Raises `OSError`."""
    return JournalStorage(_Backend(path, lock_obj=_Lock(f"{path}.lock"))) if os.path.exists(path) else None


class MasterLock:
    """The right to write a journal's records: its holder is the one master. It ends with the process."""

    def __init__(self, path: str) -> None:
        """Takes it. Raises `ServiceError` where somebody has it, `OSError`."""
        self._held: int | None = os.open(f"{path}.master", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self.end()
            if isinstance(exc, BlockingIOError):
                raise ServiceError(
                    f"somebody trains by {path} already; one server at a time can use a home folder"
                ) from exc
            raise

    def end(self) -> None:
        """Give it up."""
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)


class _Backend(JournalFileBackend):
    """A write that fails leaves nothing of itself: what came after half a line would be lost with it."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See `JournalFileBackend`. Raises `OSError`, and the journal is as it was."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self._lock.acquire()
        try:
            with open(self._file_path, "ab", buffering=0) as file:
                before = os.fstat(file.fileno()).st_size
                try:
                    written = 0
                    while written < len(lines):
                        written += file.write(lines[written:])
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
        finally:
            self._lock.release()


class _Lock(BaseJournalFileLock):
    """The kernel's lock on a file. It ends with its process; those of Optuna, left by a process that was
    killed, keep the next one waiting for half a minute.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: int | None = None

    def acquire(self) -> bool:
        """Waits for the lock."""
        held = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
        except BaseException:
            os.close(held)
            raise
        self._held = held
        return True

    def release(self) -> None:
        """Gives it back."""
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)


def _cut_half_line(journal: str) -> None:
    """Optuna reads past such a line only until the next one is written after it."""
    if not os.path.exists(journal):
        return
    with open(journal, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
