"""Rows of a table as numbers: what is fitted, what is missing, what is unknown, what is at fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.networks import table
from gpu_worker.networks.encoders import Known, Moment, Rates, Scaled, Words
from gpu_worker.networks.table import RowInvalid, Table, TableColumn, columns_of, values_of
from gpu_worker.train.table_fit import ALL_COLUMNS, FOLDS, ColumnChoices, FittedTable, fit_table

KINDS = [
    {"name": "age", "kind": "number"},
    {"name": "plan", "kind": "text"},
    {"name": "member", "kind": "boolean"},
]


def fit(
    kinds: Sequence[dict[str, str]],
    rows: Sequence[Sequence[Any]],
    targets: Sequence[float] | None = None,
    choices: ColumnChoices = ALL_COLUMNS,
) -> FittedTable:
    told = np.zeros(len(rows)) if targets is None else np.array(targets)
    return fit_table(kinds, [(rows, told.astype(np.float32)[:, None])], choices)


def fitted() -> Table:
    return fit(KINDS, [[20.0, "pro", True], [40.0, "free", None], [None, "pro", False]]).whole


def encoders(table: Table, column: int = 0) -> list[type]:
    return [type(encoder) for encoder in table.columns[column].encoders]


def test_numbers_are_centred_and_scaled_as_the_training_rows_were():
    table = fitted()
    assert table.columns[0].encoders == (Scaled(30.0, 10.0),)
    numbers, faults = table.numbers([b'[40, "pro", true]'])
    assert not faults
    #                                age, missing | free, pro, missing | member, missing
    assert numbers.tolist() == [[1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]]


def test_a_missing_value_raises_its_own_flag_and_an_unknown_text_raises_none():
    numbers, _ = fitted().numbers([b"[null, null, null]", b'[30, "never seen", false]'])
    assert numbers.tolist() == [[0, 1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    "number", ['"NaN"', '"Infinity"', '"-Infinity"', "NaN", "-Infinity", "1e999", "1" + 400 * "0"]
)
def test_a_number_that_is_not_finite_is_a_missing_one(number):
    assert values_of(f'[{number}, "pro", true]', fitted().columns) == [None, "pro", True]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"age": 3}', "has no 'plan', 'member'"),
        ("7", "JSON array of 3"),
        ("[1, 2]", "age, plan, member"),
        ('["old", "pro", true]', "'old' in column 'age' is not a number"),
        ("[true, null, null]", "'True' in column 'age'"),
        ("[1, 5, null]", "'5' in column 'plan' is not a text"),
        ("[1, null, 1]", "'1' in column 'member' is not a boolean"),
    ],
)
def test_a_row_at_fault_says_what_is_wrong_and_spoils_no_other(row, message):
    numbers, faults = fitted().numbers([b'[40, "pro", true]', row.encode(), b'[40, "pro", true]'])
    assert message in faults[1]
    assert list(faults) == [1]
    assert numbers[0].tolist() == numbers[2].tolist() != numbers[1].tolist()
    with pytest.raises(RowInvalid):
        values_of(row, fitted().columns)


WILD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.just(10**400),
    st.floats(),
    st.sampled_from(["NaN", "7", "2024-02-29", "\ud800", "", "pro"]),
)
ALL_KINDS = [TableColumn("n", "number"), TableColumn("t", "text"), TableColumn("at", "date")]
WILD_ROWS = st.one_of(
    st.lists(WILD, min_size=3, max_size=3).map(json.dumps),
    st.fixed_dictionaries({"n": WILD, "t": WILD, "at": WILD}).map(json.dumps),
    st.tuples(st.floats(), st.text(), st.dates()).map(lambda row: json.dumps([*row[:2], str(row[2])])),
    st.sampled_from(["", "[", "7", "[1, 2]", "[1],[2]", "null"]),
)


@given(rows=st.lists(WILD_ROWS, max_size=8), times=st.sampled_from([1, 8]), count=st.booleans())
def test_read_by_columns_rows_say_what_each_says_alone(rows, times, count):
    together, faults = columns_of([row.encode() for row in rows * times], ALL_KINDS, booleans_count=count)
    alone: list[list[Any]] = []
    told_alone = {}
    for place, row in enumerate(rows * times):
        try:
            alone.append(values_of(row, ALL_KINDS, booleans_count=count))
        except RowInvalid as fault:
            alone.append([None] * 3)
            told_alone[place] = str(fault)
    assert faults == told_alone
    told = [[None if value != value else value for value in column] for column in together]
    assert told == [[values[at] for values in alone] for at in range(3)]


def test_rare_texts_have_no_flag_and_the_order_of_the_rows_does_not_matter():
    kinds = [{"name": "city", "kind": "text"}]
    rows = [[f"city-{number}"] for number in range(100) for _ in range(1 + number % 50)]
    table = fit(kinds, rows, choices=ColumnChoices(categories=False)).whole
    assert table.columns == fit(kinds, rows[::-1], choices=ColumnChoices(categories=False)).whole.columns
    assert table.width == 33
    (known,) = table.columns[0].encoders
    assert isinstance(known, Known)
    assert "city-49" in known.texts
    assert "city-0" not in known.texts


CITIES = [[f"city-{number % 200}"] for number in range(2_000)]
IS_LARGE = [float(number % 200 >= 100) for number in range(2_000)]


def test_a_category_of_any_number_of_texts_is_told_by_what_the_target_was_with_it():
    table = fit([{"name": "city", "kind": "text"}], CITIES, IS_LARGE).whole
    assert encoders(table) == [Known, Rates]
    large, small, unknown, missing = table.matrix([["city-150"], ["city-50"], ["Paris"], [None]])[:, -2]
    assert large > unknown > small
    assert unknown == missing == 0.0, "the mean of all rows"


def test_a_training_row_is_shown_what_was_learnt_without_it():
    draw = np.random.default_rng(0)
    rows = [[f"id-{number}"] for number in draw.integers(0, 400, 1_200)]
    by_chance = [float(flip) for flip in draw.integers(0, 2, 1_200)]
    found = fit([{"name": "id", "kind": "text"}], rows, by_chance)
    own = found.whole.matrix(rows)[:, -2]
    shown = found.training_matrix(rows, 0)[:, -2]
    assert np.corrcoef(own, by_chance)[0, 1] > 0.3, "it holds each row's own target"
    assert abs(np.corrcoef(shown, by_chance)[0, 1]) < 0.15, "and what is learnt from does not"
    halves = [found.training_matrix(rows[:501], 0), found.training_matrix(rows[501:], 501)]
    assert np.array_equal(np.concatenate(halves)[:, -2], shown), "whatever the batches"
    assert len(found.without) == FOLDS


WORDS = ["the", "a", "of", "and", "works", "broken", "screen", "battery", "box", "late", "early", "colour"]


def _reviews(count: int) -> tuple[list[list[str]], list[float]]:
    draw = np.random.default_rng(1)
    rows, bad = [], []
    for _ in range(count):
        words = list(draw.choice(WORDS, 8))
        rows.append([" ".join(words)])
        bad.append(float("broken" in words))
    return rows, bad


def test_free_text_is_read_and_not_thrown_away():
    rows, bad = _reviews(600)
    found = fit([{"name": "review", "kind": "text"}], rows, bad)
    assert encoders(found.whole) == [Words]
    told = found.whole.matrix([["it came BROKEN, sadly"], ["works well"], [None], [""]])[:, 0]
    assert told[0] > told[1]
    assert told[2] == told[3], "a missing text says nothing"
    unseen, truth = _reviews(900)
    right = (found.whole.matrix(unseen[600:])[:, 0] > 0) == (np.array(truth[600:]) > 0)
    assert right.mean() > 0.95


def test_each_kind_of_column_can_be_switched_off():
    rows, bad = _reviews(200)
    text = [{"name": "review", "kind": "text"}]
    assert encoders(fit(text, rows, bad, ColumnChoices(texts=False)).whole) == [Known, Rates]
    city = [{"name": "city", "kind": "text"}]
    assert encoders(fit(city, CITIES, IS_LARGE, ColumnChoices(categories=False)).whole) == [Known]
    when = [{"name": "at", "kind": "date"}]
    assert encoders(fit(when, [[0.0], [1.0]], None, ColumnChoices(dates=False)).whole) == []
    assert encoders(fit(when, [[0.0], [1.0]]).whole) == [Moment]


@pytest.mark.parametrize(
    ("kind", "text", "moment"),
    [
        ("date", "2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        ("timestamp", "2024-02-29T12:30:00", datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
        ("timestamp", "2024-02-29 12:30:00.5", datetime(2024, 2, 29, 12, 30, 0, 500_000, tzinfo=UTC)),
        ("timestamptz", "2024-02-29T14:30:00+02:00", datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
        ("timestamptz", "2024-02-29 12:30:00+00", datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
    ],
)
def test_a_date_or_time_is_read_as_postgresql_and_duckdb_write_it(kind, text, moment):
    assert values_of(json.dumps([text]), [TableColumn("at", kind)]) == [moment.timestamp()]


@pytest.mark.parametrize(
    "text",
    [
        "infinity",
        "-infinity",
        "0044-03-15 BC",
        "0044-03-15 (BC)",
        "10000-01-01",
        "294247-01-10T04:00:54.775807",
    ],
)
def test_what_has_no_place_in_our_calendar_is_a_missing_date(text):
    assert values_of(json.dumps([text]), [TableColumn("at", "date")]) == [None]


LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("9999-12-31T23:59:59+00:00", LAST),
        ("10000-01-01T05:29:59+05:30", LAST),  # PostgreSQL's and DuckDB's, where it is later
        ("10000-01-01 05:29:59+05:30", LAST),
        ("9999-12-31T23:59:59-05:00", None),
        ("10000-01-01T05:30:00+05:30", None),
        ("0001-01-01T00:00:00+00:00", FIRST),
        ("0001-12-31T19:03:58-04:56:02 BC", FIRST),
        ("0001-12-31 (BC) 19:03:58-04:56:02", FIRST),
        ("0001-01-01T00:00:00+05:30", None),
        ("0001-12-31T19:03:57-04:56:02 BC", None),
        ("0001-12-31", datetime(1, 12, 31, tzinfo=UTC)),
    ],
)
def test_at_both_ends_of_the_calendar_a_moment_is_the_same_in_every_time_zone(text, moment):
    found = values_of(json.dumps([text]), [TableColumn("at", "timestamptz")])
    assert found == [moment and moment.timestamp()]


@pytest.mark.parametrize("text", ["0001-13-31 BC", "10000-01-01 noon", "10000-02-30"])
def test_beside_the_calendar_rubbish_is_rubbish_too(text):
    with pytest.raises(RowInvalid, match=r"in column 'at' is not a timestamptz"):
        values_of(json.dumps([text]), [TableColumn("at", "timestamptz")])


@pytest.mark.parametrize("row", ['["soon"]', '["2024-13-01"]', "[20240229]", "[true]", '[""]'])
def test_a_date_of_rubbish_says_what_a_date_is(row):
    with pytest.raises(RowInvalid, match=r"in column 'at' is not a date such as 2024-01-31"):
        values_of(row, [TableColumn("at", "date")])


def test_a_moment_is_told_by_weekday_time_of_day_and_season():
    table = Table([TableColumn("at", "timestamptz", (Moment(),))])
    days = [datetime(2024, 1, day, hour, tzinfo=UTC).timestamp() for day, hour in ((1, 6), (7, 18))]
    monday, sunday = table.matrix([[day] for day in days])
    assert monday[5:12].tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert sunday[5:12].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert monday[3] == pytest.approx(1, abs=1e-4), "six in the morning is a quarter of the circle"
    assert sunday[3] == pytest.approx(-1, abs=1e-4)


def test_a_table_too_wide_for_memory_is_refused():
    kinds = [{"name": f"c{number}", "kind": "number"} for number in range(3000)]
    with pytest.raises(ValueError, match="4096"):
        fit(kinds, [])


def test_what_was_learnt_comes_back_from_its_text():
    rows, bad = _reviews(200)
    kinds = [{"name": "review", "kind": "text"}, {"name": "city", "kind": "text"}, *KINDS]
    kinds.append({"name": "at", "kind": "date"})
    both = [[*review, *city, 1.0, "pro", None, 5.0] for review, city in zip(rows, CITIES, strict=False)]
    table = fit(kinds, both, bad).whole
    again = Table.from_json(table.as_json())
    assert np.allclose(again.matrix(both), table.matrix(both), atol=1e-2), "weights are stored in float16"
    assert again.as_json() == Table.from_json(again.as_json()).as_json()


def test_columns_of_files_without_encoders_are_read_as_they_were_meant():
    old = [
        {"name": "age", "kind": "number", "mean": 30.0, "scale": 10.0, "texts": []},
        {"name": "plan", "kind": "text", "mean": 0.0, "scale": 1.0, "texts": ["free", "pro"]},
        {"name": "member", "kind": "boolean", "mean": 0.0, "scale": 1.0, "texts": []},
    ]
    numbers, _ = Table.from_json(json.dumps(old)).numbers([b'[40, "pro", true]', b"[null, null, null]"])
    assert numbers.tolist() == [[1, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0, 1]]


@pytest.mark.parametrize(
    "encoder",
    [
        {"encoder": "pickle"},
        {"encoder": "scaled", "mean": 0.0, "scale": 0.0},
        {"encoder": "known", "texts": [1]},
        {"encoder": "rates", "texts": ["a"], "rates": "AAAA"},
        {"encoder": "words", "words": 2, "characters": [0, 0], "buckets": 1 << 40},
        {
            "encoder": "words",
            "words": 2,
            "characters": [0, 0],
            "buckets": 16,
            "idf": "AA==",
            "weights": "",
            "bias": "",
        },
    ],
)
def test_damaged_encoders_are_refused(encoder):
    with pytest.raises((ValueError, KeyError, TypeError)):
        Table.from_json(json.dumps([{"name": "x", "kind": "number", "encoders": [encoder]}]))


@given(st.lists(st.none() | st.floats(-1e30, 1e30), min_size=1, max_size=30))
def test_whatever_the_numbers_are_what_a_model_sees_is_finite(values):
    table = fit(KINDS[:1], [[value] for value in values]).whole
    numbers, faults = table.numbers([json.dumps([value]).encode() for value in [*values, 1e300, -1e300]])
    assert not faults
    assert np.isfinite(numbers).all()


def test_rows_are_read_as_json_reads_them_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [TableColumn("a", "number"), TableColumn("b", "text"), TableColumn("c", "boolean")]
    plain = [b'{"a": -2.5e3, "b": "x\\u00e9\xc3\xa9", "c": true, "d": [[], {}]}', b'[1, "\\n", null]']
    odd = [
        b"",
        b" ",
        b' [1, "", null]',
        b"[1, null, null] \n",
        b"[1,null,null]x",
        b"[01, null, null]",
        b"nul",
    ]
    odd += [b"[NaN, null, false]", b"[-Infinity, null, false]", b"[1e400, null, false]", b"[" * 100_000]
    odd += ["[1, null, null]".encode(coding) for coding in ("utf-8-sig", "utf-16", "utf-32-le")]
    odd += [b'[1, "\xed\xa0\x80", null]', b'[1, "\xff", null]']
    random = Random(3)
    for _ in range(3000):
        mutated = bytearray(random.choice(plain))
        for _ in range(random.randint(1, 3)):
            mutated[random.randrange(len(mutated))] = random.choice(b' \n[]{},:"\\0129e-+.ntf\x00\xc3\xff')
        odd.append(bytes(mutated))
    rows: list[bytes | str] = [*plain, *odd, plain[0].decode(), "\ufeff[1, null, null]"]

    def told(row: bytes | str) -> object:
        try:
            return repr(values_of(row, columns))
        except RowInvalid as fault:
            return str(fault)

    found = [told(row) for row in rows]
    monkeypatch.setattr(table, "_parsed", json.loads)
    assert found == [told(row) for row in rows]
    assert len(set(found)) > 100


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1.0), (-1.7e308, 3.0), (1e300, 1e-300), (0.3, 7.0)])
def test_many_numbers_become_what_each_becomes_alone(mean: float, scale: float) -> None:
    random = Random(5)
    odd = [None, True, False, 0.0, -0.0, 5e-324, 1.7e308, -1.7e308, 10**18 + 1]
    values = [random.choice([*odd, random.gauss(0, 1), random.gauss(0, 1e300)]) for _ in range(500)]
    encoder = Scaled(mean, scale)
    together, alone = np.zeros((500, 1), np.float32), np.zeros((500, 1), np.float32)
    encoder.write(together, values)
    for row, value in enumerate(values):
        encoder.write(alone[row : row + 1], [value])
    np.testing.assert_array_equal(together, alone)
