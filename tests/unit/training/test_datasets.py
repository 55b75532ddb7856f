"""Snapshots: what is frozen, how it is split, and what is refused."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from server.disk_space import no_space
from server.errors import BadInput, BadOption
from server.training.datasets.query import check_query
from server.training.datasets.snapshot import Draft, Facts, Looked, SnapshotLimits, Unreadable, split_note
from server.training.datasets.spec import DatasetSpec
from server.training.datasets.split import BY_HASH, BY_TIME, RowNumbers

SPEC = DatasetSpec("food", "SELECT path, label FROM t", target="label", key="path")
LIMITS = SnapshotLimits(max_rows=1_000_000, max_bytes=1 << 30)
Taken = Callable[..., tuple[Facts, list[dict[str, Any]]]]


def by_name(inputs: Sequence[str]) -> list[Looked | Unreadable]:
    """A worker that finds a different picture behind each path, and none behind `bad…`."""
    return [
        Unreadable(text, "input_undecodable", "no image")
        if text.startswith("bad")
        else Looked(f"hash of {text}", 100, 80)
        for text in inputs
    ]


@pytest.fixture
def take(tmp_path: Path) -> Taken:
    def taken(
        *batches: dict[str, list[Any]],
        spec: DatasetSpec = SPEC,
        inspect: Callable[[Sequence[str]], list[Looked | Unreadable]] = by_name,
        limits: SnapshotLimits = LIMITS,
    ) -> tuple[Facts, list[dict[str, Any]]]:
        draft = Draft(spec, tmp_path, limits, inspect)
        try:
            for batch in batches:
                draft.add(pa.RecordBatch.from_pydict(batch))
            facts = draft.freeze()
        finally:
            draft.close()
        assert list(tmp_path.glob("*/.*")) == [], "nothing half-made is left"
        return facts, pq.read_table(tmp_path / facts.file).to_pylist()

    return taken


def rows(count: int = 100, **more: list[Any]) -> dict[str, list[Any]]:
    paths = [f"{number}.jpg" for number in range(count)]
    return {"path": paths, "label": ["ab"[number % 2] for number in range(count)], **more}


def split_of(frozen: list[dict[str, Any]], column: str = "key") -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in frozen:
        found.setdefault(row[column], set()).add(row["split"])
    return found


# ── splits ────────────────────────────────────────────────────────────────────────────────────────


def test_every_class_is_in_every_split_in_proportion(take: Taken) -> None:
    facts, frozen = take(rows(200))
    assert facts.splits == {"train": 140, "validation": 30, "test": 30}
    for label in "ab":
        assert sum(row["split"] == "test" and row["target"] == label for row in frozen) == 15


def test_two_snapshots_of_the_same_rows_are_one(take: Taken) -> None:
    first, _ = take(rows())
    second, _ = take(rows())
    assert (first.id, first.splits) == (second.id, second.splits)


def test_other_rows_are_another_snapshot_and_the_first_one_stays(take: Taken, tmp_path: Path) -> None:
    first, _ = take(rows())
    second, _ = take(rows(101))
    assert first.id != second.id
    assert (tmp_path / first.file).exists()


def test_no_test_rows_twin_trains(take: Taken) -> None:
    def pairs(inputs: Sequence[str]) -> list[Looked | Unreadable]:
        return [Looked(f"picture {int(text.split('.')[0]) % 50}") for text in inputs]

    _, frozen = take(rows(), inspect=pairs)
    twins = {f"{number}.jpg": f"{number + 50}.jpg" for number in range(50)}
    sides = split_of(frozen)
    assert all(sides[one] == sides[other] for one, other in twins.items())
    assert set(map(len, sides.values())) == {1}


def test_rows_of_one_entity_stay_together(take: Taken) -> None:
    spec = DatasetSpec("food", "q", target="label", key="path", entity="person", input="path")
    people = [f"person {number // 4}" for number in range(100)]
    _, frozen = take(rows(person=people), spec=spec)
    person_of = dict(zip(rows()["path"], people, strict=True))
    sides: dict[str, set[str]] = {}
    for row in frozen:
        sides.setdefault(person_of[row["key"]], set()).add(row["split"])
    assert all(len(found) == 1 for found in sides.values())


def test_with_a_time_column_the_latest_rows_test(take: Taken) -> None:
    spec = DatasetSpec("food", "q", target="label", key="path", time="day")
    _, frozen = take(rows(day=list(range(100))), spec=spec)
    day: dict[str, list[int]] = {row["split"]: [] for row in frozen}
    for row in frozen:
        day[row["split"]].append(int(row["key"].split(".")[0]))
    assert max(day["train"]) < min(day["validation"])
    assert max(day["validation"]) < min(day["test"])


@pytest.mark.parametrize(
    "times",
    [
        pa.array([Decimal(number) / 100 - 1 for number in range(100)]),
        pa.array([number / 100 - 0.5 for number in range(100)]),
        pa.array([1e15 + number for number in range(100)]),
        pa.array([-math.inf, *range(1, 99), math.inf]),
        pa.array(range(1, 101), pa.timestamp("ns")),
        pa.array([-(2**31) + 1, *range(1, 99), 2**31 - 1], pa.int32()).cast(pa.date32()),
    ],
    ids=["decimals", "fractions", "large", "infinite", "nanoseconds", "dates without end"],
)
def test_times_of_any_type_keep_their_order(tmp_path: Path, times: pa.Array) -> None:
    draft = Draft(replace(SPEC, time="day"), tmp_path, LIMITS, by_name)
    draft.add(pa.record_batch({**{name: pa.array(each) for name, each in rows().items()}, "day": times}))
    facts = draft.freeze()
    draft.close()
    splits = pq.read_table(tmp_path / facts.file)["split"].to_pylist()
    assert splits == ["train"] * 70 + ["validation"] * 15 + ["test"] * 15


def test_a_time_that_is_no_number_is_refused(take: Taken) -> None:
    days = [float(number) for number in range(100)]
    days[7] = math.nan
    with pytest.raises(BadOption, match="'day' is no number"):
        take(rows(day=days), spec=replace(SPEC, time="day"))


@pytest.mark.parametrize(("name", "what"), [("path", "key"), ("label", "target")])
def test_a_column_that_is_meant_and_there_twice_is_refused(tmp_path: Path, name: str, what: str) -> None:
    draft = Draft(SPEC, tmp_path, LIMITS, by_name)
    columns = [*rows().items(), (name, rows()[name])]
    with pytest.raises(BadOption, match=f"has 2 columns '{name}'; '{what}' must name one"):
        draft.add(pa.record_batch([pa.array(each) for _, each in columns], [column for column, _ in columns]))
    draft.close()


def test_a_class_that_no_training_row_shows_is_none_of_the_classes_and_is_said(take: Taken) -> None:
    spec = DatasetSpec("food", "q", target="label", key="path", time="day")
    late = rows(day=list(range(100)))
    late["label"][90:] = ["new"] * 10
    facts, frozen = take(late, spec=spec)
    assert facts.classes == ("a", "b")
    assert facts.untaught == {"new": ["test"]}
    assert {row["split"] for row in frozen if row["target"] == "new"} == {"test"}
    assert split_note(facts.as_json()) == "1 class is in the test rows alone: no model learns it"


@pytest.mark.security
def test_what_is_said_of_a_split_to_all_who_see_jobs_holds_no_value_of_a_row() -> None:
    untaught = {"SECRET1": ["test"], "SECRET2": ["validation", "test"], "SECRET3": ["test"], "known": []}
    assert split_note({"untaught": untaught}) == (
        "2 classes are in the test rows alone: no model learns them; "
        "1 class is in the validation and test rows alone: no model learns it"
    )
    assert split_note({"untaught": {}}) == ""


def test_rows_that_reach_over_a_cut_in_time_are_left_out_and_counted(take: Taken) -> None:
    spec = DatasetSpec("food", "q", target="label", key="path", entity="person", input="path", time="day")
    people = [f"person {number % 20}" for number in range(200)]
    facts, frozen = take(rows(200, person=people, day=list(range(200))), spec=spec)
    assert facts.left_out == 200 - len(frozen) > 0
    assert facts.rows == sum(facts.splits.values()) == len(frozen)


def test_a_snapshot_says_by_which_rule_it_was_split(take: Taken, tmp_path: Path) -> None:
    facts, _ = take(rows())
    timed, _ = take(rows(day=list(range(100))), spec=replace(SPEC, time="day"))
    assert (facts.split_rule, timed.split_rule) == (BY_HASH, BY_TIME)
    assert pq.read_schema(tmp_path / facts.file).metadata[b"ml_udf.split_rule"].decode() == BY_HASH


def test_training_rows_of_one_class_are_refused(take: Taken) -> None:
    spec = DatasetSpec("food", "q", target="label", key="path", time="day")
    with pytest.raises(BadOption, match="all of one class"):
        take({**rows(day=list(range(100))), "label": ["a"] * 90 + ["b"] * 10}, spec=spec)


@pytest.mark.security
def test_a_snapshot_is_its_owners_alone(take: Taken, tmp_path: Path) -> None:
    facts, _ = take(rows())
    assert (tmp_path / facts.file).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / facts.file).parent.stat().st_mode & 0o777 == 0o700


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (rows(3), "gave 3 rows"),
        ({"path": ["a"] * 20, "label": ["x"] * 20}, "every row's 'label' is 'x'"),
        ({"path": list("abcdefghijkl"), "label": ["x", None] * 6}, "NULL in 6 rows"),
        ({"path": [None] * 12, "label": ["x", "y"] * 6}, "'path' is NULL"),
        ({"path": list("abcdefghijkl"), "label": ["x", "y", ""] * 4}, "add WHERE label <> ''"),
        ({"path": ["a"] * 12, "other": ["x", "y"] * 6}, "no column 'label'"),
        ({**rows(12), "more": ["x"] * 12, "again": ["y"] * 12}, "which column is the 'input'"),
        ({"path": [f"{n}" for n in range(12)], "label": ["x"] * 10 + ["y"] * 2}, "'y' has 2 different"),
        ({**rows(10_001), "label": [f"{n}" for n in range(10_001)]}, "more than 10000 different values"),
    ],
)
def test_rows_that_nothing_can_be_learned_from_are_refused(
    take: Taken, batch: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(BadOption, match=message):
        take(batch)


def test_unreadable_images_are_left_out_counted_and_listed(take: Taken) -> None:
    batch = rows(100)
    batch["path"][3] = "bad.jpg"
    facts, frozen = take(batch)
    assert (facts.rows, facts.unreadable) == (99, 1)
    assert facts.unreadable_rows == [{"input": "bad.jpg", "code": "input_undecodable", "message": "no image"}]
    assert "bad.jpg" not in split_of(frozen)


def test_too_many_unreadable_images_stop_it_by_name(take: Taken) -> None:
    batch = rows(100)
    batch["path"][:20] = [f"bad{number}.jpg" for number in range(20)]
    with pytest.raises(BadInput, match=r"11 of 100 inputs cannot be read: bad0\.jpg"):
        take(batch)


def test_where_unreadable_images_leave_too_few_rows_it_says_so(take: Taken) -> None:
    batch = rows(14)
    batch["path"][:6] = [f"bad{number}.jpg" for number in range(6)]
    told = r"gave 14 rows, and the inputs of 6 cannot be read \(bad0\.jpg: no image\); at least 10 are needed"
    with pytest.raises(BadOption, match=told):
        take(batch)


def test_more_rows_than_the_limit_are_refused_as_they_come(take: Taken) -> None:
    with pytest.raises(BadOption, match="more than 150 rows"):
        take(rows(100), rows(100), limits=SnapshotLimits(150, 1 << 30))


@pytest.mark.parametrize("step", ["connect", "add", "freeze"])
def test_a_full_disk_is_told_as_one_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    error = duckdb.IOException('IO Error: Could not write file "rows.duckdb": No space left on device')

    def full(*args: object, **kwargs: object) -> None:
        raise error

    def taken() -> None:
        if step == "connect":
            monkeypatch.setattr(duckdb, "connect", full)
        draft = Draft(SPEC, tmp_path, LIMITS, by_name)
        try:
            monkeypatch.setattr(RowNumbers, "add" if step == "add" else "split", full)
            draft.add(pa.RecordBatch.from_pydict(rows()))
            draft.freeze()
        finally:
            draft.close()

    with pytest.raises(OSError, match="No space left") as raised:
        taken()
    assert no_space(raised.value) is not None
    assert list((tmp_path / "food").iterdir()) == []


def test_memory_does_not_grow_with_the_width_of_the_rows(tmp_path: Path) -> None:
    def batch(number: int) -> pa.RecordBatch:
        paths = [f"{number}/{row}/{'x' * 2_000}.jpg" for row in range(500)]
        return pa.RecordBatch.from_pydict({"path": paths, "label": ["a", "b"] * 250})

    draft = Draft(SPEC, tmp_path, LIMITS, by_name)
    draft.add(batch(0))
    tracemalloc.start()
    begun_bytes = pa.total_allocated_bytes()
    for number in range(1, 40):
        draft.add(batch(number))
    python_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert python_bytes + pa.total_allocated_bytes() - begun_bytes < 8 << 20, "40 MB of paths went through"
    assert draft.freeze().rows == 20_000
    draft.close()


# ── queries ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "SELECT 1 UNION SELECT 2",
        "VALUES (1, 2)",
        "SELECT ';' AS semicolon -- a comment; of two parts",
    ],
)
def test_one_reading_query_is_let_through(query: str) -> None:
    check_query(query, "postgres")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "is empty"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DELETE FROM t", "DELETE"),
        ("WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone", "DELETE"),
        ("SELECT * INTO other FROM t", "INTO"),
        ("SELECT * FROM t FOR UPDATE", "takes locks"),
        ("COPY t TO '/tmp/x'", "COPY"),
        ("CALL something()", "is a CALL"),
        ("SET ROLE postgres", "is a SET"),
        ("SELEC 1 FRM", "cannot be parsed"),
    ],
)
def test_every_other_query_is_refused_by_name(query: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        check_query(query, "postgres")


# ── tables and texts ──────────────────────────────────────────────────────────────────────────────

TABLE = DatasetSpec("churn", "SELECT …", target="label", key="id", task="tabular-classification")


def table(count: int = 60, /, **more: list[Any]) -> dict[str, list[Any]]:
    numbers = list(range(count))
    return {
        "id": numbers,
        "label": ["ab"[number % 2] for number in numbers],
        "age": [None if number % 7 == 0 else number + 18 for number in numbers],
        "plan": [f"plan {number}" for number in numbers],
        **more,
    }


def no_worker(inputs: Sequence[str]) -> list[Looked | Unreadable]:
    raise AssertionError("no worker needs to look at rows that are no pictures")


def test_a_tables_row_is_json_and_the_file_says_what_its_columns_are(take: Taken, tmp_path: Path) -> None:
    facts, frozen = take(
        table(member=[True, None] * 30, spent=[Decimal("1.5"), None] * 30, rate=[0.5, float("inf")] * 30),
        spec=TABLE,
        inspect=no_worker,
    )
    kinds = [
        ("age", "number"),
        ("plan", "text"),
        ("member", "boolean"),
        ("spent", "number"),
        ("rate", "number"),
    ]
    assert facts.columns == tuple({"name": name, "kind": kind} for name, kind in kinds)
    by_key = {row["key"]: row["input"] for row in frozen}
    assert by_key["1"] == '[19.0,"plan 1",null,null,null]', "a number that is not finite is a missing one"
    assert by_key["0"] == '[null,"plan 0",true,1.5,0.5]'
    stored = pq.read_schema(tmp_path / facts.file).metadata[b"ml_udf.columns"]
    assert json.loads(stored) == list(facts.columns)


def test_dates_and_times_are_texts_of_their_kind(take: Taken) -> None:
    far = datetime(2026, 1, 2, 3, 4, 5, 250_000)
    zoned = [far.replace(tzinfo=timezone(timedelta(hours=2))), None] * 30
    more: dict[str, list[Any]] = {"day": [date(2026, 1, 2)] * 60, "at": [far] * 60, "there": zoned}
    facts, frozen = take(table(**more), spec=replace(TABLE, input="age, day, at, there"), inspect=no_worker)
    assert [column["kind"] for column in facts.columns] == ["number", "date", "timestamp", "timestamptz"]
    by_key = {row["key"]: row["input"] for row in frozen}
    moment = "2026-01-02T03:04:05.250000"
    assert by_key["1"] == f'[19.0,"2026-01-02","{moment}",null]'
    assert by_key["0"] == f'[null,"2026-01-02","{moment}","2026-01-02T01:04:05.250000+00:00"]'


def test_only_the_columns_that_are_named_are_learnt_from(take: Taken) -> None:
    facts, frozen = take(table(), spec=replace(TABLE, input="plan, age"), inspect=no_worker)
    assert [column["name"] for column in facts.columns] == ["plan", "age"]
    assert frozen[1]["input"] == '["plan 1",19.0]'


def test_equal_rows_of_a_table_stay_on_one_side(take: Taken) -> None:
    twins = table(200, plan=[f"plan {number // 4}" for number in range(200)], age=[1] * 200)
    _, frozen = take(twins, spec=TABLE, inspect=no_worker)
    assert all(len(splits) == 1 for splits in split_of(frozen, "input").values())


@pytest.mark.parametrize(
    ("more", "spec", "message"),
    [
        ({"at": [time(12, 30)] * 60}, TABLE, "'at' is of type time"),
        ({"tags": [["x"]] * 60}, TABLE, "'tags' is of type list"),
        ({}, replace(TABLE, input="age, size"), "no column 'size', which 'input' names"),
        ({"AGE": [1] * 60}, TABLE, "named twice"),
    ],
)
def test_what_no_model_of_tables_can_see_is_refused(
    take: Taken, more: dict[str, list[Any]], spec: DatasetSpec, message: str
) -> None:
    with pytest.raises(BadOption, match=message):
        take(table(**more), spec=spec, inspect=no_worker)


def test_a_column_cannot_change_its_type_between_two_parts(take: Taken) -> None:
    with pytest.raises(BadOption, match="change their types"):
        take(table(), table(plan=[1.0] * 60), spec=TABLE, inspect=no_worker)


def test_the_target_is_no_column_to_learn_from() -> None:
    with pytest.raises(BadOption, match="its own input"):
        replace(TABLE, input="age, label")


def test_texts_are_frozen_as_they_are_the_empty_one_too(take: Taken) -> None:
    spec = DatasetSpec("moods", "SELECT …", target="label", key="id", task="text-classification")
    texts = ["", *(f"素晴らしい {number}" for number in range(59))]
    labels = ["ab"[number % 2] for number in range(60)]
    facts, frozen = take(
        {"id": list(range(60)), "text": texts, "label": labels}, spec=spec, inspect=no_worker
    )
    assert facts.columns == ()
    assert sorted(row["input"] for row in frozen) == sorted(texts)


def test_a_task_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadOption, match="tabular-classification"):
        replace(TABLE, task="divination")


FORM = {
    "name": "churn",
    "query": "SELECT …",
    "target": "label",
    "key": "id",
    "task": "tabular-classification",
}


def test_columns_to_learn_from_may_be_a_list() -> None:
    assert DatasetSpec.from_json({**FORM, "input": ["age", "plan"]}).input == "age, plan"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"validation": 15}, "such as 0.15; not 15 and 0.15"),
        ({"test": "0.2"}, "a number such as 0.15, not '0.2'"),
        ({"input": ["age", 3]}, "'input' must be a text"),
        ({"inputs": "age"}, "no field 'inputs'; there are entity, input, key"),
        ({"task": "tables"}, "'task' must be one of image-classification"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_can(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=re.escape(message)):
        DatasetSpec.from_json({**FORM, **given})


# ── targets that are no classes ───────────────────────────────────────────────────────────────────

PRICES = replace(
    SPEC, name="prices", target="price", key="id", input="age", task="tabular-regression", query="SELECT 1"
)


def prices(values: list[Any]) -> dict[str, list[Any]]:
    return {"id": list(range(len(values))), "age": list(range(len(values))), "price": values}


def test_numbers_are_frozen_as_float64_and_dealt_out_without_classes(take: Taken, tmp_path: Path) -> None:
    facts, frozen = take(prices([number / 3 for number in range(60)]), spec=PRICES)
    assert facts.classes == ()
    assert facts.splits == {"train": 42, "validation": 9, "test": 9}
    assert pq.read_schema(tmp_path / facts.file).field("target").type == pa.float64()
    assert {row["target"] for row in frozen} == {number / 3 for number in range(60)}


def test_numbers_as_exact_texts_are_numbers(take: Taken) -> None:
    _, frozen = take(prices([f"{number}.50" for number in range(20)]), spec=PRICES)
    assert sorted(row["target"] for row in frozen)[:2] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3.0] * 20, "every row's 'price' is 3; there is nothing to learn"),
        ([1.0, float("nan")] * 10, "not a finite number in some rows"),
        (["1", "1" + 400 * "0"] * 10, "not a finite number in some rows"),
        ([1.0, 1e39] * 10, "is beyond 3.4e+38 in some rows, which no model answers"),
        ([1.7e9, 1.7e9 + 60] * 10, "whose numbers are 1.3e+02 apart there; select the difference"),
        ([1e-300, 2e-300] * 10, "whose numbers are 1.4e-45 apart there"),
        (["dear", "cheap"] * 10, "is of type string; select a number"),
        ([date(2026, 1, 1 + day) for day in range(20)], "or of a time its epoch"),
        ([1.0, None] * 10, "is NULL in 10 rows"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(take: Taken, values: list[Any], message: str) -> None:
    with pytest.raises(BadOption, match=re.escape(message)):
        take(prices(values), spec=PRICES)


def test_decimals_and_huge_whole_numbers_are_numbers(take: Taken) -> None:
    spent = [Decimal(number).scaleb(-2) for number in range(20)]
    assert {row["target"] for row in take(prices(spent), spec=PRICES)[1]} == {n / 100 for n in range(20)}
    _, frozen = take(prices([2**60 + number * 2**50 + 1 for number in range(2_000)]), spec=PRICES)
    assert max(row["target"] for row in frozen) == float(2**60 + 1_999 * 2**50)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([Decimal("4.50"), Decimal("5.00"), None], ["4.5", "5"]),
        ([Decimal(f"{12_345_678_901_234_567_890}"), Decimal(3)], ["12345678901234567890", "3"]),
        ([4.5, 5.0, 4_006_381_333_931.0], ["4.5", "4006381333931", "5"]),
        ([pa.scalar(0.1, pa.float32()), pa.scalar(2.0, pa.float32())], ["0.1", "2"]),
    ],
)
def test_numbers_of_few_values_name_classes_as_sql_shows_them(
    take: Taken, values: list[Any], named: list[str]
) -> None:
    classes = replace(PRICES, task="tabular-classification")
    known = [value for value in values if value is not None]
    assert take(prices(known * 20), spec=classes)[0].classes == tuple(named)
    if len(known) < len(values):
        with pytest.raises(BadOption, match="is NULL in 20 rows"):
            take(prices(values * 20), spec=classes)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_finite_number_names_no_class(take: Taken, odd: float) -> None:
    with pytest.raises(BadOption, match="not a finite number in some rows"):
        take(prices([1.0, 2.0, odd] * 10), spec=replace(PRICES, task="tabular-classification"))


@pytest.mark.parametrize(
    "values",
    [
        [number / 7 for number in range(40)],
        [Decimal(number).scaleb(-2) for number in range(40)],
        list(range(200)),
    ],
)
def test_a_numeric_target_of_many_values_never_becomes_as_many_classes(
    take: Taken, values: list[Any]
) -> None:
    classes = replace(PRICES, task="tabular-classification")
    with pytest.raises(BadOption, match="looks like regression: say task => 'tabular-regression'"):
        take(prices(values), spec=classes)
    take(prices([number % 10 for number in range(200)]), spec=classes)
    many = [str(number % 60) for number in range(600)]
    assert len(take(prices(many), spec=classes)[0].classes) == 60, "texts are names, however many"
