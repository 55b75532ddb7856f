"""Photos that a worker is taught by and does not see: read here, sent as it asks for them, piece by piece.

    Inspect, TrainEpoch, Evaluate, MakeVariant ─→ worker ─ WantPiece(is_picture) ─→ named by a row? below the
    media roots? ─→ FilePiece with the file's SHA-256, or with the very error that a row has at home

It may have what a row of such a message names, or a row of its snapshot, while that message is under way.
What it has already is not sent again: it says the hash of it. Of one file no more than a piece is sent at a
time, and of one worker only some are under way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.pipeline.media import MediaRoots, read_piece
from gpu_worker.wire.protocol import (
    Evaluate,
    FilePiece,
    Inspect,
    MakeVariant,
    Message,
    TrainEpoch,
    WantPiece,
)

__all__ = ["TAUGHT_BY_ROWS", "OfferedPictures", "PictureFiles"]

TAUGHT_BY_ROWS = Inspect | TrainEpoch | Evaluate | MakeVariant
"""Messages whose rows may name photos."""

_THREADS = 4
_MOST_BYTES = 1 << 20  # of a piece
_MOST_UNDER_WAY = 16  # pieces of one worker, which asks for four at a time
_MOST_SNAPSHOTS = 8
_AT_A_TIME = 4_096  # rows


class PictureFiles:
    """Reads files below `media_roots`, of at most `max_bytes` each, in threads of its own.

    Those of all workers: a drive that hangs keeps no other file of the server waiting.
    """

    def __init__(self, media_roots: Sequence[str], max_bytes: int) -> None:
        self._media = MediaRoots(media_roots)
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(_THREADS, "pictures")
        self._named: dict[tuple[str, int, int], _Named] = {}
        self._lock = threading.Lock()

    def read(self, want: WantPiece, offer: _Offer) -> asyncio.Future[FilePiece]:
        """Called on the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._threads, self._piece, want, offer)

    def close(self) -> None:
        """Stop. A thread that hangs is left to itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ── in a thread ─────────────────────────────────────────────────────────────────────────────────────

    def _piece(self, want: WantPiece, offer: _Offer) -> FilePiece:
        try:
            if want.file not in self._names(offer):
                return _refused(want, f"no row that it is asked about names {want.file[:100]!r}")
            media = self._media if offer.media_roots is None else self._media.only(offer.media_roots)
            return read_piece(media, want, max_bytes=self._max_bytes)
        except (OSError, pa.ArrowException) as exc:
            return _refused(want, f"the rows of {offer.snapshot} cannot be read: {exc}")

    def _names(self, offer: _Offer) -> Container[str]:
        if not offer.snapshot:
            return offer.rows
        state = Path(offer.snapshot).stat()
        key = (offer.snapshot, state.st_size, state.st_mtime_ns)
        with self._lock:
            named = self._named.pop(key, None) or _Named(offer.snapshot)
            self._named[key] = named  # the last of them was asked for last
            for other in list(self._named)[:-_MOST_SNAPSHOTS]:
                del self._named[other]
        return named


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one message names. media_roots: beside the server's own, below which it lies; None for none."""

    snapshot: str = ""
    rows: frozenset[str] = frozenset()
    media_roots: Sequence[str] | None = None


class OfferedPictures:
    """Those of one worker. Its methods are called on the event loop."""

    def __init__(self, files: PictureFiles) -> None:
        self._files = files
        self._offers: dict[int, _Offer] = {}  # by message that is not answered
        self._under_way = 0

    def begun(self, message: TAUGHT_BY_ROWS) -> None:
        """It was sent, under its id."""
        self._offers[message.id] = _offer(message)

    def over(self, message_id: int) -> None:
        """It is answered."""
        self._offers.pop(message_id, None)

    def wanted(self, want: WantPiece, tell: Callable[[Message], None]) -> None:
        """Have `tell` send it, soon; or why it cannot be had."""
        offer = self._offers.get(want.target)
        if offer is None:
            tell(_refused(want, "nothing is under way that is taught by it"))
            return
        if self._under_way >= _MOST_UNDER_WAY:
            tell(_refused(want, f"{_MOST_UNDER_WAY} pieces of photos are on their way already"))
            return
        if want.at < 0 or not 0 < want.nbytes <= _MOST_BYTES:
            tell(_refused(want, f"there is no such piece of {want.file[:100]!r}"))
            return
        self._under_way += 1

        def was_read(reading: asyncio.Future[FilePiece]) -> None:
            self._under_way -= 1
            if not reading.cancelled():
                tell(reading.result())

        self._files.read(want, offer).add_done_callback(was_read)


def _offer(message: TAUGHT_BY_ROWS) -> _Offer:
    if isinstance(message, Inspect):
        rows = frozenset(row.decode("utf-8", "surrogateescape") for row in message.rows)
        return _Offer(rows=rows, media_roots=message.media_roots)
    return _Offer(message.snapshot)


def _refused(want: WantPiece, reason: str) -> FilePiece:
    return FilePiece(want.id, [b""], 0, reason)


@dataclass(slots=True)
class _Named:
    """Which inputs a snapshot has, at 8 bytes each: by Python's hash of texts, keyed anew in each process.

    They are read at the first question. Raises `OSError`, `pa.ArrowException` then.
    """

    snapshot: str
    _hashes: NDArray[np.int64] | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def __contains__(self, name: object) -> bool:
        with self._reading:
            if self._hashes is None:
                self._hashes = _sorted_hashes(self.snapshot)
        sought = np.int64(hash(name))
        place = int(np.searchsorted(self._hashes, sought))
        return place < len(self._hashes) and bool(self._hashes[place] == sought)


def _sorted_hashes(snapshot: str) -> NDArray[np.int64]:
    with pq.ParquetFile(snapshot) as file:
        parts = [
            np.fromiter(map(hash, batch.column(0).to_pylist()), np.int64, len(batch))
            for batch in file.iter_batches(_AT_A_TIME, columns=["input"])
        ]
    hashes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    hashes.sort()
    return hashes
