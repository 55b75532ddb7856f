"""The decode stage: rows as they came → what networks take, in a pool of threads.

Pillow lets go of the interpreter's lock while it decodes and resizes, so threads are enough. Work is
handed out in slices of several rows, since handing over costs about as much as reading a file.
Knows forms, files and pixels; knows no models.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from gpu_worker.buffers import Buffers
from gpu_worker.decode import Pixels, decode_image
from gpu_worker.errors import RowFault
from gpu_worker.media import MediaRoots
from gpu_worker.network import Floats
from gpu_worker.protocol import RowError
from gpu_worker.settings import Settings

__all__ = ["Intake", "Piece"]

_SLICE_ROWS = 8
_ENCODED = frozenset(("path", "image"))
_UTF8 = frozenset(("path", "text"))

Size = tuple[int, int]


@dataclass(slots=True, eq=False)
class Piece:
    """Consecutive rows of one batch on their way through the decode stage.

    start: index of its first row in the batch. pixels, tensors: filled for each size asked for; rows at
    fault hold garbage. faults: complete once every future of `pending` is done.
    """

    start: int
    rows: Sequence[bytes]
    pixels: dict[Size, Pixels] = field(default_factory=dict)
    tensors: dict[Size, Floats] = field(default_factory=dict)
    faults: list[RowError] = field(default_factory=list)
    pending: list[Future[None]] = field(default_factory=list)
    decoded_s: float = 0.0  # on the clock of time.monotonic
    abandoned: bool = False


class Intake:
    """Owns the decode threads and the input buffers. Thread-safe."""

    def __init__(self, settings: Settings, *, threads: int, pinned: bool) -> None:
        self._media = MediaRoots(settings.media_roots)
        self._max_pixels = settings.max_pixels
        self._max_input_bytes = settings.max_input_bytes
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "decode", initializer=_leave_signals_to_others)
        self._buffers = Buffers(pinned=pinned)

    def start(self) -> None:
        """Starts all threads at once, so that each inherits the caller's signal mask."""
        together = threading.Barrier(self._threads + 1)
        for _ in range(self._threads):
            self._pool.submit(together.wait)
        together.wait()

    def close(self) -> None:
        """Drops what waits and ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, form: str, rows: Sequence[bytes], start: int, sizes: Sequence[Size]) -> Piece:
        """Starts decoding `rows`, the batch's rows from `start` on, to each of `sizes` (H, W)."""
        piece = Piece(start, rows)
        folders: dict[str, str] = {}
        one: Callable[[Piece, int], None]
        if form == "tensor":
            piece.tensors = {(h, w): np.empty((len(rows), 3, h, w), np.float32) for h, w in sizes}
            one = self._tensor_row
        elif form in _ENCODED and sizes:
            piece.pixels = {(h, w): self._buffers.take(len(rows), h, w) for h, w in sizes}

            def one(piece: Piece, index: int) -> None:
                self._image_row(piece, index, form, folders)
        else:

            def one(piece: Piece, index: int) -> None:
                self._raw_row(piece, index, form)

            self._slice(piece, 0, len(rows), one)
            return piece
        step = min(_SLICE_ROWS, max(1, -(-len(rows) // self._threads)))
        for low in range(0, len(rows), step):
            high = min(low + step, len(rows))
            piece.pending.append(self._pool.submit(self._slice, piece, low, high, one))
        return piece

    def release(self, piece: Piece) -> None:
        """Takes the piece's buffers back; what still decodes stops at its next row."""
        piece.abandoned = True
        for future in piece.pending:
            future.cancel()
        # A slice that runs on still writes: its buffers are then left to the garbage collector.
        if all(future.done() for future in piece.pending):
            for buffer in piece.pixels.values():
                self._buffers.give(buffer)
        piece.pixels = {}

    def _slice(self, piece: Piece, low: int, high: int, one: Callable[[Piece, int], None]) -> None:
        for index in range(low, high):
            if piece.abandoned:
                return
            try:
                one(piece, index)
            except RowFault as fault:
                piece.faults.append(RowError(piece.start + index, fault.code, fault.message))
        piece.decoded_s = time.monotonic()

    def _image_row(self, piece: Piece, index: int, form: str, folders: dict[str, str]) -> None:
        row = piece.rows[index]
        if form == "path":
            row = self._media.read(row, max_bytes=self._max_input_bytes, folders=folders)
        else:
            self._check_size(row)
        for (height, width), buffer in piece.pixels.items():
            buffer[index] = decode_image(row, height, width, max_pixels=self._max_pixels)

    def _tensor_row(self, piece: Piece, index: int) -> None:
        row = piece.rows[index]
        for (height, width), tensor in piece.tensors.items():
            expected = 4 * 3 * height * width
            if len(row) != expected:
                raise RowFault(
                    "input_invalid",
                    f"a tensor row has {len(row)} bytes; float32 [3, {height}, {width}] has {expected}",
                )
            values = np.frombuffer(row, "<f4")
            if not np.isfinite(values).all():
                raise RowFault("input_invalid", "a tensor row holds values that are not finite numbers")
            tensor[index] = values.reshape(3, height, width)

    def _raw_row(self, piece: Piece, index: int, form: str) -> None:
        row = piece.rows[index]
        self._check_size(row)
        if form == "path" and not row:
            raise RowFault("input_invalid", "the path is empty")
        if form in _UTF8:
            try:
                row.decode()
            except UnicodeDecodeError as exc:
                raise RowFault("input_invalid", f"the {form} {row[:100]!r} is not UTF-8") from exc

    def _check_size(self, row: bytes) -> None:
        if len(row) > self._max_input_bytes:
            raise RowFault(
                "input_too_large",
                f"the value has {len(row)} bytes, more than the limit of {self._max_input_bytes} bytes",
            )


def _leave_signals_to_others() -> None:
    """Signals are for the process's main thread: inside a database backend, for the database."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
