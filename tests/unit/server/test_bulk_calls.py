"""Bulk jobs on the server: who sees and steers them, what is under way, what a restart keeps."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from server.access.caller import Caller
from server.catalog.bulk_control import StoredControl
from server.errors import BadOption, BulkCancelled, BulkHeld, UnknownBulkJob
from server.routes.bulk_tag import bulk_request
from server.scheduling.bulk_jobs import BulkControl, BulkTag, BulkWhose, JobKey
from server.serving.bulk_calls import BulkCalls
from server.serving.calls import Call
from server.store.bulk import BulkControlRepository
from server.store.database import migrate, open_database
from tests.unit.server.served import function

ANA = Caller("ana", scopes=frozenset(("infer",)), is_shared=False, user="u", database="food")
BOB = Caller("bob", scopes=frozenset(("infer",)), is_shared=False)
ADMIN = Caller("root", is_shared=False)


class Open:
    """A call under way."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


def call(id: str = "a", caller: Caller = ANA, rows: int = 10, kind: str = "statement") -> Call:
    said = f"id={id}; kind={kind}; what=food%20x; rows=100; done=5; lag=2".encode()
    return Call(
        function(),
        "text",
        [b"x"] * rows,
        rows,
        row_class="bulk",
        caller=caller.key,
        bulk=bulk_request(said, "f", caller),
    )


def paused(control: BulkControl) -> BulkControl:
    return replace(control, paused=True)


def cancelled(control: BulkControl) -> BulkControl:
    return replace(control, cancelled=True)


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_pausing_gives_back_what_is_under_way_and_holds_back_what_comes() -> None:
    async def scene() -> None:
        bulk, under_way = BulkCalls(), Open()
        one = bulk.enter(0.0, call())
        bulk.begun(one, under_way)
        told = await bulk.steer(ANA, "a", paused)
        assert (told["state"], told["owner"], told["claimed_user"]) == ("paused", "ana", "u of food")
        assert [type(error) for error in under_way.errors] == [BulkHeld]
        bulk.left(1.0, one, under_way, answered=False)
        with pytest.raises(BulkHeld, match="bulk job a is paused") as held:
            bulk.enter(2.0, call())
        assert (held.value.status, held.value.headers()) == (503, {"Retry-After": "5"})
        assert bulk.shown(ANA, "a")["wait_s"] is None
        await bulk.steer(ANA, "a", lambda control: replace(control, paused=False))
        assert bulk.shown(ANA, "a")["wait_s"] == 0.0

    run(scene)


def test_a_cancelled_job_stays_so_and_a_watch_cannot_be() -> None:
    async def scene() -> None:
        bulk = BulkCalls()
        bulk.enter(0.0, call())
        bulk.enter(0.0, call("w", kind="watch"))
        await bulk.steer(ANA, "a", cancelled)
        with pytest.raises(BulkCancelled, match="bulk job a was cancelled"):
            bulk.enter(1.0, call())
        with pytest.raises(BadOption, match="was cancelled"):
            await bulk.steer(ANA, "a", paused)
        with pytest.raises(BadOption, match="is a watch"):
            await bulk.steer(ANA, "w", cancelled)

    run(scene)


def test_one_sees_and_steers_ones_own_jobs_and_admins_all() -> None:
    async def scene() -> None:
        bulk = BulkCalls()
        bulk.enter(0.0, call("a"))
        bulk.enter(0.0, call("b", BOB))
        assert [job["id"] for job in bulk.listed(ANA)] == ["a"]
        assert [job["id"] for job in bulk.listed(replace(ANA, user="v"))] == []
        assert [job["id"] for job in bulk.listed(replace(ANA, user="", database=""))] == ["a"]
        assert {job["id"] for job in bulk.listed(ADMIN)} == {"a", "b"}
        for other in (BOB, replace(ANA, user="v")):
            with pytest.raises(UnknownBulkJob, match="there is no bulk job 'a'"):
                await bulk.steer(other, "a", paused)
        assert (await bulk.steer(ADMIN, "a", paused))["state"] == "paused"

    run(scene)


def test_what_a_client_says_of_its_job_is_shown() -> None:
    bulk = BulkCalls()
    bulk.enter(0.0, call(kind="table"))
    (told,) = bulk.listed(ADMIN)
    assert (told["kind"], told["what"], told["function"]) == ("table", "food x", "f")
    assert (told["rows_done"], told["rows_total"], told["lag_rows"]) == (5, 100, 2)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"kind=table",
        b"id=a b",
        b"id=a; kind=other",
        b"id=a; kind=requests",
        b"id=a; rows=-1",
        b"id=a; rows=many",
        b"id=a; what=%ff",
        b"id=a; what=%00",
        b"id=a; more=1",
        b"id=" + b"x" * 65,
        b"id=a; what=" + b"x" * 1000,
    ],
)
def test_a_header_that_is_none_is_refused(said: bytes) -> None:
    with pytest.raises(BadOption, match="ML-UDF-Job"):
        bulk_request(said, "f", ANA)


