"""Drift: histograms of what is asked and answered, against what was learnt from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_worker.wire.columns import TEXT, Column
from server.access.caller import Caller
from server.access.permissions import Thing
from server.access.seen_catalog import SeenCatalog
from server.access.things import Things
from server.access.view import WHOLE, View
from server.catalog.catalog import Catalog
from server.serving.recent_answers import RecentAnswers
from server.training.drift import MUCH, Drift, DriftOf, Reference, seen_drift
from tests.unit.training.training_house import on_a_loop

RANDOM = np.random.default_rng(2)


def stability_index(before: list[Any], now: list[Any]) -> float:
    return Reference.of(before).index(now)


def test_samples_of_one_thing_are_near_and_of_another_far():
    before = RANDOM.normal(50, 10, 5_000).tolist()
    assert stability_index(before, RANDOM.normal(50, 10, 2_000).tolist()) < 0.05
    assert stability_index(before, RANDOM.normal(65, 10, 2_000).tolist()) > MUCH
    words = ["a"] * 700 + ["b"] * 300
    assert stability_index(words, ["a"] * 140 + ["b"] * 60) < 0.01
    assert stability_index(words, ["a"] * 60 + ["b"] * 140) > MUCH


def test_values_that_were_never_seen_or_are_missing_now_count():
    words = ["a"] * 100
    assert stability_index(words, ["new"] * 100) > 1
    assert stability_index([1.0, 2.0] * 50, [None] * 100) > 1
    assert stability_index([5.0] * 100, [5.0] * 100) == pytest.approx(0.0)
    assert stability_index([1.0, 2.0] * 50, [10**400] * 100) > 1, "no number that a model could see"


class House:
    def __init__(self, folder: Path, ages: Any, kind: str = "number") -> None:
        pq.write_table(
            pa.table(
                {
                    "input": [json.dumps([age, "pro"]) for age in ages],
                    "target": ["yes" if kind != "number" or age < 50 else "no" for age in ages],
                    "split": ["train"] * len(ages),
                }
            ),
            folder / "s.parquet",
        )
        (folder / "model.json").write_text(json.dumps({"trained": {"job": 1, "snapshot": "s"}}))
        columns = (("age", kind), ("plan", "text"))
        model = SimpleNamespace(directory=folder, input=SimpleNamespace(columns=columns))
        task = SimpleNamespace(value=SimpleNamespace(name="label"))
        self.function = cast(
            Any,
            SimpleNamespace(name="f", version=2, key="f@2", form="row", members=(model,), task=task),
        )
        self.recent = RecentAnswers(clock=self.clock)
        self.now_s = 0.0
        stored = SimpleNamespace(
            job=lambda number: SimpleNamespace(dataset="people"),
            snapshot=lambda dataset, snapshot: SimpleNamespace(id=snapshot, facts={"file": "s.parquet"}),
        )
        self.stored = cast(Any, stored)
        self.drift = Drift(self.recent, self.stored, folder, fresh_s=0.0)

    def clock(self) -> float:
        return self.now_s

    def ask(self, ages: Any, confidence: float = 0.9) -> None:
        for start in range(0, len(ages), 50):
            part = [age if isinstance(age, str) else float(age) for age in ages[start : start + 50]]
            rows = [json.dumps([age, "pro"]).encode() for age in part]
            call = SimpleNamespace(function=self.function, form="row", rows=rows, members=None)
            columns = {
                "label": Column(
                    "label", TEXT, (), ["yes" if isinstance(age, str) or age < 50 else "no" for age in part]
                ),
                "confidence": Column(
                    "confidence", "FP32", (), np.full(len(part), confidence, np.float32).tobytes()
                ),
            }
            reply = SimpleNamespace(columns=columns, errors={}, defaulted=set())
            self.now_s += 1
            self.recent.answered(cast(Any, call), cast(Any, reply))


@on_a_loop
async def test_what_has_changed_is_said_by_name_and_what_has_not_is_not(tmp_path: Path):
    house = House(tmp_path, RANDOM.integers(20, 80, 3_000).tolist())
    house.ask(RANDOM.integers(20, 80, 500))
    steady = {each.what: each for each in await house.drift.look()}
    assert set(steady) == {"answer", "confidence", "input age", "input plan"}
    assert not any(each.is_much for each in steady.values())
    assert steady["answer"].reference == "snapshot s of people"
    house.ask(RANDOM.integers(60, 80, 2_000), confidence=0.55)
    moved = {each.what for each in await house.drift.look() if each.is_much}
    assert moved == {"answer", "confidence", "input age"}
    assert house.drift.latest


@on_a_loop
async def test_the_same_moments_in_another_time_zone_have_not_moved_and_later_ones_have(tmp_path: Path):
    days = [f"2024-01-{day:02}" for day in RANDOM.integers(1, 11, 3_000)]
    house = House(tmp_path, [f"{day}T00:00:00+00:00" for day in days], "timestamptz")
    house.ask([f"{day}T02:00:00+02:00" for day in days[:500]])
    (steady,) = (each for each in await house.drift.look() if each.what == "input age")
    assert not steady.is_much
    house.ask([f"{day.replace('-01-', '-02-')}T02:00:00+02:00" for day in days[:2_000]])
    (moved,) = (each for each in await house.drift.look() if each.what == "input age")
    assert moved.is_much


@on_a_loop
async def test_the_calendars_last_moment_has_not_moved_where_it_is_shown_in_the_year_after(tmp_path: Path):
    house = House(tmp_path, ["9999-12-31T23:59:59+00:00"] * 3_000, "timestamptz")
    house.ask(["10000-01-01T05:29:59+05:30"] * 500)
    (steady,) = (each for each in await house.drift.look() if each.what == "input age")
    assert not steady.is_much


@on_a_loop
async def test_first_answers_are_not_compared_with_themselves(tmp_path: Path):
    house = House(tmp_path, RANDOM.integers(20, 80, 3_000).tolist())

    async def confidence() -> Any:
        return next(each for each in await house.drift.look() if each.what == "confidence")

    house.ask([30] * 400, confidence=0.9)
    assert ((await confidence()).rows, (await confidence()).index) == (0, None), "there is nothing since"
    house.ask([30] * 250, confidence=0.9)
    assert ((await confidence()).rows, (await confidence()).index) == (150, None), "there is little since"
    house.ask([30] * 200, confidence=0.6)
    mixed = await confidence()
    assert (mixed.rows, mixed.is_much) == (350, True), "the first 500 do not hide what came after them"


@on_a_loop
async def test_a_few_rows_say_nothing_yet(tmp_path: Path):
    house = House(tmp_path, RANDOM.integers(20, 80, 3_000).tolist())
    house.ask([75] * 50)
    assert {each.index for each in await house.drift.look()} == {None}


@on_a_loop
async def test_of_what_was_not_trained_here_answers_alone_are_compared_with_the_first_ones(tmp_path: Path):
    house = House(tmp_path, [30] * 300)
    (tmp_path / "model.json").write_text("{}")
    house.ask(RANDOM.integers(20, 80, 500))
    assert [each.what for each in await house.drift.look()] == ["confidence"]


@on_a_loop
async def test_of_a_large_snapshot_rows_of_all_its_parts_are_compared(tmp_path: Path):
    ages = np.linspace(20, 80, 50_000)  # in the order of their keys, as snapshots are
    house = House(tmp_path, ages.tolist())
    house.ask(RANDOM.choice(ages, 1_000))
    assert not any(each.is_much for each in await house.drift.look())


@on_a_loop
async def test_who_asks_at_once_shares_one_look_and_a_snapshot_is_read_once(tmp_path: Path):
    house = House(tmp_path, RANDOM.integers(20, 80, 3_000).tolist())
    house.ask(RANDOM.integers(20, 80, 500))
    drift = Drift(house.recent, house.stored, tmp_path, fresh_s=60.0)
    first, second = await asyncio.gather(drift.look(), drift.look())
    assert first is second
    steady = await house.drift.look()
    (tmp_path / "s.parquet").unlink()
    assert await house.drift.look() == steady


def test_what_is_kept_is_bounded_in_bytes_and_forgotten_when_nobody_asks(tmp_path: Path):
    house = House(tmp_path, [30] * 300)
    house.function.task.value.name = "text"
    columns = {"text": Column("text", TEXT, (), ["x" * 10_000])}
    call = SimpleNamespace(function=house.function, form="row", rows=[b"9" * 4_000], members=None)
    reply = SimpleNamespace(columns=columns, errors={}, defaulted=set())
    for _ in range(600):
        house.now_s += 1
        house.recent.answered(cast(Any, call), cast(Any, reply))
    (sample,) = house.recent.all()
    assert 500 < len(sample.recent) < 600
    assert sum(len(row.row) for row in sample.recent) == sample.nbytes <= 2 << 20
    assert {row.value for row in sample.recent} == {None}, "a long text is not kept"
    house.now_s += 86_401
    assert house.recent.all() == []


def test_however_much_is_asked_few_rows_a_second_are_kept(tmp_path: Path):
    house = House(tmp_path, [30] * 300)
    for _ in range(100):
        before = house.now_s
        house.ask([30] * 50)
        house.now_s = before  # all in one second
    (sample,) = house.recent.all()
    assert len(sample.recent) == 200


def test_of_a_large_call_no_more_rows_than_of_others_are_kept(tmp_path: Path):
    house = House(tmp_path, [30] * 300)
    call = SimpleNamespace(function=house.function, form="text", rows=[b"x"] * 99, members=None)
    reply = SimpleNamespace(columns={}, errors={}, defaulted=set())
    house.recent.answered(cast(Any, call), cast(Any, reply))
    (sample,) = house.recent.all()
    assert len(sample.recent) == 50


@pytest.mark.security
def test_what_a_caller_does_not_see_is_named_in_no_drift():
    things = Things()
    things.keep(Thing("dataset", "salaries", "boss", "private"))
    things.keep(Thing("function", "udf_hidden", "boss", "private"))
    catalog = Catalog(cast(Any, None))
    found = [
        DriftOf("udf_food", 1, "answer", 300, 0.1, "snapshot abc of salaries", "salaries"),
        DriftOf("udf_hidden", 1, "confidence", 300, 0.1, "its first answers"),
    ]
    view = View(Caller("reader", scopes=frozenset({"read"})), things)
    cast(Any, catalog).is_function = lambda name: True
    (told,) = seen_drift(found, SeenCatalog(catalog, view), view)
    assert (told.function, told.reference, told.dataset) == ("udf_food", "what it was trained on", "")
    assert seen_drift(found, SeenCatalog(catalog, WHOLE), WHOLE) == found
