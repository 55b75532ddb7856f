"""From a job's checkpoints to a deployed function: measured, chosen, registered, switched to.

    best checkpoints ─ validation rows ─→ ensemble under the latency budget ─ test rows ─→ function

What is deployed are checkpoints with their lineage, never "the best parameters" trained again. Every look at
the test rows is stored before anybody sees its result, and makes the next one's level stricter (`champion`);
what was seen is stored with what was deployed of it, and not looked at again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.tasks import TASKS, Task, task_named
from gpu_worker.tasks.average_precision import NO_BOX, TRUE_NUMBERS
from gpu_worker.tasks.metrics import Metric, box_matches
from gpu_worker.tasks.thresholds import thresholds_of
from gpu_worker.wire.protocol import Evaluate, Evaluated
from server.access.view import WHOLE, View
from server.catalog.cascade_spec import cascade_asked
from server.catalog.catalog import Catalog
from server.catalog.functions import Function, ModelVersion
from server.catalog.jobs import Look, Snapshot
from server.ensemble.fit import Fit
from server.errors import BadOption, Overloaded, UnknownFunction
from server.publisher import Publisher, fit_from
from server.store.manifest import check_name
from server.store.training import TrainingRepository
from server.training.datasets.leakage import (
    clusters_of,
    have_common_tests,
    training_lineage,
    unseen_test_rows,
)
from server.training.datasets.snapshot import split_note
from server.training.datasets.unlabelled import rows_that_taught_none
from server.training.jobs.run import Run
from server.training.promotion.baseline import Baseline, baseline_of
from server.training.promotion.champion import Tested, level_of
from server.training.promotion.combination import Combination, choose_combination
from server.training.promotion.deciding import decided, decision_thresholds
from server.training.promotion.label_thresholds import chosen_thresholds, thresholds_by_label
from server.training.promotion.refit import Refits
from server.training.promotion.selection import (
    Combine,
    Scores,
    SelectedMembers,
    accuracy_of,
    mean_of,
    select_ensemble,
    subset_scores,
)
from server.training.promotion.verdict import AnsweredRightly, ScoredAnswers, Verdict
from server.training.promotion.worth import worths_fit
from server.training.recipes import Recipe, recipe_for
from server.training.studies.messages import Assignment
from server.training.studies.trial import Checkpoint, Trial
from server.training.trainers import Trainers, expect

__all__ = ["Deployed", "Deployer"]

log = logging.getLogger("ml_udf.server.training")

_ACCURACY = "accuracy"  # which has exact tests, and rules of combination that are fitted for it
_CANDIDATES = 3  # of each model
_LATENCY_ROWS = 64
_THRESHOLD = 0.3  # of a box, where the validation rows say nothing
_MARGIN = 0.1  # of accuracy, that a member may be behind the best
_NO_NAME = re.compile(r"[^a-z0-9_]")
_SELECTS = ("ensemble", "best")
_PROMOTES = ("always", "if_better")
# What is said of a function, whichever models answer.
_SETTINGS = (
    "answer_cache",
    "batch_sizes",
    "default",
    "input",
    "late_members",
    "max_batch",
    "media_roots",
    "min_confidence",
    "policy",
    "policy_options",
)
_NORMAL = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that could serve."""

    model: str
    trial: Trial
    checkpoint: Checkpoint
    refit: str | None = None  # the digest of the one that was taught the validation rows as well

    @property
    def digest(self) -> str:
        """That of what serves."""
        return self.refit or self.checkpoint.digest


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a checkpoint answers to a split: float32 [n, width], and what was to be said; seconds a row."""

    predictions: Scores
    targets: NDArray[Any]
    row_s: float


@dataclass(frozen=True, slots=True)
class Deployed:
    """What became of a deployment: scores by the job's `metric`, the test's with an interval.

    Accuracies are shares of rows, None where answers are no classes. promoted: False where what answered
    before stays (`version` and `models` are its then); the scores are those of the new one all the same.
    p_value: of the comparison, None where there was none. looks: how often these test rows have been looked
    at, with this time. level: that of the comparison, and the chance that the interval misses: over all
    looks together it is 0.05. majority_accuracy: of always naming the most frequent class. baseline: what
    the best answer without a model scores, and what that answer says. warning: what is to be said of the
    new one; "" = nothing.
    combine: the rule by which several members answer, "" for one alone. fitted_rows: the validation rows on
    which its weights were fitted. held_out: of each rule, the share of them that it answers rightly without
    having been fitted on them (`choose_combination`). refit: those of the models that were taught the
    validation rows as well, once these had chosen them; the validation scores are those from before.
    thresholds: from which probability on a class is answered (`decision_thresholds`); none where the most
    probable one is. cascade: what was asked of a proxy, and what came of it; None where nothing was.
    """

    function: str
    version: int
    models: list[str]
    validation_accuracy: float | None
    test_accuracy: float | None
    test_low: float
    test_high: float
    test_rows: int
    best_single: float
    subsets: dict[str, float]
    promoted: bool = True
    p_value: float | None = None
    looks: int = 1
    level: float = 0.05
    majority_accuracy: float | None = 0.0
    warning: str = ""
    combine: str = ""
    fitted_rows: int = 0
    held_out: Mapping[str, float] = field(default_factory=dict)
    refit: list[str] = field(default_factory=list)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    metric: str = "accuracy"
    validation_score: float | None = None
    test_score: float | None = None
    baseline: float | None = None
    baseline_said: str = ""
    cascade: Mapping[str, Any] | None = None


class Deployer:
    """Workers measure, the publisher switches."""

    def __init__(
        self,
        trainers: Trainers,
        publisher: Publisher,
        catalog: Catalog,
        repository: TrainingRepository,
        refits: Refits | None = None,
    ) -> None:
        """refits: None = checkpoints are deployed as they are."""
        self._trainers = trainers
        self._catalog = catalog
        self._publisher = publisher
        self._repository = repository
        self._refits = refits

    async def deploy(
        self,
        run: Run,
        function: str,
        *,
        select: str = "ensemble",
        slo_ms: float | None = None,
        promote: str = "always",
        task: str | None = None,
        view: View = WHOLE,
        cascade: float | Mapping[str, Any] | None = None,
        keeps_settings: bool = False,
    ) -> Deployed:
        """Make the function answer with what the job has found.

        Raises `BadOption`, `Overloaded`, `Forbidden`.

        select: `ensemble`, Caruana's greedy choice under half of `slo_ms` (the other half waits); `best`; or
        one of the job's models: its best checkpoint.
        promote: `always`, or `if_better` than what answers now, by a paired test on the same test rows;
        `Overloaded` where another deployment came while the two were compared.
        task: another one that the job's models do, such as `image-embedding`; one model alone, where it says
        so. The accuracies reported are those of the models' own task.
        view: of whoever deploys it, and owns what is new.
        cascade: how often a proxy's answers are to be the full function's (`CascadeAsked`); None = as for
        what answers now, 0 = none. It is shown by the validation rows, which none of the models is taught.
        keeps_settings: with `if_better`, what is said of the function and of no model stays as it is: which
        files it may read, when it is sure enough, …; and so do its thresholds where this job chooses none.
        """
        with run.pins() as pins:
            return await self._deploy(
                run, function, pins, select, slo_ms, promote, task, view, cascade, keeps_settings
            )

    async def _deploy(
        self,
        run: Run,
        function: str,
        pins: set[str],
        select: str,
        slo_ms: float | None,
        promote: str,
        task: str | None,
        view: View,
        cascade: float | Mapping[str, Any] | None,
        keeps_settings: bool,
    ) -> Deployed:
        check_name(function, "function")
        asked_cascade = self._cascade(function, cascade, task, run)
        if select not in (*_SELECTS, *run.spec.models):
            known = ", ".join((*_SELECTS, *run.spec.models))
            raise BadOption(f"what can be chosen of job {run.job.id} is {known}, not {select!r}")
        if promote not in _PROMOTES:
            raise BadOption(f"'promote' must be one of {', '.join(_PROMOTES)}, not {promote!r}")
        asked = _other_task(task, run)
        if asked is not None and not asked.metrics and promote == "if_better":
            raise BadOption(f"{asked.name} has no score to be better by; promote 'always'")
        metric = run.metric
        found = _candidates(await run.trials(), None if select in _SELECTS else select)
        if not found:
            whose = "" if select in _SELECTS else f" of {select}"
            raise BadOption(
                f"job {run.job.id} has no checkpoint{whose} yet; the view of jobs says how it fares"
            )
        pins.update(candidate.digest for candidate in found.values())
        answers = await asyncio.gather(*(self._answered(run, found[name], "validation") for name in found))
        scores = {name: answer.predictions for name, answer in zip(found, answers, strict=True)}
        latency_ms = {
            name: answer.row_s * 1000 * _LATENCY_ROWS for name, answer in zip(found, answers, strict=True)
        }
        labels = answers[0].targets
        budget_ms = None if slo_ms is None else slo_ms / 2
        # Boxes are fused, and have no mean: which members would help each other is not known.
        is_averaged = run.spec.recipe.target != "boxes"
        most = 8 if select == "ensemble" and is_averaged and (asked is None or asked.rules) else 1
        clusters = await asyncio.to_thread(_clusters, run.file, "validation", len(labels))
        chosen, combination = await asyncio.to_thread(
            _chosen, metric, scores, labels, clusters, latency_ms, budget_ms, most
        )
        alone = {name: metric.of(scores[name], labels) for name in found}
        models = _model_names(function, chosen.members, found)
        refit = [found[name] for name in chosen.members]
        if asked_cascade is None:
            refit = await asyncio.gather(*(self._refit(run, candidate, pins) for candidate in refit))
        members = {models[name]: candidate for name, candidate in zip(chosen.members, refit, strict=True)}
        alone_of = {models[name]: alone[name] for name in chosen.members}
        scores_of = {models[name]: scores[name] for name in chosen.members}
        subsets = subset_scores(metric, scores_of, labels)
        if combination is not None:
            combination = combination.renamed(models)
            if combination.rule == "log_pool":
                subsets |= combination.subset_accuracies()
        fit = None if combination is None else combination.fit
        if fit is None and asked is None:
            fit = await asyncio.to_thread(worths_fit, task_named(run.spec.task), scores_of, labels)
        champion = await self._champion(run, function) if promote == "if_better" else None
        thresholds = None
        if run.spec.recipe.target == "labels":
            together = mean_of(list(scores_of), scores_of)
            thresholds = await asyncio.to_thread(chosen_thresholds, together, labels)
        recipe = run.spec.recipe
        held: tuple[float, ...] = ()  # against which classes' probabilities are held
        if recipe.target == "class" and asked is None:
            together = mean_of(list(scores_of), scores_of)
            held = await asyncio.to_thread(decision_thresholds, metric, together, labels, clusters)
        by_class = _by_class(run, held)
        settings: dict[str, Any] = {}
        if keeps_settings and champion is not None:
            settings = await asyncio.to_thread(self._settings, champion)
            if not held and champion.thresholds and recipe.has_classes:
                held, by_class = _held_against(run, champion), dict(champion.thresholds)
        look, verdict = await self._look(run, members, alone_of, champion, combination, thresholds, held)
        level = level_of(look.number)
        clusters = await asyncio.to_thread(_clusters, run.file, "test", verdict.rows)
        low, high = await asyncio.to_thread(verdict.interval, clusters, level)
        baseline = await asyncio.to_thread(
            baseline_of, run.file, recipe.target, run.snapshot.facts["classes"], metric
        )
        right = verdict.right
        validated = chosen.accuracy if combination is None else combination.accuracy
        if held:
            validated = metric.of(decided(together, held), labels)
        told = Deployed(
            function=function,
            version=0,
            models=[],
            validation_accuracy=_share(recipe, metric, validated, scores_of, labels),
            test_accuracy=float(right.mean()) if len(right) else None,
            test_low=low,
            test_high=high,
            test_rows=verdict.rows,
            best_single=look.best_single,
            subsets={"+".join(subset): score for subset, score in subsets.items()},
            looks=look.number,
            level=level,
            majority_accuracy=baseline.share,
            warning=_warning(metric, verdict.value, low, high, baseline, run.snapshot),
            combine="" if combination is None else combination.rule,
            fitted_rows=0 if combination is None else combination.fit.rows,
            held_out={} if combination is None else dict(combination.held_out),
            thresholds=by_class,
            refit=[name for name, candidate in members.items() if candidate.refit],
            metric=metric.name,
            validation_score=validated,
            test_score=verdict.value,
            baseline=baseline.value,
            baseline_said=baseline.said,
        )
        if told.warning:
            log.warning("deployment job=%d function=%s: %s", run.job.id, function, told.warning)
        if champion is not None:
            theirs = await self._champions_verdict(run, champion, verdict.rows)
            fair = await self._unseen(run, champion, members, verdict.rows)
            found_better = await asyncio.to_thread(verdict.against, theirs, fair, clusters, level)
            told = replace(told, p_value=found_better.p_value)
            if not found_better.is_won(level):
                keys = [model.key for model in champion.members]
                return replace(told, version=champion.version, models=keys, promoted=False)
        instead_of = None
        if promote == "if_better":
            instead_of = 0 if champion is None else champion.version
            self._check_answers(function, instead_of)
        registered = [
            await self._register(
                run,
                model,
                candidate,
                alone_of[model],
                thresholds_by_label(thresholds, run.snapshot.facts["classes"])
                or _box_thresholds(run, scores_of[model], labels),
                view,
                function,
            )
            for model, candidate in members.items()
        ]
        keys = [model.key for model in registered]
        body: dict[str, Any] = {**settings, "models": keys}
        if asked is None and is_averaged:
            body["combine"] = "mean" if combination is None else combination.rule
            body |= {"thresholds": by_class} if by_class else {}
        elif asked is not None:
            body["task"] = asked.name
        if asked_cascade is not None:
            body["cascade"] = asked_cascade
        deployed = await self._publisher.deploy(
            function,
            body if slo_ms is None else {**body, "slo_ms": slo_ms},
            fit,
            view,
            partial(rows_that_taught_none, run.file, run.spec.recipe.form, run.snapshot),
            instead_of=instead_of,
        )
        await asyncio.to_thread(self._repository.note_deployed, look.id, function, deployed.version)
        return replace(told, version=deployed.version, models=keys, cascade=deployed.cascade)

    def _cascade(
        self, function: str, given: float | Mapping[str, Any] | None, task: str | None, run: Run
    ) -> Mapping[str, Any] | None:
        """What is asked of a proxy, by who deploys or as before. Raises `BadOption`."""
        if given is None and self._catalog.is_function(function) and task is None:
            before = self._catalog.versions(function)[-1].cascade
            wanted = None if before is None else cascade_asked(function, before["asked"])
            return None if wanted is None else wanted.to_json()
        wanted = None if given == 0 else cascade_asked(function, given)
        if wanted is not None and not (run.spec.recipe.has_classes and task in (None, run.spec.task)):
            raise BadOption(
                f"function {function}: a proxy answers where it is sure of one class, and "
                f"{task or run.spec.task} answers none; leave 'cascade' out"
            )
        return None if wanted is None else wanted.to_json()

    async def roll_back(self, function: str) -> Function:
        """Deploy what the function was before. Raises `UnknownFunction` where there was nothing, `Overloaded`
        where another deployment comes meanwhile.
        """
        spec, fit, version = await asyncio.to_thread(self._repository.deployment_before, function)
        await self._publisher.refresh()  # another server may have deployed it just now
        return await self._publisher.deploy(
            function,
            spec,
            fit_from(fit),
            found=spec.get("cascade_found"),
            instead_of=version,
            keeps_fit=False,
        )

    async def _refit(self, run: Run, candidate: Candidate, pins: set[str]) -> Candidate:
        if self._refits is None:
            return candidate
        digest = await self._refits.of(run, candidate.model, candidate.trial, candidate.checkpoint, pins)
        return replace(candidate, refit=digest)

    async def _look(
        self,
        run: Run,
        members: Mapping[str, Candidate],
        alone: Mapping[str, float],
        champion: Function | None,
        combination: Combination | None,
        thresholds: NDArray[np.float64] | None,
        held: Sequence[float],
    ) -> tuple[Look, Verdict]:
        """What the members answer to the test rows; what was looked at before is no other look.

        members, alone: by the names that the models will have. combination: how several of them answer.
        thresholds: from which on labels are answered; held: against which classes' probabilities are. Of a
        look it is stored which rows were answered rightly; any other metric than accuracy has them answered
        again.
        """
        rule = "mean" if combination is None else combination.rule
        fit = None if combination is None else combination.fit
        name = _named([candidate.digest for candidate in members.values()], rule, fit, held)
        rival = "" if champion is None else _named([model.key for model in champion.members])

        async def looked_before() -> tuple[list[Look], list[Look], Look | None]:
            """All looks that count, those at these members, and the very same one."""
            known = await asyncio.to_thread(self._repository.test_looks, run.job.dataset, run.snapshot.id)
            here = [look for look in known if (look.snapshot, look.members) == (run.snapshot.id, name)]
            return known, here, next((look for look in here if look.rival == rival), None)

        known, here, same = await looked_before()
        stored = same or next(iter(here), None)
        verdict: Verdict
        if stored is not None and run.metric.name == _ACCURACY and stored.right:
            verdict, best_single = AnsweredRightly(stored.answered_rightly()), stored.best_single
        else:
            answers = await asyncio.gather(
                *(self._answered(run, candidate, "test") for candidate in members.values())
            )
            scores = {member: answer.predictions for member, answer in zip(members, answers, strict=True)}
            tested = Tested(scores, answers[0].targets, thresholds)
            verdict = await asyncio.to_thread(_verdict, run, tested, rule, fit, held)
            best = max(members, key=lambda member: run.metric.merit(alone[member]))
            best_single = run.metric.of(scores[best], tested.labels)
        while same is None:
            number = 1 + await asyncio.to_thread(self._looks_before, run, known)
            look = Look(
                run.job.dataset,
                run.snapshot.id,
                name,
                rival,
                run.job.id,
                verdict.rows,
                Look.packed(verdict.right) if len(verdict.right) else b"",
                best_single,
                number,
                metric=run.metric.name,
                score=verdict.value,
            )
            # Another deployment may have looked meanwhile: then this is a later look, or the same.
            same = await asyncio.to_thread(self._repository.add_test_look, look, len(known))
            if same is None:
                known, _, same = await looked_before()
        return same, verdict

    def _looks_before(self, run: Run, known: list[Look]) -> int:
        """How many looks there were at these test rows, or at some of them in other snapshots. Blocking."""
        others = {(look.dataset, look.snapshot) for look in known if look.snapshot != run.snapshot.id}
        shared = {run.snapshot.id}
        for dataset, snapshot in others:
            theirs = run.file_of(self._repository.snapshot(dataset, snapshot))
            if have_common_tests(run.file, theirs):
                shared.add(snapshot)
        return sum(look.snapshot in shared for look in known)

    async def _champion(self, run: Run, function: str) -> Function | None:
        """What answers now; None where nothing does. Raises `BadOption` where it cannot be compared."""
        if not self._catalog.is_function(function):
            return None
        champion = self._catalog.versions(function)[-1]
        if list(champion.classes) != list(run.snapshot.facts["classes"]):
            raise BadOption(f"function {function} answers other classes; promote the new one 'always'")
        if run.spec.recipe.target == "boxes" and len(champion.members) > 1:
            raise BadOption(
                f"function {function} fuses the boxes of several models, which cannot be compared; "
                "promote 'always'"
            )
        if champion.task.name != run.spec.task:
            raise BadOption(
                f"function {function} answers {champion.task.name}, and the new one {run.spec.task}; "
                "promote it 'always'"
            )
        for model in champion.members:
            task = _recipe_of(run, model)
            is_ours = model.task == task.name and model.runtime == task.runtime
            if not is_ours or not _weights(run, model).is_file():
                raise BadOption(f"{model.key} cannot be compared: it was not trained here; promote 'always'")
            if model.input.columns != _columns(run):
                raise BadOption(f"function {function} takes other columns; promote the new one 'always'")
        return champion

    def _settings(self, champion: Function) -> dict[str, Any]:
        """What its specification says of the function itself. Blocking."""
        spec = self._repository.deployed_spec(champion.name, champion.version)
        return {name: spec[name] for name in _SETTINGS if name in spec}

    def _check_answers(self, function: str, version: int) -> None:
        """Raises `Overloaded`, before any model is registered, where the champion has left; the registry has
        the last word. version: 0 = there was none.
        """
        is_there = self._catalog.is_function(function)
        now = self._catalog.versions(function)[-1].version if is_there else 0
        if now != version:
            found = f"version {now} answers for {function} by now" if now else f"{function} was deleted"
            raise Overloaded(f"{found}, to which nothing was compared: nothing was changed; deploy it again")

    async def _champions_verdict(self, run: Run, champion: Function, rows: int) -> Verdict:
        """What the job's test rows say of the champion: as it was stored, or by looking."""
        manifests = [await asyncio.to_thread(_manifest, model) for model in champion.members]
        digests = [manifest.get("trained", {}).get("checkpoint") for manifest in manifests]
        rule = _rule_of(champion)
        if None not in digests and run.metric.name == _ACCURACY and not champion.thresholds:
            name = _named(digests, rule, champion.fit)
            looks = await asyncio.to_thread(self._repository.test_looks, run.job.dataset, run.snapshot.id)
            for look in looks:
                if (look.snapshot, look.members, look.rows) == (run.snapshot.id, name, rows) and look.right:
                    return AnsweredRightly(look.answered_rightly())
        answers = await asyncio.gather(
            *(
                self._scores(run, _spec_of(model, manifest), _weights(run, model), "test")
                for model, manifest in zip(champion.members, manifests, strict=True)
            )
        )
        names = [model.name for model in champion.members]
        scores = {name: answer.predictions for name, answer in zip(names, answers, strict=True)}
        limits: tuple[float, ...] = ()
        if run.spec.recipe.target == "labels":
            told = [model.thresholds for model in champion.members]
            limits = thresholds_of(champion.task, champion.classes, told, champion.thresholds)
        tested = Tested(scores, answers[0].targets, np.array(limits) if limits else None)
        held = _held_against(run, champion)
        return await asyncio.to_thread(_verdict, run, tested, rule, champion.fit, held)

    async def _unseen(
        self, run: Run, champion: Function, members: Mapping[str, Candidate], rows: int
    ) -> NDArray[np.bool_]:
        """For each of the test rows, whether no model of either was taught or chosen by it.

        The split of a refreshed dataset is another one, and a model may have begun from one that was taught
        by other snapshots. Raises `BadOption` where this is not known.
        """

        def looked_up() -> NDArray[np.bool_]:
            taught = {
                key
                for candidate in members.values()
                for key in training_lineage(run.job, candidate.model, self._repository.job)
            }
            for model in champion.members:
                trained = _manifest(model).get("trained", {})
                if trained.get("snapshot") is not None:
                    job = self._repository.job(trained["job"])
                    taught |= set(training_lineage(job, model.architecture, self._repository.job))
            fair = np.ones(rows, np.bool_)
            for dataset, snapshot in taught:
                if snapshot == run.snapshot.id:
                    continue
                unseen = unseen_test_rows(run.file, run.file_of(self._repository.snapshot(dataset, snapshot)))
                if len(unseen) != rows:
                    raise BadOption("images of the snapshot can no longer be read; refresh the dataset")
                fair &= unseen
            return fair

        try:
            return await asyncio.to_thread(looked_up)
        except UnknownFunction as exc:
            raise BadOption(
                f"what taught the models of function {champion.name} is no longer known: {exc}; "
                "promote the new one 'always'"
            ) from exc

    async def _answered(self, run: Run, candidate: Candidate, split: str) -> _Answer:
        weights = await run.weights(candidate.digest)
        return await self._scores(run, _spec(run, candidate), weights, split)

    async def _scores(self, run: Run, spec: dict[str, Any], weights: Path, split: str) -> _Answer:
        if not await asyncio.to_thread(run.file.is_file):
            raise BadOption(
                f"the rows of dataset {run.job.dataset}, by which models are chosen and judged, are gone "
                f"from the home: {run.file}; restore the file, or register the same rows again"
            )
        message = Evaluate(
            0,
            spec=spec,
            snapshot=str(run.file),
            classes=list(run.snapshot.facts["classes"]),
            start=str(weights),
            split=split,
            task=run.spec.task,
        )
        answer = expect(await self._trainers.ask(message, pictures=run.spec.recipe.pictures), Evaluated)
        rows = np.array([np.frombuffer(row, np.float32) for row in answer.predictions])
        targets = _targets(run.spec.recipe, answer.targets, rows)
        return _Answer(rows, targets, answer.row_s)

    async def _register(
        self,
        run: Run,
        model: str,
        candidate: Candidate,
        score: float,
        thresholds: Mapping[str, float],
        view: View,
        function: str,
    ) -> ModelVersion:
        """score: of the validation rows, by the job's metric. thresholds: of all members' labels together, or
        of a detector's own boxes; none where answers have none.
        """
        task = run.spec.recipe
        accuracy = score if run.metric.name == _ACCURACY else 0.0
        manifest = {
            "format": 1,
            "name": model,
            "task": task.name,
            "runtime": task.runtime,
            "architecture": candidate.model,
            "architecture_options": _spec(run, candidate).get("architecture_options", {}),
            "classes": list(run.snapshot.facts["classes"]),
            "input": await asyncio.to_thread(_input, run),
            "weights": task.weights,
            "accuracy": round(accuracy, 6),
            "score": {
                "metric": run.metric.name,
                "value": score,
                "rows": run.snapshot.facts["splits"]["validation"],
            },
            "thresholds": dict(thresholds),
            "trained": {
                "job": run.job.id,
                "snapshot": run.snapshot.id,
                "trial": candidate.trial.number,
                "epoch": candidate.checkpoint.epoch,
                "knobs": dict(candidate.trial.knobs),
                "checkpoint": candidate.digest,
                "refit_of": candidate.checkpoint.digest if candidate.refit else None,
                "parent": candidate.trial.origin,
                "pretrained": (run.spec.pretrained or {}).get(candidate.model),
            },
        }
        if run.spec.backbone is not None:
            manifest["backbone"] = dict(run.spec.backbone)
        path = await run.weights(candidate.digest)
        with path.open("rb") as weights:
            return await self._publisher.register(manifest, weights, view=view, function=function)


