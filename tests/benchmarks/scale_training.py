"""Rafiki's scaling of training (§7.2, "almost linear"): recorded trials through the real master.

Discrete events: workers ask, train an epoch for as long as a recorded one took, and report its recorded
score. The master is the one that serves, on a journal on the disk, and answers one message at a time: each
takes what it takes here, so that workers wait for it as they do live. The bound is FIFO: the very same parts
of trials, in the order in which they were handed out, each to the first worker that is free, by a master that
takes no time and never says "not yet".
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from server.training.studies.hyperspace import HyperSpace
from server.training.studies.journal import open_journal
from server.training.studies.messages import Assignment, StudyOver, StudyPolicy, StudySpec, Verdict
from server.training.studies.study import Master

__all__ = ["Replay", "replay"]

_Told = TypeVar("_Told")


@dataclass
class Replay:
    """One study replayed. parts_s: what each assignment took, in the order of handing out."""

    policy: str
    workers: int
    wall_s: float = 0.0
    epochs: int = 0
    messages: int = 0
    master_s: float = 0.0
    parts_s: list[float] = field(default_factory=list)

    @property
    def fifo_s(self) -> float:
        """The bound: when the last worker is done, of as many as there are."""
        free_s = [0.0] * self.workers
        for part_s in self.parts_s:
            heapq.heappush(free_s, heapq.heappop(free_s) + part_s)
        return max(free_s)

    @property
    def of_bound(self) -> float:
        """How near it comes."""
        return self.fifo_s / self.wall_s


class _Trial:
    """A worker's trial under way. part: of the assignments, which it is."""

    def __init__(self, given: Assignment, part: int) -> None:
        self.given = given
        self.part = part
        self.epoch = given.start_epoch
        self.best = -1.0


class _Replayed:
    """One run: the clock, the workers, the master that each has to wait for."""

    def __init__(
        self,
        spec: StudySpec,
        trials: Sequence[Mapping[str, Any]],
        workers: int,
        folder: Path,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._trials = trials
        self._master = Master(spec, open_journal(str(folder / "study.journal")))
        self._free_s = 0.0  # the master
        self._events: list[tuple[float, str]] = [(0.0, f"w{number}") for number in range(workers)]
        self._under_way: dict[str, _Trial] = {}
        self._waiting: list[str] = []
        self.result = Replay(spec.policy, workers)

    def run(self) -> Replay:
        """To the study's end."""
        while self._events:
            now_s, worker = heapq.heappop(self._events)
            if worker in self._under_way:
                self._report(now_s, worker)
            else:
                self._request(now_s, worker)
        return self.result

    def _ask(self, now_s: float, call: Callable[[], _Told]) -> tuple[float, _Told]:
        """When the master has answered, and what."""
        began_s = self._clock()
        told = call()
        took_s = self._clock() - began_s
        self._free_s = max(now_s, self._free_s) + took_s
        self.result.messages += 1
        self.result.master_s += took_s
        self.result.wall_s = self._free_s
        return self._free_s, told

    def _request(self, now_s: float, worker: str) -> None:
        at_s, given = self._ask(now_s, lambda: self._master.request(worker, now_s))
        if isinstance(given, StudyOver):
            return
        if not isinstance(given, Assignment):
            self._waiting.append(worker)
            return
        self.result.parts_s.append(0.0)
        self._under_way[worker] = _Trial(given, len(self.result.parts_s) - 1)
        self._train(at_s, worker)

    def _train(self, at_s: float, worker: str) -> None:
        trial = self._under_way[worker]
        took_s = self._recorded(trial.given.trial, "took_s", trial.epoch)
        self.result.parts_s[trial.part] += took_s
        self.result.epochs += 1
        heapq.heappush(self._events, (at_s + took_s, worker))

    def _report(self, now_s: float, worker: str) -> None:
        trial, master = self._under_way[worker], self._master
        number = trial.given.trial
        score = self._recorded(number, "scores", trial.epoch)
        took_s = self._recorded(number, "took_s", trial.epoch)
        trial.epoch += 1
        epoch, trial.best = trial.epoch, max(trial.best, score)
        at_s, verdict = self._ask(
            now_s, lambda: master.report(worker, number, epoch, score, now_s, 0.0, took_s=took_s)
        )
        if verdict in (Verdict.PUT, Verdict.PAUSE):
            digest = f"{number}/{epoch}"
            at_s, _ = self._ask(at_s, lambda: master.stored(worker, number, epoch, score, digest))
        if verdict is Verdict.STOP:
            best, digest = trial.best, f"{number}/best"
            at_s, _ = self._ask(at_s, lambda: master.finish(worker, number, best, at_s, digest))
        if verdict in (Verdict.CONTINUE, Verdict.PUT):
            self._train(at_s, worker)
        else:
            del self._under_way[worker]
            heapq.heappush(self._events, (at_s, worker))
        for waits in self._waiting:  # what was said may have brought work
            heapq.heappush(self._events, (at_s, waits))
        self._waiting.clear()

    def _recorded(self, trial: int, what: str, epoch: int) -> float:
        """Of epoch `epoch` + 1; a longer trial than the recorded one goes on at its last score."""
        told = self._trials[trial % len(self._trials)][what]
        if what == "scores":
            return float(told[min(epoch, len(told) - 1)])
        return float(told[epoch % len(told)])


def replay(
    policy: StudyPolicy,
    trials: Sequence[Mapping[str, Any]],
    workers: int,
    *,
    epochs: int = 384,
    clock: Callable[[], float] = time.perf_counter,
) -> Replay:
    """A study of so many epochs by so many workers; of `study`, trials of 12 epochs.

    clock: by which the master takes its time; `time.thread_time` leaves out what the disk and others take.
    """
    knobs = HyperSpace()
    knobs.add_range_knob("learning_rate", "float", 1e-3, 1.0, log=True, default=0.05)
    knobs.add_range_knob("momentum", "float", 0.0, 0.99, default=0.9)
    spec = StudySpec(
        name="scale",
        space=knobs,
        policy=policy,
        budget_epochs=epochs,
        max_epochs=12 if policy in ("study", "costudy") else 27,
        max_trials=epochs // 12 if policy == "study" else None,
        patience=12 if policy == "study" else 5,
        lease_s=1e9,
        seed=7,
    )
    with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
        return _Replayed(spec, trials, workers, Path(folder), clock).run()
