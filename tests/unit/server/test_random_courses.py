"""Calls, alone and shared, on several workers that refuse, die and take their time: each row has one end.

There are real pauses: rows that a worker refused wait outside the queue for 50 ms, and much may happen then.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from server.errors import ServiceError
from server.serving.calls import Call, PendingReply, Reply
from server.serving.shared_calls import SharedCall
from tests.answers import labels_of
from tests.unit.server.fake_worker import settle
from tests.unit.server.test_members_apart import House

HELD = {"w0": "a b", "w1": "c", "w2": "b c"}
REFUSALS = ("overloaded", "unknown_function", "cancelled")
DIED_TWICE = "of this one alone"


class Course:
    """What was asked, and what of it has been answered or given up."""

    def __init__(self, seed: int, **fields: Any) -> None:
        self.chance = random.Random(seed)
        self.house = House(slo_ms=3000.0, **fields)
        self.house.place(**HELD)
        self.alone: list[tuple[PendingReply, list[str]]] = []
        self.shared: list[tuple[SharedCall, list[str]]] = []
        self.heard: dict[tuple[int, int], str] = {}  # call, row → its label, or its error
        self.gone: set[tuple[int, int]] = set()

    def ask(self) -> None:
        rows = self.chance.choices("xyz", k=self.chance.randint(1, 5))
        if self.chance.random() < 0.5:
            self.alone.append((self.house.ask(*rows), rows))
            return
        data = [row.encode() for row in rows]
        pending = self.house.dispatcher.begin_shared(Call(self.house.function, "text", data, len(rows)))
        if pending is not None:
            pending.listen(self._hear, None)
            self.shared.append((pending, rows))

    def leave(self) -> None:
        """A client of either kind goes."""
        under_way = [pending for pending, _ in self.alone if not pending.done]
        if under_way and self.chance.random() < 0.3:
            pending = self.chance.choice(under_way)
            self.gone.add((pending.request_id, 0))
            self.house.dispatcher.end(pending)
        if self.shared and self.chance.random() < 0.4:
            shared, rows = self.chance.choice(self.shared)
            row = self.chance.randrange(len(rows))
            if not shared.done and not shared.is_over(row):
                self.gone.add((shared.request_id, row))
                self.house.dispatcher.leave_shared(shared, row)

    def work(self) -> None:
        """Each worker answers, refuses, dies, or does nothing."""
        for name, worker in list(self.house.workers.items()):
            drawn = self.chance.random()
            if drawn < 0.02:
                self.house.lose(name)
                self.house.place(**{name: HELD[name]})
            elif worker.batches and drawn < 0.14:
                worker.fail(self.chance.choice(REFUSALS), "no room")
            elif worker.batches and drawn < 0.65:
                worker.answer()

    async def end(self) -> None:
        """Everything is answered from now on, until nothing is under way."""
        for _ in range(3_000):
            for worker in self.house.workers.values():
                while worker.batches:
                    worker.answer()
            await asyncio.sleep(0.001)
            for pending, rows in self.alone:
                if pending.done and (pending.request_id, 0) not in self.gone:
                    self.gone.add((pending.request_id, 0))
                    said = _said(pending.future.result())
                    assert all(one in (asked, DIED_TWICE) for one, asked in zip(said, rows, strict=True))
                    self.house.dispatcher.end(pending)
            if self.house.dispatcher.at_rest():
                return
        raise AssertionError("rows have no end")

    def _hear(self, pending: SharedCall, _: None) -> None:
        for over in pending.take_over():
            reply = over.outcome
            said = _said(reply) if isinstance(reply, Reply) else [repr(reply)] * len(over.places)
            for place, one in zip(over.places, said, strict=True):
                key = pending.request_id, place
                assert key not in self.heard, "each hears once"
                self.heard[key] = one
        if pending.done:
            self.house.dispatcher.end_shared(pending)


def _said(reply: Reply) -> list[str]:
    """Labels; where workers died under a row, again and alone, what was asked: that is its answer."""
    labels = list(labels_of(reply))
    for row, error in reply.errors.items():
        assert DIED_TWICE in error.message
        labels[row] = DIED_TWICE
    return labels


@pytest.mark.parametrize("seed", [0, 1, 2, 52, 123])
@pytest.mark.parametrize("late_members", ["wait", "leave_out"])
def test_each_row_has_one_end(late_members: str, seed: int) -> None:
    async def scenario() -> None:
        course = Course(seed, late_members=late_members)
        for _ in range(80):
            course.ask()
            course.leave()
            if course.chance.random() < 0.4:
                await asyncio.sleep(0.02 * course.chance.random())
            else:
                await settle(course.chance.randint(1, 3))
            course.work()
        await course.end()
        for pending, rows in course.shared:
            for row, asked in enumerate(rows):
                key = pending.request_id, row
                assert key in course.gone or course.heard[key] in (asked, DIED_TWICE)
        assert set(course.house.dispatcher.queue_depth().values()) == {(0, 0)}

    try:
        asyncio.run(scenario())
    except ServiceError as error:
        pytest.fail(f"a call was refused: {error}")