def _verdict(run: Run, tested: Tested, rule: Combine, fit: Fit | None, held: Sequence[float] = ()) -> Verdict:
    """What test rows say of members that answer by a rule, by the job's metric."""
    has_classes = run.spec.recipe.target == "class"
    told = decided(tested.together(rule, fit), held) if held else None
    if told is not None:
        right = told.argmax(axis=1) == tested.labels
    else:
        right = tested.right(rule, fit) if has_classes else np.zeros(0, np.bool_)
    if run.metric.name == _ACCURACY:
        return AnsweredRightly(right)
    told = tested.together(rule, fit) if told is None else told
    return ScoredAnswers(run.metric, told, tested.labels, right)


def _targets(recipe: Recipe, told: list[Any], predictions: NDArray[Any]) -> NDArray[Any]:
    """As metrics take them."""
    if recipe.target == "number":
        return np.array(told, np.float64)
    if recipe.target == "class":
        return np.array(told, np.int64)
    if recipe.target == "boxes":
        boxes = np.full((len(told), max(map(len, told), default=0), TRUE_NUMBERS), NO_BOX, np.float32)
        for row, found in enumerate(told):
            boxes[row, : len(found)] = np.array(found, np.float32).reshape(-1, TRUE_NUMBERS)
        return boxes
    targets = np.zeros(predictions.shape, np.bool_)
    for row, labels in enumerate(told):
        targets[row, labels] = True
    return targets


