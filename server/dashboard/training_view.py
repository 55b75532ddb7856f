"""What the pages of data show: pure, from snapshots and what is in them, to plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from server.catalog.functions import Function
from server.catalog.jobs import Look, Snapshot
from server.catalog.retraining import Retraining
from server.dashboard.charts import units
from server.dashboard.charts.bars import Bar, bar_chart, histogram
from server.dashboard.charts.confusion import confusion_table
from server.dashboard.charts.reliability import bins_of, reliability_chart
from server.dashboard.confusions import Judged, Judgement, is_judged, of_numbers
from server.dashboard.job_view import JobLine
from server.errors import ServiceError
from server.training.datasets.asking import check_fits
from server.training.datasets.contents import Contents, Row
from server.training.datasets.spec import PUSHED
from server.training.datasets.split import SPLITS
from server.training.drift import DriftOf
from server.training.recipes import recipe_for

__all__ = [
    "ConfusionView",
    "DatasetLine",
    "DatasetView",
    "ShownRow",
    "TrainingView",
    "WrongRow",
    "confusion_view",
    "dataset_line",
    "dataset_view",
    "shown_rows",
]

_TEXT = 300  # characters of a row that are shown
_BINS = 15
_MOST_BARS = 40


@dataclass(frozen=True, slots=True)
class DatasetLine:
    """A dataset in a list. source: "" where a client pushed its rows."""

    name: str
    task: str
    rows: int
    classes: int
    columns: int
    source: str
    taken_unix_s: float
    unreadable: int


@dataclass(frozen=True, slots=True)
class TrainingView:
    """datasets: None for who may not see them · before: where older jobs begin; None = there are none."""

    datasets: tuple[DatasetLine, ...] | None
    jobs: tuple[JobLine, ...]
    before: int | None
    retrainings: tuple[Retraining, ...]
    drift: tuple[DriftOf, ...]


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row for people: a picture by its number, or values by column; one value where it is a text."""

    number: int
    key: str
    is_picture: bool
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class and a few of its rows; "" where there are no classes."""

    name: str
    rows: int
    examples: tuple[ShownRow, ...]


@dataclass(frozen=True, slots=True)
class DatasetView:
    """A dataset with its newest snapshot. functions: those that take its rows, and say classes or numbers."""

    line: DatasetLine
    snapshot: str
    query: str
    roles: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    splits: Mapping[str, int]
    counts: Mapping[str, Mapping[str, int]]
    numbers: tuple[tuple[float, int], ...]
    classes: tuple[ClassView, ...]
    unreadable: tuple[tuple[str, str], ...]
    untaught: Mapping[str, Sequence[str]]
    left_out: int
    snapshots: tuple[tuple[str, float, int], ...]
    looks: tuple[Look, ...]
    functions: tuple[str, ...]
    metrics: tuple[str, ...]

    @property
    def is_pushed(self) -> bool:
        """Whether only the client that sent its rows can refresh it."""
        return not self.line.source

    @property
    def counts_chart(self) -> Markup:
        """Rows by class, or by the target's value."""
        if self.numbers:
            bounds = [bound for bound, _ in self.numbers[:-1]]
            counts = [count for _, count in self.numbers]
            return histogram(
                f"Rows by {dict(self.roles)['target']}", bounds, counts, units.NUMBER, y_unit=units.ROWS
            )
        bars = [Bar(name, float(sum(splits.values()))) for name, splits in self.counts.items()]
        return bar_chart("Rows by class", bars, units.ROWS)


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row and what was said of it."""

    row: ShownRow
    truth: str
    answer: str
    confidence: float | None
    off: float | None = None


@dataclass(frozen=True, slots=True)
class ConfusionView:
    """What a function answers to a dataset's test rows. told: None = it has not been asked. shown: of a
    cell, or all that are wrong; more: how many do not stand there.
    """

    dataset: str
    snapshot: str
    function: str
    version: int
    told: Judgement | None
    labels: tuple[str, ...]
    truth: str | None
    answer: str | None
    shown: tuple[WrongRow, ...]
    more: int
    href: Callable[[str, str], str]
    of_numbers: bool = False

    @property
    def asked(self) -> int:
        """Rows that are answered."""
        return 0 if self.told is None else len(self.told.rows)

    @property
    def accuracy(self) -> float | None:
        """Of the rows that are answered."""
        rows = [] if self.told is None else self.told.rows
        return sum(row.is_right for row in rows) / len(rows) if rows else None

    @property
    def mean_off(self) -> float | None:
        """Of numbers, how far they lie off, whichever way."""
        offs = [] if self.told is None else self.told.offs
        return sum(map(abs, offs)) / len(offs) if offs else None

    @property
    def bias(self) -> float | None:
        """Of numbers, how far they lie above the truth, below counted against it."""
        offs = [] if self.told is None else self.told.offs
        return sum(offs) / len(offs) if offs else None

    @property
    def root_mean_square(self) -> float | None:
        """Of numbers, where what lies far off counts more."""
        offs = [] if self.told is None else self.told.offs
        return math.sqrt(sum(off * off for off in offs) / len(offs)) if offs else None

    @property
    def chart(self) -> Markup:
        """The table; of numbers, how many lie how far off."""
        assert self.told is not None
        if self.of_numbers:
            counts, edges = np.histogram(self.told.offs, bins=_BINS)
            return histogram(
                "Rows by how far the answer lies above the truth",
                edges[1:-1].tolist(),
                counts.tolist(),
                units.NUMBER,
                y_unit=units.ROWS,
            )
        return confusion_table("Truth and answers", self.labels, self.told.counts, self.href)

    @property
    def reliability(self) -> Markup | None:
        """Whether its confidence is true."""
        sure = [] if self.told is None else self.told.sureness
        return reliability_chart("Right, by how sure it was", bins_of(sure)) if sure else None


def dataset_line(snapshot: Snapshot) -> DatasetLine:
    """A dataset by its newest snapshot."""
    spec, facts = snapshot.spec, snapshot.facts
    return DatasetLine(
        snapshot.dataset,
        spec["task"],
        facts["rows"],
        len(facts["classes"]),
        len(facts.get("columns", ())),
        "" if spec["source"] == PUSHED else spec["source"],
        snapshot.taken_at.timestamp(),
        facts["unreadable"],
    )


def dataset_view(
    snapshot: Snapshot,
    contents: Contents,
    snapshots: Sequence[Snapshot],
    looks: Sequence[Look],
    functions: Sequence[Function],
) -> DatasetView:
    """functions: that the caller sees."""
    spec, facts = snapshot.spec, snapshot.facts
    wanted = ("target", "key", "input", "entity", "time")
    known = [name for name in SPLITS if name in facts["splits"]]
    return DatasetView(
        dataset_line(snapshot),
        snapshot.id,
        spec["query"],
        tuple((name, str(spec[name])) for name in wanted if spec.get(name)),
        tuple((column["name"], column["kind"]) for column in facts.get("columns", ())),
        {name: facts["splits"][name] for name in known},
        dict(list(contents.counts.items())[:_MOST_BARS]),
        contents.numbers,
        tuple(
            ClassView(
                name,
                sum(contents.counts.get(name, {}).values()) or len(rows),
                tuple(shown_rows(snapshot, rows)),
            )
            for name, rows in contents.examples.items()
        ),
        tuple((row["input"], row["message"]) for row in facts["unreadable_rows"]),
        facts.get("untaught", {}),
        facts.get("left_out", 0),
        tuple((each.id, each.taken_at.timestamp(), each.facts["rows"]) for each in reversed(snapshots)),
        tuple(reversed(looks)),
        tuple(each.name for each in functions if _may_be_judged(each, snapshot)),
        recipe_for(spec["task"]).metrics,
    )


def shown_rows(snapshot: Snapshot, rows: Sequence[Row]) -> list[ShownRow]:
    """Rows as people see them."""
    recipe = recipe_for(snapshot.spec["task"])
    names = [column["name"] for column in snapshot.facts.get("columns", ())]
    return [
        ShownRow(row.number, row.key, recipe.pictures, _values(row.input, names, is_picture=recipe.pictures))
        for row in rows
    ]


def confusion_view(
    snapshot: Snapshot,
    function: Function,
    told: Judgement | None,
    cell: tuple[str | None, str | None],
    behind: Sequence[Judged],
    rows: Sequence[Row],
    href: Callable[[str, str], str],
) -> ConfusionView:
    """behind: all rows of the cell · rows: the first of them, as they stand in the snapshot."""
    by_number = {row.number: row for row in shown_rows(snapshot, rows)}
    shown = tuple(
        WrongRow(by_number[each.number], each.truth, each.answer or "", each.confidence, each.off)
        for each in behind
        if each.number in by_number
    )
    return ConfusionView(
        snapshot.dataset,
        snapshot.id,
        function.name,
        function.version,
        told,
        tuple(snapshot.facts["classes"]),
        *cell,
        shown,
        len(behind) - len(shown),
        href,
        of_numbers(function),
    )


def _may_be_judged(function: Function, snapshot: Snapshot) -> bool:
    if not is_judged(function, snapshot):
        return False
    try:
        check_fits(function, snapshot)
    except ServiceError:
        return False
    return True


def _values(text: str, names: Sequence[str], *, is_picture: bool) -> tuple[tuple[str, str], ...]:
    if is_picture or not names:
        return (("", text[:_TEXT]),)
    try:
        values: Any = json.loads(text)
    except ValueError:
        return (("", text[:_TEXT]),)
    if not isinstance(values, list):
        return (("", text[:_TEXT]),)
    return tuple(
        (name, "–" if value is None else str(value)[:_TEXT])
        for name, value in zip(names, values, strict=False)
    )
