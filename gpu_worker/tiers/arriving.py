"""A file's bytes on their way into memory, read by a thread of their own, so that what is here can go on."""

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
    """`read(view, start)` fills `into`, piece by piece, in one of `threads`.

    sha256: what all of it must hash to, for a file that is not trusted; nothing counts as arrived before.
    `over` is called in the end, whatever came of it.
    """

    def __init__(
        self, threads: Threads, read: Read, into: memoryview, sha256: str, over: Callable[[], None]
    ) -> None:
        self._read = read
        self._into = into
        self._sha256 = sha256
        self._over = over
        self._arrived = 0
        self._error: BaseException | None = None
        self._given_up = False
        self._ended = False
        self._changed = threading.Condition()
        self._began_s = 0.0  # 0: not yet
        self.took_s = 0.0
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
        error: BaseException | None = None
        with self._changed:
            self._began_s = time.monotonic()
        try:
            self._read_all()
        except OSError as exc:
            error = Damaged(str(exc))
        except BaseException as exc:  # raised where it is waited for
            error = exc
        with self._changed:
            self.took_s = time.monotonic() - self._began_s
            self._error = error
            self._ended = True
            if error is None:
                self._arrived = len(self._into)
            self._changed.notify_all()
        self._over()

    def _read_all(self) -> None:
        digest = hashlib.sha256() if self._sha256 else None
        for start in range(0, len(self._into), _PIECE_BYTES):
            if self._given_up:
                raise Cancelled("nobody wants it any more")
            piece = self._into[start : start + _PIECE_BYTES]
            self._read(piece, start)
            if digest is not None:
                digest.update(piece)
                continue
            with self._changed:
                self._arrived = start + len(piece)
                self._changed.notify_all()
        if digest is not None and digest.hexdigest() != self._sha256:
            raise Damaged("its data is not what was written")
