"""Rows of functions on one backbone are one message, and each function's answers and faults are its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_worker.model_files.backbone import Backbone
from gpu_worker.wire.protocol import Infer
from server.catalog.functions import Function
from server.serving.calls import Call, PendingReply
from server.serving.scheduler_adapter import QueueBounds, spec_of
from tests.answers import labels_of
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model

EYES = Backbone("eyes", 1, "a" * 64)


def head(name: str, **fields: Any) -> Function:
    """Like the house's own function, of a head on `EYES`; its model and itself have the name."""
    model = text_model(f"{name}-head", backbone=fields.pop("backbone", EYES))
    known: dict[str, Any] = {"name": name, "max_batch": 8, "batch_sizes": (1, 8), "slo_ms": 10_000.0} | fields
    return function(model, policy="goodput", **known)


class Shared:
    """A worker that is at a row of `a` while others come."""

    def __init__(self, *functions: Function) -> None:
        self.worker = FakeWorker()
        self.worker.info = replace(self.worker.info, in_flight=1)
        self.house = House(self.worker)
        self.functions = {each.name: each for each in functions or (head("a"), head("b"))}
        for each in self.functions.values():
            self.house.dispatcher.configure(each)

    async def begin(self) -> None:
        for each in self.functions.values():
            self.house.residency.want(each.asked)
        await settle()
        self.ask("a", "first")
        await settle()
        assert [message.rows for message, _ in self.worker.batches] == [[b"first"]]

    def ask(self, name: str, *rows: str, **fields: Any) -> PendingReply:
        return self.house.ask(*rows, function=self.functions[name], **fields)

    async def next(self) -> Infer:
        """The worker answers what it has: what it is sent then."""
        self.worker.answer()
        await settle()
        ((message, _),) = self.worker.batches
        return message


def run(scenario: Callable[[Shared], Awaitable[None]], *functions: Function) -> None:
    async def whole() -> None:
        shared = Shared(*functions)
        await shared.begin()
        await scenario(shared)

    asyncio.run(whole())


def test_rows_of_two_functions_are_one_message_and_each_is_answered_by_its_own_head() -> None:
    async def scenario(shared: Shared) -> None:
        one, other, third = shared.ask("a", "x"), shared.ask("b", "y", "z"), shared.ask("a", "w")
        message = await shared.next()
        assert message.models == ["a-head/1", "b-head/1"]
        assert message.rows == [b"x", b"w", b"y", b"z"]
        assert [part.rows for part in message.parts] == [2, 2]
        shared.worker.answer(lambda row: row.decode().upper(), errors=(3,))
        await settle()
        assert labels_of(one.future.result()) == ["X"]
        assert labels_of(third.future.result()) == ["W"]
        reply = other.future.result()
        assert labels_of(reply) == ["Y", ""]
        assert [(row, error.code) for row, error in reply.errors.items()] == [(1, "input_invalid")]
        assert reply.answered_by == [(0, 2, "b-head")]
        metrics = shared.house.metrics
        assert metrics.of(shared.functions["b"]).riding_rows == 2
        assert metrics.of(shared.functions["a"]).riding_rows == 0
        assert shared.worker.batches == []

    run(scenario)


def test_where_a_message_of_several_fails_who_is_not_at_fault_is_answered() -> None:
    async def scenario(shared: Shared) -> None:
        good, bad = shared.ask("a", "x"), shared.ask("b", "y")
        assert len((await shared.next()).parts) == 2
        shared.worker.fail("internal", "it cannot be run")
        await settle()
        for _ in range(2):
            ((message, _),) = shared.worker.batches
            assert not message.parts
            if message.models == ["b-head/1"]:
                shared.worker.fail("internal", "it cannot be run")
            else:
                shared.worker.answer()
            await settle()
        assert labels_of(good.future.result()) == ["x"]
        with pytest.raises(Exception, match="b: it cannot be run"):
            bad.future.result()

    run(scenario)


def test_what_is_no_answer_to_its_parts_is_nobodys_answer() -> None:
    async def scenario(shared: Shared) -> None:
        one, other = shared.ask("a", "x"), shared.ask("b", "y")
        message = await shared.next()
        message.parts = []  # the worker answers every row by every model
        shared.worker.answer()
        await settle()
        for _ in range(2):
            shared.worker.answer()
            await settle()
        assert labels_of(one.future.result()) == ["x"]
        assert labels_of(other.future.result()) == ["y"]

    run(scenario)


