"""Models of a server whose files this machine does not see: a bounded folder of its own, fetched into once.

    FOLDER / origin / NAME / VERSION / model.json, and the files that it lists
    FOLDER / training / files / HASH / model.json, and files that training reads: a snapshot, a checkpoint
    FOLDER / training / stored / NAME / files that training writes, until the server has them
    FOLDER / pictures / HH / H / photos that training reads (kept_pictures.py)

origin: of the server's folder of models. model.json is written last: where it is, and is the server's, all
its files were whole and had the hashes that it says. Files of training come with their hashes, and have
a model.json of these alone. Until then a file is named by its hash, and whoever comes after a transfer that
was cut goes on where that ended. Workers of one machine share the folder: who brings a version holds its
folder's lock, who reads one shares it, and none leaves that is held. Versions that were not used for longest
leave first. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpu_worker.errors import Cancelled, ModelUnusable, NoSpace
from gpu_worker.model_files.backbone import backbone_from
from gpu_worker.model_files.file_list import ModelFile, files_from
from gpu_worker.model_files.regular import MANIFEST_FILE, file_sha256, flush, read_regular
from gpu_worker.wire.protocol import FilePiece

__all__ = ["PIECE_BYTES", "Fetched", "FetchedModels"]

_log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 18  # 2 ms of a link of 1 Gbit/s: a row waits no longer for it
_UNDER_WAY = 2  # pieces: one is written while the next travels
_MOST_MANIFEST_BYTES = 8 << 20
_LOOK_S = 0.05
_HASH_DIGITS = 64
_COUNTED_BYTES = 64 << 20
_ABANDONED_S = 60.0  # one that was just made is not locked yet
_COMING = ".coming-"
_FILES, _STORED = "training/files", "training/stored"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_T = TypeVar("_T")
AskPiece = Callable[[str, str, int, int], "Future[FilePiece]"]
"""(beside, file, at, nbytes), as `WantPiece` has them; nbytes 0 asks for the file's hash."""
IsCancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A version that is here. took_s: to have it here; bytes that came, 0 where it was here before."""

    directory: str
    took_s: float
    nbytes: int


class FetchedModels:
    """Those in `folder`, of at most `most_bytes`; 0 = as many as the disk takes."""

    def __init__(self, folder: str, most_bytes: int = 0) -> None:
        self.folder = Path(folder).expanduser()
        self._most_bytes = most_bytes
        self._room_bytes = 0  # that small files may still take before all is counted again
        self._counting = threading.Lock()

    @contextlib.contextmanager
    def lent(self, directory: str, ask: AskPiece, is_cancelled: IsCancelled) -> Iterator[Fetched]:
        """The version that the server has in `directory`, and what it stands on: here while it is entered.

        Raises `ModelUnusable`, `NoSpace`, `Cancelled`.
        """
        began_s = time.monotonic()
        with contextlib.ExitStack() as held:
            wanted = _Wanted(directory, "", ask, is_cancelled)
            place, manifest, came = self._held(wanted, held)
            backbone = _said(lambda: backbone_from(manifest), directory)
            if backbone is not None:
                path = Path(directory).parent.parent / backbone.name / str(backbone.version)
                beside = f"{backbone.name}/{backbone.version}"
                came += self._held(_Wanted(str(path), beside, ask, is_cancelled), held)[2]
            yield Fetched(str(place), time.monotonic() - began_s, came)

    @contextlib.contextmanager
    def lent_files(self, paths: Sequence[str], ask: AskPiece, is_cancelled: IsCancelled) -> Iterator[str]:
        """The folder with the files that the server has at `paths`, of one folder there, by their names.

        The first must be there. Raises as `lent`.
        """
        folder = str(Path(paths[0]).parent)
        wanted = _Wanted(folder, "", ask, is_cancelled, f"{folder}/")
        names = [Path(path).name for path in paths]
        hashes = {name: wanted.sha256(name) for name in names}
        if not hashes[names[0]]:
            raise ModelUnusable(f"the server has no file {paths[0]} any more")
        files = [ModelFile(name, sha256) for name, sha256 in hashes.items() if sha256]
        text = json.dumps({"files": [file.to_json() for file in files]}).encode()
        place = self.folder / _FILES / hashlib.sha256(text).hexdigest()
        with contextlib.ExitStack() as held:
            self._held_at(place, text, files, wanted, held)
            yield str(place)

    @contextlib.contextmanager
    def stored(self) -> Iterator[str]:
        """An empty folder to write into, there while it is entered. Raises `NoSpace`, `ModelUnusable`."""
        above = self.folder / _STORED
        try:
            above.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._drop_abandoned(above)
            place = Path(tempfile.mkdtemp(dir=above))
            lock = _Lock(place)
        except OSError as exc:
            raise _unwritable(exc, above) from exc
        with contextlib.closing(lock):
            lock.share()
            try:
                yield str(place)
            finally:
                shutil.rmtree(place, ignore_errors=True)

    def takes(self, nbytes: int) -> bool:
        """Whether a small file of so many bytes may be written; what was not used for longest leaves for it.

        What is here is counted now and then: other workers' files are seen late, by `_COUNTED_BYTES` at most.
        """
        if not self._most_bytes:
            return True
        with self._counting:
            if self._room_bytes < nbytes:
                wanted = max(nbytes, min(_COUNTED_BYTES, self._most_bytes // 64))
                self._room_bytes = min(wanted, self._freed(wanted, self.folder))
            if self._room_bytes < nbytes:
                return False
            self._room_bytes -= nbytes
            return True

    def free_some(self) -> bool:
        """What was not used for longest leaves, since the disk is full; False where nothing can."""
        return self._one_leaves(self.folder)

    def _drop_abandoned(self, above: Path) -> None:
        """What a worker that was killed has written there."""
        for place in above.iterdir():
            with contextlib.suppress(OSError), contextlib.closing(_Lock(place)) as lock:
                if lock.try_take() and time.time() - place.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(place, ignore_errors=True)

    def forget(self, directory: str) -> None:
        """What is here of the version is no longer what it was when it came: it is to come anew."""
        place = self._place(directory)
        _log.warning("%s is damaged and is fetched anew", place)
        with contextlib.suppress(OSError):
            (place / MANIFEST_FILE).unlink()

    def _place(self, directory: str) -> Path:
        stored = Path(directory)
        origin = hashlib.sha256(str(stored.parent.parent).encode()).hexdigest()[:16]
        return self.folder / origin / stored.parent.name / stored.name

    def _held(self, wanted: _Wanted, held: contextlib.ExitStack) -> tuple[Path, dict[str, object], int]:
        """The version's folder, locked against its leaving; its manifest; bytes that came."""
        place = self._place(wanted.directory)
        text = wanted.whole(MANIFEST_FILE, _MOST_MANIFEST_BYTES)
        manifest = _said(lambda: _object(text), wanted.directory)
        files = _said(lambda: files_from(manifest), wanted.directory)
        return place, manifest, self._held_at(place, text, files, wanted, held)

    def _held_at(
        self,
        place: Path,
        text: bytes,
        files: Sequence[ModelFile],
        wanted: _Wanted,
        held: contextlib.ExitStack,
    ) -> int:
        """Bytes that came, the version being at its place, locked against leaving. text: of model.json."""
        while True:
            with contextlib.ExitStack() as own:
                try:
                    place.mkdir(mode=0o700, parents=True, exist_ok=True)
                    lock = _Lock(place)
                    own.callback(lock.close)
                    came = self._shared(lock, place, text, files, wanted)
                except FileNotFoundError:
                    continue  # it left in between
                except OSError as exc:
                    raise _unwritable(exc, place) from exc
                if came is not None:
                    held.push(own.pop_all())
                    with contextlib.suppress(OSError):
                        os.utime(place)
                    return came

    def _shared(
        self, lock: _Lock, place: Path, text: bytes, files: Sequence[ModelFile], wanted: _Wanted
    ) -> int | None:
        """Bytes that came, the version being whole and its lock shared; None where others were in between."""

        def is_there() -> bool:
            return lock.share() and lock.is_of(place) and _is_whole(place, text, files)

        if is_there():
            return 0
        lock.take(wanted.is_cancelled)
        if not lock.is_of(place):
            return None
        came = self._bring(place, text, files, wanted)
        return came if is_there() else None  # sharing lets go of it for a moment, in which it may leave

    def _bring(self, place: Path, text: bytes, files: Sequence[ModelFile], wanted: _Wanted) -> int:
        """Bytes that came."""
        if _is_whole(place, text, files):
            return 0
        (place / MANIFEST_FILE).unlink(missing_ok=True)
        kept = {file.name for file in files} | {_COMING + file.sha256 for file in files if file.sha256}
        for path in list(place.iterdir()):
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        came = 0
        for file in files:
            path = place / file.name
            if not (file.sha256 and path.exists() and file_sha256(str(path)) == file.sha256):
                path.unlink(missing_ok=True)
                came += self._fetch(path, file, wanted)
        coming = place / (_COMING + MANIFEST_FILE)
        self._with_room(coming, lambda: coming.write_bytes(text))
        os.replace(coming, place / MANIFEST_FILE)
        flush(place)
        _log.info("model fetched directory=%s bytes=%d", place, came)
        return came

    def _fetch(self, path: Path, file: ModelFile, wanted: _Wanted) -> int:
        """One file, whole and with its hash; what is here of it already does not travel again."""
        coming = path.parent / (_COMING + (file.sha256 or file.name))
        if not file.sha256:
            coming.unlink(missing_ok=True)
        came = 0
        for is_last in (False, True):
            digest, at = _hashed(coming)
            more, digest = self._appended(coming, at, digest, file, wanted)
            came += more
            if not file.sha256 or digest.hexdigest() == file.sha256:
                os.replace(coming, path)
                return came
            coming.unlink()
            if not at or is_last:  # all of it has just come, and is not what it should be
                break
        raise ModelUnusable(
            f"the file {file.name} of {wanted.directory} came from the server with SHA-256 "
            f"{digest.hexdigest()}, and {wanted.hashes_from} says {file.sha256}: {wanted.remedy}"
        )

    def _appended(
        self, coming: Path, at: int, digest: hashlib._Hash, file: ModelFile, wanted: _Wanted
    ) -> tuple[int, hashlib._Hash]:
        """The rest of the file from `at` on, and the hash of all of it."""
        began = at
        descriptor = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            for piece in wanted.pieces(file.name, at):
                if at > piece.size:
                    break  # what is here is no beginning of it, as its hash says
                if at == began:
                    self._make_room(piece.size - at, coming)
                data = memoryview(piece.data[0])
                self._with_room(coming, functools.partial(_write_all, descriptor, data, at))
                digest.update(data)
                at += len(data)
            self._with_room(coming, lambda: os.fsync(descriptor))
        finally:
            os.close(descriptor)
        return at - began, digest

    # ── room ────────────────────────────────────────────────────────────────────────────────────────────

    def _with_room(self, coming: Path, write: Callable[[], object]) -> None:
        """Writes; on a full disk versions leave for it, as long as there are any. Raises `NoSpace`."""
        while True:
            try:
                write()
                return
            except OSError as exc:
                if exc.errno not in _FULL:
                    raise
                if self._one_leaves(coming.parent):
                    continue
                coming.unlink(missing_ok=True)  # the disk is others' too
                free = shutil.disk_usage(self.folder).free
                raise NoSpace(
                    f"the disk of {self.folder} is full: {free} bytes are free and no other model there "
                    "can leave; free some, or give --node-folder on another disk"
                ) from exc

    def _make_room(self, nbytes: int, coming: Path) -> None:
        """So that no more than the bound is here with so many bytes more."""
        free = self._freed(nbytes, coming.parent) if self._most_bytes else nbytes
        if free < nbytes:
            coming.unlink(missing_ok=True)
            raise NoSpace(
                f"{self.folder} may hold {self._most_bytes} bytes of models (--node-bytes): "
                f"{self._most_bytes - free} are used by models that are loading or being fetched, and "
                f"{nbytes} more are wanted"
            )

    def _freed(self, nbytes: int, but: Path) -> int:
        """How many of the bound's bytes are free; so many if what is not held can leave for them."""
        while (free := self._most_bytes - _bytes_below(self.folder)) < nbytes:
            before = free
            for left in self._leaving(but):
                free += left
                if free >= nbytes:
                    break  # and all is counted again: others write here too
            if free == before:
                break
        return free

    def _one_leaves(self, but: Path) -> bool:
        """What was not used for longest and is not held; False where there is nothing."""
        return next(self._leaving(but), None) is not None

    def _leaving(self, but: Path) -> Iterator[int]:
        """One after the other leaves, those first that were not used for longest; the bytes of each."""
        there = [place for place in self.folder.glob("*/*/*") if place != but]
        for place in sorted(there, key=_used_ns):
            try:
                lock = _Lock(place)
            except OSError:
                continue  # another worker was quicker
            with contextlib.closing(lock):
                if not lock.try_take() or not lock.is_of(place):
                    continue
                _log.info("model leaves directory=%s", place)
                nbytes = _bytes_below(place)
                (place / MANIFEST_FILE).unlink(missing_ok=True)  # first: what is left is not whole
                shutil.rmtree(place, ignore_errors=True)
            left = nbytes - _bytes_below(place)
            if left or not place.exists():  # else it is not ours to take away
                yield left


