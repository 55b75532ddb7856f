"""The decode stage: rows as they came → what networks take.

Pillow lets go of the interpreter's lock while it decodes and resizes, so threads are enough for large photos
(`decoding_queue` says for which not). Work that is spread over several is handed out in slices of several
rows, since handing over costs about as much as reading a file.
Knows forms, files and pixels; knows no models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpu_worker.errors import RowFault
from gpu_worker.model_files.parity_spec import ParitySpec
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.network import Floats
from gpu_worker.pipeline.buffers import Buffers
from gpu_worker.pipeline.decode import Pixels, decode_picture, upright_size
from gpu_worker.pipeline.decoding_queue import DecodingQueue
from gpu_worker.pipeline.device_jpeg import JpegDecoder, decoded_by, offered
from gpu_worker.pipeline.encoding import encoded
from gpu_worker.pipeline.media import MediaByRow, MediaRoots
from gpu_worker.pipeline.work_time import WorkClock, WorkTimer
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from gpu_worker.wire.protocol import Row, RowError
from gpu_worker.wire.row_groups import rows_in

__all__ = ["Intake", "Piece"]

_SLICE_ROWS = 8
# Where the device decodes: many at once are what it is good at, and it takes one call after the other.
_SLICE_ROWS_ON_DEVICE = 64
_SHOWN_BYTES = 100
_PICTURES = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")  # how a JPEG and a PNG begin

Unwanted = Callable[[], bool]
ReadRow = Callable[[int, Row], None]


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
        "parity",
        "pixels",
        "rows",
        "shapes",
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
        self._lock = threading.Lock()
        self._slices_left = 0

    def expect(self, slices: int) -> None:
        """Sets how many slices will be reported to `slice_done`."""
        self._slices_left = slices

    def took(self, frame: Frame, seconds: float) -> None:
        """Notes that decoding a row for that frame alone took so long."""
        with self._lock:
            self.decoding.note(frame, seconds)

    def slice_done(self, faults: list[RowError], bug: BaseException | None, took_s: float = 0.0) -> bool:
        """Notes the outcome of one slice, and how long its thread took; True for the last one."""
        with self._lock:
            self.decoding.all_s += took_s
            self.faults.extend(faults)
            self.bug = self.bug or bug
            self.decoded_s = time.monotonic()
            self._slices_left -= 1
            return self._slices_left == 0


@dataclass(slots=True)
class _Spent:
    """Of decoding, what a thread took, and had the processor of it; reading files is in neither."""

    took_s: float = 0.0
    worked_s: float = 0.0


class Intake:
    """Owns the input buffers; decodes in the caller's thread, or spread over `threads`. Thread-safe."""

    def __init__(
        self, settings: Settings, threads: Threads, *, pinned: bool, jpegs: JpegDecoder | None = None
    ) -> None:
        self.media = MediaRoots(settings.media_roots)
        self.max_pixels = settings.max_pixels
        self._max_input_bytes = settings.max_input_bytes
        self._queue = DecodingQueue(threads)
        self._slice = threading.local()  # decoding: of the slice that the thread decodes beside others
        self._buffers = Buffers(pinned=pinned)
        self._jpegs = jpegs

    def decode_here(
        self,
        piece: Piece,
        form: str,
        frames: Sequence[Frame],
        unwanted: Unwanted,
        media: MediaRoots | MediaByRow | None = None,
    ) -> None:
        """Fills `piece` for each of `frames`. Once `unwanted()` is true the remaining rows are skipped.

        media: below what paths are read, if not below all that this worker may read.
        """
        piece.expect(1)
        row = self._reader(piece, form, frames, media or self.media)
        self._decode_slice(piece, range(len(piece.rows)), row, unwanted)

    def decode(
        self,
        piece: Piece,
        form: str,
        frames: Sequence[Frame],
        unwanted: Unwanted,
        then: Callable[[], None],
        media: MediaRoots | MediaByRow | None = None,
    ) -> None:
        """As `decode_here`, in all threads at once; then calls `then`, in whichever was last.

        Rows that no network wants as pixels (`frames` is empty) are only looked over, in this thread.
        """
        if not frames:
            self.decode_here(piece, form, frames, unwanted, media)
            then()
            return
        count = len(piece.rows)
        row = self._reader(piece, form, frames, media or self.media)
        if self._jpegs is None:
            step = min(_SLICE_ROWS, max(1, -(-count // self._queue.width)))
        else:
            step = _SLICE_ROWS_ON_DEVICE
        slices = [range(start, min(start + step, count)) for start in range(0, count, step)]
        piece.expect(len(slices))

        def decode_slice(rows: range) -> None:
            spent = self._slice.decoding = _Spent()
            is_last = self._decode_slice(piece, rows, row, unwanted)
            self._queue.took(spent.worked_s, spent.took_s)
            if is_last:
                then()

        self._queue.put(partial(decode_slice, rows) for rows in slices)

    def _decode_slice(self, piece: Piece, rows: range, row: ReadRow, unwanted: Unwanted) -> bool:
        """Whether it was the last slice of its piece."""
        faults: list[RowError] = []
        bug: BaseException | None = None
        began_s = time.monotonic()
        try:
            with piece.timer:
                if isinstance(row, _OnDevice) and not unwanted():
                    row.decode(rows)
                for index in rows:
                    if unwanted():
                        break
                    try:
                        row(index, piece.rows[index])
                    except RowFault as fault:
                        faults.append(RowError(piece.start + index, fault.code, fault.message))
        except BaseException as exc:  # to be raised where the batch is answered
            bug = exc
        return piece.slice_done(faults, bug, time.monotonic() - began_s)

    def release(self, piece: Piece) -> None:
        """Takes back the buffers of a piece that nobody reads or writes any more."""
        for buffer in piece.pixels.values():
            self._buffers.give(buffer)
        piece.pixels = {}

    def _reader(
        self, piece: Piece, form: str, frames: Sequence[Frame], media: MediaRoots | MediaByRow
    ) -> ReadRow:
        """What turns row `index` of the piece into its place in the piece's arrays, or says why it cannot."""
        try:
            return self._reader_into_buffers(piece, form, frames, media)
        except BaseException as exc:  # no memory: to be raised where the batch is answered
            reason = exc

            def refuse(_index: int, _row: Row) -> None:
                raise reason

            return refuse

    def _reader_into_buffers(
        self, piece: Piece, form: str, frames: Sequence[Frame], media: MediaRoots | MediaByRow
    ) -> ReadRow:
        if piece.encoded:
            return lambda index, row: self._read_picture(piece, index, row, media if form == "path" else None)
        if piece.file_ends is not None:
            return lambda index, row: self._read_file(piece, index, row, media if form == "path" else None)
        if not frames:
            return lambda index, row: self._look_over(row, form)
        if form == "tensor":
            piece.shapes = None
            count = len(piece.rows)
            piece.tensors = {
                frame: np.empty((count, 3, frame.height, frame.width), np.float32) for frame in frames
            }
            return lambda index, row: _read_tensor(piece, index, row)
        piece.pixels = {
            frame: self._buffers.take(len(piece.rows), frame.height, frame.width) for frame in frames
        }
        folders: dict[str, str] = {}

        def read(index: int, row: Row) -> bytes:
            mine = media.of(piece.start + index)
            return mine.read(bytes(row), max_bytes=self._max_input_bytes, folders=folders)

        if piece.parity is not None:
            spec = piece.parity
            return lambda index, row: self._read_group(
                piece, spec, index, row, read if form == "path" else _as_it_is
            )
        if self._jpegs is not None:
            return _OnDevice(self, self._jpegs, piece, read if form == "path" else _as_it_is)
        if form == "image":
            return lambda index, row: self.read_image(piece, index, bytes(row))
        return lambda index, row: self.read_image(piece, index, read(index, row))

    def read_image(self, piece: Piece, index: int, data: bytes) -> None:
        """Decodes a row's file into the piece's buffers, on the CPU. Raises `RowFault`."""
        self._check_size(data)
        _note_shape(piece, index, data)
        several = len(piece.pixels) > 1
        spent: _Spent | None = getattr(self._slice, "decoding", None)
        began_s = worked_s = 0.0
        for frame, buffer in piece.pixels.items():
            if spent is not None:
                began_s, worked_s = time.monotonic(), time.thread_time()
            elif several:
                began_s = time.monotonic()
            buffer[index] = decode_picture(data, frame, max_pixels=self.max_pixels)
            if several:
                piece.took(frame, time.monotonic() - began_s)
            if spent is not None:
                spent.worked_s += time.thread_time() - worked_s
                spent.took_s += time.monotonic() - began_s

    def _read_group(
        self,
        piece: Piece,
        spec: ParitySpec,
        index: int,
        group: Row,
        read: Callable[[int, Row], bytes],
    ) -> None:
        """The pictures of a row group become one. Raises `RowFault`."""
        try:
            rows = rows_in(bytes(group), spec.k)
        except ValueError as exc:
            raise RowFault("input_invalid", f"a parity model's row: {exc}") from exc
        files = [self.checked(read(index, row)) for row in rows]
        for frame, buffer in piece.pixels.items():
            pictures = [decode_picture(data, frame, max_pixels=self.max_pixels) for data in files]
            buffer[index] = encoded(pictures, spec.encoder)

    def _read_picture(
        self, piece: Piece, index: int, row: Row, media: MediaRoots | MediaByRow | None
    ) -> None:
        """The row becomes the file at its path; what is no picture goes nowhere."""
        if not isinstance(piece.rows, list):
            piece.rows = list(piece.rows)
        data = bytes(row)
        if media is not None:
            data = media.of(piece.start + index).read(data, max_bytes=self._max_input_bytes)
        self._check_size(data)
        if not data.startswith(_PICTURES):
            raise RowFault("input_undecodable", "the bytes are not a JPEG or PNG image")
        piece.rows[index] = data

    def _read_file(self, piece: Piece, index: int, row: Row, media: MediaRoots | MediaByRow | None) -> None:
        """The row becomes what is read of the file at its path; bytes stay as they came."""
        if media is None:
            self._check_size(row)
            return
        if not isinstance(piece.rows, list):
            piece.rows = list(piece.rows)
        mine = media.of(piece.start + index)
        piece.rows[index] = mine.read(bytes(row), max_bytes=self._max_input_bytes, ends=piece.file_ends)

    def _look_over(self, row: Row, form: str) -> None:
        self._check_size(row)
        if form == "path" and not row:
            raise RowFault("input_invalid", "the path is empty")
        if form != "image":
            try:
                str(row, "utf-8")
            except UnicodeDecodeError as exc:
                shown = bytes(row[:_SHOWN_BYTES])
                raise RowFault("input_invalid", f"the {form} {shown!r} is not UTF-8") from exc

    def checked(self, row: bytes) -> bytes:
        """The row, if it is not too long. Raises `RowFault`."""
        self._check_size(row)
        return row

    def _check_size(self, row: Row) -> None:
        if len(row) > self._max_input_bytes:
            raise RowFault(
                "input_too_large",
                f"the value has {len(row)} bytes, more than the limit of {self._max_input_bytes} bytes",
            )


class _OnDevice:
    """Rows of one piece, decoded on the device slice by slice; called for a row, it has the CPU do the rest.

    read: a row's index, and the row → its file.
    """

    def __init__(
        self, intake: Intake, decoder: JpegDecoder, piece: Piece, read: Callable[[int, Row], bytes]
    ) -> None:
        self._intake = intake
        self._decoder = decoder
        self._piece = piece
        self._read = read
        self._faults: dict[int, RowFault] = {}
        self._left: dict[int, bytes] = {}  # files that the device does not take

    def decode(self, rows: range) -> None:
        """What the device takes of these rows."""
        files: dict[int, bytes] = {}
        for index in rows:
            try:
                files[index] = self._intake.checked(self._read(index, self._piece.rows[index]))
            except RowFault as fault:
                self._faults[index] = fault
        if not all(frame.is_plain for frame in self._piece.pixels):
            self._left.update(files)  # the device does no more than stretch
            return
        for index, data in files.items():
            _note_shape(self._piece, index, data)
        asked = [offered(data, self._intake.max_pixels) for data in files.values()]
        for frame, buffer in self._piece.pixels.items():
            found = decoded_by(self._decoder, asked, frame.height, frame.width)
            for (index, data), pixels in zip(files.items(), found, strict=True):
                if pixels is None:
                    self._left[index] = data
                else:
                    buffer[index] = pixels

    def __call__(self, index: int, row: Row) -> None:
        """Raises `RowFault` for a row at fault."""
        if (fault := self._faults.pop(index, None)) is not None:
            raise fault
        if (data := self._left.pop(index, None)) is not None:
            self._intake.read_image(self._piece, index, data)


def _as_it_is(_index: int, row: Row) -> bytes:
    return bytes(row)


def _note_shape(piece: Piece, index: int, data: bytes) -> None:
    """Where somebody asks for it."""
    if piece.shapes is not None:
        piece.shapes[index] = upright_size(data)


def _read_tensor(piece: Piece, index: int, row: Row) -> None:
    for frame, tensor in piece.tensors.items():
        height, width = frame.height, frame.width
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
