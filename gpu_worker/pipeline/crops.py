"""Pieces of pictures: each picture is read and decoded once, and its boxes are cut out of it.

The pieces are PNG, so that nothing is lost on their way to another model, whatever size that wants.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol

from PIL import Image

from gpu_worker.errors import BadRequest, Cancelled, RowFault
from gpu_worker.pipeline.decode import decode_whole
from gpu_worker.pipeline.media import MediaByRow, MediaRoots
from gpu_worker.wire.protocol import Crop, Cropped, RowError

__all__ = ["MOST_BYTES", "Cropping", "crops_in", "crops_of", "grown"]

MOST_BYTES = 64 << 20  # of the pieces of one reply, unless they are of one picture

_LOOK_S = 0.05

Corners = tuple[int, int, int, int]


class Cutter(Protocol):
    """An engine."""

    def crop(self, asked: Crop, over: Callable[[Cropped | Exception], object]) -> Cropping:
        """Sets pictures on their way to be cut up."""
        ...


def grown(box: Sequence[float], margin: float, width: int, height: int) -> Corners:
    """A box by `margin` of its size larger to each side, in whole pixels, within a picture of that size.

    At least one pixel. Raises `BadRequest` for what is no box.
    """
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise BadRequest(f"{list(box)[:8]!r} is no box: it has x0, y0, x1, y1")
    x0, y0, x1, y1 = box
    across, down = margin * (x1 - x0), margin * (y1 - y0)
    left = min(max(0, math.floor(x0 - across)), width - 1)
    upper = min(max(0, math.floor(y0 - down)), height - 1)
    right = min(max(left + 1, math.ceil(x1 + across)), width)
    lower = min(max(upper + 1, math.ceil(y1 + down)), height)
    return left, upper, right, lower


def crops_of(data: bytes, boxes: Sequence[Sequence[float]], margin: float, *, max_pixels: int) -> list[bytes]:
    """The pieces of an encoded picture, as PNG, in the order of the boxes; together of as many pixels as a
    picture may have.

    Raises `RowFault`, `BadRequest`.
    """
    if not boxes:
        return []
    picture = decode_whole(data, max_pixels=max_pixels)
    corners = [grown(box, margin, *picture.size) for box in boxes]
    pixels = sum((right - left) * (lower - upper) for left, upper, right, lower in corners)
    if pixels > max_pixels:
        raise RowFault(
            "input_too_large",
            f"its {len(boxes)} boxes hold {pixels} pixels; the limit is {max_pixels} in all",
        )
    return [_png(picture.crop(each)) for each in corners]


class Cropping:
    """One request under way. `over` is called once, in the thread of the last picture, with what came of it.

    Once the pieces are over `MOST_BYTES` no more pictures are cut: they are for another request.

    media: below what paths are read · read_bytes: the most of a file.
    """

    def __init__(
        self,
        asked: Crop,
        media: MediaRoots | MediaByRow,
        *,
        max_pixels: int,
        max_bytes: int,
        over: Callable[[Cropped | Exception], object],
    ) -> None:
        if asked.form not in ("path", "image"):
            raise BadRequest(
                f"pieces are cut out of pictures by path or by their bytes, not of {asked.form!r}"
            )
        if len(asked.boxes) != len(asked.rows) or not 0 <= asked.margin <= 10:
            raise BadRequest("a request to crop has a list of boxes for each row, and a margin from 0 to 10")
        self._asked = asked
        self._media = media
        self._max_pixels = max_pixels
        self._max_bytes = max_bytes
        self._over = over
        self._ends_s = time.monotonic() + asked.patience_s if asked.patience_s else math.inf
        self._found: list[list[bytes]] = [[] for _ in asked.rows]
        self._errors: list[RowError] = []
        self._later: list[int] = []
        self._failure: Exception | None = None
        self._nbytes = 0
        self._work_s = 0.0
        self._left = len(asked.rows)
        self._lock = threading.Lock()

    @property
    def id(self) -> int:
        """The request's."""
        return self._asked.id

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self.fail(Cancelled("the request was cancelled"))

    def fail(self, error: Exception) -> None:
        """The pictures that are left are skipped; the first failure counts."""
        with self._lock:
            self._failure = self._failure or error

    def begin(self, put: Callable[[Callable[[], object]], object]) -> None:
        """Hands each picture to `put`."""
        if not self._asked.rows:
            self._over(Cropped(self.id, [], [], []))
            return
        for row in range(len(self._asked.rows)):
            put(lambda row=row: self._cut(row))  # type: ignore[misc]  # bound at once

    def _cut(self, row: int) -> None:
        began_s = time.thread_time()
        try:
            if self._failure is None and time.monotonic() > self._ends_s:
                self.cancel()
            if self._later and self._asked.boxes[row]:
                self._put_off(row)
            elif self._failure is None:
                self._keep(row, self._pieces(row))
        except RowFault as fault:
            with self._lock:
                self._errors.append(RowError(row, fault.code, fault.message))
        except Exception as exc:
            self.fail(exc)
        self._done(time.thread_time() - began_s)

    def _pieces(self, row: int) -> list[bytes]:
        data, boxes = self._asked.rows[row], self._asked.boxes[row]
        if boxes and self._asked.form == "path":
            data = self._media.of(row).read(data, max_bytes=self._max_bytes)
        return crops_of(data, boxes, self._asked.margin, max_pixels=self._max_pixels)

    def _keep(self, row: int, pieces: list[bytes]) -> None:
        nbytes = sum(map(len, pieces))
        with self._lock:
            if not min(nbytes, self._nbytes) or self._nbytes + nbytes <= MOST_BYTES:
                self._found[row] = pieces
                self._nbytes += nbytes
                return
        self._put_off(row)

    def _put_off(self, row: int) -> None:
        with self._lock:
            self._later.append(row)

    def _done(self, took_s: float) -> None:
        with self._lock:
            self._work_s += took_s
            self._left -= 1
            if self._left:
                return
        if self._failure is not None:
            self._over(self._failure)
            return
        crops = [piece for pieces in self._found for piece in pieces]
        counts = [len(pieces) for pieces in self._found]
        errors = [asdict(error) for error in sorted(self._errors, key=lambda each: each.index)]
        self._over(Cropped(self.id, crops, counts, errors, self._work_s, sorted(self._later)))


def crops_in(
    engine: Cutter, asked: Crop, cancelled: Callable[[], bool]
) -> tuple[list[list[bytes]], list[RowError], list[int]]:
    """The pieces of each row, the rows at fault, and those that are to be asked for again; `cancelled` is
    called in this thread every 50 ms.

    Raises `Cancelled` once it says so, whatever it raises, and what the request as a whole fails with.
    """
    there = threading.Event()
    outcomes: list[Cropped | Exception] = []

    def over(outcome: Cropped | Exception) -> None:
        outcomes.append(outcome)
        there.set()

    cropping = engine.crop(asked, over)
    try:
        while not there.wait(_LOOK_S):
            if cancelled():
                raise Cancelled("the request was cancelled")
    finally:
        cropping.cancel()
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    pieces = iter(outcome.crops)
    by_row = [[next(pieces) for _ in range(count)] for count in outcome.counts]
    return by_row, [RowError(**told) for told in outcome.errors], outcome.later


def _png(piece: Image.Image) -> bytes:
    file = io.BytesIO()
    piece.save(file, "PNG", compress_level=1)
    return file.getvalue()
