"""Chosen checkpoints once more, taught the validation rows as well: their knobs and epochs are known by then.

    chosen trial ─ same knobs, seed, start and epochs, training and validation rows ─→ checkpoint

A trial is trained as it was, from the weights that it began with, for as many epochs as its best checkpoint
has. What it then says of the validation rows shows nothing of new rows; but one that answers the rows that it
was taught worse than the checkpoint that never saw them has gone wrong, and is not used.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math

from gpu_worker.tasks.metrics import Score
from gpu_worker.wire.protocol import CheckpointStored, EpochTrained, Failed, ForgetTrial, StoreCheckpoint
from server.errors import ServiceError
from server.training.jobs.run import Run
from server.training.studies.messages import Assignment
from server.training.studies.trial import Checkpoint, Trial
from server.training.trainers import Ask, Trainers

__all__ = ["Refits", "is_refit_unasked", "pays"]

log = logging.getLogger("ml_udf.server.training")

_MOST_ROWS = 200_000  # of training and validation: beyond that a few more change little
_MOST_S = 10.0  # that it may take where nobody has asked for it: whoever deploys waits for it
_MOST_KNOWN = 256


def pays(rows: int, took_s: float) -> bool:
    """Whether to teach so many rows again, in so many seconds, where nobody says. Pure."""
    return rows <= _MOST_ROWS and took_s <= _MOST_S


def is_refit_unasked(run: Run, model: str, trial: Trial, checkpoint: Checkpoint) -> bool:
    """Whether a trial of a job that does not say is taught once more."""
    splits = run.snapshot.facts["splits"]
    rows = int(splits["train"]) + int(splits["validation"])
    share = checkpoint.epoch / max(1, len(trial.scores)) * rows / max(1, int(splits["train"]))
    return run.spec.recipe.model(model).refits and pays(rows, trial.took_s * share)


class Refits:
    """Those that workers have made, by job and checkpoint: what is deployed twice is taught once."""

    def __init__(self, trainers: Trainers) -> None:
        self._trainers = trainers
        self._known: dict[tuple[int, str], str] = {}
        self._names = itertools.count(1)

    async def of(
        self, run: Run, model: str, trial: Trial, checkpoint: Checkpoint, pins: set[str]
    ) -> str | None:
        """The digest of the refit checkpoint, which is pinned; None where it stays as it is. Raises
        `Overloaded`.
        """
        asked = run.spec.refit
        if asked is False or (asked is None and not is_refit_unasked(run, model, trial, checkpoint)):
            return None
        key = (run.job.id, checkpoint.digest)
        with contextlib.suppress(ServiceError):
            if key in self._known:
                pins.add(self._known[key])
                await run.weights(self._known[key])
                return self._known[key]
        where = f"job={run.job.id} {model} trial={trial.number}"
        try:
            digest = await self._taught(run, model, trial, checkpoint, pins)
        except (ServiceError, OSError) as error:
            log.warning("not refit %s: %s", where, error)
            return None
        self._known[key] = digest
        while len(self._known) > _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        return digest

    async def _taught(
        self, run: Run, model: str, trial: Trial, checkpoint: Checkpoint, pins: set[str]
    ) -> str:
        worker = await self._trainers.anyone(pictures=run.spec.recipe.pictures)
        name = f"{run.job.id}/{model}/{trial.number}/refit-{next(self._names)}"
        given = Assignment(
            trial.number,
            dict(trial.knobs),
            trial.seed,
            trial.origin,
            0,
            len(trial.scores),
            cool_from=trial.cool_from,
        )
        start = await run.start_of(model, given)
        merit = -math.inf
        with self._trainers.busy(worker):
            try:
                for epoch in range(1, checkpoint.epoch + 1):
                    reply = await worker.call(run.epoch_of(model, name, start, given, epoch, refits=True))
                    if not isinstance(reply, EpochTrained):
                        raise ServiceError(reply.message if isinstance(reply, Failed) else reply.kind)
                    merit = Score(reply.metric, reply.score).merit
                if not merit >= checkpoint.score:
                    raise ServiceError("it answers the validation rows worse than before it was taught them")
                stored = await worker.call(
                    StoreCheckpoint(0, name, str(run.checkpoints), best=False, paused=False)
                )
                if not isinstance(stored, CheckpointStored):
                    raise ServiceError(stored.message if isinstance(stored, Failed) else stored.kind)
            finally:
                Ask(worker, ForgetTrial(0, name))
        pins.add(stored.checkpoint)
        await run.keep(stored.checkpoint)
        return stored.checkpoint
