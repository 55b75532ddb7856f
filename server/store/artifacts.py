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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from gpu_worker.model_files.file_list import WEIGHTS, ModelFile, files_from
from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx
from gpu_worker.model_files.regular import MANIFEST_FILE, flush, open_regular, read_json
from gpu_worker.model_files.remote_spec import is_remote, remote_sha256
from server.errors import BadOption, BodyTooLarge
from server.kept_json import check_kept
from server.store.manifest import check_model_name, check_name, model_from_manifest
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
        return self._models / check_model_name(name, "model") / str(int(version))

    def next_version(self, name: str, version: int) -> int:
        """The first from `version` on that has no folder. A folder that the registry does not know is of a
        server that registers it just now, or was killed before it did.
        """
        while self.model_directory(name, version).exists():
            version += 1
        return version

    def found(self) -> Iterator[Path]:
        """The directories of versions below `models/` that hold a manifest, by name."""
        for manifest in sorted(self._models.glob(f"*/[0-9]*/{MANIFEST_FILE}")):
            # What is no number is somebody's copy: 1.bak.
            if not manifest.parent.parent.name.startswith(".") and manifest.parent.name.isdecimal():
                yield manifest.parent

    def read_manifest(self, directory: Path) -> dict[str, Any]:
        """The manifest in `directory`. Raises `BadOption` if there is none that can be read."""
        try:
            manifest = read_json(directory / MANIFEST_FILE)
        except ValueError as exc:
            raise BadOption(str(exc)) from exc
        check_kept(manifest, str(directory / MANIFEST_FILE))
        return manifest

    def install(
        self,
        manifest: Mapping[str, Any],
        weights: IO[bytes] | None,
        others: Mapping[str, IO[bytes]] = MappingProxyType({}),
    ) -> tuple[dict[str, Any], Path]:
        """Store a version; its manifest, with its files' checksums, and its directory.

        Of one that is there files that are gone are put back. others: the files that it lists beside its
        weights, by name. Raises `BadOption` if manifest and files
        do not fit, or if the version is there with others; `BodyTooLarge` for files over the limit in all.
        """
        target = self.model_directory(str(manifest.get("name")), _version(manifest))
        model_from_manifest(manifest, target)  # everything checked before the first byte is written
        self._readers.admit_to_folder(target.parent)
        staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=self._models))
        try:
            complete = self._write(dict(manifest), weights, others, staging)
            with contextlib.suppress(FileNotFoundError):
                there = self._there(target)
                if _checksums(there) != _checksums(complete):
                    raise BadOption(
                        f"{target} holds other weights; versions never change: use another version"
                    )
                _put_back(target, _files(there), staging, _files(complete))
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
        files = _files(manifest)
        place = self.model_directory(str(manifest.get("name")), _version(manifest))
        if place.exists() and place.resolve() == directory.resolve():
            model_from_manifest(manifest, place)
            for file in files:
                with _open_file(directory / file.name) as source:
                    _check_runtime(manifest, file, source)
                    source.seek(0)
                    _check_sum(file, hashlib.file_digest(source, "sha256").hexdigest())
            return manifest, place
        with contextlib.ExitStack() as opened:
            sources = [opened.enter_context(_open_file(directory / file.name)) for file in files]
            weights = sources[0] if sources else None
            others = {file.name: source for file, source in zip(files[1:], sources[1:], strict=True)}
            return self.install(manifest, weights, others)

    def write_function(self, name: str, deployed: Mapping[str, Any]) -> None:
        """Publish a function's deployed form for `local:`."""
        path = self._functions / f"{check_name(name, 'function')}.json"
        self._write_whole(path, json.dumps(deployed, indent=1).encode())

    def stage_function(self, name: str, deployed: Mapping[str, Any]) -> None:
        """Write a function's deployed form beside its place, where `publish_function` finds it."""
        self._write_whole(self._staged(name), json.dumps(deployed, indent=1).encode())

    def publish_function(self, name: str, deployed: Mapping[str, Any]) -> None:
        """Move what was staged to its place: `deployed`, or what another server of the home staged since."""
        place = self._functions / f"{check_name(name, 'function')}.json"
        try:
            os.replace(self._staged(name), place)
        except FileNotFoundError:  # another server has moved it, or staged a deployment that came to nothing
            if not _is_of(place, deployed["version"]):
                self.write_function(name, deployed)
        flush(self._functions)

    def unstage_function(self, name: str) -> None:
        """Forget what was staged; nothing is fine."""
        self._staged(name).unlink(missing_ok=True)

    def remove_function(self, name: str) -> None:
        """Take a function's deployed form away; none is fine."""
        (self._functions / f"{check_name(name, 'function')}.json").unlink(missing_ok=True)

    def set_aside_function(self, name: str) -> Path:
        """Move a function's deployed form away, where `local:` does not see it; where it lies then."""
        place = self._functions / f"{name}.json"
        aside = place.with_name(f"{place.name}.set-aside")
        with contextlib.suppress(FileNotFoundError):  # another server of the home has done it
            os.replace(place, aside)
        return aside

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

    def _write(
        self,
        manifest: dict[str, Any],
        weights: IO[bytes] | None,
        others: Mapping[str, IO[bytes]],
        staging: Path,
    ) -> dict[str, Any]:
        files = _files(manifest)
        if (not files) != (weights is None):
            raise BadOption(
                "the manifest names weights and none came" if files else "the manifest names no weights"
            )
        listed = {file.name for file in files[1:]}
        if listed != others.keys():
            odd = sorted(listed ^ others.keys())[0]
            raise BadOption(
                f"the manifest lists the file {odd!r} and none came"
                if odd in listed
                else f"the file {odd[:100]!r} came, and the manifest does not list it under 'files'"
            )
        written = []
        left_bytes = self._max_model_bytes
        for place, file in enumerate(files):
            source = weights if place == 0 else others[file.name]
            assert source is not None
            digest, size = self._write_file(manifest, file, source, staging, left_bytes)
            left_bytes -= size
            written.append(replace(file, sha256=digest))
        if written:
            manifest["weights"], manifest["sha256"] = written[0].name, written[0].sha256
        if len(written) > 1:
            manifest["files"] = [file.to_json() for file in written]
        else:
            manifest.pop("files", None)
        if is_remote(manifest.get("runtime")):
            manifest["sha256"] = remote_sha256(manifest)
        self._write_whole(staging / MANIFEST_FILE, json.dumps(manifest, indent=1).encode())
        return manifest

    def _write_file(
        self, manifest: Mapping[str, Any], file: ModelFile, source: IO[bytes], staging: Path, most_bytes: int
    ) -> tuple[str, int]:
        """Its checksum and its size."""
        digest = hashlib.sha256()
        size = 0
        with open(staging / file.name, "w+b") as out:
            while chunk := source.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > most_bytes:
                    raise BodyTooLarge(f"the weights are over the limit of {self._max_model_bytes} bytes")
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
            self._readers.admit_to_file(out.fileno())
            _check_runtime(manifest, file, out)
        _check_sum(file, digest.hexdigest())
        return digest.hexdigest(), size

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


