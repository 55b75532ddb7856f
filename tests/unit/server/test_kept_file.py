"""What a server kept is known to the next one, as far as it serves the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from server.cache.answer_file import AnswerFile
from server.cache.counts import CacheCounts
from server.serving.kept_file import KeptFile
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.test_cached_calls import CachedHouse, rows_of, store

__all__ = ["store"]

pytestmark = pytest.mark.usefixtures("store")


def house_of(path: Path, worker: FakeWorker) -> CachedHouse:
    """As the server makes one: its store makes keys as those of the file are made."""
    return CachedHouse(worker, keying=AnswerFile(path).keying())


def kept_file(house: CachedHouse, path: Path, *, serves: bool = True, every_s: float = 300.0) -> KeptFile:
    def counts_of(function: str) -> CacheCounts | None:
        return house.metrics.of(house.function).cache if serves and function == house.function.key else None

    return KeptFile(house.cached.store, AnswerFile(path), counts_of, every_s=every_s)


async def asked_and_stopped(path: Path) -> None:
    house = house_of(path, FakeWorker(answers=True))
    kept = kept_file(house, path)
    kept.start()
    await read(kept)
    await house.asked("a", "b", "c")
    await kept.close()


async def read(kept: KeptFile) -> None:
    for _ in range(200):
        if kept.is_read:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it is not read")


def test_a_server_that_starts_again_computes_nothing_that_the_last_one_did(tmp_path: Path) -> None:
    async def scenario() -> None:
        await asked_and_stopped(tmp_path / "answers")
        worker = FakeWorker(answers=False)
        house = house_of(tmp_path / "answers", worker)
        kept = kept_file(house, tmp_path / "answers")
        kept.start()
        await read(kept)
        assert await house.asked("c", "a", "b") == ["c", "a", "b"]
        assert rows_of(worker) == []
        counts = house.metrics.of(house.function).cache
        assert counts.entries == len(house.cached.store) == 3
        assert counts.nbytes == house.cached.store.nbytes
        await kept.close()

    asyncio.run(scenario())


def test_answers_of_what_is_served_no_more_are_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        await asked_and_stopped(tmp_path / "answers")
        house = house_of(tmp_path / "answers", FakeWorker(answers=True))
        kept = kept_file(house, tmp_path / "answers", serves=False)
        kept.start()
        await read(kept)
        assert len(house.cached.store) == 0
        await kept.close()

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_or_written_costs_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "answers").write_text("something else")

    async def scenario() -> None:
        await asked_and_stopped(tmp_path / "answers")  # which writes a whole one
        await asked_and_stopped(tmp_path / "no folder" / "answers")

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert any("forgotten" in line and "not a whole file" in line for line in told)
    assert any("not written" in line and "No such file" in line for line in told)


def test_what_the_other_store_wrote_is_forgotten_and_written_anew(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answers"

    async def scenario() -> None:
        await asked_and_stopped(path)
        before = AnswerFile(path).keying()
        monkeypatch.setattr(CachedHouse, "store_name", "python" if store == "native" else "native")
        worker = FakeWorker(answers=True)
        house = house_of(path, worker)
        kept = kept_file(house, path)
        kept.start()
        await read(kept)
        assert len(house.cached.store) == 0
        assert await house.asked("a") == ["a"]
        assert house.counts == (0, 0, 1)
        await kept.close()
        assert before != AnswerFile(path).keying() == house.cached.store.keying

    asyncio.run(scenario())
    assert any("keys made in another way" in record.getMessage() for record in caplog.records)


def test_a_file_of_an_older_release_is_forgotten_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answers"
    path.write_bytes(b"ml_udf answers 1" + bytes(100))
    asyncio.run(asked_and_stopped(path))
    assert any(
        "forgotten" in each.getMessage() and "older release" in each.getMessage() for each in caplog.records
    )
    kept = AnswerFile(path).read()
    assert kept is not None
    assert sum(map(len, kept.answers)) == 3


def test_answers_come_and_leave_while_the_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "answers"

    async def scenario() -> None:
        house = house_of(path, FakeWorker(answers=True))
        kept = kept_file(house, path)
        kept.start()
        await read(kept)
        await house.asked(*[f"row {number}" for number in range(50)])
        writing = asyncio.ensure_future(kept.close())
        for number in range(5):
            await house.asked(f"new {number}")
        house.dispatcher.remove(house.function)
        await house.cached.let_go()
        await writing
        assert len(house.cached.store) == 0

    asyncio.run(scenario())
    written = AnswerFile(path).read()
    assert written is not None
    told = {source.prefix for source in written.sources}
    assert all(row[:4] in told for some in written.answers for _, row in some.pairs())


def test_a_server_that_is_killed_loses_what_came_since_the_last_writing(tmp_path: Path) -> None:
    path = tmp_path / "answers"

    async def scenario() -> None:
        house = CachedHouse(FakeWorker(answers=True))
        kept = kept_file(house, path, every_s=0.01)
        kept.start()
        await house.asked("a")
        await settle()
        for _ in range(500):
            if path.exists():
                break
            await asyncio.sleep(0.01)
        assert path.exists()
        written = path.stat().st_mtime_ns
        await asyncio.sleep(0.1)
        assert path.stat().st_mtime_ns == written, "nothing came, so nothing is written"

    asyncio.run(scenario())
