"""What the page of a job shows: pure, from the job and its trials as they are told, to plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from gpu_worker.tasks.metrics import Metric
from server.dashboard.charts import units
from server.dashboard.charts.bars import Bar, bar_chart
from server.dashboard.charts.lines import Series, line_chart
from server.dashboard.charts.parallel import Line, axis_of, parallel_coordinates
from server.training.studies.importance import LEAST_TRIALS, knob_importance

__all__ = ["JobLine", "JobView", "StudyView", "TrialLine", "job_line", "job_view"]

KnobValue = float | int | str

_TABLE = 15  # trials in a table, unless all are asked for
_MOST_TRIALS = 300  # then
_DRAWN = 40  # of a model: what a page weighs
_LEAST_SHARE = 0.005  # that is worth a bar
_SHARES = ("accuracy", "macro_f1", "micro_f1", "auc", "map_50", "map")  # metrics that are parts of 1


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One trial. score: its best, in the metric's own direction; merit: the larger, the better."""

    model: str
    number: int
    state: str
    knobs: Mapping[str, KnobValue]
    epochs: int
    scores: tuple[float, ...]
    score: float | None
    merit: float | None
    loss: float | None
    took_s: float
    warm_from: int | None
    worker: str
    reason: str
    is_best: bool

    @property
    def name(self) -> str:
        """As charts call it."""
        return f"{self.model} {self.number}"

    @property
    def anchor(self) -> str:
        """The id of its line in the table."""
        return f"trial-{self.model.replace(':', '-').replace('.', '-')}-{self.number}"


@dataclass(frozen=True, slots=True)
class StudyView:
    """The trials of one model.

    trials: those in the table, the newest · drawn: those in charts, the best, by number · history: the number
    of each trial and the best score known then · knobs: those that are shown; hidden_knobs: those that are
    the same in every trial and left out · importance: share of the score's variance, by knob
    """

    model: str
    metric: str
    trials: tuple[TrialLine, ...]
    drawn: tuple[TrialLine, ...]
    history: tuple[tuple[float, float | None], ...]
    trial_count: int
    knobs: tuple[str, ...]
    hidden_knobs: Mapping[str, KnobValue]
    importance: Mapping[str, float]
    epochs_used: int
    share_used: float | None
    best_score: float | None

    @property
    def is_share(self) -> bool:
        """Whether scores are parts of 1."""
        return self.metric in _SHARES

    @property
    def parallel_chart(self) -> Markup:
        """The best trials, through their knobs; the numbers are the table's."""
        scored = [trial for trial in self.drawn if trial.score is not None]
        axes = [axis_of(name, [trial.knobs.get(name) for trial in scored]) for name in self.knobs]
        axes.append(axis_of(self.metric, [trial.score for trial in scored]))
        lines = [
            Line(
                f"trial {trial.number}",
                {**trial.knobs, self.metric: trial.score},
                trial.merit,
                f"#{trial.anchor}",
                trial.is_best,
            )
            for trial in scored
        ]
        title = f"{self.model}: knobs and {self.metric}"
        return parallel_coordinates(title, axes, lines, note=self.drawn_note, with_numbers=False)

    @property
    def drawn_note(self) -> str:
        """How many trials are drawn, where that is not all."""
        return f"the best {len(self.drawn)}" if len(self.drawn) < self.trial_count else ""

    @property
    def importance_chart(self) -> Markup:
        """Which knob mattered."""
        bars = [Bar(name, share) for name, share in self.importance.items() if share >= _LEAST_SHARE]
        title = f"{self.model}: which knob mattered"
        return bar_chart(title, bars, units.PERCENT, most=1.0, note="of the scores’ variance, each by itself")

    @property
    def importance_note(self) -> str:
        """Why nothing is said of importance."""
        if any(share >= _LEAST_SHARE for share in self.importance.values()):
            return ""
        if self.importance:
            return "No knob by itself explains the scores."
        return f"Which knob mattered is said from {LEAST_TRIALS} trials with different scores on."


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in a list."""

    id: int
    dataset: str
    task: str
    state: str
    reason: str
    models: tuple[str, ...]
    metric: str
    best_score: float | None
    best_model: str
    trials: int
    seconds_used: float
    share_used: float | None
    budget: str
    created_unix_s: float

    @property
    def is_active(self) -> bool:
        """Whether it may change still."""
        return self.state in ("running", "paused")

    @property
    def is_share(self) -> bool:
        """Whether scores are parts of 1."""
        return self.metric in _SHARES


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with all its trials."""

    line: JobLine
    snapshot: str
    policy: str
    advisor: str
    studies: tuple[StudyView, ...]
    shows_all_knobs: bool
    shows_all_trials: bool

    @property
    def curves_chart(self) -> Markup:
        """The score after every epoch, a line for each trial."""
        trials = [trial for study in self.studies for trial in study.drawn if trial.scores]
        series = [
            Series(
                trial.name,
                [(float(epoch), score) for epoch, score in enumerate(trial.scores, 1)],
                f"#{trial.anchor}",
                trial.is_best,
                trial.model,
            )
            for trial in trials
        ]
        return line_chart(
            f"Validation {self.line.metric}",
            series,
            self._unit,
            x_axis="epoch",
            from_zero=False,
            note=self._curves_note(len(series)),
        )

    @property
    def progress_chart(self) -> Markup:
        """The best score known after each trial, by model."""
        series = [Series(study.model, study.history) for study in self.studies]
        return line_chart(
            f"Best {self.line.metric} so far", series, self._unit, x_axis="trial", from_zero=False
        )

    def _curves_note(self, drawn: int) -> str:
        count = sum(study.trial_count for study in self.studies)
        if drawn < count:
            return f"{drawn} of {count} trials; the best stand out"
        return f"{count} trials; the best stand out" if count > 1 else ""

    @property
    def _unit(self) -> units.Unit:
        return units.PERCENT if self.line.is_share else units.NUMBER