class _Wanted:
    """A version as the server has it."""

    def __init__(
        self, directory: str, beside: str, ask: AskPiece, is_cancelled: IsCancelled, prefix: str = ""
    ) -> None:
        """prefix: of the names by which its files are asked for, of files that are no model's."""
        self.directory = directory
        self.is_cancelled = is_cancelled
        self.hashes_from = "the server" if prefix else "model.json"
        self.remedy = (
            "it was changed on the way, or there" if prefix else "it is damaged there; register it again"
        )
        self._prefix = prefix
        self._beside = beside
        self._ask = ask

    def pieces(self, file: str, at: int) -> Iterator[FilePiece]:
        """From byte `at` on to the end of the file; at least one, which may be empty."""
        under_way: deque[Future[FilePiece]] = deque()
        asked, size = at, at + 1  # of which the first piece says more
        while True:
            while len(under_way) < (_UNDER_WAY if asked > at else 1) and asked < max(size, at + 1):
                under_way.append(self._ask(self._beside, self._prefix + file, asked, PIECE_BYTES))
                asked += PIECE_BYTES
            if not under_way:
                return
            piece = self._came(under_way.popleft(), file)
            size = piece.size
            yield piece

    def sha256(self, file: str) -> str:
        """The hash that the server's file has; "" without one. Raises `ModelUnusable`, `Cancelled`."""
        said = self._came(self._ask(self._beside, self._prefix + file, 0, 0), file)
        if said.size >= 0 and len(said.sha256) != _HASH_DIGITS:
            raise ModelUnusable(f"the server does not say which hash {self.directory}/{file} has")
        return said.sha256

    def whole(self, file: str, most_bytes: int) -> bytes:
        """A small file. Raises `ModelUnusable` for one that is not."""
        parts = []
        for piece in self.pieces(file, 0):
            if piece.size > most_bytes:
                raise ModelUnusable(f"{self.directory}/{file} is too large: over {most_bytes} bytes")
            parts.append(piece.data[0])
        return b"".join(parts)

    def _came(self, coming: Future[FilePiece], file: str) -> FilePiece:
        while True:
            if self.is_cancelled():
                raise Cancelled("the request was given up as its files came")
            try:
                piece = coming.result(_LOOK_S)
            except NotYet:
                continue
            except CancelledError:
                raise Cancelled("the server went as the files came") from None
            if piece.error:
                raise ModelUnusable(f"{self.directory}/{file} cannot be fetched: {piece.error}")
            return piece


