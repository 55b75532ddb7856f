"""Slow queries of datasets: threads of their own, a share for each caller, an end when nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from server.errors import Overloaded
from server.http.body import ClientGone
from server.http.disconnects import while_connected
from server.store.database import migrate, open_database
from server.store.training import TrainingRepository
from server.training.datasets.datasets import Datasets
from server.training.datasets.snapshot import SnapshotLimits
from server.training.datasets.spec import DatasetSpec
from tests.waiting import until

pytestmark = pytest.mark.security

FORM = {
    "name": "moods",
    "query": "SELECT * FROM t",
    "target": "label",
    "key": "id",
    "input": "text",
    "task": "text-classification",
    "source": "slow",
}
SOON_S = 20.0


class SlowDatabase:
    """SourceConnections whose query answers when it is let go, or ends when it is ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.let_go = threading.Event()

    @contextlib.contextmanager
    def batches(
        self,
        spec: DatasetSpec,
        roles: Sequence[str] | None,
        on_open: Callable[[Callable[[], None]], None],
        reaches: Callable[[str], bool],
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        is_over = threading.Event()

        def end() -> None:
            self.ended += 1
            is_over.set()

        on_open(end)
        self.begun += 1
        while not self.let_go.wait(0.01) and not is_over.is_set():
            pass
        rows = range(40)
        batch = {"id": list(rows), "text": [f"text {row}" for row in rows], "label": ["a", "b"] * 20}
        yield iter([pa.RecordBatch.from_pydict(batch)])


@contextlib.asynccontextmanager
async def house(tmp_path: Path) -> AsyncIterator[tuple[Datasets, SlowDatabase]]:
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    database = SlowDatabase()
    datasets = Datasets(
        tmp_path / "datasets",
        TrainingRepository(engine),
        cast(Any, database),
        cast(Any, None),
        SnapshotLimits(1_000, 1 << 20),
    )
    yield datasets, database
    database.let_go.set()
    await datasets.close()


def in_house(tmp_path: Path, work: Callable[[Datasets, SlowDatabase], Awaitable[None]]) -> None:
    async def run() -> None:
        async with house(tmp_path) as (datasets, database):
            await work(datasets, database)

    asyncio.run(run())


def test_slow_queries_leave_the_server_its_threads(tmp_path: Path) -> None:
    async def run(datasets: Datasets, database: SlowDatabase) -> None:
        queries = [asyncio.create_task(datasets.pull(FORM, None, f"caller {at}")) for at in range(8)]
        await until(lambda: database.begun == 8)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), SOON_S) == "done"
        assert await asyncio.wait_for(datasets.all(), SOON_S) == []
        database.let_go.set()
        assert {(await query).facts["rows"] for query in queries} == {40}

    in_house(tmp_path, run)


def test_a_caller_has_a_share_of_the_queries(tmp_path: Path) -> None:
    async def run(datasets: Datasets, database: SlowDatabase) -> None:
        greedy = [asyncio.create_task(datasets.pull(FORM, None, "greedy")) for _ in range(6)]
        await until(lambda: database.begun == 6)
        with pytest.raises(Overloaded, match="this caller has 6 queries"):
            await asyncio.wait_for(datasets.pull(FORM, None, "greedy"), SOON_S)
        other = asyncio.create_task(datasets.pull(FORM, None, "modest"))
        await until(lambda: database.begun == 7)
        database.let_go.set()
        await asyncio.gather(*greedy, other)
        assert (await datasets.pull(FORM, None, "greedy")).dataset == "moods", "what is over counts no more"

    in_house(tmp_path, run)


def test_a_query_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    async def run(datasets: Datasets, database: SlowDatabase) -> None:
        for _ in range(5):
            query = asyncio.create_task(datasets.pull(FORM, None, "caller"))
            begun = database.begun
            await until(lambda begun=begun: database.begun > begun)  # type: ignore[misc]
            query.cancel()
            with pytest.raises(asyncio.CancelledError):
                await query
            await until(lambda: database.ended == database.begun)
            await until(lambda: not datasets._under_way)
        assert await datasets.all() == [], "its rows were thrown away"

    in_house(tmp_path, run)


def test_a_client_that_hangs_up_cancels_what_it_asked_for() -> None:
    async def run() -> None:
        cancelled = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(SOON_S)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async def hangs_up() -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def stays() -> dict[str, Any]:
            await asyncio.sleep(SOON_S)
            return {"type": "http.disconnect"}

        async def answer() -> str:
            return "answer"

        with pytest.raises(ClientGone):
            await while_connected(hangs_up, work())
        assert cancelled.is_set()
        assert await while_connected(stays, answer()) == "answer"

    asyncio.run(run())
