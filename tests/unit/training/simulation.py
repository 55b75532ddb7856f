"""Workers that train nothing, on a clock that nobody waits for, against the real master.

A trial's scores are a function of its knobs, its seed and where it started; a checkpoint's digest is a hash
of the same, so that two runs with equal digests would have had equal weights.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import Assignment, NoWorkYet, StudySpec, Verdict
from server.training.studies.study import Master
from server.training.studies.trial import random_of

POLL_S = 0.05


def small_space() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 1e-4, 1.0, log=True, branching="lower")
    space.add_range_knob("dropout", "float", 0.0, 0.9)
    space.add_range_knob("init_std", "float", 0.01, 1.0, log=True, branching="fixed")
    space.add_categorical_knob("kernel", "string", ["linear", "poly"])
    return space


def spec_of(policy: str = "study", **fields) -> StudySpec:
    given: dict[str, Any] = {"name": "s", "space": small_space(), "policy": policy, "budget_epochs": 60}
    return StudySpec(**given | fields)


def score_of(given: Assignment, started: float, epoch: int) -> float:
    """Rises towards what the knobs allow, from where the parent's weights stood, with a little noise."""
    rate = float(given.knobs.get("learning_rate", 0.01))
    ceiling = math.exp(-((math.log10(rate) + 2) ** 2)) * (1 - float(given.knobs.get("dropout", 0.2)) / 2)
    noise = random_of(given.seed, epoch, "noise").normal(scale=0.01)
    return min(1.0, max(0.0, started + (ceiling - started) * (1 - 0.7**epoch) + noise))


def digest_of(given: Assignment, epoch: int) -> str:
    content = (
        f"{sorted(given.knobs.items())}/{given.seed}/{given.parent if not given.start_epoch else ''}/{epoch}"
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass
class ParameterStore:
    """What outlives workers and masters: the scores that stored weights had."""

    scores: dict[str, float] = field(default_factory=dict)

    def started_at(self, given: Assignment) -> float:
        return self.scores[given.parent] if given.parent and not given.start_epoch else 0.0


@dataclass
class Worker:
    """One worker between messages; `step` is one epoch and what the master says to it."""

    name: str
    store: ParameterStore
    given: Assignment | None = None
    epoch: int = 0
    best: tuple[float, int] = (-1.0, 0)
    stopped: bool = False
    seen: list[Assignment] = field(default_factory=list)

    def ask(self, master: Master, now_s: float) -> bool:
        """Whether there is something to train."""
        answer = master.request(self.name, now_s)
        self.given = answer if isinstance(answer, Assignment) else None
        self.stopped = self.given is None and not isinstance(answer, NoWorkYet)
        if self.given is not None:
            self.seen.append(self.given)
            self.epoch, self.best = self.given.start_epoch, (-1.0, 0)
        return self.given is not None

    def step(self, master: Master, now_s: float) -> Verdict:
        given = self.given
        assert given is not None
        self.epoch += 1
        score = score_of(given, self.store.started_at(given), self.epoch)
        self.best = max(self.best, (score, self.epoch), key=lambda pair: pair[0])
        verdict = master.report(self.name, given.trial, self.epoch, score, now_s)
        if verdict in (Verdict.PUT, Verdict.PAUSE):
            digest = self.put(given, score, self.epoch)
            master.stored(self.name, given.trial, self.epoch, score, digest)
        if verdict is Verdict.STOP:
            best, epoch = self.best
            master.finish(self.name, given.trial, best, now_s, self.put(given, best, epoch))
        if verdict not in (Verdict.CONTINUE, Verdict.PUT):
            self.given = None
        return verdict

    def put(self, given: Assignment, score: float, epoch: int) -> str:
        digest = digest_of(given, epoch)
        self.store.scores[digest] = score
        return digest


def run(
    master: Master,
    workers: int = 1,
    epoch_s: Callable[[Assignment, int], float] = lambda given, epoch: 1.0,
    store: ParameterStore | None = None,
    clock: Callable[[], float] | None = None,
    pieces_s: list[float] | None = None,
) -> float:
    """Run the study to its end on the simulated clock; when it ended, in seconds.

    `clock` adds the real time of the master's calls to the simulated one: they come one after the other.
    `pieces_s` is filled with the training time of each assignment, in the order in which they were given.
    """
    pieces_s = [] if pieces_s is None else pieces_s
    piece_of: dict[int, int] = {}
    store = ParameterStore() if store is None else store
    crew = [Worker(f"w{place}", store) for place in range(workers)]
    events = [(0.0, place) for place in range(workers)]
    busy_until_s = ended_s = 0.0
    while events:
        now_s, place = heapq.heappop(events)
        worker = crew[place]
        began = clock() if clock else 0.0
        if worker.given is not None:
            worker.step(master, now_s)
            ended_s = max(ended_s, now_s)
        if worker.given is None:
            worker.ask(master, now_s)
            if worker.given is not None:
                piece_of[place] = len(pieces_s)
                pieces_s.append(0.0)
        busy_until_s = max(now_s, busy_until_s) + (clock() - began if clock else 0.0)
        if worker.given is not None:
            lasts_s = epoch_s(worker.given, worker.epoch + 1)
            pieces_s[piece_of[place]] += lasts_s
            heapq.heappush(events, (busy_until_s + lasts_s, place))
        elif not worker.stopped:
            heapq.heappush(events, (busy_until_s + POLL_S, place))
    return ended_s


def inputs(given: Assignment) -> tuple[Mapping[str, object], int, str | None, int, int]:
    """What a retry must be told again."""
    return dict(given.knobs), given.seed, given.parent, given.start_epoch, given.epochs
