"""Rows that are pictures, before they are decoded: read where they are files, and looked for among those that
were decoded a moment ago.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline.decode import Pixels, upright_size
from gpu_worker.pipeline.file_stamp import stamp_of
from gpu_worker.pipeline.media import MediaByRow, MediaRoots
from gpu_worker.pipeline.piece import Piece
from gpu_worker.pipeline.recent_rows import Made, RecentRows, RowName, name_of
from gpu_worker.wire.protocol import Row

__all__ = ["PictureRow", "PictureRows", "noted_shape"]


@dataclass(slots=True)
class PictureRow:
    """A row's file before it is decoded. name: what it is kept by; None: it is not. frames: to decode."""

    data: bytes
    name: RowName | None
    frames: Collection[Frame]


class PictureRows:
    """The pictures of one piece: of bytes, or of files below `media`; and of what was decoded before."""

    def __init__(
        self,
        piece: Piece,
        media: MediaRoots | MediaByRow | None,
        recent: RecentRows | None,
        *,
        max_bytes: int,
    ) -> None:
        self._piece = piece
        self._media = media
        self._max_bytes = max_bytes
        self._offered = recent
        self._number = {} if recent is None else {frame: recent.number(frame) for frame in piece.pixels}
        # Where one of the frames is decoded as soon as it is found, the file is read anyway.
        self._looks = recent is not None and all(map(recent.is_worth_it, self._number.values()))
        self._recent = recent if self._looks or piece.names_wanted else None
        self._folders: dict[str, str] = {}
        self._now_ns = time.time_ns()  # before any file is looked at: what changes later has another stamp

    def file(self, index: int, row: Row) -> bytes:
        """The row's file. Raises `RowFault`."""
        if self._media is None:
            return bytes(row)
        mine = self._media.of(self._piece.start + index)
        return mine.read(bytes(row), max_bytes=self._max_bytes, folders=self._folders)

    def coming(self, index: int, row: Row) -> PictureRow | None:
        """What is to be decoded; None where its place is filled, as it was before. Raises `RowFault`."""
        piece = self._piece
        frames: Collection[Frame] = piece.pixels
        recent = self._recent
        if recent is None:
            return PictureRow(self.file(index, row), None, frames)
        if self._media is None:
            name = piece.names[index] = name_of(bytes(row))
            frames = self._missing(recent, index, name)
            return PictureRow(name.data, name, frames) if frames else None

        def is_known(found: os.stat_result) -> bool:
            nonlocal frames
            if stamp := stamp_of(found, self._now_ns):
                name = piece.names[index] = RowName(stamp)
                frames = self._missing(recent, index, name)
            return not frames

        mine = self._media.of(piece.start + index)
        data = mine.read_unless(bytes(row), is_known, max_bytes=self._max_bytes, folders=self._folders)
        return None if data is None else PictureRow(data, piece.names.get(index), frames)

    def decoded(self, coming: PictureRow, frame: Frame, pixels: Pixels, made: Made) -> None:
        """Offers what was decoded to who is asked of the same picture next."""
        if (recent := self._offered) is not None:
            recent.learn(self._number[frame], made.took_s)
            if coming.name is not None:
                recent.keep(coming.name, self._number[frame], pixels, made)

    def _missing(self, recent: RecentRows, index: int, name: RowName) -> Collection[Frame]:
        """The frames for which a row is to be decoded; the others are filled."""
        piece = self._piece
        if not self._looks:
            return piece.pixels
        missing: list[Frame] = []
        spared: list[tuple[Frame, float]] = []
        for frame, buffer in piece.pixels.items():
            found = recent.find(name, self._number[frame], buffer[index], with_shape=piece.shapes is not None)
            if found is None:
                missing.append(frame)
                continue
            if piece.shapes is not None and found.shape is not None:
                piece.shapes[index] = found.shape
            spared.append((frame, found.took_s))
        if spared:
            piece.pixels_spared(index, spared, is_whole=not missing)
        return missing


def noted_shape(piece: Piece, index: int, data: bytes) -> tuple[int, int] | None:
    """(H, W) of the row's picture, also among the piece's shapes, where somebody asks for them."""
    if piece.shapes is None:
        return None
    shape = upright_size(data)
    piece.shapes[index] = shape
    return shape