def test_rows_under_which_the_worker_dies_run_alone() -> None:
    async def scenario(shared: Shared) -> None:
        one, other = shared.ask("a", "x"), shared.ask("b", "y")
        await shared.next()
        shared.house.lose(shared.worker)
        second = FakeWorker("w1", answers=True)
        shared.house.residency.worker_up(second)
        await settle()
        assert labels_of(one.future.result()) == ["x"]
        assert labels_of(other.future.result()) == ["y"]

    run(scenario)


def test_a_message_of_several_is_cancelled_once_nobody_waits_for_any_of_it() -> None:
    async def scenario(shared: Shared) -> None:
        one, other = shared.ask("a", "x"), shared.ask("b", "y")
        message = await shared.next()
        shared.house.dispatcher.end(one)
        await settle()
        assert shared.worker.cancelled == []
        shared.house.dispatcher.end(other)
        await settle()
        assert set(shared.worker.cancelled) == {message.id}
        shared.worker.fail("cancelled")
        await settle()
        last = shared.ask("b", "z")
        await settle()
        shared.worker.answer()
        await settle()
        assert labels_of(last.future.result()) == ["z"]

    run(scenario)


def test_a_function_that_is_removed_meanwhile_still_gets_what_was_on_its_way() -> None:
    async def scenario(shared: Shared) -> None:
        one, other = shared.ask("a", "x"), shared.ask("b", "y")
        await shared.next()
        shared.house.dispatcher.remove(shared.functions["b"])
        shared.worker.answer()
        await settle()
        assert labels_of(one.future.result()) == ["x"]
        assert labels_of(other.future.result()) == ["y"]

    run(scenario)


@pytest.mark.security
def test_each_callers_paths_are_read_below_its_own_folders() -> None:
    async def scenario(shared: Shared) -> None:
        everywhere, mine = None, ("/mine",)
        calls = [("a", mine), ("b", everywhere), ("b", mine)]
        for number, (name, roots) in enumerate(calls):
            row = f"{number}".encode()
            call = Call(shared.functions[name], "path", [row], 1, media_roots=roots)
            shared.house.dispatcher.begin(call)
        message = await shared.next()
        begun = [(first, None if roots is None else tuple(roots)) for first, roots in message.narrowed]

        def roots_of(row: int) -> tuple[str, ...] | None:
            return next((roots for first, roots in reversed(begun) if first <= row), None)

        wanted = {b"0": mine, b"1": everywhere, b"2": mine}
        assert {row: roots_of(place) for place, row in enumerate(message.rows)} == wanted

    run(scenario)


@pytest.mark.security
@pytest.mark.parametrize("roots", [None, ("/photos/team",)])
def test_functions_that_may_read_other_folders_share_no_message(roots: tuple[str, ...] | None) -> None:
    async def scenario(shared: Shared) -> None:
        shared.ask("b", "y")
        assert not (await shared.next()).parts

    run(scenario, head("a", media_roots=("/photos",)), head("b", media_roots=roots))


def test_only_functions_of_one_head_share_passes() -> None:
    def prefix(served: Function) -> str:
        return spec_of(served, QueueBounds(9, 9), lambda model: lambda rows: 0.1, lambda *_: math.inf).prefix

    assert prefix(head("a")) == prefix(head("b")) != ""
    assert prefix(head("c", backbone=replace(EYES, sha256="b" * 64))) != prefix(head("a"))
    assert prefix(function()) == ""
    heads = [text_model(name, backbone=EYES) for name in ("x", "y")]
    assert prefix(function(*heads)) == ""


def test_a_function_of_the_backbone_itself_shares_passes_where_it_is_asked_what_it_sees() -> None:
    def prefix(served: Function) -> str:
        return spec_of(served, QueueBounds(9, 9), lambda model: lambda rows: 0.1, lambda *_: math.inf).prefix

    def eyes(**fields: Any) -> Function:
        return function(text_model(EYES.name, EYES.version, as_backbone=EYES.sha256, **fields))

    def seen(of: Function) -> Function:
        return replace(of, asked_task="text-embedding")

    assert prefix(seen(eyes())) == prefix(head("a")) == prefix(seen(head("b")))
    assert prefix(eyes()) == "", "its classes are made in a pass of its own"
    assert prefix(seen(eyes(endpoint="http://elsewhere"))) == ""
