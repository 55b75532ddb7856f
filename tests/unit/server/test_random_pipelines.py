"""Pictures of which things are cut out and named, while workers refuse and die and others ask too: each is
answered once, by what is on it and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field, replace

import pytest

from gpu_worker.wire.columns import BOXES
from gpu_worker.wire.protocol import (
    Answer,
    Column,
    Crop,
    Cropped,
    Failed,
    MemberAnswer,
    Message,
    RowError,
)
from server.catalog.functions import Function
from server.catalog.pipeline import Pipeline
from server.ensemble.crop import Crop as Cut
from server.errors import Overloaded, ServiceError
from server.http.body import ClientGone
from server.serving.cached_calls import CachedCall
from server.serving.calls import Call, PendingReply, Reply
from server.serving.pipelines.calls import PipelineCall, PipelineCalls
from server.serving.pipelines.cropping import Cropper
from server.workers.pool import OnReply
from tests.answers import classified, labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import function, image_model
from tests.unit.server.test_cached_calls import CachedHouse
from tests.waiting import until

WORKERS = ("w0", "w1")
REFUSALS = ("overloaded", "unknown_function", "cancelled")
LIMIT_S = 20.0

FINDER = replace(image_model("finder"), task="object-detection")


def on_it(picture: str) -> list[str]:
    """What is on a picture that is named `2:…`: so many things."""
    return [f"{picture}#{number}" for number in range(int(picture[0]))]


def boxes_text(picture: str) -> str:
    boxes = [{"label": "bowl", "score": 0.9, "box": [at, 0, at + 1, 1]} for at in range(len(on_it(picture)))]
    return json.dumps(boxes)


@dataclass(eq=False)
class Cutter(FakeWorker):
    """Cuts pictures too, when the test says so; of many rows not all at once, if it says that."""

    most_cut: int = 1000
    crops: list[tuple[Crop, OnReply]] = field(default_factory=list)

    def send(self, message: Message, on_reply: OnReply) -> int:
        if not isinstance(message, Crop):
            return super().send(message, on_reply)
        message.id = next(self.ids)
        self.crops.append((message, on_reply))
        return message.id

    def cut(self) -> None:
        """The oldest pictures are cut: of each box a piece with its number."""
        message, on_reply = self.crops.pop(0)
        later = list(range(self.most_cut, len(message.rows)))
        names = [row.decode() for row in message.rows]
        pieces = [
            [] if row in later else [f"{name}#{int(box[0])}".encode() for box in of]
            for row, (name, of) in enumerate(zip(names, message.boxes, strict=True))
        ]
        faults = [
            {"index": at, "code": "input_invalid", "message": "torn"}
            for at, name in enumerate(names)
            if "torn" in name and at not in later
        ]
        for fault in faults:
            pieces[int(str(fault["index"]))] = []
        on_reply(
            Cropped(
                message.id,
                [one for of in pieces for one in of],
                [len(of) for of in pieces],
                faults,
                later=later,
            )
        )

    def answer_stage(self) -> None:
        """The oldest batch is answered: by the finder with boxes, by the other with the row as its label."""
        message, on_reply = self.batches.pop(0)
        if missing := [key for key in message.models if key not in self.resident]:
            on_reply(Failed(message.id, "unknown_function", "it is not here", missing=missing))
            return
        names = [row.decode() for row in message.rows]
        (model,) = message.models
        if model == FINDER.key:
            member = MemberAnswer(
                model, [Column("boxes", "BYTES", (), [boxes_text(name) for name in names], BOXES)]
            )
        else:
            member = classified(model, names, [1.0] * len(names))
        bad = "blurred" if model == FINDER.key else "odd#1"
        faults = [RowError(at, "input_invalid", "bad row") for at, name in enumerate(names) if bad in name]
        on_reply(Answer(message.id, [member], faults, 0.001, 0.002))


class Course:
    """A pipeline of two functions, of which the second is asked by itself too."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.house = CachedHouse(rows=self.chance.choice([30, 1000]))
        dispatcher = self.house.dispatcher
        dispatcher.remove(self.house.function)
        stages = [
            function(model, name=name, max_batch=16, batch_sizes=(1, 4, 16), slo_ms=100.0)
            for name, model in (("find", FINDER), ("name", image_model("namer")))
        ]
        for stage in stages:
            dispatcher.configure(stage)
        self.second = stages[1]
        made_of = Pipeline(tuple(stages), Cut(), self.chance.choice(["none", "even", "nexus"]))
        self.whole = Function(
            "both", 1, (FINDER, image_model("namer")), "path", slo_ms=200.0, pipeline=made_of
        )
        self.pipelines = PipelineCalls(
            dispatcher,
            self.house.cached if self.chance.random() < 0.6 else None,
            Cropper(dispatcher.workers),
            lambda model, form: lambda rows: rows / 10_000,
        )
        self.workers: dict[str, Cutter] = {}
        for name in WORKERS:
            self.start(name)
        self.calls: list[tuple[PipelineCall, list[str]]] = []
        self.heard: dict[PipelineCall, Reply | BaseException | None] = {}
        self.gone: set[PipelineCall] = set()
        self.beside: list[tuple[PendingReply | CachedCall, list[str]]] = []  # of the second function

    def start(self, name: str) -> None:
        self.workers[name] = Cutter(name, most_cut=self.chance.choice([1000, 30]))
        self.house.residency.worker_up(self.workers[name])

    def ask(self) -> None:
        chance = self.chance
        kinds = ["", "a", "b", "odd"] + (["torn", "blurred"] if chance.random() < 0.3 else [])
        count = chance.choice([1, 3, 8, 150])
        pictures = [f"{chance.randint(0, 3)}:{chance.choice(kinds)}" for _ in range(count)]
        rows = [picture.encode() for picture in pictures]
        call = Call(
            self.whole,
            "image",
            rows,
            sum(map(len, rows)),
            deadline_s=time.monotonic() + (0.02 if chance.random() < 0.1 else LIMIT_S),
            row_class="bulk" if chance.random() < 0.3 else "interactive",
        )
        pending = self.pipelines.begin(call)
        pending.listen(self.over, None)
        self.calls.append((pending, pictures))

    def ask_beside(self) -> None:
        pieces = [f"2:{kind}#{self.chance.randrange(2)}" for kind in self.chance.choices("abc", k=4)]
        rows = [piece.encode() for piece in pieces]
        with contextlib.suppress(Overloaded):
            pending = self.house.cached.begin(Call(self.second, "image", rows, sum(map(len, rows))))
            pending.listen(lambda ended, _: self.house.ended(ended), None)
            self.beside.append((pending, pieces))

    def over(self, pending: PipelineCall, _: None) -> None:
        assert pending not in self.heard, "each hears once"
        self.heard[pending] = pending.outcome
        self.pipelines.end(pending)

    def step(self) -> None:
        """Something happens."""
        chance, drawn = self.chance, self.chance.random()
        worker = self.workers[chance.choice(WORKERS)]
        under_way = [pending for pending, _ in self.calls if not pending.done]
        if drawn < 0.15:
            self.ask()
        elif drawn < 0.25:
            self.ask_beside()
        elif drawn < 0.29 and under_way:
            pending = chance.choice(under_way)
            self.gone.add(pending)
            pending.fail(ClientGone())
            self.pipelines.end(pending)
        elif drawn < 0.31:
            self.die(worker)
        elif worker.batches and drawn < 0.37:
            worker.fail(chance.choice(REFUSALS), "no room")
        elif worker.crops and drawn < 0.43:
            message, on_reply = worker.crops.pop(0)
            on_reply(Failed(message.id, chance.choice(["overloaded", "cancelled"]), "no room"))
        else:
            self.work(worker)

    def work(self, worker: Cutter) -> None:
        if worker.crops:
            worker.cut()
        elif worker.batches:
            worker.answer_stage()

    def die(self, worker: Cutter) -> None:
        self.house.residency.worker_down(worker)
        while worker.batches:
            worker.fail()
        while worker.crops:
            message, on_reply = worker.crops.pop(0)
            on_reply(Failed(message.id, "worker_lost", "its socket closed"))
        self.start(worker.name)

    def is_at_rest(self) -> bool:
        for worker in self.workers.values():
            while worker.batches or worker.crops:
                self.work(worker)
        return self.house.dispatcher.at_rest() and not self.pipelines._open and not self.house.cached._open

    def check(self, pending: PipelineCall, pictures: list[str]) -> None:
        outcome = self.heard[pending]
        if not isinstance(outcome, Reply):
            assert isinstance(outcome, ServiceError), outcome
            ended = ("deadline", "wait for", "died while they cut", "no worker has room", "before the")
            assert any(word in outcome.message for word in ended), outcome.message
            return
        for row, (text, picture) in enumerate(zip(outcome.columns["objects"].data, pictures, strict=True)):
            if row in outcome.errors:
                message = outcome.errors[row].message
                assert "of this one alone" in message or any(
                    kind in picture for kind in ("odd", "torn", "blurred")
                )
                continue
            assert "blurred" not in picture
            assert "torn" not in picture or not on_it(picture)
            assert [box["answer"]["label"] for box in json.loads(str(text))] == on_it(picture)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_picture_is_answered_once_by_what_is_on_it(seed: int) -> None:
    async def scenario() -> None:
        course = Course(seed)
        for _ in range(150):
            course.step()
            if course.chance.random() < 0.15:
                await asyncio.sleep(0.005 * course.chance.random())
            else:
                await settle(course.chance.randint(1, 6))
        await until(course.is_at_rest)
        for pending, pictures in course.calls:
            if pending not in course.gone:
                course.check(pending, pictures)
        for asked, pieces in course.beside:
            outcome = asked.outcome
            if isinstance(outcome, Reply):
                labels = labels_of(outcome)
                assert all(
                    labels[row] == piece for row, piece in enumerate(pieces) if row not in outcome.errors
                )
            else:
                assert isinstance(outcome, Overloaded), outcome
        assert set(course.house.dispatcher.queue_depth().values()) <= {(0, 0)}
        await course.pipelines.drained()
        await course.pipelines.close()
        await course.house.residency.close()

    asyncio.run(scenario())
