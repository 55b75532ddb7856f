"""The master of a study (Rafiki Algorithms 1 and 2) as a state machine over the workers' messages.

Owns leases, budget, retries and what is written down before it is said. Its state is the storage: a master
that was killed is constructed again and goes on. What to try and when to stop are the policies'; time comes
with each message; how weights are trained and stored is unknown here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from optuna.storages import BaseStorage

from gpu_worker.tasks.metrics import metric_named
from server.training.studies.branch import BRANCH
from server.training.studies.costudy import COSTUDY
from server.training.studies.halving import ASHA
from server.training.studies.independent import INDEPENDENT
from server.training.studies.ledger import Ledger
from server.training.studies.messages import (
    NO_LIMIT,
    Assignment,
    NoWorkYet,
    Progress,
    StudyOver,
    StudyPolicy,
    StudySpec,
    Verdict,
)
from server.training.studies.policy import (
    Fresh,
    Resume,
    Rules,
    best_checkpoint,
    improves,
    saturated,
    share_used,
)
from server.training.studies.trial import Checkpoint, Trial, random_of

__all__ = ["Master", "StudySpec", "progress_of"]

_SAME_ERRORS = 3  # at the start, that end a study: what comes next would meet it too
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")

_RULES: Mapping[StudyPolicy, Rules] = {
    "study": INDEPENDENT,
    "costudy": COSTUDY,
    "asha": ASHA,
    "branch": BRANCH,
}


class Master:
    """One study. Not for several threads at once; every call returns after its change is stored."""

    def __init__(self, spec: StudySpec, storage: BaseStorage) -> None:
        """Begins the study, or goes on with the one of that name, also with a larger budget.

        Raises ValueError when the stored study has another spec.
        """
        self.spec = spec
        self._rules = _RULES[spec.policy]
        self._ledger = Ledger(spec, storage)

    def request(self, worker: str, now_s: float) -> Assignment | StudyOver | NoWorkYet:
        """kRequest: what a free worker does next. What it was on, if anything, counts as lost."""
        self.sweep(now_s)
        held = next((trial for trial in self._ledger.trials() if trial.worker == worker), None)
        if held is not None:
            self._lose(held, "its worker asked for another trial")
        trials = self._ledger.trials()
        error = _same_error(trials, self._ledger.forgiven)
        if error is not None:
            return self._nothing(f"the same error {_SAME_ERRORS} times: {error}", failed=True)
        waiting = next((trial for trial in trials if trial.state == "waiting"), None)
        if share_used(self.spec, trials) >= 1 and not self._owes(waiting) and not self._has_trials_left():
            return self._nothing(f"the budget of {self._unit} is used up")
        if reason := saturated(self.spec, trials):
            return self._nothing(reason)
        if waiting is not None:
            return self._hand_out(waiting, worker, now_s)
        proposal = self._rules.propose(self.spec, trials)
        if proposal is None:
            return self._nothing("there are no more trials to run")
        if isinstance(proposal, Resume):
            resumed = proposal.trial.resumed(proposal.epochs, cools=proposal.cools)
            return self._hand_out(resumed, worker, now_s)
        return self._begin(proposal, worker, now_s)

    def report(
        self,
        worker: str,
        trial: int,
        epoch: int,
        score: float,
        now_s: float,
        loss: float | None = None,
        took_s: float = 0.0,
        converged: bool = False,
        held_s: float = 0.0,
    ) -> Verdict:
        """kReport: the merit of the validation score after `epoch` epochs of the trial (1 is the first), and
        the loss. converged: further epochs would bring the same, so the trial ends. took_s: of training;
        held_s: what has passed since the report before, which a budget of time is charged.

        A report that is sent twice is answered twice and counted once. A score or a loss that is not finite
        ends the trial for good: with the same inputs it would diverge again. Raises ValueError for a skipped
        epoch.
        """
        known = self._leased(worker, trial)
        if known is None:
            return Verdict.DROP
        if epoch == len(known.scores) and known.verdict is not None:
            return known.verdict
        if epoch != len(known.scores) + 1 or known.verdict in (Verdict.STOP, Verdict.PAUSE):
            raise ValueError(f"trial {trial}: epoch {epoch} was reported after epoch {len(known.scores)}")
        for what, value in (("score", score), ("loss", loss)):
            if value is not None and not math.isfinite(value):
                self._ledger.save(known.diverged(f"its {what} in epoch {epoch} is {value}"))
                return Verdict.DROP
        told = known.reported(epoch, score, now_s + self.spec.lease_s, loss, took_s, held_s)
        others = [other for other in self._ledger.trials() if other.number != trial]
        verdict = self._rules.judge(self.spec, [*others, told], told)
        ends = converged or epoch - told.start_epoch >= told.epochs
        # This trial's own epoch in flight has just become a charged one.
        after = [*others, replace(told, verdict=Verdict.STOP)]
        is_spent = not self._has_trials_left() and share_used(self.spec, after) >= 1
        if is_spent or (ends and verdict is not Verdict.PAUSE):
            verdict = Verdict.STOP
        self._ledger.save(replace(told, verdict=verdict))
        return verdict

    def stored(self, worker: str, trial: int, epoch: int, score: float, checkpoint: str) -> bool:
        """kPut: a checkpoint was stored, as PUT or PAUSE asked. False: it does not count, throw it away.

        A paused trial's state always counts. A PUT counts when its score still exceeds the best by more
        than delta: another worker's may have come first.
        """
        known = self._ledger.find(trial)
        if known is None:
            return False
        if any(kept.digest == checkpoint and kept.epoch == epoch for kept in known.checkpoints):
            return True
        if self._leased(worker, trial) is None:
            return False
        if known.verdict is Verdict.PAUSE and epoch == len(known.scores):
            paused = known.with_checkpoint(epoch, score, checkpoint)
            self._ledger.save(replace(paused, state="paused", worker=None))
            return True
        if not improves(self.spec, self._ledger.trials(), score):
            return False
        self._ledger.save(known.with_checkpoint(epoch, score, checkpoint))
        return True

    def finish(self, worker: str, trial: int, score: float, now_s: float, checkpoint: str | None) -> None:
        """kFinish: the trial is over; `checkpoint` holds the weights of its best epoch, of that `score`.

        Said twice or too late, it changes nothing.
        """
        known = self._leased(worker, trial)
        if known is None:
            return
        if checkpoint is not None:
            epochs = [epoch for epoch, reported in enumerate(known.scores, 1) if reported == score]
            known = known.with_checkpoint(min(epochs, default=len(known.scores)), score, checkpoint)
        self._ledger.save(replace(known, state="finished", worker=None))

    def fail(self, worker: str, trial: int, reason: str, now_s: float) -> None:
        """The worker died or gave up: the same inputs go to another, `max_attempts` times in all."""
        known = self._leased(worker, trial)
        if known is not None:
            self._lose(replace(known, errors=(*known.errors, reason)), reason)

    def lose(self, worker: str, trial: int, reason: str) -> None:
        """The worker went, by no fault of the trial's: as `fail`, and it does not count as an attempt."""
        known = self._leased(worker, trial)
        if known is not None:
            lost = known.lost(reason, known.attempt + 1)
            self._ledger.save(replace(lost, attempt=known.attempt))

    def forgive(self) -> None:
        """Forget the errors so far: somebody has mended their cause, and the study is tried again."""
        self._ledger.forgive()

    def release(self, worker: str, trial: int, reason: str) -> None:
        """The worker gives the trial back, by no fault of the trial: the same inputs wait for another."""
        known = self._leased(worker, trial)
        if known is not None:
            self._ledger.save(known.released(reason))

    def suspend(self, worker: str, trial: int, checkpoints: Sequence[Checkpoint], reason: str) -> bool:
        """The worker puts the trial down between two epochs; it waits, and goes on from there.

        checkpoints: the last is of the last reported epoch, with its state; the best may come before it.
        False: the trial is not this worker's any more.
        """
        known = self._leased(worker, trial)
        if known is None or checkpoints[-1].epoch != len(known.scores):
            return False
        self._ledger.save(known.suspended(checkpoints, reason))
        return True

    def beat(self, worker: str, trial: int, now_s: float) -> bool:
        """The worker lives, in the middle of a long epoch. False: it has lost the trial."""
        known = self._leased(worker, trial)
        if known is None:
            return False
        self._ledger.save(replace(known, lease_until_s=now_s + self.spec.lease_s))
        return True

    def sweep(self, now_s: float) -> list[int]:
        """Take trials from workers whose lease ran out; their numbers."""
        late = [trial for trial in self._ledger.trials() if trial.worker and trial.lease_until_s < now_s]
        for trial in late:
            self._lose(trial, f"worker {trial.worker} was silent for {self.spec.lease_s:g} s")
        return [trial.number for trial in late]

    def conclude(self, reason: str) -> None:
        """The study has ended: nobody takes up a trial that lost its worker. What it has stored stands.

        Said twice, it changes nothing.
        """
        for trial in self._ledger.trials():
            if (concluded := trial.concluded(reason)) != trial:
                self._ledger.save(concluded)

    def trials(self) -> list[Trial]:
        """All records, by number."""
        return self._ledger.trials()

    def progress(self) -> Progress:
        """The study as people see it."""
        return progress_of(self.spec, self._ledger.trials())

    def _begin(self, proposal: Fresh, worker: str, now_s: float) -> Assignment:
        number = len(self._ledger.trials())
        draws, knobs = proposal.point
        origin = None if proposal.origin is None else proposal.origin.digest
        trial = Trial(
            number=number,
            draws=draws,
            knobs=knobs,
            seed=int(random_of(self.spec.seed, number, "training").integers(2**31)),
            snapshot=self.spec.snapshot,
            state="running",
            origin=origin,
            origin_trial=proposal.origin_trial,
            parent=origin,
            epochs=proposal.epochs,
        )
        self._ledger.add(trial.leased(worker, now_s + self.spec.lease_s))
        return trial.assignment()

    def _hand_out(self, trial: Trial, worker: str, now_s: float) -> Assignment:
        self._ledger.save(trial.leased(worker, now_s + self.spec.lease_s))
        return trial.assignment()

    def _nothing(self, reason: str, *, failed: bool = False) -> NoWorkYet | StudyOver:
        if self._is_running():
            return NoWorkYet()
        self.conclude(reason)
        return StudyOver(reason, failed)

    def _is_running(self) -> bool:
        return any(trial.state == "running" for trial in self._ledger.trials())

    def _owes(self, waiting: Trial | None) -> bool:
        """Whether a lost trial runs beyond the budget: crashes took it all, and left no model at all.

        `report` stops it after one epoch; without others beside it, for that one is enough.
        """
        has_model = best_checkpoint(self._ledger.trials()) is not None
        return waiting is not None and not self._is_running() and not has_model

    @property
    def _unit(self) -> str:
        if self.spec.budget_s is not None:
            return "time"
        return "epochs" if self.spec.budget_epochs < NO_LIMIT else "trials"

    def _has_trials_left(self) -> bool:
        """Whether the budget is one of trials: those that have begun are trained to their end."""
        return self._unit == "trials"

    def _leased(self, worker: str, trial: int) -> Trial | None:
        known = self._ledger.find(trial)
        return known if known is not None and known.worker == worker else None

    def _lose(self, trial: Trial, reason: str) -> None:
        self._ledger.save(trial.lost(reason, self.spec.max_attempts))


