"""Small pictures of photos that a snapshot names: read below the media roots alone, bounded, kept."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from server.errors import UnknownFunction

__all__ = ["LARGE", "SMALL", "Thumbnails", "file_below"]

SMALL, LARGE = 192, 1024  # pixels, of the longer side
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow would run programs for others
_MOST_BYTES = 32 << 20
_MOST_PIXELS = 60_000_000
_AT_ONCE = 3
_KEPT_BYTES = 16 << 20
# A file that was swapped for a pipe or a link after it was looked at is not waited for, and not followed.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_OPEN_FILES = Path("/proc/self/fd")


class Thumbnails:
    """JPEG files by path; a few are made at a time, each in a thread."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._made_bytes = 0
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def kept_bytes(self) -> int:
        """Of all that is kept."""
        return self._made_bytes

    async def of(self, path: str, roots: Sequence[str], side: int = SMALL) -> bytes:
        """A small JPEG of the photo at a path. roots: resolved folders, below one of which it must lie.

        side: pixels of its longer side at most. Raises `UnknownFunction` where there is none to be seen,
        whatever the reason.
        """
        async with self._room:
            file = await asyncio.to_thread(file_below, path, roots)
            if file is not None and (file, side) in self._made:
                self._made.move_to_end((file, side))
                return self._made[file, side]
            made = None if file is None else await asyncio.to_thread(_thumbnail, file, roots, side)
        if made is None or file is None:
            raise UnknownFunction("there is no such picture to be seen here")
        self._made_bytes += len(made) - len(self._made.get((file, side), b""))
        self._made[file, side] = made
        while self._made_bytes > _KEPT_BYTES:
            self._made_bytes -= len(self._made.popitem(last=False)[1])
        return made


def file_below(path: str, roots: Sequence[str]) -> str | None:
    """The resolved path of a regular file below one of the roots; None if there is none. Blocking.

    A relative path is looked for below each root, in order, as the workers do.
    """
    if not path or "\0" in path:
        return None
    for wanted in [path] if path.startswith("/") else [os.path.join(root, path) for root in roots]:
        resolved = os.path.realpath(wanted)
        if not _is_below(resolved, roots):
            return None
        if os.path.isfile(resolved):
            return resolved
    return None


def _is_below(resolved: str, roots: Sequence[str]) -> bool:
    return any(resolved.startswith(root.rstrip("/") + "/") for root in roots)


def _thumbnail(file: str, roots: Sequence[str], side: int) -> bytes | None:
    from PIL import Image, ImageOps, UnidentifiedImageError  # takes a while, and is for this alone

    data = _read(file, lambda opened: _is_below(opened, roots))
    if data is None:
        return None
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as photo:
            if photo.width * photo.height > _MOST_PIXELS:
                return None
            photo.draft("RGB", (2 * side, 2 * side))  # JPEGs are decoded smaller at once
            upright = ImageOps.exif_transpose(photo)
            upright.thumbnail((side, side))
            out = io.BytesIO()
            upright.convert("RGB").save(out, "JPEG", quality=82)
            return out.getvalue()
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError):
        return None


def _read(file: str, admits: Callable[[str], bool]) -> bytes | None:
    """The whole of a regular file that is not too large; looked at once more after it was opened."""
    try:
        descriptor = os.open(file, _FLAGS)
    except OSError:
        return None
    with open(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return None
        if _OPEN_FILES.is_dir() and not admits(os.readlink(_OPEN_FILES / str(descriptor))):
            return None
        data = opened.read(_MOST_BYTES + 1)
    return data if len(data) <= _MOST_BYTES else None
