"""Workers join, leave, die, never get ready and come back, while rows flow: each call is answered, and what a
change has taken back is given again.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from gpu_worker.wire.protocol import Load, Message
from server.errors import BadOption, Overloaded
from server.serving.calls import PendingReply, Reply
from tests.answers import labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_workforce import Shop
from tests.waiting import until

PATIENCE_S = 0.06


class Course:
    """Up to four workers, of which one stays; two functions."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shop = Shop("1:4", models=self.chance.choice([1, 2]), patience_s=PATIENCE_S)
        self.calls: list[tuple[PendingReply, list[str]]] = []
        self.heard: dict[int, Reply | BaseException | None] = {}

    def ask(self) -> None:
        rows = [f"{len(self.calls)}-{row}" for row in range(self.chance.randint(1, 5))]
        pending = self.shop.ask(*rows, function=self.chance.choice([self.shop.f, self.shop.g]))
        pending.listen(self.over, None)
        self.calls.append((pending, rows))

    def over(self, pending: PendingReply, _: None) -> None:
        assert pending.request_id not in self.heard, "each hears once"
        self.heard[pending.request_id] = pending.outcome
        self.shop.house.dispatcher.end(pending)

    def step(self) -> None:
        """Something happens."""
        chance, drawn, pool = self.chance, self.chance.random(), self.shop.pool
        if drawn < 0.3:
            self.ask()
        elif drawn < 0.4:
            self.change()
        elif drawn < 0.5:
            down = [
                name
                for name, status in pool.statuses.items()
                if status.state != "up" and name not in pool.retired
            ]
            if down:
                stalled: set[type[Message]] = {Load} if chance.random() < 0.2 else set()
                pool.up(FakeWorker(chance.choice(down), stalled=stalled))
        elif drawn < 0.54 and pool.workers:
            pool.kill(chance.choice(sorted(pool.workers)))
        elif drawn < 0.58:
            self.shop.training.busy ^= {f"w{chance.randrange(4)}"}
        else:
            self.work()

    def change(self) -> None:
        shop, chance = self.shop, self.chance
        try:
            if chance.random() < 0.5:
                shop.workforce.join("more", "ours")
            else:
                shop.workforce.leave(f"w{chance.randrange(4)}", "less", "ours")
        except (BadOption, Overloaded):
            pass

    def work(self) -> None:
        for worker in self.shop.pool.workers.values():
            if worker.held and self.chance.random() < 0.3:
                worker.go_on()
            elif worker.batches and self.chance.random() < 0.7:
                missing = [key for key in worker.batches[0][0].models if key not in worker.resident]
                if missing:
                    worker.fail("unknown_function", "it is not here", missing=missing)
                else:
                    worker.answer()

    def is_at_rest(self) -> bool:
        pool = self.shop.pool
        self.shop.training.busy.clear()
        for name, status in list(pool.statuses.items()):
            if status.state != "up" and name not in pool.retired:
                pool.up(FakeWorker(name))
        for worker in pool.workers.values():
            worker.stalled.clear()
            while worker.held:
                worker.go_on()
        self.work()
        return self.shop.house.dispatcher.at_rest() and self.shop.workforce.change is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_call_is_answered_and_no_worker_stays_put_aside(seed: int) -> None:
    async def scenario() -> None:
        course = Course(seed)
        shop = course.shop
        for _ in range(200):
            course.step()
            if course.chance.random() < 0.3:
                await asyncio.sleep(0.01 * course.chance.random())
            else:
                await settle(course.chance.randint(1, 4))
        await until(course.is_at_rest)
        for pending, rows in course.calls:
            outcome = course.heard[pending.request_id]
            assert isinstance(outcome, Reply), outcome
            died = ["of this one alone" in error.message for error in outcome.errors.values()]
            assert all(died)
            said = labels_of(outcome)
            assert all(said[row] == asked for row, asked in enumerate(rows) if row not in outcome.errors)
        assert (shop.pool.retired & shop.pool.statuses.keys(), shop.training.withdrawn) == (set(), set())
        assert {status.state for _, status in shop.workforce.numbered()} == {"up"}
        assert "running" not in {outcome for _, _, outcome in shop.told()}
        assert not shop.house.dispatcher._retired
        for _ in range(4):  # all goes on as ever
            course.ask()
        await until(course.is_at_rest)
        await shop.workforce.close()
        await shop.residency.close()

    asyncio.run(scenario())
