"""From a job's checkpoints to a deployed function: measured, chosen, registered, switched to.

    best checkpoints ─ validation rows ─→ ensemble under the latency budget ─ test rows, once ─→ function

What is deployed are checkpoints with their lineage, never "the best parameters" trained again. The members'
test score has an interval (Wilson), since held-out rows are few.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.protocol import Evaluate, Evaluated
from server.errors import BadOption
from server.functions import Function, ModelVersion
from server.publishing import Publisher
from server.store.manifest import check_name
from server.store.training import TrainingRepository
from server.training.messages import Assignment
from server.training.run import Run
from server.training.selection import accuracy_of, select_ensemble, subset_accuracies
from server.training.trainers import Trainers, expect
from server.training.trial import Checkpoint, Trial

__all__ = ["Deployed", "Deployment"]

_CANDIDATES = 3  # of each model
_LATENCY_ROWS = 64
_SELECTS = ("ensemble", "best")
_Z = 1.96  # of a 95 % interval
_NORMAL = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that could serve."""

    model: str
    trial: Trial
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Deployed:
    """What became of a deployment; accuracies are shares, the test's with a 95 % interval."""

    function: str
    version: int
    models: list[str]
    validation_accuracy: float
    test_accuracy: float
    test_low: float
    test_high: float
    test_rows: int
    best_single: float
    subsets: dict[str, float]


class Deployment:
    """Workers measure, the publisher switches."""

    def __init__(self, trainers: Trainers, publisher: Publisher, repository: TrainingRepository) -> None:
        self._trainers = trainers
        self._publisher = publisher
        self._repository = repository

    async def deploy(
        self, run: Run, function: str, *, select: str = "ensemble", slo_ms: float | None = None
    ) -> Deployed:
        """Make the function answer with what the job has found. Raises `BadOption`, `Overloaded`.

        select: `ensemble`, Caruana's greedy choice under half of `slo_ms` (the other half waits), or `best`.
        """
        check_name(function, "function")
        if select not in _SELECTS:
            raise BadOption(f"'select' must be one of {', '.join(_SELECTS)}, not {select!r}")
        found = _candidates(await run.trials())
        if not found:
            raise BadOption(f"job {run.job.id} has no checkpoint yet; the view of jobs says how it fares")
        scores: dict[str, NDArray[Any]] = {}
        latency_ms: dict[str, float] = {}
        labels = np.zeros(0, np.int64)
        for name, candidate in found.items():
            answer, scores[name] = await self._scores(run, candidate, "validation")
            latency_ms[name] = answer.row_s * 1000 * _LATENCY_ROWS
            labels = np.array(answer.labels)
        budget_ms = None if slo_ms is None else slo_ms / 2
        most = 1 if select == "best" else 8
        chosen = select_ensemble(scores, labels, latency_ms=latency_ms, budget_ms=budget_ms, most=most)
        alone = {name: accuracy_of([name], scores, labels, "mean") for name in found}
        subsets = subset_accuracies({name: scores[name] for name in chosen.members}, labels, "mean")
        right, rows, best_single = await self._tested(
            run, {name: found[name] for name in chosen.members}, alone
        )
        low, high = wilson(right, rows)
        models = _model_names(function, chosen.members, found)
        registered = {
            name: await self._register(run, models[name], found[name], alone[name]) for name in chosen.members
        }
        body: dict[str, Any] = {"models": [model.key for model in registered.values()], "combine": "mean"}
        deployed = await self._publisher.deploy(
            function, body if slo_ms is None else {**body, "slo_ms": slo_ms}
        )
        return Deployed(
            function=function,
            version=deployed.version,
            models=[model.key for model in registered.values()],
            validation_accuracy=chosen.accuracy,
            test_accuracy=right / rows,
            test_low=low,
            test_high=high,
            test_rows=rows,
            best_single=best_single,
            subsets={"+".join(models[name] for name in subset): score for subset, score in subsets.items()},
        )

    async def roll_back(self, function: str) -> Function:
        """Deploy what the function was before. Raises `UnknownFunction` where there was nothing."""
        spec = await asyncio.to_thread(self._repository.deployment_before, function)
        return await self._publisher.deploy(function, spec)

    async def _tested(
        self, run: Run, members: Mapping[str, Candidate], alone: Mapping[str, float]
    ) -> tuple[int, int, float]:
        """(rows answered rightly, rows, share that the best single member has) on the test rows."""
        scores: dict[str, NDArray[Any]] = {}
        labels = np.zeros(0, np.int64)
        for name, candidate in members.items():
            answer, scores[name] = await self._scores(run, candidate, "test")
            labels = np.array(answer.labels)
        best = max(members, key=lambda name: alone[name])
        right = round(accuracy_of(list(members), scores, labels, "mean") * len(labels))
        return right, len(labels), accuracy_of([best], scores, labels, "mean")

    async def _scores(self, run: Run, candidate: Candidate, split: str) -> tuple[Evaluated, NDArray[Any]]:
        message = Evaluate(
            0,
            spec=_spec(run, candidate),
            snapshot=str(run.file),
            classes=list(run.snapshot.facts["classes"]),
            start=str(run.parameters.path(candidate.checkpoint.digest)),
            split=split,
        )
        worker = await self._trainers.anyone()
        answer = expect(await worker.call(message), Evaluated)
        return answer, np.array([np.frombuffer(row, np.float32) for row in answer.probabilities])

    async def _register(self, run: Run, model: str, candidate: Candidate, accuracy: float) -> ModelVersion:
        manifest = {
            "format": 1,
            "name": model,
            "task": run.snapshot.spec["task"],
            "runtime": "torch",
            "architecture": candidate.model,
            "architecture_options": {},
            "classes": list(run.snapshot.facts["classes"]),
            "input": {"form": "path", "height": run.spec.size, "width": run.spec.size, **_NORMAL},
            "weights": "model.safetensors",
            "accuracy": round(accuracy, 6),
            "trained": {
                "job": run.job.id,
                "snapshot": run.snapshot.id,
                "trial": candidate.trial.number,
                "epoch": candidate.checkpoint.epoch,
                "knobs": dict(candidate.trial.knobs),
                "checkpoint": candidate.checkpoint.digest,
                "parent": candidate.trial.origin,
            },
        }
        path: Path = run.parameters.path(candidate.checkpoint.digest)
        with path.open("rb") as weights:
            return await self._publisher.register(manifest, weights)


