"""What a home folder offers without a server: deployed functions, and every model by its own name.

Owns the reading of `functions/NAME.json` and `models/NAME/VERSION/model.json`. Knows no network and no wire.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.regular import MANIFEST_FILE, read_json
from gpu_worker.pipeline.file_stamp import stamp_of
from gpu_worker.tasks import task_named
from gpu_worker.tasks.thresholds import thresholds_from, thresholds_of
from ml_udf.errors import BadOption, UnknownFunction

__all__ = ["LocalCatalog", "LocalFunction", "LocalMember"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # a name is a folder's name: never a path
_FORMAT = 1  # of functions/NAME.json
_INPUT_NAMES = {"path": "image_path", "image": "image", "text": "text"}


@dataclass(frozen=True, slots=True)
class LocalMember:
    """A model version that takes part in a function."""

    model: str
    version: int
    accuracy: float
    directory: Path

    @property
    def key(self) -> str:
        """Its name on the engine."""
        return f"{self.model}/{self.version}"


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """A function as it was deployed; a bare model is one with one member."""

    name: str
    version: str
    task: str
    form: str
    combine: str
    members: tuple[LocalMember, ...]
    classes: tuple[str, ...]
    min_confidence: float = 0.0
    default: str | None = None
    columns: tuple[dict[str, str], ...] = ()  # of a table's row: name and kind of each
    features: int = 0  # numbers of a vector, where it answers one
    thresholds: tuple[float, ...] = ()  # by class, where its members' own do not suffice
    content: str = ""  # of what it writes; "" = plain text
    scores: tuple[tuple[str, Any], ...] = ()  # of members by name: on held-out rows, and by which metric
    fit: dict[str, Any] | None = None  # of its members, as its file has it
    # By state of the fit's evidence, which member is asked next, or −1 for enough; (): all are asked at once.
    plan: tuple[int, ...] = ()
    media_roots: tuple[str, ...] | None = None  # below which its paths must lie, beside the endpoint's own
    stages: tuple[LocalFunction, ...] = ()  # of a pipeline, each in the version that it has there
    crop: dict[str, Any] | None = None  # what is cut out between the first two; None where nothing is
    outputs: tuple[dict[str, Any], ...] = ()  # of a pipeline, as metadata have them

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by which the shapes of its answers are given."""
        return {"classes": len(self.classes), "features": self.features}

    @property
    def input_name(self) -> str:
        """The input that SQL sends by default."""
        return _INPUT_NAMES.get(self.form, self.form)

    @property
    def inputs(self) -> dict[str, str]:
        """Every input that may be sent → the form of its rows; an image comes by its path or as its bytes."""
        if self.stages:
            return self.stages[0].inputs
        others = ("path", "image") if self.form in ("path", "image") else ()
        return {_INPUT_NAMES.get(form, form): form for form in (self.form, *others)}


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of a function. stamps: of the files and folders that say it."""

    function: LocalFunction
    stamps: Mapping[Path, bytes]


class LocalCatalog:
    """The functions and models of a home folder, as they are at each look: what has changed is read anew."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[str, _Read] = {}
        if not (home / "models").is_dir():
            raise BadOption(
                f"{home} is not a home folder: it has no folder 'models'",
                hint="use the folder that a server was started with (--home), as local:/path/to/home",
            )

    def function(self, name: str) -> LocalFunction:
        """The function or model of that name, the same object while its files are the same.

        Raises `UnknownFunction`, `BadOption`.
        """
        known = self._known.get(name)
        if known is not None and _stamps(known.stamps, time.time_ns()) == known.stamps:
            return known.function
        began_ns = time.time_ns()
        function = self._found(name)
        members = [member for each in (function, *function.stages) for member in each.members]
        manifests = [member.directory / MANIFEST_FILE for member in members]
        stamps = _stamps([*self._places(name), *manifests], began_ns)
        if all(stamps.values()):
            self._known[name] = _Read(function, stamps)
        return function

    def _places(self, name: str) -> list[Path]:
        """Where it is looked for: its file, or without one both folders."""
        path = self._home / "functions" / f"{name}.json"
        return [path] if path.is_file() else [path.parent, self._home / "models" / name]

    def _found(self, name: str) -> LocalFunction:
        if _NAME.fullmatch(name):
            path = self._home / "functions" / f"{name}.json"
            if path.is_file():
                deployed = _read(path)
                if deployed.get("format", _FORMAT) != _FORMAT:
                    raise BadOption(
                        f"{path} has the format {deployed['format']!r}, and this ml_udf reads {_FORMAT}",
                        hint="a newer server has written it: install the same ml_udf here",
                    )
                return self._deployed(deployed)
            versions = self._versions(name)
            if versions:
                return self._bare(name, versions[-1])
        raise UnknownFunction(
            f"{self._home} has no function or model {name!r}",
            hint="it has: " + (", ".join([*self.functions(), *self.models()]) or "none"),
        )

    def functions(self) -> list[str]:
        """Names of the deployed functions."""
        return sorted(path.stem for path in (self._home / "functions").glob("*.json"))

    def models(self) -> list[str]:
        """Names of the models."""
        return sorted(path.name for path in (self._home / "models").iterdir() if self._versions(path.name))

    def _versions(self, model: str) -> list[int]:
        found = (self._home / "models" / model).glob(f"[0-9]*/{MANIFEST_FILE}")
        # What is no number is somebody's copy: 1.bak.
        return sorted(int(path.parent.name) for path in found if path.parent.name.isdecimal())

    def _bare(self, name: str, version: int) -> LocalFunction:
        member, manifest = self._member({"model": name, "version": version})
        return LocalFunction(
            name=name,
            version=str(version),
            task=manifest["task"],
            form=manifest["input"]["form"],
            combine="majority_vote",
            members=(member,),
            classes=tuple(manifest.get("classes") or ()),
            features=_features(manifest),
            content=str(manifest.get("content") or ""),
            columns=tuple(manifest["input"].get("columns", ())),
        )

    def _deployed(self, deployed: dict[str, Any]) -> LocalFunction:
        try:
            found = [self._member(member) for member in deployed["members"]]
            if deployed.get("stages"):
                return self._piped(deployed, tuple(member for member, _ in found))
            return LocalFunction(
                name=deployed["name"],
                version=str(deployed["version"]),
                task=deployed["task"],
                form=deployed["input"]["form"],
                combine=deployed["combine"],
                fit=deployed.get("fit"),
                plan=tuple(int(member) for member in deployed.get("plan") or ()),
                members=tuple(member for member, _ in found),
                classes=tuple(found[0][1].get("classes") or ()),
                features=int(deployed.get("features") or _features(found[0][1])),
                thresholds=_thresholds(deployed, [manifest for _, manifest in found]),
                content=str(found[0][1].get("content") or ""),
                scores=tuple((member.model, manifest.get("score")) for member, manifest in found),
                columns=tuple(found[0][1]["input"].get("columns", ())),
                min_confidence=float(deployed.get("min_confidence") or 0.0),
                default=deployed.get("default"),
                media_roots=None if deployed.get("media_roots") is None else tuple(deployed["media_roots"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as exc:
            raise BadOption(
                f"the function {deployed.get('name')!r} of {self._home} cannot be read: "
                f"{exc!r} is missing or wrong"
            ) from exc

    def _piped(self, deployed: dict[str, Any], members: tuple[LocalMember, ...]) -> LocalFunction:
        stages = tuple(self._deployed(stage) for stage in deployed["stages"])
        last, crop = stages[-1], deployed["crop"]
        return LocalFunction(
            name=deployed["name"],
            version=str(deployed["version"]),
            task=deployed["task"],
            form=deployed["input"]["form"],
            combine="",
            members=members,
            classes=last.classes if crop is None else (),
            features=last.features,
            columns=stages[0].columns,
            stages=stages,
            crop=None if crop is None else dict(crop),
            outputs=tuple(deployed["outputs"]),
        )

    def _member(self, member: dict[str, Any]) -> tuple[LocalMember, dict[str, Any]]:
        name, version = str(member["model"]), int(member["version"])
        directory = self._home / "models" / name / str(version)
        said = _read(directory / MANIFEST_FILE)
        try:  # what is left out, as the engine has it
            manifest = said | read_manifest(str(directory)).to_json()
        except ModelUnusable as exc:
            raise BadOption(str(exc)) from exc
        accuracy = float(member.get("accuracy", manifest.get("accuracy") or 0.0))
        return LocalMember(name, version, accuracy, directory), manifest


def _stamps(paths: Iterable[Path], now_ns: int) -> dict[Path, bytes]:
    """Of files and folders; b"" for what is not there, or has changed a moment before `now_ns`."""
    stamps = {}
    for path in paths:
        try:
            stamps[path] = stamp_of(os.stat(path), now_ns)
        except OSError:
            stamps[path] = b""
    return stamps


def _thresholds(deployed: dict[str, Any], manifests: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    """As `Function` has them. Raises ValueError."""
    classes = tuple(manifests[0].get("classes") or ())
    own = thresholds_from(deployed.get("thresholds") or None, classes)
    if len(manifests) == 1 and not own:
        return ()
    models = [thresholds_from(manifest.get("thresholds"), classes) for manifest in manifests]
    return thresholds_of(task_named(deployed["task"]), classes, models, own)


def _features(manifest: dict[str, Any]) -> int:
    return int((manifest.get("features") or {}).get("width") or 0)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except ValueError as exc:
        raise BadOption(str(exc)) from exc