def _box_thresholds(run: Run, predictions: Scores, targets: NDArray[Any]) -> dict[str, float]:
    """By class, the score from which on a box is answered: that of the best F1 on the validation rows."""
    if run.spec.recipe.target != "boxes":
        return {}
    cuts = box_matches(predictions, targets, (0.5,)).best_cuts()
    other = float(np.median(list(cuts.values()))) if cuts else _THRESHOLD
    classes = run.snapshot.facts["classes"]
    return {label: round(cuts.get(at, other), 4) for at, label in enumerate(classes)}


def _share(
    recipe: Recipe, metric: Metric, value: float, scores: Mapping[str, Scores], labels: NDArray[Any]
) -> float | None:
    """The accuracy of members, where a metric has this value; None where answers are no classes."""
    if recipe.target != "class":
        return None
    return value if metric.name == _ACCURACY else accuracy_of(list(scores), scores, labels, "mean")


def _chosen(
    metric: Metric,
    scores: Mapping[str, Scores],
    labels: NDArray[Any],
    clusters: NDArray[np.int64] | None,
    latency_ms: Mapping[str, float],
    budget_ms: float | None,
    most: int,
) -> tuple[SelectedMembers, Combination | None]:
    """The members, by the rule by which they then answer, and that rule; None of one alone, and of members
    that answer by their mean because they are judged by another metric than accuracy.
    """
    if metric.name != _ACCURACY:
        chosen = select_ensemble(
            scores,
            labels,
            latency_ms=latency_ms,
            budget_ms=budget_ms,
            groups=clusters,
            most=most,
            margin=_MARGIN,
            metric=metric,
        )
        return chosen, None
    rule: Combine = "log_pool"
    while True:
        chosen = select_ensemble(
            scores,
            labels,
            latency_ms=latency_ms,
            budget_ms=budget_ms,
            combine=rule,
            groups=clusters,
            most=most,
            margin=_MARGIN,
        )
        if len(chosen.members) == 1:
            return chosen, None
        told = {name: scores[name] for name in chosen.members}
        combination = choose_combination(told, labels, clusters)
        if combination.rule == rule or rule != "log_pool":
            return chosen, combination
        rule = combination.rule


