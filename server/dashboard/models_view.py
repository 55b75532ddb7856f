"""What the pages of models show: pure, from the catalog and the workers' places to plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from server.catalog.functions import Function, ModelVersion
from server.dashboard.charts import units
from server.dashboard.charts.lines import Series, line_chart
from server.dashboard.charts.timeline import Lane, Moment, MomentKind, Span, timeline
from server.observability.moves import Move
from server.placement.places import Place

__all__ = [
    "LatencyCurve",
    "ModelCard",
    "ModelLine",
    "ModelsView",
    "Moved",
    "ResidentLine",
    "VersionCard",
    "lanes_of",
    "model_card",
    "models_of",
]

_SHOWN_CLASSES = 200
_LEAST_SPAN_S = 300.0
_STEP_S = 30.0


@dataclass(frozen=True, slots=True)
class ResidentLine:
    """A model version on a device, in a host's memory, or behind another server."""

    worker: str
    tier: str
    size_bytes: int
    since_unix_s: float | None
    last_used_unix_s: float | None
    rows_per_s: float | None
    loads: int | None


@dataclass(frozen=True, slots=True)
class ModelLine:
    """The newest version of a model. versions: how many there are."""

    name: str
    version: int
    versions: int
    task: str
    runtime: str
    accuracy: float
    resident_bytes: int
    workers: tuple[str, ...]
    functions: tuple[str, ...]
    endpoint: str


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """What batches took on one kind of device, for rows of one form: (rows, seconds)."""

    device: str
    form: str
    points: tuple[tuple[int, float], ...]

    @property
    def name(self) -> str:
        """For a legend."""
        return f"{self.form} on {self.device}" if self.device else self.form


