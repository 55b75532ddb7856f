"""`ml-udf jobs`: on a terminal, and in a log."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from rich.console import Console

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
