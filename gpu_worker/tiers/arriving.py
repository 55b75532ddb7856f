"""A file's bytes on their way into memory, read by threads of their own, so that what is here can go on."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from gpu_worker.errors import Cancelled
from gpu_worker.networks.network import IsCancelled, check
from gpu_worker.threads import Threads

__all__ = ["Arriving", "Damaged"]

_LOOK_S = 0.01
_PIECE_BYTES = 2 << 20

Read = Callable[[memoryview, int], None]


class Damaged(Exception):
    """What was read is not what was written, or cannot be read."""


class Arriving:
    """`read(view, start)` fills `into`, piece by piece, in all of `threads` at once: a disk wants the next
    request before it has done the last.

    read: may run in several threads. sha256: what all of it must hash to, for a file that is not trusted: one
    thread reads it, and nothing counts as arrived before. `over` is called once, whatever came of it.
    """

    def __init__(
        self, threads: Threads, read: Read, into: memoryview, sha256: str, over: Callable[[], None]
    ) -> None:
        self._read = read
        self._into = into
        self._sha256 = sha256
        self._over = over
        self._next = 0  # where the next piece begins that nobody reads yet
        self._arrived = 0  # bytes without a gap
        self._beyond: dict[int, int] = {}  # start → end of pieces that are here, after a gap
        self._readers = 0
        self._error: BaseException | None = None
        self._given_up = False
        self._ended = False
        self._changed = threading.Condition()
        self._began_s = 0.0  # 0: not yet
        self.took_s = 0.0
        for _ in range(1 if sha256 else threads.count):
            threads.put(self._run)

    def until(self, nbytes: int, is_cancelled: IsCancelled) -> None:
        """Waits for the first `nbytes`. Raises `Damaged`, `Cancelled`."""
        with self._changed:
            while self._arrived < nbytes or (nbytes >= len(self._into) and not self._ended):
                if self._error is not None:
                    raise self._error
                check(is_cancelled)
                self._changed.wait(_LOOK_S)

    def until_worth(self, bytes_per_s: float, is_cancelled: IsCancelled) -> None:
        """Waits until whoever moves it at `bytes_per_s` from now on need not wait on the way; 0: for all.

        Raises as `until` does.
        """
        if bytes_per_s <= 0:
            self.until(len(self._into), is_cancelled)
            return
        moving_s = len(self._into) / bytes_per_s
        with self._changed:
            while not self._ended and self._left_s() > 0.9 * moving_s:
                if self._error is not None:
                    raise self._error
                check(is_cancelled)
                self._changed.wait(_LOOK_S)

    def give_up(self) -> None:
        """Nobody wants the rest; returns once nothing is read any more."""
        with self._changed:
            self._given_up = True
            self._changed.wait_for(lambda: self._ended or not self._began_s)

    def _left_s(self) -> float:
        if not self._arrived:
            return float("inf")
        return (time.monotonic() - self._began_s) * (len(self._into) / self._arrived - 1.0)

    def _run(self) -> None:
        """One reader; the last one to be done ends it all."""
        with self._changed:
            if self._ended:
                return
            self._began_s = self._began_s or time.monotonic()
            self._readers += 1
        error: BaseException | None = None
        try:
            if self._sha256:
                self._read_and_hash()
            else:
                self._read_pieces()
        except OSError as exc:
            error = Damaged(str(exc))
        except BaseException as exc:  # raised where it is waited for
            error = exc
        with self._changed:
            self._error = self._error or error
            self._readers -= 1
            if self._readers:
                return
            self.took_s = time.monotonic() - self._began_s
            self._ended = True
            self._changed.notify_all()
        self._over()

    def _read_pieces(self) -> None:
        while (piece := self._take()) is not None:
            start, end = piece
            self._read(self._into[start:end], start)
            self._here(start, end)

    def _read_and_hash(self) -> None:
        digest = hashlib.sha256()
        while (piece := self._take()) is not None:
            start, end = piece
            self._read(self._into[start:end], start)
            digest.update(self._into[start:end])
        if digest.hexdigest() != self._sha256:
            raise Damaged("its data is not what was written")
        self._here(0, len(self._into))

    def _take(self) -> tuple[int, int] | None:
        """The next piece; None where there is none, or another reader has failed. Raises `Cancelled`."""
        with self._changed:
            start, end = self._next, min(self._next + _PIECE_BYTES, len(self._into))
            if start == end or self._error is not None:
                return None
            if self._given_up:
                raise Cancelled("nobody wants it any more")
            self._next = end
        return start, end

    def _here(self, start: int, end: int) -> None:
        with self._changed:
            self._beyond[start] = end
            while (reached := self._beyond.pop(self._arrived, None)) is not None:
                self._arrived = reached
            self._changed.notify_all()
