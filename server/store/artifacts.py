"""The home folder's files: model versions and the functions' deployed forms.

Owns `models/NAME/VERSION/` and `functions/NAME.json`. Everything appears whole or not at all: it is written
beside its place, flushed, then renamed. Blocking. Knows no database.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx
from gpu_worker.model_files.regular import MANIFEST_FILE, flush, open_regular, read_json
from server.errors import BadOption, BodyTooLarge
from server.store.manifest import check_name, model_from_manifest
from server.store.readers import Readers, close_to_others

__all__ = ["Artifacts"]

_CHUNK_BYTES = 1 << 20


class Artifacts:
    """The files below one home folder, closed to all but `readers`."""

    def __init__(self, home: Path, max_model_bytes: int, readers: Readers | None = None) -> None:
        self._readers = readers or Readers()
        self._models = home / "models"
        self._functions = home / "functions"
        self._max_model_bytes = max_model_bytes
        self._readers.admit_to_home(home)
        close_to_others(home)
        for folder in (self._models, self._functions):
            self._readers.admit_to_folder(folder)
            self._readers.admit_to_all(folder)  # an earlier server may have had another group, or none

    def model_directory(self, name: str, version: int) -> Path:
        """Where a version lives. Raises `BadOption` for a name that could leave the folder."""
        return self._models / check_name(name, "model") / str(int(version))

    def found(self) -> Iterator[Path]:
        """The directories below `models/` that hold a manifest, by name."""
        for manifest in sorted(self._models.glob(f"*/*/{MANIFEST_FILE}")):
            if not manifest.parent.parent.name.startswith("."):
                yield manifest.parent

    def read_manifest(self, directory: Path) -> dict[str, Any]:
        """The manifest in `directory`. Raises `BadOption` if there is none that can be read."""
        try:
            return read_json(directory / MANIFEST_FILE)
        except ValueError as exc:
            raise BadOption(str(exc)) from exc

    def install(self, manifest: Mapping[str, Any], weights: IO[bytes] | None) -> tuple[dict[str, Any], Path]:
        """Store a version; its manifest, with the weights' checksum, and its directory.

        Raises `BadOption` if manifest and weights do not fit, or if the version is there with other weights;
        `BodyTooLarge` for weights over the limit.
        """
        target = self.model_directory(str(manifest.get("name")), _version(manifest))
        model_from_manifest(manifest, target)  # everything checked before the first byte is written
        self._readers.admit_to_folder(target.parent)
        staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=self._models))
        try:
            complete = self._write(dict(manifest), weights, staging)
            with contextlib.suppress(FileNotFoundError):
                there = self._there(target)
                if there.get("sha256") != complete.get("sha256"):
                    raise BadOption(
                        f"{target} holds other weights; versions never change: use another version"
                    )
                return there, target
            self._readers.admit_to_folder(staging)
            os.rename(staging, target)
            flush(target.parent)
            return complete, target
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            with contextlib.suppress(OSError):  # if it is empty, since the version could not be stored
                target.parent.rmdir()

    def adopt(self, directory: Path) -> tuple[dict[str, Any], Path]:
        """Store the version in `directory` of this host, or use it where it is already in its place.

        Raises as `install` does.
        """
        manifest = self.read_manifest(directory)
        weights = _weights_name(manifest)
        place = self.model_directory(str(manifest.get("name")), _version(manifest))
        if place.exists() and place.resolve() == directory.resolve():
            model_from_manifest(manifest, place)
            if weights is not None:
                with _open_weights(directory / weights) as source:
                    _check_runtime(manifest, source)
                    source.seek(0)
                    _check_sum(manifest, hashlib.file_digest(source, "sha256").hexdigest())
            return manifest, place
        if weights is None:
            return self.install(manifest, None)
        with _open_weights(directory / weights) as source:
            return self.install(manifest, source)

    def write_function(self, name: str, deployed: Mapping[str, Any]) -> None:
        """Publish a function's deployed form for `local:`."""
        path = self._functions / f"{check_name(name, 'function')}.json"
        self._write_whole(path, json.dumps(deployed, indent=1).encode())

    def stage_function(self, name: str, deployed: Mapping[str, Any]) -> None:
        """Write a function's deployed form beside its place, where `publish_function` finds it."""
        self._write_whole(self._staged(name), json.dumps(deployed, indent=1).encode())

    def publish_function(self, name: str) -> None:
        """Move what was staged to its place."""
        os.replace(self._staged(name), self._functions / f"{check_name(name, 'function')}.json")
        flush(self._functions)

    def unstage_function(self, name: str) -> None:
        """Forget what was staged; nothing is fine."""
        self._staged(name).unlink(missing_ok=True)

    def remove_function(self, name: str) -> None:
        """Take a function's deployed form away; none is fine."""
        (self._functions / f"{check_name(name, 'function')}.json").unlink(missing_ok=True)

    def functions(self) -> set[str]:
        """The names of the functions that have a deployed form."""
        return {path.stem for path in self._functions.glob("*.json")}

    def remove_model(self, directory: Path, given: Path | None) -> None:
        """Take away a version that was stored and could not be registered, unless it is what was `given`."""
        if given is None or directory.resolve() != given.resolve():
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                directory.parent.rmdir()

    def _staged(self, name: str) -> Path:
        return self._functions / f".staged-{check_name(name, 'function')}"

    def _write(self, manifest: dict[str, Any], weights: IO[bytes] | None, staging: Path) -> dict[str, Any]:
        name = _weights_name(manifest)
        if (name is None) != (weights is None):
            raise BadOption(
                "the manifest names weights and none came" if name else "the manifest names no weights"
            )
        if name is not None and weights is not None:
            digest = hashlib.sha256()
            size = 0
            with open(staging / name, "w+b") as out:
                while chunk := weights.read(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > self._max_model_bytes:
                        raise BodyTooLarge(f"the weights are over the limit of {self._max_model_bytes} bytes")
                    digest.update(chunk)
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
                self._readers.admit_to_file(out.fileno())
                _check_runtime(manifest, out)
            _check_sum(manifest, digest.hexdigest())
            manifest["sha256"] = digest.hexdigest()
        self._write_whole(staging / MANIFEST_FILE, json.dumps(manifest, indent=1).encode())
        return manifest

    def _write_whole(self, path: Path, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as out:
            try:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
                self._readers.admit_to_file(out.fileno())
                os.replace(out.name, path)
            except BaseException:
                os.unlink(out.name)
                raise
        flush(path.parent)

    def _there(self, target: Path) -> dict[str, Any]:
        if not target.exists():
            raise FileNotFoundError(target)
        return self.read_manifest(target)


def _version(manifest: Mapping[str, Any]) -> int:
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise BadOption(f"model.json: 'version' must be a whole number, not {version!r}")
    return version


def _weights_name(manifest: Mapping[str, Any]) -> str | None:
    """The file of the weights, a plain name in the manifest's own folder; None for a model without any."""
    raw = manifest.get("weights")
    if raw is None or raw == "":
        return None
    if not isinstance(raw, str) or raw == MANIFEST_FILE:
        raise BadOption(f"model.json: 'weights' must be a file name, not {raw!r}")
    return check_name(raw, "model.json: 'weights'")


def _check_sum(manifest: Mapping[str, Any], digest: str) -> None:
    if manifest.get("sha256") not in (None, "", digest):
        raise BadOption("the weights' SHA-256 is not the one that model.json names; the file is damaged")


def _check_runtime(manifest: Mapping[str, Any], weights: IO[bytes]) -> None:
    """What the runtime would do on loading the weights, beside reading them. Raises `BadOption`."""
    if manifest.get("runtime") != "onnx":
        return
    try:
        check_onnx(weights)
    except OnnxRefused as exc:
        raise BadOption(f"the weights of {manifest.get('name')} cannot be served: {exc}") from exc


def _open_weights(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except OSError as exc:
        raise BadOption(f"the weights {path} cannot be read: {exc.strerror}") from exc
