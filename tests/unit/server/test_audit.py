"""The audit trail: nothing is lost quietly, nothing floods it, and what cannot be told is not done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from server.access.actions import ACTIONS, action_of
from server.access.audit_entry import AuditEntry, Folded, entry_of
from server.access.caller import Caller
from server.access.rules import CHANGING, RULES
from server.administration.audit import AuditLog
from server.administration.audit_file import AuditFile
from server.errors import NoSpace
from server.store.audit import AuditRepository

pytestmark = pytest.mark.security

ENTRY = AuditEntry(1e9, "app", "10.0.0.1", "web", "shop", "deploy function", "udf_a", 200)
TRITONS = ("/v2/systemsharedmemory", "/v2/cudasharedmemory", "/v2/trace", "/v2/logging", "/v2/models/")


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


class FullDisk(AuditFile):
    is_full = True

    def append(self, entries: Iterable[AuditEntry]) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().append(entries)


def log_of(database: Engine, folder: Path, *, most_rows: int = 1000) -> AuditLog:
    return AuditLog(AuditFile(folder), AuditRepository(database, most_rows=most_rows))


def test_an_entry_is_in_the_file_at_once_and_in_the_registry_when_asked(
    database: Engine, tmp_path: Path
) -> None:
    async def scenario() -> None:
        log = log_of(database, tmp_path)
        assert await log.keep(ENTRY)
        assert lines(tmp_path) == [ENTRY.to_json()]
        (found,) = await log.page(None, 10)
        assert found == {"id": found["id"], **ENTRY.to_json()}

    asyncio.run(scenario())


def test_entries_are_asked_by_page_token_action_and_outcome(database: Engine, tmp_path: Path) -> None:
    async def scenario() -> None:
        log = log_of(database, tmp_path)
        for number in range(10):
            refused = replace(ENTRY, token="other", status=403)
            await log.keep(replace(refused if number % 2 else ENTRY, what=f"udf_{number}"))
        newest = await log.page(None, 4)
        assert [each["what"] for each in newest] == ["udf_9", "udf_8", "udf_7", "udf_6"]
        older = await log.page(newest[-1]["id"], 100, token="other")
        assert [each["what"] for each in older] == ["udf_5", "udf_3", "udf_1"]
        assert await log.page(2**70, 4) == newest
        assert await log.page(-(2**70), 4) == []
        assert len(await log.page(None, 100, outcome="refused")) == 5
        assert await log.page(None, 100, action="train") == []

    asyncio.run(scenario())


def test_the_registry_keeps_the_newest(database: Engine, tmp_path: Path) -> None:
    async def scenario() -> None:
        log = log_of(database, tmp_path, most_rows=10)
        for number in range(25):
            await log.keep(replace(ENTRY, what=str(number)))
            await log.page(None, 1)
        found = await log.page(None, 100)
        assert [each["what"] for each in found] == [str(number) for number in range(24, 14, -1)]

    asyncio.run(scenario())


def test_files_are_rotated_and_bounded_and_their_owners_alone(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit", most_bytes=1000, files=3)
    for number in range(100):
        file.append([replace(ENTRY, what=str(number))])
    found = sorted((tmp_path / "audit").glob("audit.jsonl*"))
    assert [path.name for path in found] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert sum(path.stat().st_size for path in found) <= 3000
    assert lines(tmp_path / "audit")[-1]["what"] == "99"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "audit", *found))


def test_while_the_disk_is_full_changes_are_refused_and_told_later(database: Engine, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = FullDisk(tmp_path)
        log = AuditLog(file, AuditRepository(database))
        await log.ready()
        assert not await log.keep(ENTRY)
        with pytest.raises(NoSpace, match="audit log cannot be written"):
            await log.ready()
        file.is_full = False
        await log.ready()
        assert lines(tmp_path) == [ENTRY.to_json()]
        assert len(await log.page(None, 10)) == 1

    asyncio.run(scenario())


def test_a_registry_that_cannot_be_written_costs_a_delay(database: Engine, tmp_path: Path) -> None:
    class Away(AuditRepository):
        is_away = True

        def add(self, entries: object) -> None:
            if self.is_away:
                raise OSError("the registry is away")
            super().add(entries)  # type: ignore[arg-type]

    async def scenario() -> None:
        repository = Away(database)
        log = AuditLog(AuditFile(tmp_path), repository)
        assert await log.keep(ENTRY)
        assert await log.page(None, 10) == []
        repository.is_away = False
        assert len(await log.page(None, 10)) == 1
        assert len(lines(tmp_path)) == 1

    asyncio.run(scenario())


def test_a_flood_of_refusals_costs_two_lines_a_minute(tmp_path: Path) -> None:
    folded = Folded()
    refused = replace(ENTRY, status=401)
    told = [
        folded.add(replace(refused, at_s=1e9 + number / 1000, what=str(number))) for number in range(5000)
    ]
    assert [each is None for each in told] == [False] + [True] * 4999
    assert list(folded.due(1e9 + 59)) == []
    (rest,) = folded.due(1e9 + 60)
    assert rest.count == 4999
    assert list(folded.due(1e9 + 120)) == []
    assert len(folded) == 0


def test_a_flood_from_everywhere_is_bounded_too() -> None:
    folded = Folded()
    told = 0
    for number in range(50_000):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        told += folded.add(replace(ENTRY, status=401, address=address)) is not None
    assert told == 1001
    assert len(folded) == 1001
    counted = list(folded.due(1e9 + 60))
    assert sum(each.count for each in counted) == 50_000 - told


def test_rows_that_were_labelled_add_up() -> None:
    folded = Folded()
    given = replace(ENTRY, action="give feedback", count=3)
    assert folded.add(given) == given
    folded.add(given)
    folded.add(replace(given, count=10))
    (rest,) = folded.due(1e9, all_of_them=True)
    assert rest.count == 13


def test_every_route_that_changes_something_has_a_name_in_the_trail() -> None:
    changing = {key for key, rule in RULES.items() if key[0] != "GET" and rule.scope in CHANGING}
    unnamed = {path for method, path in changing - set(ACTIONS)}
    assert all(path.startswith(TRITONS) for path in unnamed)
    assert set(ACTIONS) <= set(RULES)
    assert action_of("PUT", "/v1/functions/udf_a") == ("deploy function", "udf_a")
    assert action_of("GET", "/v1/functions/udf_a") is None
    assert action_of("POST", "/v2/models/udf_a/infer") is None


def test_a_name_that_somebody_sent_is_cut_and_stays_on_its_line(tmp_path: Path) -> None:
    caller = Caller("app", "10.0.0.1", user='a"\n{"x": 1}', database="d" * 1000)
    file = AuditFile(tmp_path)
    file.append([entry_of(1e9, caller, "train", "x\ny" * 1000, 200)])
    (line,) = lines(tmp_path)
    assert line["claimed_user"] == 'a"\n{"x": 1}'
    assert [len(str(line[name])) for name in ("claimed_database", "what")] == [200, 200]


def test_a_name_that_no_database_takes_holds_up_no_entry(database: Engine, tmp_path: Path) -> None:
    async def scenario() -> None:
        log = log_of(database, tmp_path)
        stranger = Caller("", "10.0.0.9", frozenset(), user="a\0b", database="\0")
        log.fold(entry_of(1e9, stranger, "POST what is not there", "/v1/functions/\0", 401))
        assert await log.keep(ENTRY)
        after, before = await log.page(None, 10)
        assert after["what"] == "udf_a"
        assert (before["what"], before["claimed_user"]) == ("/v1/functions/\ufffd", "a\ufffdb")

    asyncio.run(scenario())
