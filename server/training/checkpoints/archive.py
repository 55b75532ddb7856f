"""The archive: where the parameter store keeps checkpoints beyond this machine. Blocking.

Any filesystem that fsspec knows, by URL: a mounted share, an object store, a WebDAV folder. Credentials come
from where its package looks for them; a login in the URL is in no message of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

import fsspec

from server.errors import ServiceError

__all__ = ["Archive", "ArchiveUnknown"]

log = logging.getLogger("ml_udf.server.training")

_PAUSES_S = (1.0, 2.0, 4.0)  # in all less than half a lease
_LOGIN = re.compile(r"(?<=://)[^/@]+@")

_Result = TypeVar("_Result")


class ArchiveUnknown(ValueError):
    """No filesystem for such a URL; the text says what to do."""


class Archive:
    """A folder at `url`. Raises `ArchiveUnknown`; whether it can be reached shows when it is used."""

    def __init__(self, url: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.url = _LOGIN.sub("", url)
        self._pause = pause
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as exc:
            raise ArchiveUnknown(f"{self.url} cannot be used: {exc}".replace(url, self.url)) from exc
        self._secret = url
        self._root = PurePosixPath(root)

    def put(self, source: Path, name: str) -> None:
        """Keep a file as `name`. Raises `ServiceError`."""
        target = self._root / name

        def sent() -> None:
            self._files.makedirs(str(target.parent), exist_ok=True)
            self._files.put_file(str(source), str(target))

        self._tried(sent, f"{name} could not be kept")

    def get(self, name: str, target: Path, sha256: str | None = None) -> bool:
        """Fetch a file, whole or not at all; False where there is none. Raises `ServiceError`.

        sha256: what it must have; it may have been cut off on its way there.
        """
        coming = target.with_name(f".{target.name}.coming-{os.getpid()}-{time.monotonic_ns()}")

        def fetched() -> bool:
            with contextlib.suppress(FileNotFoundError):
                self._files.get_file(str(self._root / name), str(coming))
                return True
            return False

        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not self._tried(fetched, f"{name} could not be fetched"):
                return False
            if sha256 is not None and _sha256(coming) != sha256:
                raise ServiceError(f"{name} in {self.url} is damaged: its SHA-256 is not its name")
            coming.replace(target)
        finally:
            coming.unlink(missing_ok=True)
        return True

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder; none where there is no folder. Raises `ServiceError`."""

        def listed() -> list[str]:
            self._files.invalidate_cache()
            return [PurePosixPath(path).name for path in self._files.find(str(self._root / folder))]

        return self._tried(listed, f"{folder} could not be listed")

    def folders(self) -> list[str]:
        """The names of what lies at its top; none where there is no archive yet. Raises `ServiceError`."""

        def listed() -> list[str]:
            self._files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                return [PurePosixPath(path).name for path in self._files.ls(str(self._root), detail=False)]
            return []

        return self._tried(listed, "its folders could not be listed")

    def drop(self, name: str) -> None:
        """Throw a file away; none is fine. Raises `ServiceError`."""

        def dropped() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(str(self._root / name))

        self._tried(dropped, f"{name} could not be thrown away")

    def _tried(self, act: Callable[[], _Result], failed: str) -> _Result:
        """An archive that does not answer is asked again, for some seconds."""
        for pause_s in (*_PAUSES_S, None):
            try:
                return act()
            # Each filesystem has errors of its own; what they have in common is Exception.
            except Exception as exc:
                cause = f"{type(exc).__name__}: {exc}".replace(self._secret, self.url)
                message = f"{failed} in {self.url} ({_LOGIN.sub('', cause)})"
                if pause_s is None or isinstance(exc, PermissionError):
                    raise ServiceError(message) from exc
                log.warning("archive asked again in_s=%g reason=%r", pause_s, message)
                self._pause(pause_s)
        raise AssertionError("the last try returns or raises")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
