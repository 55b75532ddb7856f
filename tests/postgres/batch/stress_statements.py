"""Statements whose answers are known, for the stress test: pure, what to run and what must come of it.

The model answers `label_of(text)`, so any wrong, missing or doubled row shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.models import label_of

__all__ = ["FUNCTION", "KINDS", "SCHEMA", "Statement", "random_statement"]

FUNCTION = "udf_stress"
ROWS = 3_000
DISTINCT = 2_400
SCHEMA = f"""
    CREATE TABLE texts AS SELECT i AS id, 'text ' || i % {DISTINCT} AS t FROM generate_series(1, {ROWS}) AS i;
    ALTER TABLE texts ADD PRIMARY KEY (id);
    CREATE FUNCTION caught(low int, high int) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        found bigint := 0;
        answer text;
    BEGIN
        FOR turn IN 1 .. 3 LOOP
            BEGIN
                FOR answer IN SELECT {FUNCTION}(t) FROM texts WHERE id BETWEEN low AND high LOOP
                    found := found + length(answer);
                END LOOP;
                PERFORM 1 / (turn - 2);
            EXCEPTION WHEN division_by_zero THEN
                found := found + 1000000;  -- what this turn found is kept: variables do not roll back
            END;
        END LOOP;
        RETURN found;
    END $$;
    VACUUM ANALYZE texts"""


@dataclass(frozen=True)
class Statement:
    """What to send, in one transaction where it is more than one, and the sorted rows of all of it."""

    kind: str
    texts: tuple[str, ...]
    expected: list[tuple[Any, ...]]


def answer(number: int) -> str:
    return label_of(f"text {number % DISTINCT}")


def _grouped(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = f"SELECT {FUNCTION}(t), count(*) FROM texts WHERE id BETWEEN {low} AND {high} GROUP BY 1"
    return (text,), list(Counter(map(answer, range(low, high + 1))).items())


def _streamed(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = f"SELECT id, {FUNCTION}(t) FROM texts WHERE id BETWEEN {low} AND {high}"
    return (text,), [(n, answer(n)) for n in range(low, high + 1)]


def _limited(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = f"SELECT id, {FUNCTION}(t) FROM texts WHERE id >= {low} ORDER BY id LIMIT {high - low + 1}"
    return (text,), [(n, answer(n)) for n in range(low, high + 1)]


def _filtered(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = f"SELECT id FROM texts WHERE {FUNCTION}(t) = 'pizza' AND id BETWEEN {low} AND {high}"
    return (text,), [(n,) for n in range(low, high + 1) if answer(n) == "pizza"]


def _nested(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = f"SELECT id, {FUNCTION}({FUNCTION}(t)) FROM texts WHERE id BETWEEN {low} AND {high}"
    return (text,), [(n, label_of(answer(n))) for n in range(low, high + 1)]


def _tried(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = (
        "SELECT id, coalesce((tried).value, (tried).error) FROM ("
        f"SELECT id, ml_udf.try_predict('{FUNCTION}', t) AS tried FROM texts"
        f" WHERE id BETWEEN {low} AND {high} OFFSET 0) AS s"
    )
    return (text,), [(n, answer(n)) for n in range(low, high + 1)]


def _cursor(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    declare = (
        f"DECLARE c CURSOR FOR SELECT id, {FUNCTION}(t) FROM texts WHERE id BETWEEN {low} AND {high}"
        " ORDER BY id"
    )
    last = min(high, low + 3 * 70 - 1)
    return (declare, *["FETCH 70 FROM c"] * 3, "CLOSE c"), [(n, answer(n)) for n in range(low, last + 1)]


def _written(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    texts = (
        "CREATE TEMP TABLE written (id int, label text) ON COMMIT DROP",
        f"INSERT INTO written SELECT id, {FUNCTION}(t) FROM texts WHERE id BETWEEN {low} AND {high}",
        f"UPDATE written SET label = {FUNCTION}(label)",
        "SELECT id, label FROM written",
    )
    return texts, [(n, label_of(answer(n))) for n in range(low, high + 1)]


def _rescanned(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    text = (
        f"SELECT g, (SELECT count(*) FROM (SELECT 1 FROM texts WHERE id BETWEEN {low} AND {high} - g"
        f" AND {FUNCTION}(t) = 'sushi' LIMIT 9) AS s) FROM generate_series(0, 4) AS g"
    )
    labels = [answer(n) for n in range(low, high + 1)]
    return (text,), [(g, min(9, labels[: len(labels) - g].count("sushi"))) for g in range(5)]


def _caught(low: int, high: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    length = sum(len(answer(n)) for n in range(low, high + 1))
    return (f"SELECT caught({low}, {high})",), [(3 * length + 1_000_000,)]


Kind = Callable[[int, int], tuple[tuple[str, ...], list[tuple[Any, ...]]]]
KINDS: Sequence[Kind] = (
    _grouped,
    _streamed,
    _limited,
    _filtered,
    _nested,
    _tried,
    _cursor,
    _written,
    _rescanned,
    _caught,
)


def random_statement(source: random.Random) -> Statement:
    """One of the kinds over a random range of rows; none over no rows."""
    kind = source.choice(KINDS)
    low = source.randint(1, ROWS - 10)
    high = min(ROWS, low + int(2 ** source.uniform(3, 11)))
    texts, expected = kind(low, high)
    return Statement(kind.__name__.strip("_"), texts, sorted(expected))
