"""One trial's record: everything that the master knows about it, written to storage as a whole.

Pure: each change makes a new record. Knows no storage and no policy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gpu_worker.tasks.metrics import Metric
from server.training.studies.hooks import KnobValue
from server.training.studies.messages import Assignment, TrialProgress, TrialState, Verdict

__all__ = ["Checkpoint", "Trial", "random_of"]


def random_of(seed: int, number: int, purpose: str) -> np.random.Generator:
    """A generator that depends on the study's seed, the trial's number and the purpose, and on nothing else.

    The master holds no generator between messages, so that one that is killed goes on with the same numbers.
    """
    digest = hashlib.sha256(f"{seed}/{number}/{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights in the parameter store; `digest` is their content's hash, `score` a merit."""

    epoch: int
    score: float
    digest: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial. `origin` is the checkpoint that its weights came from at first, `parent` that of the
    assignment in hand. scores[e] is the merit of the validation score after epoch e + 1 (the larger, the
    better), `loss` the last epoch's on the training rows. `charged` counts every epoch that a worker began,
    lost ones too. `verdict` answered the last report; None when there was none yet. `errors` are those that
    workers met with it, `cool_from` the epochs after which its learning rate began to fall. `took_s`: of the
    epochs that were reported; `held_s`: what passed meanwhile, with all waiting and writing.
    """

    number: int
    draws: Mapping[str, KnobValue]
    knobs: Mapping[str, KnobValue]
    seed: int
    snapshot: str
    state: TrialState
    origin: str | None = None
    origin_trial: int | None = None
    parent: str | None = None
    start_epoch: int = 0
    epochs: int = 0
    attempt: int = 1
    worker: str | None = None
    lease_until_s: float = 0.0
    scores: tuple[float, ...] = ()
    charged: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()
    verdict: Verdict | None = None
    reason: str = ""
    loss: float | None = None
    errors: tuple[str, ...] = ()
    cool_from: int | None = None
    took_s: float = 0.0
    held_s: float = 0.0

    @property
    def warm(self) -> bool:
        """Whether it began from another trial's weights."""
        return self.origin is not None

    @property
    def spent_s(self) -> float:
        """What it has cost of a budget of time."""
        return max(self.held_s, self.took_s)

    @property
    def in_flight(self) -> bool:
        """Whether a worker is on an epoch that it has not reported yet."""
        return self.state == "running" and self.verdict in (None, Verdict.CONTINUE, Verdict.PUT)

    @property
    def best_score(self) -> float | None:
        """The best validation score of any epoch that stands; once it has ended, of any whose weights do."""
        kept = self.checkpoints if self.state == "finished" else ()
        return max((*self.scores, *(checkpoint.score for checkpoint in kept)), default=None)

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The stored checkpoint with the best score; the earliest of equals."""
        return max(self.checkpoints, key=lambda checkpoint: checkpoint.score, default=None)

    def assignment(self) -> Assignment:
        """What a worker is sent: a function of the record, so that a retry is sent the same."""
        return Assignment(
            self.number,
            dict(self.knobs),
            self.seed,
            self.parent,
            self.start_epoch,
            self.epochs,
            self.attempt,
            self.cool_from,
        )

    def leased(self, worker: str, until_s: float) -> Trial:
        """In the hands of `worker`."""
        return replace(self, state="running", worker=worker, lease_until_s=until_s, verdict=None)

    def resumed(self, epochs: int, *, cools: bool = False) -> Trial:
        """A paused trial that goes on from its last checkpoint, for `epochs` more; `cools`: to its end, with
        a learning rate that falls.
        """
        last = self.checkpoints[-1]
        cool_from = last.epoch if cools else self.cool_from
        return replace(
            self, parent=last.digest, start_epoch=last.epoch, epochs=epochs, attempt=1, cool_from=cool_from
        )

    def reported(
        self,
        epoch: int,
        score: float,
        until_s: float,
        loss: float | None = None,
        took_s: float = 0.0,
        held_s: float = 0.0,
    ) -> Trial:
        """One epoch more, of so many seconds, and what passed since the last one."""
        scores = (*self.scores[: epoch - 1], score)
        return replace(
            self,
            scores=scores,
            loss=loss,
            charged=self.charged + 1,
            lease_until_s=until_s,
            took_s=self.took_s + took_s,
            held_s=max(self.held_s, self.took_s) + max(took_s, held_s),
        )

    def diverged(self, reason: str) -> Trial:
        """Over for good: with the same inputs it would diverge again. Its last epoch is charged."""
        errors = (*self.errors, reason)
        return replace(
            self, state="failed", worker=None, charged=self.charged + 1, reason=reason, errors=errors
        )

    def with_checkpoint(self, epoch: int, score: float, digest: str) -> Trial:
        """A checkpoint more; one of the same epoch is replaced."""
        others = tuple(kept for kept in self.checkpoints if kept.epoch != epoch)
        checkpoints = tuple(sorted((*others, Checkpoint(epoch, score, digest)), key=lambda kept: kept.epoch))
        return replace(self, checkpoints=checkpoints)

    def lost(self, reason: str, max_attempts: int) -> Trial:
        """Taken from its worker: it waits for another with the same inputs, or has failed too often.

        The epoch that the worker was on is charged, though nobody reported it: it cost as much.
        """
        return replace(
            self,
            state="waiting" if self.attempt < max_attempts else "failed",
            worker=None,
            attempt=self.attempt + 1,
            scores=self.scores[: self.start_epoch],
            charged=self.charged + int(self.in_flight),
            verdict=None,
            reason=reason,
        )

    def released(self, reason: str) -> Trial:
        """Taken from its worker between two epochs, by no fault of its own, to begin this assignment again:
        what the epochs have cost that count no more is given back.
        """
        charged = self.charged - (len(self.scores) - self.start_epoch)
        return replace(self.lost(reason, self.attempt + 1), attempt=self.attempt, charged=charged)

    def suspended(self, checkpoints: Sequence[Checkpoint], reason: str) -> Trial:
        """Suspended after its last reported epoch, whose weights are the last of `checkpoints`.

        It waits for a worker, and goes on from there for the epochs that are left.
        """
        told = self
        for checkpoint in checkpoints:
            told = told.with_checkpoint(checkpoint.epoch, checkpoint.score, checkpoint.digest)
        last = checkpoints[-1]
        return replace(
            told,
            state="waiting",
            worker=None,
            parent=last.digest,
            start_epoch=last.epoch,
            epochs=self.epochs - (last.epoch - self.start_epoch),
            verdict=None,
            reason=reason,
        )

    def concluded(self, reason: str) -> Trial:
        """It waited for a worker, and its study has ended, for that `reason`: the weights that it has stored
        are what it ends with. One without any stays as it is.
        """
        if self.state != "waiting" or not self.checkpoints:
            return self
        return replace(self, state="finished", reason=f"{self.reason}; {reason}")

    def as_json(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """The inverse of `as_json`."""
        form: dict[str, Any] = json.loads(text)
        form["verdict"] = form["verdict"] and Verdict(form["verdict"])
        form["scores"] = tuple(form["scores"])
        form["errors"] = tuple(form.get("errors", ()))
        form["checkpoints"] = tuple(Checkpoint(**checkpoint) for checkpoint in form["checkpoints"])
        return cls(**form)

    def progress(self, metric: Metric) -> TrialProgress:
        """The record as people see it."""
        best = self.best_score
        return TrialProgress(
            self.number,
            self.state,
            dict(self.knobs),
            self.warm,
            self.origin_trial,
            self.worker,
            len(self.scores),
            self.charged,
            metric.value(self.scores[-1]) if self.scores else None,
            None if best is None else metric.value(best),
            self.reason,
            self.loss,
            metric.name,
            self.took_s,
        )