def _recipe_of(run: Run, model: ModelVersion) -> Recipe:
    """How a model of the run's task was trained."""
    return recipe_for(run.spec.task, on_backbone=model.backbone is not None)


def _weights(run: Run, model: ModelVersion) -> Path:
    return model.directory / _recipe_of(run, model).weights


def _by_class(run: Run, held: Sequence[float]) -> dict[str, float]:
    """As a function has them: of two classes the second's."""
    return {run.snapshot.facts["classes"][1]: held[1]} if held else {}


def _held_against(run: Run, champion: Function) -> tuple[float, ...]:
    """The thresholds by which it answers one class of several."""
    if run.spec.recipe.target != "class":
        return ()
    return thresholds_of(TASKS[run.spec.task], champion.classes, [{}], champion.thresholds)


def _rule_of(champion: Function) -> Combine:
    """The rule by which it answers. Of one member every rule is the same: the mean, as looks have it."""
    if len(champion.members) == 1:
        return "mean"
    rules: Mapping[str, Combine] = {"mean": "mean", "log_pool": "log_pool"}
    return rules.get(champion.combine, "majority_vote")


def _named(
    parts: list[str], rule: Combine = "mean", fit: Fit | None = None, held: Sequence[float] = ()
) -> str:
    """One name for several, whatever their order, and for the rule by which they answer."""
    if held:
        parts = [*parts, f"from {list(held)} on"]
    if rule == "log_pool":
        # The evidence decides who answers, not what members answer together.
        told = None if fit is None else replace(fit, evidence=None).to_json()
        parts = [*parts, json.dumps(told, sort_keys=True)]
    elif rule != "mean":
        parts = [*parts, rule]
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _clusters(file: Path, split: str, rows: int) -> NDArray[np.int64] | None:
    """Which rows are one observation; None where images can no longer be read, and rows are missing."""
    clusters = clusters_of(file, split)
    return clusters if len(clusters) == rows else None


