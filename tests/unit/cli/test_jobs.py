"""`ml-udf jobs`: on a terminal, and in a log."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from rich.console import Console

from ml_udf.cli import jobs
from ml_udf.cli.jobs import watch_jobs
from ml_udf.training import TrainingCalls

TRIAL = {"trial": 1, "model": "m", "state": "done", "epochs": 3, "score": 0.5, "best_score": 0.5}


class FakeCalls:
    """A job that goes on by an epoch whenever it is looked at, up to three."""

    def __init__(self) -> None:
        self.epochs = 0

    def job(self, number: int) -> dict[str, Any]:
        self.epochs = min(3, self.epochs + 1)
        study = {"epochs_used": self.epochs, "epochs_budget": 3, "trials": 1, "best_score": self.epochs / 10}
        state = "running" if self.epochs < 3 else "done"
        return {"id": number, "dataset": "food", "state": state, "studies": {"m": study}}

    def trials(self, _job: int) -> list[dict[str, Any]]:
        return [{**TRIAL, "parent_trial": None, "knobs": {"width": 0.25}}]


def told(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


@pytest.mark.parametrize("width", [80, 1_000_000])
def test_the_trials_take_no_more_room_than_there_is(width: int):
    to = Console(file=io.StringIO(), width=width)
    watch_jobs(cast(TrainingCalls, FakeCalls()), [7], to)
    assert "width 0.25" in told(to)
    assert max(map(len, told(to).splitlines())) <= 120


def test_where_nothing_can_be_drawn_anew_each_step_is_a_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "_LOG_S", 0.0)
    monkeypatch.setattr(jobs, "_LOOK_S", 0.001)
    to = Console(file=io.StringIO(), width=200)
    watch_jobs(cast(TrainingCalls, FakeCalls()), [7], to)
    lines = [line.partition("  ")[2] for line in told(to).splitlines()]
    assert lines[:5] == [
        "job 7, food: running",
        "job 7, food, m: 1/3 epochs, 1 trials, best 0.100",
        "job 7, food, m: 2/3 epochs, 1 trials, best 0.200",
        "job 7, food: done",
        "job 7, food, m: 3/3 epochs, 1 trials, best 0.300",
    ]
