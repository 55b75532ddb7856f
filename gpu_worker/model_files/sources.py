"""Which weights files were hashed, and what they were then: one is hashed again only when it has changed."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from gpu_worker.errors import Cancelled, ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.prepared import Stamp, stamp_of
from gpu_worker.model_files.regular import open_regular

__all__ = ["Sources"]

_PIECE_BYTES = 4 << 20
_SETTLED_NS = 50_000_000  # a file changed so shortly before may change again without its times showing it


class Sources:
    """The SHA-256 of weights files, by what their file says of itself. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, str]] = {}
        self._lock = threading.Lock()

    def stamp(self, manifest: Manifest) -> Stamp:
        """What the weights file is now. Raises `ModelUnusable`."""
        path = manifest.path_of_weights()
        try:
            return stamp_of(path)
        except OSError as exc:
            raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc

    def known(self, manifest: Manifest, stamp: Stamp) -> str | None:
        """The hash of the file, if it was hashed and is as it was."""
        return self._known_of(manifest.path_of_weights(), stamp)

    def note(self, manifest: Manifest, stamp: Stamp, sha256: str) -> None:
        """The file that is so has this hash."""
        self._note(manifest.path_of_weights(), stamp, sha256)

    def check_others(self, manifest: Manifest, is_cancelled: Callable[[], bool]) -> None:
        """Hashes the model's files beside its weights, where they changed since. Raises as `hashed` does."""
        for file in manifest.files[1:]:
            path = manifest.path_of(file)
            try:
                stamp = stamp_of(path)
            except OSError as exc:
                raise ModelUnusable(f"the file {path} cannot be read: {exc.strerror}") from exc
            self._hashed(path, stamp, file.sha256, is_cancelled)

    def hashed(self, manifest: Manifest, stamp: Stamp, is_cancelled: Callable[[], bool]) -> str:
        """The hash of the file, known or new, which must be the one that the manifest names.

        Raises `ModelUnusable`, `Cancelled`.
        """
        return self._hashed(manifest.path_of_weights(), stamp, manifest.sha256 or "", is_cancelled)

    def _hashed(self, path: str, stamp: Stamp, wanted: str, is_cancelled: Callable[[], bool]) -> str:
        sha256 = self._known_of(path, stamp)
        if sha256 is None:
            digest = hashlib.sha256()
            piece = bytearray(_PIECE_BYTES)
            try:
                with open_regular(path) as file:
                    while got := file.readinto(piece):
                        if is_cancelled():
                            raise Cancelled("the request was cancelled")
                        digest.update(memoryview(piece)[:got])
            except OSError as exc:
                raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc
            sha256 = digest.hexdigest()
        if wanted and sha256 != wanted.lower():
            raise ModelUnusable(
                f"the weights {path} have SHA-256 {sha256}, and model.json says {wanted}: "
                "the file is damaged or was replaced; register the model again"
            )
        self._note(path, stamp, sha256)
        return sha256

    def _known_of(self, path: str, stamp: Stamp) -> str | None:
        with self._lock:
            found = self._known.get(path)
        return found[1] if found is not None and found[0] == stamp else None

    def _note(self, path: str, stamp: Stamp, sha256: str) -> None:
        with self._lock:
            if time.time_ns() - max(stamp[-2:]) > _SETTLED_NS:
                self._known[path] = (stamp, sha256)
