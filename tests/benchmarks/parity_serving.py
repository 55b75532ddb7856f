"""Workers of which one is slow: who answers, and when. Pure, seeded, one event after the other.

    queue      every free worker takes the oldest question, as a scheduler that does not know who is slow
    hedged     and a question that is not answered `after_s` seconds since it began is begun once more, by the
               next free worker; the first answer counts
    parity     k questions that workers are at are a group, as the server makes them (`CodingGroups`), and
               their sum goes to workers of its own. An answer that is not there `after_s` after its question
               began is rebuilt, once the others and the sum's are
    members    two models on half of the workers each. Answered by both, or `after_s` after the first answer
               by that one alone

The slow worker takes `slow` times as long, and every `shift_s` seconds it is another: one that stays slow is
learned of, and left alone.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from server.scheduling.stragglers import CodingGroup, CodingGroups, Rebuild

__all__ = ["Fleet", "Outcome", "hedged", "members", "parity", "plain"]


@dataclass(frozen=True, slots=True)
class Fleet:
    """workers: in all, whatever they run. service_s: of a question, in the mean; jitter: its deviation, as a
    share. rate: questions a second.
    """

    workers: int
    service_s: float
    rate: float
    questions: int
    seed: int
    slow: float = 10.0
    shift_s: float = 2.0
    jitter: float = 0.1

    def arrivals_s(self) -> list[float]:
        random, now_s, found = Random(self.seed), 0.0, []
        for _ in range(self.questions):
            now_s += random.expovariate(self.rate)
            found.append(now_s)
        return found


@dataclass(slots=True)
class Outcome:
    """Of each question, in the order of coming: the seconds to its answer, and whether it was one of less."""

    took_s: list[float] = field(default_factory=list)
    degraded: list[bool] = field(default_factory=list)

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.took_s)
        return 1e3 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    @property
    def degraded_share(self) -> float:
        return sum(self.degraded) / len(self.degraded)


class _Pool:
    """Workers [first, first + count) of a fleet that share a queue."""

    def __init__(self, world: _World, first: int, count: int, done: Callable[[int], None]) -> None:
        self._world = world
        self._free = deque(range(first, first + count))
        self._waiting: deque[int] = deque()
        self._done = done
        self.is_wanted: Callable[[int], bool] = lambda question: True
        self.began: Callable[[int, int], None] = lambda question, worker: None

    def ask(self, question: int, *, first: bool = False) -> None:
        (self._waiting.appendleft if first else self._waiting.append)(question)
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            question = self._waiting.popleft()
            if not self.is_wanted(question):
                continue
            worker = self._free.popleft()
            self.began(question, worker)
            self._world.after(self._world.service_s(worker), lambda q=question, w=worker: self._over(q, w))  # type: ignore[misc]

    def _over(self, question: int, worker: int) -> None:
        self._free.append(worker)
        self._done(question)
        self._start()


class _World:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._random = Random(fleet.seed + 1)
        self._slow_of = Random(fleet.seed + 2)
        self._slow: list[int] = []

    def service_s(self, worker: int) -> float:
        """Of a question that a worker begins now."""
        fleet = self.fleet
        span = int(self.now_s / fleet.shift_s)
        while len(self._slow) <= span:
            self._slow.append(self._slow_of.randrange(fleet.workers))
        factor = fleet.slow if self._slow[span] == worker else 1.0
        return factor * fleet.service_s * max(0.5, self._random.gauss(1.0, fleet.jitter))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, what))

    def run(self, arrive: Callable[[int], None]) -> None:
        """All questions come, one by one, and all that follows from it happens."""
        arrivals = self.fleet.arrivals_s()
        at = 0
        while at < len(arrivals) or self._events:
            if at < len(arrivals) and (not self._events or arrivals[at] <= self._events[0][0]):
                self.now_s = arrivals[at]
                arrive(at)
                at += 1
            else:
                self.now_s, _, what = heapq.heappop(self._events)
                what()


class _Answers:
    def __init__(self, fleet: Fleet, world: _World) -> None:
        self.outcome = Outcome([math.nan] * fleet.questions, [False] * fleet.questions)
        self.there = [False] * fleet.questions
        self._came_s = fleet.arrivals_s()
        self._world = world

    def give(self, question: int, *, degraded: bool = False) -> None:
        if not self.there[question]:
            self.there[question] = True
            self.outcome.took_s[question] = self._world.now_s - self._came_s[question]
            self.outcome.degraded[question] = degraded


def plain(fleet: Fleet) -> Outcome:
    """All workers run the model."""
    world = _World(fleet)
    answers = _Answers(fleet, world)
    pool = _Pool(world, 0, fleet.workers, answers.give)
    world.run(pool.ask)
    return answers.outcome


def hedged(fleet: Fleet, after_s: float) -> Outcome:
    """All workers run the model; what takes long is begun twice."""
    world = _World(fleet)
    answers = _Answers(fleet, world)
    pool = _Pool(world, 0, fleet.workers, answers.give)
    begun = [0] * fleet.questions

    def again(question: int) -> None:
        if not answers.there[question]:
            pool.ask(question, first=True)

    def began(question: int, _: int) -> None:
        begun[question] += 1
        if begun[question] == 1:
            world.after(after_s, lambda: again(question))

    pool.began = began
    pool.is_wanted = lambda question: not answers.there[question]
    world.run(pool.ask)
    return answers.outcome


def parity(fleet: Fleet, k: int, after_s: float) -> Outcome:
    """k of k + 1 workers run the model, the others its parity model. A group that never fills has no sum."""
    world = _World(fleet)
    answers = _Answers(fleet, world)
    spare = fleet.workers // (k + 1)
    groups = CodingGroups[int](k)
    asked: list[CodingGroup[int]] = []

    def rebuilt(found: Iterable[Rebuild[int]]) -> None:
        for each in found:
            answers.give(each.row[0], degraded=True)

    def began(question: int, worker: int) -> None:
        world.after(after_s, lambda: rebuilt(groups.late((question, 0))))
        for group in groups.sent(question, str(worker), [(question, 0)], fleet.workers - spare):
            asked.append(group)
            sums.ask(len(asked) - 1)

    def answered(question: int) -> None:
        answers.give(question)
        rebuilt(groups.answered((question, 0), question))

    pool = _Pool(world, 0, fleet.workers - spare, answered)
    sums = _Pool(
        world, fleet.workers - spare, spare, lambda number: rebuilt(groups.coded(asked[number], number))
    )
    sums.is_wanted = lambda number: not asked[number].is_over
    pool.began = began
    world.run(pool.ask)
    return answers.outcome


def members(fleet: Fleet, after_s: float) -> Outcome:
    """Two models, each asked of every question."""
    world = _World(fleet)
    answers = _Answers(fleet, world)
    arrived = [0] * fleet.questions

    def answered(question: int) -> None:
        arrived[question] += 1
        if arrived[question] == 2:
            answers.give(question)
        else:
            world.after(after_s, lambda: answers.give(question, degraded=True))

    half = fleet.workers // 2
    pools = _Pool(world, 0, half, answered), _Pool(world, half, fleet.workers - half, answered)
    for pool in pools:
        pool.is_wanted = lambda question: not answers.there[question]

    def arrive(question: int) -> None:
        for pool in pools:
            pool.ask(question)

    world.run(arrive)
    return answers.outcome
