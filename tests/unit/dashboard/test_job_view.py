"""The page of a job: what differs between trials, which is the best, and nothing of a user's as markup."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from gpu_worker.tasks.metrics import metric_named
from server.dashboard.job_view import JobView, job_view


def _told(models: tuple[str, ...] = ("cnn",), state: str = "running", best: int = 1) -> dict[str, Any]:
    study = {
        "epochs_used": 6,
        "share_used": 0.5,
        "trials": 3,
        "best_score": 0.9,
        "best_trial": best,
        "metric": "accuracy",
    }
    return {
        "id": 7,
        "dataset": "food",
        "task": "image-classification",
        "snapshot": "abc",
        "state": state,
        "reason": "",
        "models": list(models),
        "policy": "costudy",
        "advisor": "gp",
        "budget": "10 epochs",
        "seconds_used": 3.0,
        "trials": 3,
        "metric": "accuracy",
        "best_score": 0.9,
        "best_model": models[0],
        "created_at": "2026-11-01T00:00:00+00:00",
        "ended_at": None,
        "studies": dict.fromkeys(models, study),
    }


def _trial(number: int, scores: list[float], model: str = "cnn", **knobs: Any) -> dict[str, Any]:
    return {
        "model": model,
        "trial": number,
        "state": "finished",
        "knobs": {"flip": 1, **knobs},
        "warm": False,
        "parent_trial": None,
        "worker": "w0",
        "epochs": len(scores),
        "charged": len(scores),
        "score": scores[-1] if scores else None,
        "best_score": max(scores, default=None),
        "reason": "",
        "loss": 0.1,
        "took_s": 1.0,
        "scores": scores,
    }


def _view(*trials: dict[str, Any], all_knobs: bool = False, metric: str = "accuracy", **told: Any) -> JobView:
    return job_view({**_told(), **told}, trials, metric_named(metric), all_knobs=all_knobs)


def test_only_knobs_that_differ_are_shown_unless_all_are_asked_for():
    trials = (_trial(0, [0.5], rate=0.1), _trial(1, [0.9], rate=0.2))
    assert _view(*trials).studies[0].knobs == ("rate",)
    assert _view(*trials).studies[0].hidden_knobs == {"flip": 1}
    assert set(_view(*trials, all_knobs=True).studies[0].knobs) == {"flip", "rate"}


def test_a_knob_that_one_trial_lacks_differs():
    assert _view(_trial(0, [0.5]), _trial(1, [0.6], rate=0.2)).studies[0].knobs == ("rate",)


def test_the_best_trial_stands_out_and_leads_to_its_line():
    view = _view(_trial(0, [0.5, 0.6]), _trial(1, [0.7, 0.9]))
    groups = [element for element in fromstring(view.curves_chart).iter() if element.get("class")]
    assert sum("strong" in str(element.get("class")) for element in groups) == 1
    assert view.studies[0].trials[1].anchor in view.curves_chart


def test_an_error_is_the_better_the_smaller():
    view = _view(_trial(0, [3.0]), _trial(1, [2.0]), metric="rmse")
    merits = [trial.merit for trial in view.studies[0].trials]
    assert merits == [-3.0, -2.0]


def test_a_job_without_trials_is_shown():
    view = _view()
    assert "nothing yet" in view.curves_chart
    assert view.studies[0].trials == ()
    assert view.studies[0].importance_note


@pytest.mark.security
def test_a_hostile_name_of_a_knob_or_a_model_stays_text():
    hostile = "<script>alert(1)</script>"
    trials = [_trial(n, [n / 10], hostile, **{hostile: n, "b": hostile if n else "x"}) for n in range(8)]
    view = job_view(_told((hostile,)), trials, metric_named("accuracy"), all_knobs=True)
    (study,) = view.studies
    for chart in (view.curves_chart, view.progress_chart, study.parallel_chart, study.importance_chart):
        assert not any(element.tag.endswith("script") for element in fromstring(chart).iter())


def test_a_long_table_shows_the_newest_trials_and_charts_the_best():
    view = _view(*(_trial(n, [n / 1000]) for n in range(1000)))
    study = view.studies[0]
    assert (study.trial_count, len(study.trials), study.trials[-1].number) == (1000, 15, 999)
    assert 999 in {trial.number for trial in study.drawn}
    assert len(study.drawn) == 40
    assert study.history[500] == (500.0, 0.5)


def test_a_page_of_a_thousand_trials_stays_small():
    view = _view(*(_trial(n, [n / 1000] * 20, rate=n / 1000) for n in range(1000)))
    assert len(view.curves_chart) + len(view.progress_chart) < 60_000
    assert len(view.studies[0].parallel_chart) < 30_000
