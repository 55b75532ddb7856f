"""Late rows, sent anew or rebuilt, while workers refuse, stand still and die: each row is answered once.

What says how far a row is, its copies, groups and timers, goes with its call.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from gpu_worker.wire.protocol import Failed
from server.catalog.functions import Function
from server.catalog.late_rows import LateRows
from server.errors import DeadlineExceeded, ServiceError, VersionGone
from server.serving.calls import PendingReply, Reply
from tests.answers import labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import CLASSES
from tests.unit.server.test_late_rows import house_of, say
from tests.waiting import until

HELD = {"w0": "net", "w1": "net", "w2": "net~parity-2", "w3": "net net~parity-2"}
REFUSALS = ("overloaded", "unknown_function", "cancelled", "internal")
DIED_TWICE = "of this one alone"


class Course:
    """What was asked, and how it ended."""

    def __init__(self, seed: int, late_rows: LateRows) -> None:
        self.chance = random.Random(seed)
        self.house = house_of(late_rows)
        self.house.place(**HELD)
        self.calls: list[tuple[PendingReply, list[str]]] = []
        self.heard: dict[int, Reply | BaseException | None] = {}
        self.gone: set[int] = set()

    def ask(self) -> None:
        rows = self.chance.choices("012", k=self.chance.randint(1, 5))
        hurry_s = self.chance.choice([0.005, 0.03]) if self.chance.random() < 0.15 else 60.0
        try:
            pending = self.house.ask(
                *rows,
                row_class="bulk" if self.chance.random() < 0.2 else "interactive",
                deadline_s=time.monotonic() + hurry_s,
                with_members=self.chance.random() < 0.3,
                outputs=("scores",) if self.chance.random() < 0.2 else (),
            )
        except DeadlineExceeded:
            return
        pending.listen(self._over, None)
        self.calls.append((pending, rows))

    def _over(self, pending: PendingReply, _: None) -> None:
        assert pending.request_id not in self.heard, "each hears once"
        self.heard[pending.request_id] = pending.outcome
        self.house.dispatcher.end(pending)

    def step(self) -> None:
        """Something happens."""
        chance, drawn = self.chance, self.chance.random()
        name = chance.choice(list(HELD))
        worker = self.house.workers[name]
        under_way = [pending for pending, _ in self.calls if not pending.done]
        if drawn < 0.35:
            self.ask()
        elif drawn < 0.42 and under_way:
            pending = chance.choice(under_way)
            self.gone.add(pending.request_id)
            self.house.dispatcher.end(pending)
        elif drawn < 0.44:
            self.house.lose(name)
            self.house.place(**{name: HELD[name]})
        elif drawn < 0.45:
            self.deploy()
        elif worker.batches and drawn < 0.55:
            worker.fail(chance.choice(REFUSALS), "no room")
        elif worker.batches:
            self.work(worker, chance.randrange(len(worker.batches)))

    def deploy(self) -> None:
        """The next version, in place of this one."""
        before: Function = self.house.function
        self.house.function = replace(before, version=before.version + 1)
        self.house.dispatcher.configure(self.house.function)
        self.house.dispatcher.remove(before)

    def work(self, worker: FakeWorker, place: int) -> None:
        message, on_reply = worker.batches[place]
        if message.id in worker.cancelled and self.chance.random() < 0.7:
            del worker.batches[place]
            on_reply(Failed(message.id, "cancelled", "given up"))
        else:
            say(worker, place)

    def is_at_rest(self) -> bool:
        for worker in self.house.workers.values():
            while worker.batches:
                self.work(worker, 0)
        return self.house.dispatcher.at_rest()

    def check(self, pending: PendingReply, rows: list[str]) -> None:
        outcome = self.heard[pending.request_id]
        if not isinstance(outcome, Reply):
            is_told = isinstance(outcome, ServiceError) and "no room" in outcome.message
            assert is_told or isinstance(outcome, DeadlineExceeded | VersionGone), outcome
            return
        said = labels_of(outcome)
        for row, asked in enumerate(rows):
            if row in outcome.errors:
                assert DIED_TWICE in outcome.errors[row].message
            else:
                assert said[row] == CLASSES[int(asked)]
        ends = [first for first, _, _ in outcome.answered_by[1:]] + [len(rows)]
        assert [end for _, end, _ in outcome.answered_by] == ends, "each row is answered once"
        told = [
            row
            for first, answer in outcome.told
            for row in range(first, first + answer.members[0].columns[0].rows)
        ]
        assert len(told) == len(set(told)), "each row is told once"


@pytest.mark.parametrize(
    "late_rows", [LateRows("hedge", 2.0), LateRows("parity", 2.0, 2)], ids=lambda one: one.by
)
@pytest.mark.parametrize("seed", [0, 6, 15])
def test_each_late_row_is_answered_once(seed: int, late_rows: LateRows) -> None:
    async def scenario() -> None:
        course = Course(seed, late_rows)
        for _ in range(150):
            course.step()
            if course.chance.random() < 0.3:
                await asyncio.sleep(0.006 * course.chance.random())
            else:
                await settle(course.chance.randint(1, 3))
        await until(course.is_at_rest)
        for pending, rows in course.calls:
            if pending.request_id not in course.gone:
                course.check(pending, rows)
        dispatcher = course.house.dispatcher
        assert set(dispatcher.queue_depth().values()) <= {(0, 0)}
        late = dispatcher._late_rows
        left = [late._timers, late._groups, late._asked, late._copies]
        assert left == [{}] * 4

    asyncio.run(scenario())
