"""An encoded image, looked over before anything decodes it: which bytes to keep, and which way is up.

A JPEG is a row of segments, a PNG a row of chunks. Those that hold pixels, and how to read them, are kept.
The rest (Exif, ICC profiles, XMP, texts, thumbnails, frames of an animation) is dropped unread, as a library
that reads it can be made to copy, unpack or follow it without end. Of Exif one number is read: the
orientation.

A progressive JPEG is decoded scan by scan, each over the whole picture, however few bytes it has: so scans
are counted, and bounded for the picture's size. A sequential one whose first scan holds every component is
decoded in that one pass, and what follows it is not read: of such a picture nothing is counted.
(ITU-T T.81 B.1–B.2; PNG Third Edition §5; Exif 2.32 §4.6.)
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from gpu_worker.errors import RowFault

__all__ = ["ImageFile", "look_over"]

_JPEG_START: Final = b"\xff\xd8"
_PNG_START: Final = b"\x89PNG\r\n\x1a\n"

_MOST_PARTS: Final = 100_000  # segments before the first scan, or chunks
_MOST_SCANS: Final = 100  # encoders write about ten
_WHOLE_SCANS: Final = 16  # of a picture with as many pixels as one may have

_MARKER: Final = re.compile(rb"\xff+([^\x00\xff])", re.DOTALL)
# In a scan's own bytes 0xFF is followed by 0 or by a restart marker.
_MARKER_IN_SCAN: Final = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
# JFIF's segment and Adobe's stay: that one says whether colours are inverted.
_DROPPED: Final = frozenset((*range(0xE1, 0xEE), 0xEF, 0xFE))  # APP1 to APP13, APP15, COM
_FRAMES: Final = frozenset((*range(0xC0, 0xD0),)) - {0xC4, 0xC8, 0xCC}  # how the pixels are coded
_SEQUENTIAL: Final = (0xC0, 0xC1)  # Huffman-coded, baseline and extended
_HUFFMAN: Final = (*_SEQUENTIAL, 0xC2)  # the same, or progressive
_BITS: Final = 8  # of a sample
_WITHOUT_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))
_NO_SEGMENT: Final = frozenset((0x00, 0xFF, _EOI)) | _WITHOUT_LENGTH
_EXIF_MARK: Final = b"Exif\0\0"

_PNG_KEPT: Final = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_ORIENTATION: Final = 0x0112
_EXIF_NUMBERS: Final = {1: "B", 3: "H", 4: "I"}  # BYTE, SHORT, LONG


@dataclass(slots=True)  # not frozen: that would make it three times as dear to make
class ImageFile:
    """data: the file without what decoding does not need; a JPEG's, or else a PNG's.

    orientation: Exif's, 1 where it says nothing. scans: 1 where it does not matter how many there are.
    frame: height, width and components of a Huffman-coded JPEG of 8 bits, by its header; None of any other.
    """

    data: bytes
    is_jpeg: bool
    orientation: int = 1
    scans: int = 1
    frame: tuple[int, int, int] | None = None

    def check_scans(self, pixels: int, max_pixels: int) -> None:
        """Raises `RowFault` (input_too_large) if decoding takes too many scans for a picture of its size."""
        most = min(_MOST_SCANS, max(1, _WHOLE_SCANS * max_pixels // max(1, pixels)))
        if self.scans > most:
            raise RowFault(
                "input_too_large",
                f"the image has {self.scans} scans of {pixels} pixels; the limit is {most} for its size",
            )


def look_over(data: bytes) -> ImageFile:
    """The parts of a JPEG or PNG that decoding needs. Raises `RowFault` (input_undecodable)."""
    if data.startswith(_JPEG_START):
        return _jpeg(data)
    if data.startswith(_PNG_START):
        return _png(data)
    raise RowFault("input_undecodable", "the bytes are not a JPEG or PNG image")


def _jpeg(data: bytes) -> ImageFile:
    kept = []  # runs of segments, up to the last one that was dropped
    run = components = 0
    frame: tuple[int, int, int] | None = None
    orientation = 1
    size = len(data)
    at = len(_JPEG_START)
    try:
        for _ in range(_MOST_PARTS):
            ended = at
            if data[at] != 0xFF or (code := data[at + 1]) in _NO_SEGMENT:
                at, code = _next_segment(data, at)
            if code == _SOS:
                scans = 1 if components and data[at + 4] == components else _scans(data, at)
                if not run:
                    return ImageFile(data, True, orientation, scans, frame)
                kept.append(data[run:])
                return ImageFile(b"".join(kept), True, orientation, scans, frame)
            length = data[at + 2] << 8 | data[at + 3]
            end = at + 2 + length
            if length < 2 or end > size:
                raise _damaged("a segment is longer than the file")
            if code in _DROPPED:
                if code == _APP1 and orientation == 1 and data.startswith(_EXIF_MARK, at + 4):
                    orientation = _exif_orientation(data[at + 4 + len(_EXIF_MARK) : end])
                # Not up to `at`: a fill byte before what is dropped would make a marker of what comes behind.
                kept.append(data[run:ended])
                run = end
            elif code in _FRAMES:
                components = data[at + 9] if code in _SEQUENTIAL else 0
                frame = None
                if code in _HUFFMAN and data[at + 4] == _BITS:
                    frame = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8], data[at + 9]
            at = end
    except IndexError:
        raise _damaged("it ends before its first scan") from None
    raise _damaged(f"it has more than {_MOST_PARTS} segments")


def _next_segment(data: bytes, at: int) -> tuple[int, int]:
    """Where the next segment begins, and its code: behind fill bytes, and markers that stand alone.

    Raises `IndexError` where there is none.
    """
    while True:
        marker = _MARKER.search(data, at)
        if marker is None:
            raise IndexError(at)
        code = marker[1][0]
        if code == _EOI:
            raise _damaged("it holds no picture")
        if code not in _NO_SEGMENT:
            return marker.end() - 2, code
        at = marker.end()


def _scans(data: bytes, at: int) -> int:
    """How many scans there are from `at` on, where the first begins; never fewer than a decoder finds."""
    # Beside a scan's beginning, only other segments and what follows the picture hold these two bytes.
    if data.rfind(b"\xff\xda", at) <= at:  # three times as fast as counting
        return 1
    most = data.count(b"\xff\xda", at)
    scans = 0
    while (marker := _MARKER_IN_SCAN.search(data, at)) is not None and marker[1][0] != _EOI:
        code, at = marker[1][0], marker.end()
        scans += code == _SOS
        if code not in _WITHOUT_LENGTH:
            length = int.from_bytes(data[at : at + 2])
            if length < 2:
                return most  # a decoder may take it for something else
            at += length
    return scans


def _png(data: bytes) -> ImageFile:
    kept = [_PNG_START]
    orientation = 1
    dropped = False
    at = len(_PNG_START)
    for _ in range(_MOST_PARTS):
        kind = data[at + 4 : at + 8]
        end = at + 12 + int.from_bytes(data[at : at + 4])  # length, kind and checksum around the content
        if len(kind) < 4 or end > len(data) or kind == b"IEND":
            kept.append(data[at:])  # cut off, if it is not the end: the decoder says so
            return ImageFile(b"".join(kept) if dropped else data, False, orientation)
        if kind in _PNG_KEPT:
            kept.append(data[at:end])
        else:
            dropped = True
            if kind == b"eXIf":
                orientation = _exif_orientation(data[at + 8 : end - 4])
        at = end
    raise _damaged(f"it has more than {_MOST_PARTS} chunks")


def _exif_orientation(exif: bytes) -> int:
    """The orientation in the first directory; 1 where there is none that can be read."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, directory)
        for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(f"{order}HHI", exif, entry)
            if tag == _ORIENTATION:
                if count != 1 or kind not in _EXIF_NUMBERS:
                    return 1
                return int(struct.unpack_from(order + _EXIF_NUMBERS[kind], exif, entry + 8)[0])
    except struct.error:  # the directory is cut off
        pass
    return 1


def _damaged(reason: str) -> RowFault:
    return RowFault("input_undecodable", f"the image is damaged: {reason}")