def job_line(told: Mapping[str, Any]) -> JobLine:
    """told: as `GET /v1/jobs/N` has it."""
    studies = list(told["studies"].values())
    shares = [study["share_used"] for study in studies if study.get("share_used") is not None]
    return JobLine(
        told["id"],
        told["dataset"],
        told["task"],
        told["state"],
        told["reason"],
        tuple(told["models"]),
        told["metric"],
        told["best_score"],
        told["best_model"] or "",
        told["trials"],
        told["seconds_used"],
        sum(shares) / len(shares) if shares else None,
        told["budget"],
        _unix_s(told["created_at"]),
    )


def job_view(
    told: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    metric: Metric,
    *,
    all_knobs: bool = False,
    all_trials: bool = False,
) -> JobView:
    """told, trials: as `GET /v1/jobs/N` and `GET /v1/trials?job=N` have them · all_knobs: those too that are
    the same in every trial · all_trials: and not the newest few
    """
    line = job_line(told)
    names = list(dict.fromkeys([*told["studies"], *(trial["model"] for trial in trials)]))
    studies = tuple(
        _study(
            name,
            told["studies"].get(name, {}),
            [trial for trial in trials if trial["model"] == name],
            metric,
            all_knobs=all_knobs,
            in_table=_MOST_TRIALS if all_trials else _TABLE,
        )
        for name in names
    )
    return JobView(line, told["snapshot"], told["policy"], told["advisor"], studies, all_knobs, all_trials)


def _study(
    model: str,
    told: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    metric: Metric,
    *,
    all_knobs: bool,
    in_table: int,
) -> StudyView:
    lines = [_trial(trial, metric, told.get("best_trial")) for trial in trials]
    names = list(dict.fromkeys(name for line in lines for name in line.knobs))
    same = {
        name: lines[0].knobs[name]
        for name in names
        if len(lines) > 1 and len({repr(line.knobs.get(name)) for line in lines}) == 1
    }
    scored = [(line.knobs, line.merit) for line in lines if line.merit is not None]
    in_order = sorted(lines, key=lambda line: line.number)
    best = sorted(in_order, key=lambda line: (line.is_best, line.merit is not None, line.merit or 0.0))[
        -_DRAWN:
    ]
    return StudyView(
        model,
        metric.name,
        tuple(in_order[-in_table:]),
        tuple(sorted(best, key=lambda line: line.number)),
        _history(in_order),
        len(lines),
        tuple(name for name in names if all_knobs or name not in same),
        {} if all_knobs else same,
        knob_importance(scored),
        told.get("epochs_used", 0),
        told.get("share_used"),
        told.get("best_score"),
    )


def _history(trials: Sequence[TrialLine]) -> tuple[tuple[float, float | None], ...]:
    best: TrialLine | None = None
    points: list[tuple[float, float | None]] = []
    for trial in trials:
        if trial.merit is not None and (best is None or best.merit is None or trial.merit > best.merit):
            best = trial
        points.append((float(trial.number), None if best is None else best.score))
    return tuple(points)


def _trial(told: Mapping[str, Any], metric: Metric, best: int | None) -> TrialLine:
    score = told["best_score"]
    return TrialLine(
        told["model"],
        told["trial"],
        told["state"],
        told["knobs"],
        told["epochs"],
        tuple(told.get("scores", ())),
        score,
        None if score is None else metric.merit(score),
        told["loss"],
        told["took_s"],
        told["parent_trial"] if told["warm"] else None,
        told["worker"] or "",
        told["reason"],
        told["trial"] == best,
    )


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
