"""Heads of one backbone, asked through the answer cache while versions come and go and workers fail: each row
is answered once, by the version that was asked.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from gpu_worker.wire.protocol import Answer, Failed, RowError
from server.catalog.functions import Function
from server.errors import DeadlineExceeded, Overloaded, VersionGone
from server.serving.cached_calls import CachedCall
from server.serving.calls import Call, PendingReply, Reply
from server.serving.shared_calls import SharedCall
from tests.answers import classified, labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import function, text_model
from tests.unit.server.test_cached_calls import CachedHouse
from tests.unit.server.test_shared_passes import EYES
from tests.waiting import until

WORKERS = ("w0", "w1")
REFUSALS = ("overloaded", "unknown_function", "cancelled")
AT_FAULT = "bad"


def head(name: str, version: int) -> Function:
    model = text_model(f"{name}-head", version, backbone=EYES)
    return function(model, name=name, version=version, max_batch=4, batch_sizes=(1, 4), slo_ms=50.0)


class Course:
    """Three functions, of which new versions come; rows of a few kinds, so that many are equal."""

    def __init__(self, seed: int, nbytes: int) -> None:
        self.chance = random.Random(seed)
        self.house = CachedHouse(nbytes=nbytes, rows=self.chance.choice([12, 1000]))
        self.house.dispatcher.remove(self.house.function)
        self.served = {name: head(name, 1) for name in "abc"}
        for each in self.served.values():
            self.house.dispatcher.configure(each)
        self.workers: dict[str, FakeWorker] = {}
        for name in WORKERS:
            self.start(name)
        self.calls: list[tuple[PendingReply | CachedCall, Call]] = []
        self.heard: dict[PendingReply | CachedCall, Reply | BaseException | None] = {}
        self.gone: set[PendingReply | CachedCall] = set()
        self.shared: list[tuple[SharedCall, Call]] = []
        self.heard_rows: dict[tuple[SharedCall, int], str] = {}

    def start(self, name: str) -> None:
        self.workers[name] = FakeWorker(name)
        self.house.residency.worker_up(self.workers[name])

    def drawn_call(self) -> Call:
        chance = self.chance
        rows = [
            AT_FAULT if chance.random() < 0.05 else chance.choice("stuvwxyz")
            for _ in range(chance.randint(1, 4))
        ]
        hurry_s = chance.choice([0.004, 0.02]) if chance.random() < 0.1 else 60.0
        return self.house.call(
            *rows,
            function=self.served[chance.choice("abc")],
            deadline_s=time.monotonic() + hurry_s,
            row_class="bulk" if chance.random() < 0.2 else "interactive",
            answer_cache=chance.random() < 0.9,
            with_members=chance.random() < 0.2,
        )

    def ask(self) -> None:
        call = self.drawn_call()
        try:
            if call.row_class == "interactive" and not call.with_members and self.chance.random() < 0.3:
                shared = self.house.cached.begin_shared(call)
                if shared is not None:
                    shared.listen(self.rows_over, call)
                    self.shared.append((shared, call))
                return
            pending = self.house.cached.begin(call)
        except (DeadlineExceeded, Overloaded):
            return
        pending.listen(self.over, None)
        self.calls.append((pending, call))

    def over(self, pending: PendingReply | CachedCall, _: None) -> None:
        assert pending not in self.heard, "each hears once"
        self.heard[pending] = pending.outcome
        self.house.ended(pending)

    def rows_over(self, shared: SharedCall, call: Call) -> None:
        for over in shared.take_over():
            for at, place in enumerate(over.places):
                assert (shared, place) not in self.heard_rows, "each hears once"
                outcome = over.outcome
                said = said_of(outcome)[at] if isinstance(outcome, Reply) else type(outcome).__name__
                self.heard_rows[shared, place] = said
        if shared.done:
            self.house.cached.end_shared(shared)

    def step(self) -> None:
        """Something happens."""
        chance, drawn = self.chance, self.chance.random()
        worker = self.workers[chance.choice(WORKERS)]
        if drawn < 0.4:
            self.ask()
        elif drawn < 0.47:
            self.leave()
        elif drawn < 0.49:
            self.die(worker)
        elif drawn < 0.51:
            self.deploy(chance.choice("abc"))
        elif worker.batches and drawn < 0.58:
            worker.fail(chance.choice(REFUSALS), "no room")
        elif worker.batches:
            self.work(worker)

    def leave(self) -> None:
        under_way = [pending for pending, _ in self.calls if not pending.done]
        if under_way:
            pending = self.chance.choice(under_way)
            self.gone.add(pending)
            self.house.ended(pending)
        shared = [(each, call) for each, call in self.shared if not each.done]
        if shared:
            one, call = self.chance.choice(shared)
            row = self.chance.randrange(len(call.rows))
            if not one.is_over(row):
                self.house.cached.leave_shared(one, row)

    def die(self, worker: FakeWorker) -> None:
        self.house.residency.worker_down(worker)
        while worker.batches:
            worker.fail()
        self.start(worker.name)

    def deploy(self, name: str) -> None:
        before = self.served[name]
        self.served[name] = head(name, before.version + 1)
        self.house.dispatcher.configure(self.served[name])
        self.house.dispatcher.remove(before)

    def work(self, worker: FakeWorker) -> None:
        message, on_reply = worker.batches.pop(0)
        missing = [key for key in message.models if key not in worker.resident]
        if missing:
            on_reply(Failed(message.id, "unknown_function", "it is not here", missing=missing))
            return
        sizes = [part.rows for part in message.parts] or [len(message.rows)]
        rows = [row.decode() for row in message.rows]
        members, first = [], 0
        for model, size in zip(message.models, sizes, strict=True):
            labels = [f"{row} {model}" for row in rows[first : first + size]]
            members.append(classified(model, labels, [1.0] * size))
            first += size
        faults = [RowError(at, "input_invalid", "bad row") for at, row in enumerate(rows) if row == AT_FAULT]
        on_reply(Answer(message.id, members, faults, 0.001, 0.002))

    def is_at_rest(self) -> bool:
        for worker in self.workers.values():
            while worker.batches:
                self.work(worker)
        cached = self.house.cached
        return self.house.dispatcher.at_rest() and not cached._open and not cached._shared

    def check(self) -> None:
        for pending, call in self.calls:
            if pending in self.gone:
                continue
            outcome = self.heard[pending]
            if isinstance(outcome, Reply):
                assert all(map(is_right, said_of(outcome), call.rows, [call.function] * len(call.rows)))
            else:
                assert isinstance(outcome, DeadlineExceeded | VersionGone | Overloaded), outcome
        for shared, call in self.shared:
            for place, row in enumerate(call.rows):
                said = self.heard_rows[shared, place]
                ended = ("DeadlineExceeded", "VersionGone", "Overloaded", "ClientGone")
                assert said in ended or is_right(said, row, call.function)


def said_of(reply: Reply) -> list[str]:
    labels = list(labels_of(reply))
    for row, error in reply.errors.items():
        labels[row] = f"{error.code}: {error.message}"
    return labels


def is_right(said: str, row: bytes, function: Function) -> bool:
    if "of this one alone" in said:
        return True
    if row.decode() == AT_FAULT:
        return said == "input_invalid: bad row"
    return said == f"{row.decode()} {function.members[0].key}"


@pytest.mark.parametrize("nbytes", [1 << 20, 3000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_row_is_answered_once_by_the_version_that_was_asked(seed: int, nbytes: int) -> None:
    async def scenario() -> None:
        course = Course(seed, nbytes)
        for _ in range(200):
            course.step()
            if course.chance.random() < 0.15:
                await asyncio.sleep(0.004 * course.chance.random())
            else:
                await settle(course.chance.randint(1, 3))
        await until(course.is_at_rest)
        await settle()
        course.check()
        assert set(course.house.dispatcher.queue_depth().values()) <= {(0, 0)}
        assert len(course.house.cached._flights) == 0
        await course.house.residency.close()

    asyncio.run(scenario())
