"""The journal file of studies: its lock, and its mending after a crash."""

from __future__ import annotations

import fcntl
import os

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock  # it is public in the documentation only

__all__ = ["open_journal"]


def open_journal(path: str) -> JournalStorage:
    """The journal at `path`, which is made if there is none.

    The half line that a loss of power or a full disk left at its end was never answered for: it is cut off.
    """
    lock = _Lock(f"{path}.lock")
    lock.acquire()
    try:
        _cut_half_line(path)
    finally:
        lock.release()
    return JournalStorage(JournalFileBackend(path, lock_obj=lock))


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
