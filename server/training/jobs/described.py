"""Jobs and trials as people are shown them, over REST and on pages: plain values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpu_worker.tasks.metrics import Metric
from server.catalog.jobs import Job
from server.errors import BadOption
from server.training.jobs.budget import Budget
from server.training.jobs.run import Run
from server.training.jobs.service import Training, found_by
from server.training.recipes import DEFAULT_TASK, recipe_for
from server.training.studies.trial import Trial

__all__ = ["described", "trials_of"]


async def described(training: Training, job: Job, run: Run | None) -> dict[str, Any]:
    """How far a job is, and the best that it has found. run: None = what is stored with the job is shown."""
    found = await found_by(run) if run is not None else job.found or {"studies": {}}
    trouble = training.trouble(job.id, run)
    studies = found["studies"].values()
    metric = _metric_of(job)
    best: tuple[float | None, str | None] = (None, None)
    if metric is not None:
        best = max(
            (
                (study["best_score"], model)
                for model, study in found["studies"].items()
                if study["best_score"] is not None
            ),
            key=lambda pair: metric.merit(pair[0]),
            default=best,
        )
    return {
        "id": job.id,
        "owner": job.owner,
        "dataset": job.dataset,
        "task": job.spec.get("task", DEFAULT_TASK),
        "snapshot": job.snapshot,
        "state": job.state,
        "reason": "; ".join(filter(None, (_reason(job, trouble), found.get("said", "")))),
        "models": job.spec.get("models", []),
        "policy": job.spec.get("policy", ""),
        "advisor": job.spec.get("advisor", ""),
        "epochs_used": sum(study["epochs_used"] for study in studies),
        "epochs_budget": job.spec.get("budget_epochs", 0) or None,
        "budget": str(
            Budget(
                job.spec.get("budget_s", 0.0),
                job.spec.get("budget_epochs", 0),
                job.spec.get("budget_trials", 0),
            )
        ),
        "seconds_used": round(sum(study.get("seconds_used", 0.0) for study in studies), 3),
        "trials": sum(study["trials"] for study in studies),
        "metric": None if metric is None else metric.name,
        "best_score": best[0],
        "best_model": best[1],
        "created_at": job.created_at.isoformat(),
        "ended_at": None if job.ended_at is None else job.ended_at.isoformat(),
        "studies": found["studies"],
    }


def _reason(job: Job, trouble: str) -> str:
    told = trouble or job.reason
    return told if job.damage in told else "; ".join(filter(None, (told, job.damage)))


def _metric_of(job: Job) -> Metric | None:
    """None where a newer server of the registry has begun the job, for a task that this one does not know."""
    try:
        return recipe_for(job.spec.get("task", DEFAULT_TASK)).metric_of(job.spec)
    except BadOption:
        return None


async def trials_of(run: Run, *, with_scores: bool) -> list[dict[str, Any]]:
    """The trials of a job, by model and number. with_scores: the score of every epoch too."""
    found = await run.trials()
    return await asyncio.to_thread(_trials, run, found, with_scores)  # they may be thousands


def _trials(run: Run, found: Mapping[str, Sequence[Trial]], with_scores: bool) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = []
    for model, records in found.items():
        for trial in records:
            best = trial.best_checkpoint
            told = {
                "job_id": run.job.id,
                "model": model,
                **asdict(trial.progress(run.metric)),
                "checkpoint": best.digest if best is not None else None,
            }
            if with_scores:
                told["scores"] = [run.metric.value(merit) for merit in trial.scores]
            trials.append(told)
    return trials
