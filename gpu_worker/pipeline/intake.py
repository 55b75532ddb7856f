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
from gpu_worker.pipeline.buffers import Buffers
from gpu_worker.pipeline.decode import decode_picture
from gpu_worker.pipeline.decoding_queue import DecodingQueue
from gpu_worker.pipeline.device_jpeg import JpegDecoder, decoded_by, offered
from gpu_worker.pipeline.encoding import encoded
from gpu_worker.pipeline.media import MediaByRow, MediaRoots
from gpu_worker.pipeline.picture_rows import PictureRow, PictureRows, noted_shape
from gpu_worker.pipeline.piece import Piece
from gpu_worker.pipeline.recent_rows import Made, RecentRows
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from gpu_worker.wire.protocol import Row, RowError
from gpu_worker.wire.row_groups import rows_in

__all__ = ["Intake"]

_SLICE_ROWS = 8
# Where the device decodes: many at once are what it is good at, and it takes one call after the other.
_SLICE_ROWS_ON_DEVICE = 64
_SHOWN_BYTES = 100
_PICTURES = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")  # how a JPEG and a PNG begin

Unwanted = Callable[[], bool]
ReadRow = Callable[[int, Row], None]


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
        self.max_input_bytes = settings.max_input_bytes
        self._queue = DecodingQueue(threads)
        self._slice = threading.local()  # decoding: of the slice that the thread decodes beside others
        self._buffers = Buffers(pinned=pinned)
        self._jpegs = jpegs
        self.recent = RecentRows(settings.recent_bytes) if settings.recent_bytes > 0 else None

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
                elif isinstance(row, _LookOver) and row.finds_nothing(piece.rows[rows.start : rows.stop]):
                    rows = range(0)
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
            return _LookOver(self, form)
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
        pictures = PictureRows(
            piece, media if form == "path" else None, self.recent, max_bytes=self.max_input_bytes
        )
        if piece.parity is not None:
            spec = piece.parity
            return lambda index, row: self._read_group(piece, spec, index, row, pictures.file)
        if self._jpegs is not None:
            return _OnDevice(self, self._jpegs, piece, pictures)

        def read_picture(index: int, row: Row) -> None:
            if (coming := pictures.coming(index, row)) is not None:
                self.decode_picture(piece, index, coming, pictures)

        return read_picture

    def decode_picture(self, piece: Piece, index: int, coming: PictureRow, pictures: PictureRows) -> None:
        """Decodes a row's file into the piece's buffers, on the CPU. Raises `RowFault`."""
        data = self.checked(coming.data)
        shape = noted_shape(piece, index, data)
        several = len(piece.pixels) > 1
        spent: _Spent | None = getattr(self._slice, "decoding", None)
        worked_s = 0.0
        for frame in coming.frames:
            began_s = time.monotonic()
            if spent is not None:
                worked_s = time.thread_time()
            pixels = decode_picture(data, frame, max_pixels=self.max_pixels)
            piece.pixels[frame][index] = pixels
            took_s = time.monotonic() - began_s
            if several:
                piece.took(frame, took_s)
            if spent is not None:
                spent.worked_s += time.thread_time() - worked_s
                spent.took_s += took_s
            pictures.decoded(coming, frame, pixels, Made(took_s, shape))

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
            data = media.of(piece.start + index).read(data, max_bytes=self.max_input_bytes)
        self.check_size(data)
        if not data.startswith(_PICTURES):
            raise RowFault("input_undecodable", "the bytes are not a JPEG or PNG image")
        piece.rows[index] = data

    def _read_file(self, piece: Piece, index: int, row: Row, media: MediaRoots | MediaByRow | None) -> None:
        """The row becomes what is read of the file at its path; bytes stay as they came."""
        if media is None:
            self.check_size(row)
            return
        if not isinstance(piece.rows, list):
            piece.rows = list(piece.rows)
        mine = media.of(piece.start + index)
        piece.rows[index] = mine.read(bytes(row), max_bytes=self.max_input_bytes, ends=piece.file_ends)

    def checked(self, row: bytes) -> bytes:
        """The row, if it is not too long. Raises `RowFault`."""
        self.check_size(row)
        return row

    def check_size(self, row: Row) -> None:
        """Raises `RowFault` for a row that is too long."""
        if len(row) > self.max_input_bytes:
            raise RowFault(
                "input_too_large",
                f"the value has {len(row)} bytes, more than the limit of {self.max_input_bytes} bytes",
            )


class _LookOver:
    """Rows that are left as they are; called for one of them, it says what is wrong with it."""

    def __init__(self, intake: Intake, form: str) -> None:
        self._intake = intake
        self._form = form

    def finds_nothing(self, rows: Sequence[Row]) -> bool:
        """Whether all of them are well, in one go: a batch of small rows is computed in no longer a time."""
        if self._form in ("path", "image") or max(map(len, rows), default=0) > self._intake.max_input_bytes:
            return False
        try:
            b"\n".join(rows).decode()  # half a character is none before a line's end
        except UnicodeDecodeError:
            return False
        return True

    def __call__(self, _index: int, row: Row) -> None:
        """Raises `RowFault` for a row at fault."""
        self._intake.check_size(row)
        if self._form == "path" and not row:
            raise RowFault("input_invalid", "the path is empty")
        if self._form != "image":
            try:
                str(row, "utf-8")
            except UnicodeDecodeError as exc:
                shown = bytes(row[:_SHOWN_BYTES])
                raise RowFault("input_invalid", f"the {self._form} {shown!r} is not UTF-8") from exc


class _OnDevice:
    """Rows of one piece, decoded on the device slice by slice; called for a row, the CPU does the rest."""

    def __init__(self, intake: Intake, decoder: JpegDecoder, piece: Piece, pictures: PictureRows) -> None:
        self._intake = intake
        self._decoder = decoder
        self._piece = piece
        self._pictures = pictures
        self._faults: dict[int, RowFault] = {}
        self._left: dict[int, PictureRow] = {}  # files that the device does not take

    def decode(self, rows: range) -> None:
        """What the device takes of these rows."""
        files: dict[int, PictureRow] = {}
        for index in rows:
            try:
                coming = self._pictures.coming(index, self._piece.rows[index])
                if coming is not None:
                    self._intake.checked(coming.data)
                    files[index] = coming
            except RowFault as fault:
                self._faults[index] = fault
        if not all(frame.is_plain for frame in self._piece.pixels):
            self._left.update(files)  # the device does no more than stretch
            return
        shapes = {index: noted_shape(self._piece, index, coming.data) for index, coming in files.items()}
        for frame, buffer in self._piece.pixels.items():
            asked = {index: coming for index, coming in files.items() if frame in coming.frames}
            began_s = time.monotonic()
            offers = [offered(coming.data, self._intake.max_pixels) for coming in asked.values()]
            found = decoded_by(self._decoder, offers, frame.height, frame.width)
            took_s = (time.monotonic() - began_s) / max(1, len(asked))
            for (index, coming), pixels in zip(asked.items(), found, strict=True):
                if pixels is None:
                    self._left[index] = coming
                else:
                    buffer[index] = pixels
                    self._pictures.decoded(coming, frame, pixels, Made(took_s, shapes[index]))

    def __call__(self, index: int, row: Row) -> None:
        """Raises `RowFault` for a row at fault."""
        if (fault := self._faults.pop(index, None)) is not None:
            raise fault
        if (coming := self._left.pop(index, None)) is not None:
            self._intake.decode_picture(self._piece, index, coming, self._pictures)


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
