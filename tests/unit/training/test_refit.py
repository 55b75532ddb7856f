"""A deployed model is taught the validation rows too: as it was trained, and for as long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_worker.wire.protocol import (
    CheckpointStored,
    EpochTrained,
    Failed,
    ForgetTrial,
    Message,
    StoreCheckpoint,
    TrainEpoch,
)
from server.errors import ServiceError
from server.training.jobs.run import Run
from server.training.jobs.spec import JobSpec
from server.training.promotion.refit import Refits, is_refit_unasked, pays
from server.training.studies.trial import Checkpoint, Trial

SPLITS = {"train": 70, "validation": 15, "test": 15}


@dataclass
class Trainer:
    """A worker whose refits score that on the validation rows."""

    score: float = 0.9
    reply: Callable[[Message], Message | None] = lambda message: None
    heard: list[Message] = field(default_factory=list)

    async def anyone(self, *, pictures: bool = False) -> Trainer:
        return self

    @contextlib.contextmanager
    def busy(self, worker: object) -> Iterator[None]:
        yield

    async def call(self, message: Message) -> Message:
        self.heard.append(message)
        if (reply := self.reply(message)) is not None:
            return reply
        if isinstance(message, TrainEpoch):
            return EpochTrained(0, message.epoch, 0.1, self.score, 0.01)
        assert isinstance(message, StoreCheckpoint)
        return CheckpointStored(0, f"refit-{len(self.heard)}", 10)

    def send(self, message: Message, on_reply: object) -> int:
        assert isinstance(message, ForgetTrial)
        self.heard.append(message)
        return 1


def run_of(**job: Any) -> Run:
    spec = JobSpec("food", task="text-classification", models=("fasttext",), **job)

    async def start_of(model: str, given: Any) -> str:
        return given.parent or ""

    def epoch_of(model: str, name: str, start: str, given: Any, epoch: int, *, refits: bool) -> TrainEpoch:
        told = spec.train_spec(model, given)
        return TrainEpoch(0, name, told, "file", ["a", "b"], start, given.start_epoch, epoch, refits=refits)

    async def weights(digest: str) -> Path:
        if digest in gone:
            raise ServiceError("it is no longer there")
        return Path(digest)

    async def keep(digest: str) -> None:
        kept.append(digest)

    kept: list[str] = []
    gone: set[str] = set()
    return cast(
        "Run",
        SimpleNamespace(
            job=SimpleNamespace(id=3),
            spec=spec,
            snapshot=SimpleNamespace(facts={"splits": SPLITS}),
            start_of=start_of,
            epoch_of=epoch_of,
            weights=weights,
            keep=keep,
            checkpoints=Path("checkpoints"),
            kept=kept,
            gone=gone,
            pins=set(),
        ),
    )


BEST = Checkpoint(3, 0.8, "found")
TRIAL = Trial(
    number=5,
    draws={},
    knobs={"learning_rate": 0.01},
    seed=7,
    snapshot="s",
    state="finished",
    origin="parent",
    scores=(0.5, 0.6, 0.8, 0.7, 0.75),
    checkpoints=(BEST,),
    cool_from=2,
    took_s=5.0,
)


def refit(trainer: Trainer, run: Run, refits: Refits | None = None) -> str | None:
    used = refits or Refits(cast(Any, trainer))
    return asyncio.run(used.of(run, "fasttext", TRIAL, BEST, cast(Any, run).pins))


def test_a_refit_is_the_trial_again_up_to_its_best_epoch_with_the_validation_rows():
    trainer, run = Trainer(), run_of()
    assert refit(trainer, run) == "refit-4"
    epochs = [message for message in trainer.heard if isinstance(message, TrainEpoch)]
    assert [message.epoch for message in epochs] == [1, 2, 3]
    assert all(
        message.refits and message.start_epoch == 0 and message.start == "parent" for message in epochs
    )
    assert epochs[0].spec == epochs[2].spec
    told = epochs[0].spec
    assert (told["epochs"], told["cool_from"], told["learning_rate"], told["seed"]) == (5, 2, 0.01, 7), (
        "its rate falls as it fell"
    )
    assert isinstance(trainer.heard[-1], ForgetTrial)
    assert cast(Any, run).kept == ["refit-4"]
    assert cast(Any, run).pins == {"refit-4"}


def test_a_refit_that_answers_what_it_was_taught_worse_than_before_is_not_used():
    trainer = Trainer(score=0.7)
    assert refit(trainer, run_of()) is None
    assert isinstance(trainer.heard[-1], ForgetTrial)
    assert refit(Trainer(score=float("nan")), run_of()) is None, "it diverged"


@pytest.mark.parametrize("kind", [TrainEpoch, StoreCheckpoint])
def test_a_refit_that_fails_leaves_what_was_found(kind: type[Message]):
    def fails(message: Message) -> Message | None:
        return Failed(0, "internal", "out of memory") if isinstance(message, kind) else None

    assert refit(Trainer(reply=fails), run_of()) is None


def test_what_is_deployed_twice_is_taught_once_unless_it_is_gone():
    trainer, run = Trainer(), run_of()
    refits = Refits(cast(Any, trainer))
    first = refit(trainer, run, refits)
    heard = len(trainer.heard)
    assert refit(trainer, run, refits) == first
    assert len(trainer.heard) == heard
    cast(Any, run).gone.add(first)
    assert refit(trainer, run, refits) not in (None, first)


def test_a_job_says_whether_and_else_what_is_quick_is_refit():
    assert refit(Trainer(), run_of(refit=False)) is None
    assert pays(200_000, 10.0)
    assert not pays(200_001, 1.0)
    assert not pays(100, 10.1)
    assert is_refit_unasked(run_of(), "fasttext", TRIAL, BEST)


def test_a_refit_that_was_asked_for_may_take_long():
    run = run_of(refit=True)
    run.snapshot.facts["splits"] = {"train": 10**6, "validation": 10**5, "test": 10}
    assert not is_refit_unasked(run, "fasttext", TRIAL, BEST)
    assert refit(Trainer(), run) is not None