class _Lock:
    """Of a folder, between processes; it ends with its process. Raises `OSError` where there is no folder."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def take(self, is_cancelled: IsCancelled) -> None:
        """Alone, once nobody else has it. Raises `Cancelled`."""
        fcntl.flock(
            self._descriptor, fcntl.LOCK_UN
        )  # of two that share it and want it, none would ever have it
        while not self.try_take():
            if is_cancelled():
                raise Cancelled("the load was given up while another worker fetched the model")
            time.sleep(_LOOK_S)

    def try_take(self) -> bool:
        """Alone, if nobody else has it."""
        return self._locked(fcntl.LOCK_EX)

    def share(self) -> bool:
        """With others who read; False where somebody took it in between."""
        return self._locked(fcntl.LOCK_SH)

    def is_of(self, folder: Path) -> bool:
        """Whether it is still that folder, which may have left and come again."""
        try:
            found, own = os.stat(folder), os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def _locked(self, how: int) -> bool:
        try:
            fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _is_whole(place: Path, text: bytes, files: Sequence[ModelFile]) -> bool:
    try:
        same = read_regular(place / MANIFEST_FILE, _MOST_MANIFEST_BYTES) == text
    except ValueError:
        return False
    return same and all((place / file.name).is_file() for file in files)


def _said(read: Callable[[], _T], directory: str) -> _T:
    try:
        return read()
    except (ValueError, RecursionError) as exc:
        raise ModelUnusable(f"{directory}/{MANIFEST_FILE} is not a model manifest: {exc}") from exc


def _object(text: bytes) -> dict[str, object]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def _hashed(path: Path) -> tuple[hashlib._Hash, int]:
    """The hash so far of what is there, and how much that is."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
            return digest, file.tell()
    except FileNotFoundError:
        return digest, 0


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while len(data):
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


def _bytes_below(folder: Path) -> int:
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_size
    return total


def _used_ns(place: Path) -> int:
    try:
        return place.stat().st_mtime_ns
    except OSError:
        return 0


def _unwritable(exc: OSError, place: Path) -> NoSpace | ModelUnusable:
    if exc.errno in _FULL:
        return NoSpace(f"the disk of {place} is full: free some, or give --node-folder on another disk")
    return ModelUnusable(f"{place} cannot be written: {exc.strerror}; give a --node-folder that can")