def progress_of(spec: StudySpec, trials: Sequence[Trial]) -> Progress:
    """A study as people see it, of its records."""
    best = best_checkpoint(trials)
    metric = metric_named(spec.metric)
    return Progress(
        trials=[trial.progress(metric) for trial in trials],
        epochs_used=sum(trial.charged for trial in trials),
        epochs_budget=spec.budget_epochs if spec.budget_epochs < NO_LIMIT else None,
        best_score=best and metric.value(best[1].score),
        best_trial=best and best[0].number,
        best_checkpoint=best and best[1].digest,
        metric=spec.metric,
        seconds_used=sum(trial.spent_s for trial in trials),
        share_used=min(1.0, share_used(spec, trials)),
    )


def _same_error(trials: Sequence[Trial], forgiven: int) -> str | None:
    """The error that a study has begun with, and nothing else; None where there were fewer, others, or a
    trial that stands. Process ids, hashes and epochs in it may differ. forgiven: trials before that number
    show nothing.
    """
    if any(trial.checkpoints or (trial.scores and trial.state != "failed") for trial in trials):
        return None
    errors = [error for trial in trials[forgiven:] for error in trial.errors]
    if len(errors) < _SAME_ERRORS or len({_NUMBERS.sub("#", error) for error in errors}) > 1:
        return None
    return errors[-1]