@dataclass(frozen=True, slots=True)
class VersionCard:
    """One version with all that is known of it. classes: the first of `class_count`."""

    key: str
    version: int
    task: str
    runtime: str
    architecture: str
    form: str
    size: str
    columns: tuple[tuple[str, str], ...]
    accuracy: float
    score: Mapping[str, object]
    classes: tuple[str, ...]
    class_count: int
    features: int
    resident_bytes: int
    files: tuple[tuple[str, int | None], ...]
    sha256: str
    directory: str
    backbone: str
    endpoint: str
    unavailable: str
    resident: tuple[ResidentLine, ...]
    latency: tuple[LatencyCurve, ...]
    functions: tuple[str, ...]

    @property
    def latency_chart(self) -> Markup:
        """Milliseconds by rows of a batch."""
        return line_chart(
            "Time of a batch",
            [
                Series(each.name, [(rows, 1000 * took_s) for rows, took_s in each.points])
                for each in self.latency
            ],
            units.MILLISECONDS,
            x_axis="rows",
        )

    @property
    def rate_chart(self) -> Markup:
        """What that makes in a second."""
        return line_chart(
            "Rows a second, by batch",
            [
                Series(each.name, [(rows, rows / took_s) for rows, took_s in each.points])
                for each in self.latency
            ],
            units.ROWS_PER_S,
            x_axis="rows",
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """What was where since `from_s`. now_s: in steps, so that a page that is live changes no oftener."""

    lanes: tuple[Lane, ...]
    from_s: float
    now_s: float

    @property
    def chart(self) -> Markup:
        """Drawn where the page is rendered, beside the event loop."""
        return timeline("Loads and evictions", self.lanes, self.from_s, self.now_s)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model, its newest version first."""

    name: str
    versions: tuple[VersionCard, ...]
    moved: Moved


@dataclass(frozen=True, slots=True)
class ModelsView:
    """Every model, and what has moved."""

    models: tuple[ModelLine, ...]
    moved: Moved


def models_of(
    models: Sequence[ModelVersion],
    functions: Sequence[Function],
    places: Sequence[Place],
    remote: Mapping[str, Sequence[str]],
    moves: Sequence[Move],
    now_s: float,
) -> ModelsView:
    """models, functions: those that the caller sees · remote: worker → keys · moves: the newest first."""
    lines = []
    for name in dict.fromkeys(model.name for model in models):
        versions = [model for model in models if model.name == name]
        newest = versions[-1]
        keys = {model.key for model in versions}
        lines.append(
            ModelLine(
                name,
                newest.version,
                len(versions),
                newest.task,
                newest.runtime,
                newest.accuracy,
                newest.resident_bytes or _held_bytes(newest.key, places),
                _workers_with(keys, places, remote),
                _functions_with(keys, functions),
                newest.endpoint,
            )
        )
    return ModelsView(tuple(lines), _moved(moves, places, {model.key for model in models}, now_s))


def model_card(
    versions: Sequence[ModelVersion],
    functions: Sequence[Function],
    places: Sequence[Place],
    remote: Mapping[str, Sequence[str]],
    moves: Sequence[Move],
    latency: Mapping[str, Sequence[LatencyCurve]],
    unavailable: Mapping[str, str],
    file_bytes: Mapping[str, Mapping[str, int]],
    now_s: float,
) -> ModelCard:
    """versions: of one model, at least one · latency, unavailable, file_bytes: by the version's key."""
    keys = {model.key for model in versions}
    cards = tuple(
        _version_card(
            model,
            functions,
            tuple(_resident(model.key, places, remote)),
            tuple(latency.get(model.key, ())),
            unavailable.get(model.key, ""),
            file_bytes.get(model.key, {}),
        )
        for model in sorted(versions, key=lambda model: -model.version)
    )
    return ModelCard(versions[0].name, cards, _moved(moves, places, keys, now_s))


def lanes_of(
    moves: Sequence[Move], places: Sequence[Place], keys: Iterable[str], from_s: float
) -> tuple[Lane, ...]:
    """A lane for each model on each worker that held it since `from_s`, by worker and model.

    moves: the newest first. A model was there from its load to its eviction; what was there before the first
    move that is known came earlier, what is there now is there still.
    """
    wanted = set(keys)
    held = {
        (place.worker, model.model): model.since_unix_s
        for place in places
        for model in place.held
        if model.model in wanted
    }
    by_lane: dict[tuple[str, str], list[Move]] = {lane: [] for lane in held}
    for move in reversed(moves):
        if move.model in wanted:
            by_lane.setdefault((move.worker, move.model), []).append(move)
    return tuple(
        Lane(
            worker,
            model,
            tuple(_spans(events, held.get((worker, model)), from_s)),
            tuple(Moment(each.at_unix_s, _kind(each), _told(each)) for each in events),
        )
        for (worker, model), events in sorted(by_lane.items())
    )


def _spans(moves: Sequence[Move], held_since_s: float | None, from_s: float) -> Iterable[Span]:
    """moves: of one lane, the oldest first."""
    done = [move for move in moves if move.outcome == "done"]
    since_s: float | None = None
    is_there = bool(done) and done[0].kind == "eviction"
    for move in done:
        if move.kind == "load":
            since_s, is_there = move.at_unix_s, True
        elif is_there:
            yield Span(since_s, move.at_unix_s, "was here")
            is_there = False
    if held_since_s is not None:
        began_s = since_s if is_there and since_s is not None else held_since_s
        yield Span(None if began_s <= from_s else began_s, None, "is here")


def _kind(move: Move) -> MomentKind:
    return move.kind if move.outcome == "done" else "failed"


def _told(move: Move) -> str:
    parts = [f"{move.kind}: {move.why}"]
    if move.outcome != "done":
        parts.append(move.outcome)
    if move.took_s:
        parts.append(f"{move.took_s:.2f} s")
    return ", ".join([*parts, *filter(None, [move.error])])


def _moved(moves: Sequence[Move], places: Sequence[Place], keys: set[str], now_s: float) -> Moved:
    ends_s = math.ceil(now_s / _STEP_S) * _STEP_S
    first_s = min((move.at_unix_s for move in moves if move.model in keys), default=ends_s)
    from_s = min(first_s, ends_s - _LEAST_SPAN_S)
    return Moved(lanes_of(moves, places, keys, from_s), from_s, ends_s)


def _resident(
    key: str, places: Sequence[Place], remote: Mapping[str, Sequence[str]]
) -> Iterable[ResidentLine]:
    for place in places:
        for held in place.held:
            if held.model == key:
                yield ResidentLine(
                    place.worker,
                    place.device,
                    held.size_bytes,
                    held.since_unix_s,
                    held.last_used_unix_s,
                    held.rows_per_s,
                    held.loads,
                )
        if key in place.host:
            yield ResidentLine(place.worker, "host memory", place.host[key], None, None, None, None)
    for worker, held_keys in remote.items():
        if key in held_keys:
            yield ResidentLine(worker, "another server", 0, None, None, None, None)


def _version_card(
    model: ModelVersion,
    functions: Sequence[Function],
    resident: tuple[ResidentLine, ...],
    latency: tuple[LatencyCurve, ...],
    unavailable: str,
    file_bytes: Mapping[str, int],
) -> VersionCard:
    shape = model.input
    return VersionCard(
        model.key,
        model.version,
        model.task,
        model.runtime,
        model.architecture,
        shape.form,
        f"{shape.width} × {shape.height}" if shape.width else "",
        shape.columns,
        model.accuracy,
        model.score or {},
        model.classes[:_SHOWN_CLASSES],
        len(model.classes),
        model.features,
        model.resident_bytes or max((there.size_bytes for there in resident), default=0),
        tuple((file.name, file_bytes.get(file.name)) for file in model.files),
        model.sha256,
        str(model.directory),
        "" if model.backbone is None else model.backbone.key,
        model.endpoint,
        unavailable,
        resident,
        latency,
        _functions_with({model.key}, functions),
    )


def _functions_with(keys: set[str], functions: Sequence[Function]) -> tuple[str, ...]:
    return tuple(each.name for each in functions if keys & {member.key for member in each.members})


def _held_bytes(key: str, places: Sequence[Place]) -> int:
    return max((held.size_bytes for place in places for held in place.held if held.model == key), default=0)


def _workers_with(
    keys: set[str], places: Sequence[Place], remote: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    on_devices = [place.worker for place in places if any(held.model in keys for held in place.held)]
    return (*on_devices, *(worker for worker, held in remote.items() if keys & set(held)))
