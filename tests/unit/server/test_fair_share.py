"""What one caller may take: three quarters alone, the same as others beside them, never all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.access.caller import Caller, Shares
from server.access.things import Things
from server.access.view import WHOLE, View
from server.errors import Overloaded, QuotaExceeded
from server.serving.fair_share import FairShare, may_take
from server.training.datasets.datasets import Datasets
from server.training.datasets.snapshot import SnapshotLimits

pytestmark = pytest.mark.security


def taken_by(limit: int, *callers: str) -> dict[str, int]:
    """How much each has once all have taken what they could, one at a time and in turn."""
    shares, held = FairShare(limit), dict.fromkeys(callers, 0)
    busy = True
    while busy:
        busy = False
        for caller in callers:
            if shares.take("queue", caller, 1):
                held[caller] += 1
                busy = True
    return held


@pytest.mark.parametrize(("callers", "each"), [(1, 75), (2, 43), (3, 30), (10, 10)])
def test_busy_callers_get_the_same(callers: int, each: int) -> None:
    held = taken_by(100, *map(str, range(callers)))
    assert all(abs(rows - each) <= 1 for rows in held.values())


def test_a_newcomer_finds_room_however_long_another_was_alone() -> None:
    shares = FairShare(16)
    while shares.take("uploads", "greedy", 1):
        pass
    assert shares.take("uploads", "modest", 1)
    assert shares.take("another thing", "greedy", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=60))
def test_what_is_given_back_is_as_if_it_was_never_taken(wishes: list[tuple[str, int]]) -> None:
    shares = FairShare(20)
    got = [(caller, amount) for caller, amount in wishes if shares.take("queue", caller, amount)]
    for caller, amount in got:
        shares.give("queue", caller, amount)
    assert (shares._held, shares._taken) == ({}, {})


def test_who_holds_nothing_may_always_ask_the_queue_itself() -> None:
    assert may_take(0, 200, 100)


def test_one_caller_cannot_take_all_uploads(tmp_path: Path) -> None:
    form: dict[str, Any] = {"name": "d", "query": "SELECT 1", "target": "label", "key": "k", "input": "k"}

    async def scene() -> None:
        nobody: Any = None
        repository: Any = SimpleNamespace(has_dataset=lambda name: False)
        datasets = Datasets(tmp_path, repository, nobody, nobody, SnapshotLimits(10, 1000))
        begun = [await _begins(datasets, form, "greedy") for _ in range(16)]
        assert begun.count(True) == 12
        begun = await asyncio.gather(*(_begins(datasets, form, "modest") for _ in range(16)))
        assert 1 <= begun.count(True) <= 4
        await datasets.close()

    asyncio.run(scene())


def test_uploads_are_bounded_by_the_tokens_own_cap_too(tmp_path: Path) -> None:
    form: dict[str, Any] = {"name": "d", "query": "SELECT 1", "target": "label", "key": "k", "input": "k"}

    async def scene() -> None:
        nobody: Any = None
        repository: Any = SimpleNamespace(has_dataset=lambda name: False)
        datasets = Datasets(tmp_path, repository, nobody, nobody, SnapshotLimits(10, 1000))
        view = View(Caller("capped", shares=Shares(uploads=2)), Things())
        begun = [await _begins(datasets, form, "capped", view) for _ in range(3)]
        assert begun == [True, True, False]
        with pytest.raises(QuotaExceeded, match="may send 2 at a time"):
            await datasets.begin(form, "capped", view)
        await datasets.close()

    asyncio.run(scene())


async def _begins(datasets: Datasets, form: dict[str, Any], caller: str, view: View = WHOLE) -> bool:
    try:
        await datasets.begin(form, caller, view)
    except Overloaded:
        return False
    return True