def _warning(
    metric: Metric, value: float, low: float, high: float, baseline: Baseline, snapshot: Snapshot
) -> str:
    """What must be said of models before they answer; "" = nothing."""
    said = []
    surely = low if metric.greater_is_better else high
    if metric.merit(surely) <= metric.merit(baseline.value):
        said.append(
            f"the test rows do not show it to be better than {baseline.said}: its {metric.name} is "
            f"{value:.4g} ({low:.4g} to {high:.4g}), and of that {baseline.value:.4g}"
        )
    if note := split_note(snapshot.facts):
        said.append(note)
    return "; ".join(said)


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

    A function that is named for its model, such as udf_food_resnet, does not name it twice. Of an import
    path the attribute names it.
    """
    base = function.removeprefix("udf_")
    counted: dict[str, int] = {}
    names = {}
    for member in members:
        model = _NO_NAME.sub("_", found[member].model.rpartition(":")[2].lower())
        counted[model] = counted.get(model, 0) + 1
        place = "" if counted[model] == 1 else f"_{counted[model]}"
        stem = base if base.endswith(f"_{model}") else f"{base}_{model}"
        names[member] = f"{stem}{place}"
    return names


def _other_task(name: str | None, run: Run) -> Task | None:
    """What is asked of a job's models instead of their own task. Raises `BadOption`."""
    if name is None or name == run.spec.task:
        return None
    if name not in TASKS or not TASKS[name].is_done_by(run.spec.task):
        able = [task.name for task in TASKS.values() if task.is_done_by(run.spec.task)]
        raise BadOption(f"the models of job {run.job.id} do {', '.join(able)}, not {name!r}")
    return TASKS[name]