def wilson(right: int, rows: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927): honest for few rows, and near 0 and 1."""
    if rows == 0:
        return 0.0, 1.0
    share = right / rows
    middle = share + _Z**2 / (2 * rows)
    reach = _Z * math.sqrt(share * (1 - share) / rows + _Z**2 / (4 * rows**2))
    scale = 1 + _Z**2 / rows
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def _candidates(trials: Mapping[str, list[Trial]]) -> dict[str, Candidate]:
    """The best checkpoints of each model's best trials, by a name that tells them apart."""
    found: dict[str, Candidate] = {}
    for model, records in trials.items():
        best = [
            Candidate(model, trial, checkpoint)
            for trial in records
            if (checkpoint := trial.best_checkpoint) is not None
        ]
        best.sort(key=lambda candidate: (-candidate.checkpoint.score, candidate.trial.number))
        for candidate in best[:_CANDIDATES]:
            found[f"{model}/{candidate.trial.number}"] = candidate
    return found


def _model_names(function: str, members: tuple[str, ...], found: Mapping[str, Candidate]) -> dict[str, str]:
    """The name under which each member is registered: of udf_food, food_resnet, food_resnet_2, …"""
    counted: dict[str, int] = {}
    names = {}
    for member in members:
        model = found[member].model
        counted[model] = counted.get(model, 0) + 1
        place = "" if counted[model] == 1 else f"_{counted[model]}"
        names[member] = f"{function.removeprefix('udf_')}_{model}{place}"
    return names


def _spec(run: Run, candidate: Candidate) -> dict[str, Any]:
    trial = candidate.trial
    given = Assignment(trial.number, dict(trial.knobs), trial.seed, None, 0, max(1, len(trial.scores)))
    return run.spec.train_spec(candidate.model, given)
