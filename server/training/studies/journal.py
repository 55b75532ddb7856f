"""The journal file of a job's studies: its locks, its fence, and what is done about lines half written.

    JOURNAL.lock     held while lines are appended
    JOURNAL.master   held by the one master, and the fencing number of the lease by which it is that

A master whose server was paused, and has lost the lease meanwhile, holds its lock still: who comes with a
higher number writes that, and appends of the other are refused from then on.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock  # it is public in the documentation only

from server.errors import LeaseLost, Overloaded

__all__ = ["MasterLock", "open_journal", "read_journal"]


def open_journal(path: str, master: MasterLock | None = None) -> JournalStorage:
    """The journal at `path`, which is made if there is none. Raises `OSError`; `LeaseLost` where `master`,
    by whose right it is written, is it no more.

    The half line that a loss of power or a full disk left at its end was never answered for: it is cut off.
    """
    lock = _Lock(f"{path}.lock")
    lock.acquire()
    try:
        if master is not None:
            master.check()
        _cut_half_line(path)
    finally:
        lock.release()
    return JournalStorage(_Backend(path, lock_obj=lock, master=master))


def read_journal(path: str) -> JournalStorage | None:
    """The journal at `path`, to be read only; None where there is none. Raises `OSError`."""
    return JournalStorage(_Backend(path, lock_obj=_Lock(f"{path}.lock"))) if os.path.exists(path) else None


class MasterLock:
    """The right to write a journal's records: its holder is the one master. It ends with the process."""

    def __init__(self, path: str, fence: int | None = None) -> None:
        """Takes it. Raises `Overloaded` where somebody has it, `LeaseLost` where somebody else had it by a
        later lease, `OSError`.

        fence: the number of the lease by which; None = by the file's lock alone.
        """
        self._held: int | None = os.open(f"{path}.master", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            self._take(path, fence)
        except BaseException:
            self.end()
            raise

    def _take(self, path: str, fence: int | None) -> None:
        assert self._held is not None
        known = _fence_in(self._held)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            if fence is None or fence <= known:
                raise Overloaded(f"somebody trains by {path} already; try again in a moment", 2.0) from exc
        if fence is not None and fence < known:
            raise LeaseLost
        self._fence = known if fence is None else fence
        if self._fence == known:
            return
        # No line is appended meanwhile; a process that was paused while it appended one keeps all waiting.
        lock = _Lock(f"{path}.lock")
        if not lock.acquire_at_once():
            raise Overloaded(f"somebody writes to {path}; try again in a moment", 2.0)
        try:
            os.pwrite(self._held, b"%020d" % self._fence, 0)
            os.fsync(self._held)
        finally:
            lock.release()

    def check(self) -> None:
        """Raises `LeaseLost` where another is the master now; to be asked while the journal is locked."""
        if self._held is None or _fence_in(self._held) > self._fence:
            raise LeaseLost

    def end(self) -> None:
        """Give it up."""
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)


class _Backend(JournalFileBackend):
    """A write that fails leaves nothing of itself: what came after half a line would be lost with it."""

    def __init__(self, path: str, *, lock_obj: BaseJournalFileLock, master: MasterLock | None = None) -> None:
        super().__init__(path, lock_obj=lock_obj)
        self._master = master

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See `JournalFileBackend`. Raises `OSError`, `LeaseLost`, and the journal is as it was."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self._lock.acquire()
        try:
            if self._master is not None:
                self._master.check()
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

    def acquire_at_once(self) -> bool:
        """Whether it was free."""
        held = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(held)
            if isinstance(exc, BlockingIOError):
                return False
            raise
        self._held = held
        return True

    def release(self) -> None:
        """Gives it back."""
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)


def _fence_in(file: int) -> int:
    """The fencing number in a master's file; 0 where none has been there."""
    return int(os.pread(file, 20, 0) or b"0")


def _cut_half_line(journal: str) -> None:
    """Optuna reads past such a line only until the next one is written after it."""
    if not os.path.exists(journal):
        return
    with open(journal, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
