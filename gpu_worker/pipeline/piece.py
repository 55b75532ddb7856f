"""Consecutive rows of one batch on their way through the worker, and what their decoding took."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from gpu_worker.model_files.parity_spec import ParitySpec
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.network import Floats
from gpu_worker.pipeline.decode import Pixels
from gpu_worker.pipeline.recent_rows import RowName
from gpu_worker.pipeline.work_time import WorkClock, WorkTimer
from gpu_worker.wire.protocol import Row, RowError

__all__ = ["Decoding", "Piece"]


class Decoding:
    """What decoding took, in seconds of its threads: in all, and where there are several frames, for each."""

    __slots__ = ("all_s", "by_frame_s")

    def __init__(self) -> None:
        self.all_s = 0.0
        self.by_frame_s: dict[Frame, float] = {}

    def add(self, more: Decoding) -> None:
        """Adds that of other rows."""
        self.all_s += more.all_s
        for frame, took_s in more.by_frame_s.items():
            self.note(frame, took_s)

    def note(self, frame: Frame, took_s: float) -> None:
        """So long was for that frame alone."""
        self.by_frame_s[frame] = self.by_frame_s.get(frame, 0.0) + took_s

    def part_for(self, frame: Frame | None) -> float:
        """The part of it, 0 to 1, that it would have taken for pixels of that frame alone; None: of none."""
        others_s = sum(took_s for other, took_s in self.by_frame_s.items() if other != frame)
        return max(0.0, 1.0 - others_s / self.all_s) if self.all_s > 0 else 1.0


class Piece:
    """Consecutive rows of one batch on their way through the worker.

    start: index of its first row in the batch. pixels, tensors: for each frame asked for, at least as many
    rows as it has; rows at fault hold garbage. shapes: [n, 2], (H, W) of the pictures as they came, upright;
    None where nobody asks (`with_shapes`), or where rows come as tensors. `bug`: what went wrong beyond the
    rows' own faults. `timer`: the time that decoding takes is its batch's.
    """

    __slots__ = (
        "_lock",
        "_slices_left",
        "bug",
        "decoded_s",
        "decoding",
        "encoded",
        "faults",
        "file_ends",
        "names",
        "names_wanted",
        "parity",
        "pixels",
        "rows",
        "shapes",
        "spared",
        "start",
        "tensors",
        "timer",
    )

    def __init__(
        self,
        start: int,
        rows: Sequence[Row],
        timer: WorkTimer | None = None,
        *,
        with_shapes: bool = False,
    ) -> None:
        self.shapes = np.zeros((len(rows), 2), np.int64) if with_shapes else None
        self.start = start
        self.rows = rows
        self.timer = timer or WorkClock().timer()
        self.pixels: dict[Frame, Pixels] = {}
        self.tensors: dict[Frame, Floats] = {}
        self.faults: list[RowError] = []
        self.bug: BaseException | None = None
        self.decoded_s = 0.0  # when its last row was decoded, on the clock of time.monotonic
        self.decoding = Decoding()
        self.encoded = False  # whether its rows become pictures as they are encoded, and no pixels
        self.file_ends: tuple[int, int] | None = None  # of rows that are any files, how much is read
        self.parity: ParitySpec | None = None  # of rows that are groups, how each becomes one picture
        self.names: dict[int, RowName] = {}  # of rows, where they are known again
        self.names_wanted = False  # by others than who decodes
        self.spared: set[int] = set()  # rows that were decoded, or passed by a backbone, before
        self._lock = threading.Lock()
        self._slices_left = 0

    def expect(self, slices: int) -> None:
        """Sets how many slices will be reported to `slice_done`."""
        self._slices_left = slices

    def took(self, frame: Frame, seconds: float) -> None:
        """Notes that decoding a row for that frame alone took so long."""
        with self._lock:
            self.decoding.note(frame, seconds)

    def pixels_spared(self, index: int, made: Sequence[tuple[Frame, float]], *, is_whole: bool) -> None:
        """A row was decoded before. made: what that took, by frame; it counts as if it was done now.

        is_whole: for all frames.
        """
        self.timer.spared(sum(took_s for _, took_s in made))
        with self._lock:
            if is_whole:
                self.spared.add(index)
            for frame, took_s in made:
                self.decoding.all_s += took_s
                self.decoding.note(frame, took_s)

    def passes_spared(self, rows: Sequence[int], took_s: float, part: int) -> None:
        """A backbone passed these rows before, which took so long; it counts as if it did now."""
        self.timer.spared(took_s, part)
        with self._lock:
            self.spared.update(rows)

    def slice_done(self, faults: list[RowError], bug: BaseException | None, took_s: float = 0.0) -> bool:
        """Notes the outcome of one slice, and how long its thread took; True for the last one."""
        with self._lock:
            self.decoding.all_s += took_s
            self.faults.extend(faults)
            self.bug = self.bug or bug
            self.decoded_s = time.monotonic()
            self._slices_left -= 1
            return self._slices_left == 0