def _put_back(target: Path, files: Sequence[ModelFile], source: Path, same: Sequence[ModelFile]) -> None:
    """Those of the files that are gone, from where the `same` ones lie."""
    for file, found in zip(files, same, strict=True):
        if not (target / file.name).is_file():
            os.replace(source / found.name, target / file.name)
            flush(target)


def _is_of(deployed: Path, version: int) -> bool:
    """Whether a function's deployed form is of that version, or of a later one."""
    try:
        return int(read_json(deployed)["version"]) >= version
    except (ValueError, KeyError):
        return False


def _version(manifest: Mapping[str, Any]) -> int:
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise BadOption(f"model.json: 'version' must be a whole number, not {version!r}")
    return version


def _files(manifest: Mapping[str, Any]) -> tuple[ModelFile, ...]:
    """The files beside the manifest, the weights first; none of a model without any."""
    try:
        return files_from(manifest)
    except ValueError as exc:
        raise BadOption(f"model.json: {exc}") from exc


def _checksums(manifest: Mapping[str, Any]) -> list[str]:
    return [file.sha256 for file in _files(manifest)] or [str(manifest.get("sha256") or "")]


def _check_sum(file: ModelFile, digest: str) -> None:
    if file.sha256 not in ("", digest):
        raise BadOption(f"the SHA-256 of {file.name} is not the one that model.json names; it is damaged")


def _check_runtime(manifest: Mapping[str, Any], file: ModelFile, content: IO[bytes]) -> None:
    """What the runtime would do on loading the file, beside reading it. Raises `BadOption`."""
    is_onnx = file.name.lower().endswith(".onnx")
    if not is_onnx and (manifest.get("runtime") != "onnx" or file.role != WEIGHTS):
        return
    try:
        check_onnx(content)
    except OnnxRefused as exc:
        raise BadOption(f"the weights of {manifest.get('name')} cannot be served: {exc}") from exc


def _open_file(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except OSError as exc:
        raise BadOption(f"the weights {path} cannot be read: {exc.strerror}") from exc