def _columns(run: Run) -> tuple[tuple[str, str], ...]:
    """(name, kind) of each column that a table's models see."""
    return tuple((column["name"], column["kind"]) for column in run.snapshot.facts.get("columns", ()))


def _input(run: Run) -> dict[str, Any]:
    """The `input` of a trained model's manifest: of a head, that of its backbone. Blocking."""
    if run.backbone_folder is not None:
        below: dict[str, Any] = json.loads((run.backbone_folder / "model.json").read_bytes())["input"]
        return below
    form = run.spec.recipe.form
    if form == "path":
        return {"form": form, "height": run.spec.size, "width": run.spec.size, **_NORMAL}
    if form == "row":
        return {"form": form, "columns": [{"name": name, "kind": kind} for name, kind in _columns(run)]}
    return {"form": form}


def _manifest(model: ModelVersion) -> dict[str, Any]:
    """A registered model's model.json. Blocking."""
    manifest: dict[str, Any] = json.loads((model.directory / "model.json").read_bytes())
    return manifest


def _spec_of(model: ModelVersion, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker is sent of a registered model, to run it on a snapshot."""
    spec: dict[str, Any] = {"architecture": model.architecture}
    if model.input.height:
        spec["size"] = model.input.height
    if manifest.get("architecture_options"):
        spec["architecture_options"] = manifest["architecture_options"]
    if model.backbone is not None:
        below = model.directory.parent.parent / model.backbone.name / str(model.backbone.version)
        spec["backbone"] = {**model.backbone.to_json(), "directory": str(below)}
    return spec


def _spec(run: Run, candidate: Candidate) -> dict[str, Any]:
    trial = candidate.trial
    given = Assignment(trial.number, dict(trial.knobs), trial.seed, None, 0, max(1, len(trial.scores)))
    return run.trial_spec(candidate.model, given)