def test_what_was_held_back_is_after_a_restart_and_what_is_old_is_forgotten_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/registry.db")
    migrate(engine)
    stored = BulkControlRepository(engine)

    async def scene() -> None:
        bulk = BulkCalls(stored)
        bulk.enter(0.0, call("a"))
        bulk.enter(0.0, call("b"))
        bulk.enter(0.0, call("c"))
        await bulk.steer(ANA, "a", paused)
        await bulk.steer(ANA, "b", lambda control: replace(control, max_rows_per_s=7.0))
        await bulk.steer(ANA, "c", paused)
        await bulk.steer(ANA, "c", lambda control: replace(control, paused=False))
        old = datetime.now(UTC) - timedelta(days=2)
        for id, kind in (("old", "statement"), ("watch", "watch")):
            key, tag = JobKey("ana", id), BulkTag(id, kind)  # type: ignore[arg-type]
            stored.keep(StoredControl(key, tag, BulkWhose("ana"), "f", BulkControl(paused=True), old))
        again = BulkCalls(stored)
        with caplog.at_level(logging.INFO):
            await again.start()
        assert "bulk jobs of a day ago or more are forgotten: old" in caplog.text
        found = {job["id"]: (job["state"], job["max_rows_per_s"], job["what"]) for job in again.listed(ADMIN)}
        assert found == {
            "a": ("paused", None, "food x"),
            "b": ("idle", 7.0, "food x"),
            "watch": ("paused", None, None),
        }
        with pytest.raises(BulkHeld):
            again.enter(time.monotonic(), call("a"))
        again.enter(time.monotonic(), call("c"))
        assert {each.key.id for each in stored.all()} == {"a", "b", "watch"}

    try:
        run(scene)
    finally:
        engine.dispose()


class Slow(BulkControlRepository):
    """Begins to store, or to forget, when the test says so."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.keeps, self.forgets = threading.Event(), threading.Event()

    def keep(self, stored: StoredControl) -> None:
        self.keeps.wait(10)
        super().keep(stored)

    def forget(self, keys: Iterable[JobKey]) -> None:
        self.forgets.wait(10)
        super().forget(keys)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    engine = open_database(f"sqlite:///{tmp_path}/registry.db")
    migrate(engine)
    yield Slow(engine)
    engine.dispose()


async def settled(bulk: BulkCalls) -> None:
    """Nothing is being stored any more."""
    await asyncio.gather(*bulk._tasks._tasks)


def test_the_pause_of_a_job_that_came_back_outlasts_the_forgetting_of_its_last_one(slow: Slow) -> None:
    async def scene() -> None:
        bulk, later_s = BulkCalls(slow), time.monotonic() + 4000.0
        slow.keeps.set()
        first = bulk.enter(0.0, call())
        await bulk.steer(ANA, "a", paused)
        bulk.left(time.monotonic(), first, None, answered=False)
        bulk.enter(later_s, call())  # its first job is forgotten
        pausing = asyncio.create_task(bulk.steer(ANA, "a", paused))
        await asyncio.sleep(0.2)
        slow.forgets.set()
        await pausing
        await settled(bulk)
        assert [(each.key.id, each.control.paused) for each in slow.all()] == [("a", True)]

    run(scene)


def test_what_is_stored_of_a_job_as_it_is_forgotten_stays_stored(slow: Slow) -> None:
    async def scene() -> None:
        bulk = BulkCalls(slow)
        slow.keeps.set()
        slow.forgets.set()
        bulk.left(1.0, bulk.enter(0.0, call()), None, answered=True)
        await bulk.steer(ANA, "a", lambda control: replace(control, max_rows_per_s=7.0))
        slow.keeps.clear()
        slow.forgets.clear()
        pausing = asyncio.create_task(bulk.steer(ANA, "a", paused))
        await asyncio.sleep(0.1)
        bulk.enter(time.monotonic() + 4000.0, call("b"))  # the other is forgotten
        await asyncio.sleep(0.1)
        slow.keeps.set()
        await pausing
        slow.forgets.set()
        await settled(bulk)
        assert [(each.key.id, each.control.paused) for each in slow.all()] == [("a", True)]
        assert bulk.shown(ANA, "a")["state"] == "paused"

    run(scene)


def test_a_job_that_comes_back_while_it_is_steered_keeps_count_of_its_requests(slow: Slow) -> None:
    async def scene() -> None:
        bulk = BulkCalls(slow)
        slow.keeps.set()
        slow.forgets.set()
        bulk.left(1.0, bulk.enter(0.0, call()), None, answered=True)
        await bulk.steer(ANA, "a", lambda control: replace(control, max_rows_per_s=1e6))
        slow.keeps.clear()
        pausing = asyncio.create_task(bulk.steer(ANA, "a", paused))
        await asyncio.sleep(0.1)
        later_s, under_way = time.monotonic() + 4000.0, Open()
        back = bulk.enter(later_s, call())  # the job was forgotten, and is there again
        bulk.begun(back, under_way)
        slow.keeps.set()
        assert (await pausing)["state"] == "paused"
        assert [type(error) for error in under_way.errors] == [BulkHeld]
        bulk.left(later_s, back, under_way, answered=False)
        told = await bulk.steer(ANA, "a", lambda control: replace(control, paused=False))
        assert told["state"] == "idle"

    run(scene)


def test_what_cannot_be_stored_does_not_hold() -> None:
    class Full:
        def all(self) -> list[StoredControl]:
            return []

        def keep(self, stored: StoredControl) -> None:
            raise OSError("no space left")

        def forget(self, keys: object) -> None:
            raise OSError("no space left")

    async def scene() -> None:
        bulk, under_way = BulkCalls(Full()), Open()
        bulk.begun(bulk.enter(0.0, call()), under_way)
        with pytest.raises(OSError, match="no space"):
            await bulk.steer(ANA, "a", paused)
        assert bulk.listed(ANA)[0]["state"] == "running"
        assert under_way.errors == []

    run(scene)
