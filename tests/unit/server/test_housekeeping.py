"""Housekeeping goes on through whatever happens to the registry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from server.catalog.functions import ModelVersion
from server.catalog.latencies import Latencies
from server.errors import Overloaded
from server.housekeeping import Housekeeping, Measured
from server.store.latencies import LatencyFiles
from server.supervision import Backoff, Supervisor
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import text_model
from tests.waiting import until

OUTAGES = [
    Overloaded("the connection to the registry's database was lost"),
    OperationalError("BEGIN IMMEDIATE", {}, Exception("database is locked")),
    OSError(28, "no space left"),
    RuntimeError("a bug"),
]


class Registry:
    """Raises what it is told to, and keeps what is written."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.held = threading.Event()
        self.held.set()
        self.tries = 0
        self.sizes: dict[str, int] = {}
        self.used: dict[tuple[str, int], tuple[float, float]] = {}

    def measured(self, model: ModelVersion, resident_bytes: int, load_s: float) -> None:
        self._write(lambda: self.sizes.update({model.key: resident_bytes}))

    def touched(self, last_used: Mapping[tuple[str, int], tuple[float, float]]) -> None:
        self._write(lambda: self.used.update(last_used))

    def _write(self, write: Callable[[], Any]) -> None:
        self.tries += 1
        assert self.held.wait(30)
        if self.error is not None:
            raise self.error
        write()


class Kept:
    """A house with its housekeeping, in a hurry."""

    def __init__(self, home: Path, *workers: FakeWorker) -> None:
        self.registry, self.measured = Registry(), Measured()
        self.supervisor = Supervisor(backoff=Backoff(0.01, 0.05))
        self.house = House(*workers)
        self.keeping = Housekeeping(
            self.registry,  # type: ignore[arg-type]  # its two verbs are all that is asked
            Latencies(LatencyFiles(home)),
            self.house.dispatcher,
            self.house.residency,
            self.measured,
            0.05,
            self.supervisor.tasks(),
            every_s=0.01,
            write_every_s=0.02,
        )
        self.keeping.start()


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda error: type(error).__name__)
def test_notes_wait_for_the_registry_to_come_back(tmp_path: Path, outage: BaseException) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        kept.registry.error = outage
        kept.measured(text_model("net"), 10, 0.1)
        kept.house.residency.touch(["net/1"])
        await until(lambda: kept.registry.tries >= 3)
        kept.registry.error = None
        await until(lambda: kept.registry.sizes == {"net/1": 10} and ("net", 1) in kept.registry.used)
        await kept.keeping.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("outage", [None, *OUTAGES], ids=lambda error: type(error).__name__)
def test_a_hung_worker_is_ended_while_the_registry_is_away(
    tmp_path: Path, outage: BaseException | None
) -> None:
    """Locked (it answers nobody for a while), or failing."""

    async def scenario() -> None:
        worker = FakeWorker()
        kept = Kept(tmp_path, worker)
        kept.registry.error = outage
        kept.measured(text_model("net"), 10, 0.1)
        if outage is None:
            kept.registry.held.clear()
        await until(lambda: kept.registry.tries)
        await settle()
        kept.house.ask("a")
        await until(lambda: worker.killed)
        kept.registry.held.set()
        await kept.keeping.close()

    asyncio.run(scenario())


def test_a_bug_in_the_watch_over_workers_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        kept, looks = Kept(tmp_path), []

        def broken(patience_s: float) -> None:
            looks.append(patience_s)
            raise KeyError("w0")

        monkeypatch.setattr(kept.house.dispatcher, "end_hung_workers", broken)
        await until(lambda: len(looks) >= 3)
        assert kept.supervisor.failures["watch workers"] >= 2
        await kept.keeping.close()

    asyncio.run(scenario())


def test_notes_are_written_when_the_server_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = Kept(tmp_path)
        await kept.keeping.close()
        kept.measured(text_model("net"), 10, 0.1)
        await kept.keeping.close()
        assert kept.registry.sizes == {"net/1": 10}

    asyncio.run(scenario())
