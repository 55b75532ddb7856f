"""From a job's checkpoints to a deployed function: measured, chosen, registered, switched to.

    best checkpoints ─ validation rows ─→ ensemble under the latency budget ─ test rows, once ─→ function

What is deployed are checkpoints with their lineage, never "the best parameters" trained again. The members'
test score has an interval (Wilson), since held-out rows are few.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.protocol import Evaluate, Evaluated
from server.catalog import Catalog
from server.errors import BadOption
from server.functions import Function, ModelVersion
from server.publishing import Publisher
from server.store.manifest import check_name
from server.store.training import TrainingRepository
from server.training.champion import Tested, match
from server.training.messages import Assignment
from server.training.run import Run
from server.training.selection import accuracy_of, select_ensemble, subset_accuracies
from server.training.sharing import unseen_tests
from server.training.tasks import task_named
from server.training.trainers import Trainers, expect
from server.training.trial import Checkpoint, Trial

__all__ = ["Deployed", "Deployment"]

Scores = NDArray[Any]  # float32 [n, classes]

_CANDIDATES = 3  # of each model
_LATENCY_ROWS = 64
_MARGIN = 0.1  # of accuracy, that a member may be behind the best
_SELECTS = ("ensemble", "best")
_PROMOTES = ("always", "if_better")
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
    """What became of a deployment; accuracies are shares, the test's with a 95 % interval.

    promoted: False where what answered before stays (`version` and `models` are its then); the accuracies
    are those of the new one all the same. p_value: of the comparison, None where there was none.
    """

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
    promoted: bool = True
    p_value: float | None = None


class Deployment:
    """Workers measure, the publisher switches."""

    def __init__(
        self, trainers: Trainers, publisher: Publisher, catalog: Catalog, repository: TrainingRepository
    ) -> None:
        self._trainers = trainers
        self._catalog = catalog
        self._publisher = publisher
        self._repository = repository

    async def deploy(
        self,
        run: Run,
        function: str,
        *,
        select: str = "ensemble",
        slo_ms: float | None = None,
        promote: str = "always",
    ) -> Deployed:
        """Make the function answer with what the job has found. Raises `BadOption`, `Overloaded`.

        select: `ensemble`, Caruana's greedy choice under half of `slo_ms` (the other half waits); `best`; or
        one of the job's models: its best checkpoint.
        promote: `always`, or `if_better` than what answers now, by a paired test on the same test rows.
        """
        check_name(function, "function")
        if select not in (*_SELECTS, *run.spec.models):
            known = ", ".join((*_SELECTS, *run.spec.models))
            raise BadOption(f"what can be chosen of job {run.job.id} is {known}, not {select!r}")
        if promote not in _PROMOTES:
            raise BadOption(f"'promote' must be one of {', '.join(_PROMOTES)}, not {promote!r}")
        found = _candidates(await run.trials(), None if select in _SELECTS else select)
        if not found:
            whose = "" if select in _SELECTS else f" of {select}"
            raise BadOption(
                f"job {run.job.id} has no checkpoint{whose} yet; the view of jobs says how it fares"
            )
        scores: dict[str, Scores] = {}
        latency_ms: dict[str, float] = {}
        labels = np.zeros(0, np.int64)
        for name, candidate in found.items():
            spec, path = _spec(run, candidate), await run.weights(candidate.checkpoint.digest)
            answer, scores[name] = await self._scores(run, spec, path, "validation")
            latency_ms[name] = answer.row_s * 1000 * _LATENCY_ROWS
            labels = np.array(answer.labels)
        budget_ms = None if slo_ms is None else slo_ms / 2
        most = 8 if select == "ensemble" else 1
        chosen = select_ensemble(
            scores, labels, latency_ms=latency_ms, budget_ms=budget_ms, most=most, margin=_MARGIN
        )
        alone = {name: accuracy_of([name], scores, labels, "mean") for name in found}
        subsets = subset_accuracies({name: scores[name] for name in chosen.members}, labels, "mean")
        tested = await self._tested(run, {name: found[name] for name in chosen.members})
        right = tested.right()
        low, high = wilson(int(right.sum()), len(right))
        models = _model_names(function, chosen.members, found)
        told = Deployed(
            function=function,
            version=0,
            models=[],
            validation_accuracy=chosen.accuracy,
            test_accuracy=float(right.mean()),
            test_low=low,
            test_high=high,
            test_rows=len(right),
            best_single=tested.share_of(max(chosen.members, key=lambda name: alone[name])),
            subsets={"+".join(models[name] for name in subset): score for subset, score in subsets.items()},
        )
        champion = await self._champion(run, function) if promote == "if_better" else None
        if champion is not None:
            now, theirs = champion
            fair = await self._unseen(run, now, len(right))
            found_better = match(right[fair], theirs.right(now.combine)[fair])
            told = replace(told, p_value=found_better.p_value)
            if not found_better.is_won:
                keys = [model.key for model in now.members]
                return replace(told, version=now.version, models=keys, promoted=False)
        registered = [
            await self._register(run, models[name], found[name], alone[name]) for name in chosen.members
        ]
        keys = [model.key for model in registered]
        body: dict[str, Any] = {"models": keys, "combine": "mean"}
        deployed = await self._publisher.deploy(
            function, body if slo_ms is None else {**body, "slo_ms": slo_ms}
        )
        return replace(told, version=deployed.version, models=keys)

    async def roll_back(self, function: str) -> Function:
        """Deploy what the function was before. Raises `UnknownFunction` where there was nothing."""
        spec = await asyncio.to_thread(self._repository.deployment_before, function)
        return await self._publisher.deploy(function, spec)

    async def _tested(self, run: Run, members: Mapping[str, Candidate]) -> Tested:
        """What the members answer to the test rows."""
        scores: dict[str, Scores] = {}
        labels = np.zeros(0, np.int64)
        for name, candidate in members.items():
            spec, path = _spec(run, candidate), await run.weights(candidate.checkpoint.digest)
            answer, scores[name] = await self._scores(run, spec, path, "test")
            labels = np.array(answer.labels)
        return Tested(scores, labels)

    async def _champion(self, run: Run, function: str) -> tuple[Function, Tested] | None:
        """What answers now, and how it answers the job's test rows; None where nothing does.

        Raises `BadOption` where the two cannot be compared.
        """
        if not self._catalog.is_function(function):
            return None
        champion = self._catalog.versions(function)[-1]
        if list(champion.classes) != list(run.snapshot.facts["classes"]):
            raise BadOption(f"function {function} answers other classes; promote the new one 'always'")
        task = task_named(run.spec.task)
        scores: dict[str, Scores] = {}
        labels = np.zeros(0, np.int64)
        for model in champion.members:
            weights = model.directory / task.weights
            if model.task != task.name or model.runtime != task.runtime or not weights.is_file():
                raise BadOption(f"{model.key} cannot be compared: it was not trained here; promote 'always'")
            if model.input.columns != _columns(run):
                raise BadOption(f"function {function} takes other columns; promote the new one 'always'")
            spec = await asyncio.to_thread(_spec_of, model)
            answer, scores[model.key] = await self._scores(run, spec, weights, "test")
            labels = np.array(answer.labels)
        return champion, Tested(scores, labels)

    async def _unseen(self, run: Run, champion: Function, rows: int) -> NDArray[np.bool_]:
        """For each of the test rows, whether no model of the champion was taught or chosen by it.

        The split of a refreshed dataset is another one. Raises `BadOption` where this cannot be told.
        """

        def looked_up() -> NDArray[np.bool_]:
            fair = np.ones(rows, np.bool_)
            for model in champion.members:
                trained = json.loads((model.directory / "model.json").read_bytes()).get("trained", {})
                if trained.get("snapshot") in (None, run.snapshot.id):
                    continue
                dataset = self._repository.job(trained["job"]).dataset
                theirs = self._repository.snapshot(dataset, trained["snapshot"])
                unseen = unseen_tests(run.file, run.file_of(theirs))
                if len(unseen) != rows:
                    raise BadOption("images of the snapshot can no longer be read; refresh the dataset")
                fair &= unseen
            return fair

        return await asyncio.to_thread(looked_up)

    async def _scores(
        self, run: Run, spec: dict[str, Any], weights: Path, split: str
    ) -> tuple[Evaluated, Scores]:
        message = Evaluate(
            0,
            spec=spec,
            snapshot=str(run.file),
            classes=list(run.snapshot.facts["classes"]),
            start=str(weights),
            split=split,
        )
        worker = await self._trainers.anyone()
        answer = expect(await worker.call(message), Evaluated)
        return answer, np.array([np.frombuffer(row, np.float32) for row in answer.probabilities])

    async def _register(self, run: Run, model: str, candidate: Candidate, accuracy: float) -> ModelVersion:
        task = task_named(run.spec.task)
        manifest = {
            "format": 1,
            "name": model,
            "task": task.name,
            "runtime": task.runtime,
            "architecture": candidate.model,
            "architecture_options": _spec(run, candidate).get("architecture_options", {}),
            "classes": list(run.snapshot.facts["classes"]),
            "input": _input(run),
            "weights": task.weights,
            "accuracy": round(accuracy, 6),
            "trained": {
                "job": run.job.id,
                "snapshot": run.snapshot.id,
                "trial": candidate.trial.number,
                "epoch": candidate.checkpoint.epoch,
                "knobs": dict(candidate.trial.knobs),
                "checkpoint": candidate.checkpoint.digest,
                "parent": candidate.trial.origin,
                "pretrained": (run.spec.pretrained or {}).get(candidate.model),
            },
        }
        path = await run.weights(candidate.checkpoint.digest)
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


def _candidates(trials: Mapping[str, list[Trial]], only: str | None = None) -> dict[str, Candidate]:
    """The best checkpoints of the best trials of each model, or of one, by a name that tells them apart."""
    found: dict[str, Candidate] = {}
    for model, records in trials.items():
        if only not in (None, model):
            continue
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
    """The name under which each member is registered: of udf_food, food_resnet, food_resnet_2, …

    A function that is named for its model, such as udf_food_resnet, does not name it twice.
    """
    base = function.removeprefix("udf_")
    counted: dict[str, int] = {}
    names = {}
    for member in members:
        model = found[member].model
        counted[model] = counted.get(model, 0) + 1
        place = "" if counted[model] == 1 else f"_{counted[model]}"
        stem = base if base.endswith(f"_{model}") else f"{base}_{model}"
        names[member] = f"{stem}{place}"
    return names


def _columns(run: Run) -> tuple[tuple[str, str], ...]:
    """(name, kind) of each column that a table's models see."""
    return tuple((column["name"], column["kind"]) for column in run.snapshot.facts.get("columns", ()))


def _input(run: Run) -> dict[str, Any]:
    """The `input` of a trained model's manifest."""
    form = task_named(run.spec.task).form
    if form == "path":
        return {"form": form, "height": run.spec.size, "width": run.spec.size, **_NORMAL}
    if form == "row":
        return {"form": form, "columns": [{"name": name, "kind": kind} for name, kind in _columns(run)]}
    return {"form": form}


def _spec_of(model: ModelVersion) -> dict[str, Any]:
    """What a worker is told of a registered model, to run it on a snapshot."""
    manifest = json.loads((model.directory / "model.json").read_bytes())
    spec: dict[str, Any] = {"architecture": model.architecture}
    if model.input.height:
        spec["size"] = model.input.height
    if manifest.get("architecture_options"):
        spec["architecture_options"] = manifest["architecture_options"]
    return spec


def _spec(run: Run, candidate: Candidate) -> dict[str, Any]:
    trial = candidate.trial
    given = Assignment(trial.number, dict(trial.knobs), trial.seed, None, 0, max(1, len(trial.scores)))
    return run.spec.train_spec(candidate.model, given)
