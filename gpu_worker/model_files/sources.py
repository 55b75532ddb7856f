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
        with self._lock:
            found = self._known.get(manifest.path_of_weights())
        return found[1] if found is not None and found[0] == stamp else None

    def note(self, manifest: Manifest, stamp: Stamp, sha256: str) -> None:
        """The file that is so has this hash."""
        with self._lock:
            if time.time_ns() - max(stamp[-2:]) > _SETTLED_NS:
                self._known[manifest.path_of_weights()] = (stamp, sha256)

    def hashed(self, manifest: Manifest, stamp: Stamp, is_cancelled: Callable[[], bool]) -> str:
        """The hash of the file, known or new, which must be the one that the manifest names.

        Raises `ModelUnusable`, `Cancelled`.
        """
        path = manifest.path_of_weights()
        sha256 = self.known(manifest, stamp)
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
        if manifest.sha256 is not None and sha256 != manifest.sha256.lower():
            raise ModelUnusable(
                f"the weights {path} have SHA-256 {sha256}, and model.json says {manifest.sha256}: "
                "the file is damaged or was replaced; register the model again"
            )
        self.note(manifest, stamp, sha256)
        return sha256
