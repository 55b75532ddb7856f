"""Reading the file that a row's path names, and no other file. Knows paths, not images.

A path comes from anyone who may run a query, so it is read only below the media roots, symlinks resolved
first, and only if it is a regular file: opening a FIFO would wait for ever, opening a device may do
anything. What lies outside the roots is never opened, and its refusal does not tell whether it exists.
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from typing import TypeVar

from gpu_worker.errors import RowFault
from gpu_worker.wire.protocol import FilePiece, RowError, WantPiece

__all__ = ["MediaByRow", "MediaRoots", "read_piece", "read_rows"]

_Taken = TypeVar("_Taken")

# O_NONBLOCK and O_NOFOLLOW hold against a file swapped for a FIFO or a symlink after it was looked at.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
# A folder need not be listed to look at a file in it.
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_OPEN = 64  # folders of one call
_OPEN_FILES = "/proc/self/fd"
_SHOWN_CHARS = 200
_NO_NAMES = ("", ".", "..")


class MediaRoots:
    """The folders below which paths are read.

    An absolute path must lie below one of them; a relative one is looked for below each, in order.
    within: others, below one of which a file must lie as well.
    """

    def __init__(self, roots: Sequence[str], within: MediaRoots | None = None) -> None:
        self._within = within
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self._prefixes = tuple(root.rstrip("/") + "/" for root in self._roots)
        self._shows_open_files = os.path.isdir(_OPEN_FILES)

    def only(self, roots: Sequence[str]) -> MediaRoots:
        """Of these folders the part that lies below `roots`: nothing more is read, whatever they are."""
        return MediaRoots(roots, self)

    def narrowed(
        self, roots: Sequence[str] | None, by_row: Sequence[tuple[int, Sequence[str] | None]]
    ) -> MediaRoots | MediaByRow:
        """The same for a batch: of all its rows, and of those from a row on; None for no less than before."""
        media = self if roots is None else self.only(roots)
        if not by_row:
            return media
        parts = [(first, media if own is None else media.only(own)) for first, own in by_row]
        return MediaByRow(parts if by_row[0][0] == 0 else [(0, media), *parts])

    def of(self, row: int) -> MediaRoots:
        """See `MediaByRow.of`: the same for all."""
        return self

    def _admits(self, resolved: str) -> bool:
        """Whether what is at a resolved path may be looked at: a root, or something below one."""
        below = resolved.startswith(self._prefixes) or resolved in self._roots
        return below and (self._within is None or self._within._admits(resolved))

    def read(
        self,
        row: bytes,
        *,
        max_bytes: int,
        folders: dict[str, str] | None = None,
        ends: tuple[int, int] | None = None,
    ) -> bytes:
        """The bytes of the file at the UTF-8 path `row`, at most `max_bytes` of them.

        ends: of a file of any size no more than so many bytes of its beginning and of its end, joined.

        `folders` remembers resolved folders between the rows of one batch; a longer memory would miss a
        symlink that is moved. Raises `RowFault` (input_invalid, input_not_found, input_forbidden,
        input_too_large).
        """

        def whole(descriptor: int, path: str, found: os.stat_result) -> bytes:
            if ends is not None and found.st_size > sum(ends):
                return _ends_of(descriptor, *ends)
            return _read(descriptor, path, found.st_size, max_bytes)

        return self._opened(row, {} if folders is None else folders, whole)

    def read_unless(
        self,
        row: bytes,
        is_known: Callable[[os.stat_result], bool],
        *,
        max_bytes: int,
        folders: dict[str, str],
    ) -> bytes | None:
        """As `read`; None where the file, once it is open, is known by what the system says of it."""

        def unknown(descriptor: int, path: str, found: os.stat_result) -> bytes | None:
            return None if is_known(found) else _read(descriptor, path, found.st_size, max_bytes)

        return self._opened(row, folders, unknown)

    def read_part(self, row: bytes, at: int, nbytes: int) -> tuple[bytes, int]:
        """At most so many bytes from byte `at` on of the file at `row`, and its size. Raises as `read`."""

        def part(descriptor: int, _: str, found: os.stat_result) -> tuple[bytes, int]:
            return os.pread(descriptor, nbytes, at), found.st_size

        return self._opened(row, {}, part)

    def _opened(
        self, row: bytes, folders: dict[str, str], take: Callable[[int, str, os.stat_result], _Taken]
    ) -> _Taken:
        """What `take` has of the file at `row`, by its descriptor, the path as the row says it, and what the
        system says of the open file.

        Raises `RowFault`. No context manager: that is a tenth of what a small file takes. And no call of the
        system that is not needed: before and after each one threads wait for the interpreter.
        """
        path = _text(row)
        try:
            descriptor = os.open(self._regular_file(path, folders)[0], _FLAGS)
        except OSError as exc:
            raise _fault(exc, path) from exc
        try:
            return take(descriptor, path, self._check_opened(descriptor, path))
        except OSError as exc:
            raise _fault(exc, path) from exc
        finally:
            os.close(descriptor)

    def files(self, rows: Sequence[bytes]) -> list[os.stat_result | None]:
        """What the system says of the file that `read` would open now, by row; None where it would raise.

        Most rows are a plain name in a folder that others have too: one look from within that folder tells
        all, at half the time of one along the whole path.
        """
        with _Folders(self._admits) as folders:
            return [self._file(row, folders) for row in rows]

    def _file(self, row: bytes, folders: _Folders) -> os.stat_result | None:
        try:
            path = _text(row)
            folder, _, name = path.rpartition("/")
            descriptor = folders.of(folder)
            if descriptor is not None and name not in _NO_NAMES:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    return found
            return self._regular_file(path, {})[1]
        except (RowFault, OSError, ValueError):
            return None

    def _regular_file(self, path: str, folders: dict[str, str]) -> tuple[str, os.stat_result]:
        """The resolved path of an existing regular file below a root, and what the system says of it.

        Raises `RowFault`, `OSError`.
        """
        if not self._roots:
            raise RowFault(
                "input_forbidden", f"{_shown(path)} cannot be read: there are no media roots for it"
            )
        wanted = [path] if path.startswith("/") else [prefix + path for prefix in self._prefixes]
        missing: OSError | None = None
        for candidate in wanted:
            resolved = _resolve(candidate, folders)
            if not self._admits(resolved):
                raise RowFault("input_forbidden", f"{_shown(path)} is outside the media roots")
            try:
                found = os.lstat(resolved)
                if stat.S_ISLNK(found.st_mode):
                    resolved = os.path.realpath(resolved)
                    if not self._admits(resolved):
                        raise RowFault("input_forbidden", f"{_shown(path)} is outside the media roots")
                    found = os.lstat(resolved)
            except FileNotFoundError as exc:
                missing = exc
                continue
            _require_regular(found.st_mode, path)
            return resolved, found
        assert missing is not None
        raise missing

    def _check_opened(self, descriptor: int, path: str) -> os.stat_result:
        """Looks at what was opened, as a folder may have been swapped since its path was resolved."""
        found = os.fstat(descriptor)
        _require_regular(found.st_mode, path)
        if self._shows_open_files:
            opened = os.readlink(f"{_OPEN_FILES}/{descriptor}")
            if not self._admits(opened):
                raise RowFault("input_forbidden", f"{_shown(path)} is outside the media roots")
        return found


class _Folders:
    """The folders of some rows' paths, held open while one looks at these: those that may be read.

    admits: whether what is at a resolved path may be looked at. Held no longer: a link may be turned.
    """

    def __init__(self, admits: Callable[[str], bool]) -> None:
        self._admits = admits
        self._open: dict[str, int | None] = {}  # by the path's text; None: it is looked at by its whole path

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            if descriptor is not None:
                os.close(descriptor)

    def of(self, folder: str) -> int | None:
        """A folder by its path as a row has it; None where it is not held open."""
        if folder not in self._open:
            is_few = len(self._open) < _MOST_OPEN
            self._open[folder] = self._opened(folder) if is_few and folder.startswith("/") else None
        return self._open[folder]

    def _opened(self, folder: str) -> int | None:
        resolved = os.path.realpath(folder)
        if not self._admits(resolved):
            return None
        descriptor = os.open(resolved, _FOLDER_FLAGS)
        # What stood there may have been moved since it was resolved: what counts is what was opened.
        if os.path.isdir(_OPEN_FILES) and os.readlink(f"{_OPEN_FILES}/{descriptor}") == resolved:
            return descriptor
        os.close(descriptor)
        return None


class MediaByRow:
    """Media roots that differ from row to row of a batch: those from a row on, the first from row 0."""

    def __init__(self, parts: Sequence[tuple[int, MediaRoots]]) -> None:
        self._firsts = [first for first, _ in parts]
        self._roots = [roots for _, roots in parts]

    def of(self, row: int) -> MediaRoots:
        """Those of a row."""
        return self._roots[bisect.bisect_right(self._firsts, row) - 1]


def read_rows(
    media: MediaRoots | MediaByRow, rows: Sequence[bytes], first: int, *, max_bytes: int, enough_bytes: int
) -> tuple[list[bytes], list[RowError]]:
    """What the files hold that rows name, from row `first` on until there are `enough_bytes`; at least one.

    max_bytes: of one of them. A row at fault holds b"", and its error has its index in `rows`.
    """
    contents: list[bytes] = []
    errors: list[RowError] = []
    folders: dict[str, str] = {}
    read = 0
    for row in range(first, len(rows)):
        try:
            contents.append(media.of(row).read(rows[row], max_bytes=max_bytes, folders=folders))
        except RowFault as fault:
            contents.append(b"")
            errors.append(RowError(row, fault.code, fault.message))
        read += len(contents[-1])
        if read >= enough_bytes:
            break
    return contents, errors


def read_piece(media: MediaRoots, want: WantPiece, *, max_bytes: int) -> FilePiece:
    """What a worker wants of the file that a row names, or why a row that names it is at fault.

    With the first piece comes the hash of the file, of at most `max_bytes`.
    """
    row = want.file.encode("utf-8", "surrogateescape")
    try:
        if want.at:
            data, size = media.read_part(row, want.at, want.nbytes)
            return FilePiece(want.id, [data], size)
        data = media.read(row, max_bytes=max_bytes)
    except RowFault as fault:
        return FilePiece(want.id, [b""], 0, fault.message, code=fault.code)
    sha256 = hashlib.sha256(data).hexdigest()
    sent = b"" if sha256 == want.known else data[: want.nbytes]
    return FilePiece(want.id, [sent], len(data), sha256=sha256)


def _text(row: bytes) -> str:
    if not row:
        raise RowFault("input_invalid", "the path is empty")
    try:
        path = row.decode()
    except UnicodeDecodeError as exc:
        raise RowFault("input_invalid", f"the path {row[:_SHOWN_CHARS]!r} is not UTF-8") from exc
    if "\0" in path:
        raise RowFault("input_invalid", f"the path {_shown(path)} holds a NUL character")
    return path


def _resolve(path: str, folders: dict[str, str]) -> str:
    """`os.path.realpath` of the folder, which rows of one batch mostly share, and the name in it."""
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    resolved_folder = folders.get(folder)
    if resolved_folder is None:
        resolved_folder = folders[folder] = os.path.realpath(folder)
    return os.path.join(resolved_folder, name)


def _require_regular(mode: int, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    raise RowFault("input_invalid", f"{_shown(path)} is {kind}")


def _ends_of(descriptor: int, first: int, last: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, first, 0) + os.pread(descriptor, last, max(0, size - last))


def _read(descriptor: int, path: str, size: int, max_bytes: int) -> bytes:
    if size <= max_bytes:
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        # The file is being written, or the read was cut: go on to the end or to the limit.
        pieces = [data]
        got = len(data)
        while got <= max_bytes and (data := os.read(descriptor, max_bytes + 1 - got)):
            pieces.append(data)
            got += len(data)
        size = got
        if got <= max_bytes:
            return b"".join(pieces)
    raise RowFault(
        "input_too_large", f"{_shown(path)} has {size} bytes, more than the limit of {max_bytes} bytes"
    )


def _fault(exc: OSError, path: str) -> RowFault:
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return RowFault("input_not_found", f"there is no file {_shown(path)} on the inference host")
    if exc.errno in (errno.EACCES, errno.EPERM):
        return RowFault("input_forbidden", f"{_shown(path)} may not be read by the inference worker")
    if exc.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO):
        return RowFault("input_invalid", f"{_shown(path)} cannot be opened: {exc.strerror}")
    return RowFault("internal", f"reading {_shown(path)} failed: {exc.strerror}")


def _shown(path: str) -> str:
    return path if len(path) <= _SHOWN_CHARS else path[:_SHOWN_CHARS] + "…"
