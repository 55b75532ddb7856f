"""Random queries with conditions on models and others, and the tables that they are over."""

from __future__ import annotations

import random

import duckdb

__all__ = ["SEEDS", "Queries", "make_tables"]

SEEDS = 500


def make_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Tables, views and macros; the functions `udf` and `udf2` are there already."""
    draw = random.Random(7)

    def maybe(value: object) -> object:
        return None if draw.random() < 0.15 else value

    con.execute("CREATE TABLE t (x VARCHAR, k INTEGER, z BIGINT, s VARCHAR, d INTEGER, day DATE, f DOUBLE)")
    con.execute("CREATE TABLE u (x VARCHAR, id INTEGER, flag INTEGER, name VARCHAR)")
    con.execute("CREATE TABLE w (id INTEGER, size INTEGER, s VARCHAR)")
    rows = [
        (
            maybe("x" * draw.randrange(1, 30) + str(n)),
            maybe(draw.randrange(5)),
            maybe(draw.randrange(3)),
            maybe(draw.choice(["1", "22", "soup", "a%", "ä"])),
            maybe(draw.randrange(12)),
            maybe(f"2026-0{draw.randrange(1, 9)}-01"),
            maybe(draw.random()),
        )
        for n in range(80)
    ]
    con.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    names = ["red", "green", "1"]
    others = [
        ("y" * (n % 7) + str(n), maybe(n % 9), maybe(n % 3), maybe(draw.choice(names))) for n in range(20)
    ]
    con.executemany("INSERT INTO u VALUES (?, ?, ?, ?)", others)
    con.executemany("INSERT INTO w VALUES (?, ?, ?)", [(maybe(n % 9), n % 4, "soup") for n in range(15)])
    con.execute("CREATE VIEW answers AS SELECT *, udf(x) AS food FROM t")
    con.execute("CREATE VIEW pairs AS SELECT t.x, t.k, u.flag FROM t JOIN u ON t.d = u.id")
    con.execute("CREATE MACRO is_a(value) AS udf(value) = 'a'")
    con.execute("CREATE MACRO twice(value) AS value * 2")


class Queries:
    """Random queries over the tables of `con`, with conditions on models and others."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def query(self) -> str:
        draw = self._draw
        shape = draw.choice(
            [self._single, self._single, self._joined, self._joined, self._derived, self._grouped]
        )
        query = shape()
        if draw.random() < 0.1:
            return f"SELECT count(*), min(k) FROM ({query}) AS whole"
        if draw.random() < 0.1:
            return f"{query} UNION ALL {query}"
        return query

    def _single(self) -> str:
        table = self._draw.choice(["t", "t AS a", "main.t", "answers"])
        prefix = {"t AS a": "a."}.get(table, "")
        where = self._condition(prefix, 3, asks_food=table == "answers")
        end = self._draw.choice(["", "", " ORDER BY ALL", " ORDER BY ALL LIMIT 7", " LIMIT 40"])
        return f"SELECT k, {self._draw.choice(['x', 'udf(x)', 'd, s'])} FROM {table} WHERE {where}{end}"

    def _joined(self) -> str:
        draw = self._draw
        kind = draw.choice(
            ["JOIN", "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]
        )
        on = "t.d = u.id" + draw.choice(
            ["", "", " AND u.flag < 2", " AND udf(t.x) = 'a'", " AND udf2(u.x) <> 'b'"]
        )
        second = draw.choice(
            ["", "", " JOIN w ON w.id = u.id", " LEFT JOIN w USING (id)", " JOIN w USING (id)"]
        )
        if kind in ("SEMI JOIN", "ANTI JOIN"):
            second = ""
        on = "t.d = u.id" if "ANTI" in kind else on
        where = self._condition("t.", 3)
        if (
            not second.startswith(" LEFT")
            and "SEMI" not in kind
            and "ANTI" not in kind
            and draw.random() < 0.6
        ):
            where += f" AND {self._other()}"
        if draw.random() < 0.3 and kind == "JOIN" and not second:
            return f"SELECT t.k, t.x FROM t, u WHERE t.d = u.id AND {where}"
        return f"SELECT t.k, t.s FROM t {kind} u ON {on}{second} WHERE {where}"

    def _derived(self) -> str:
        draw = self._draw
        inner = draw.choice(
            [
                "SELECT *, udf(x) AS food FROM t",
                f"SELECT *, udf(x) AS food FROM t WHERE {self._cheap('')}",
                "SELECT x, max(k) AS k, max(s) AS s, max(d) AS d, max(z) AS z, max(day) AS day, max(f) AS f, "
                "udf(x) AS food FROM t GROUP BY x",
                "SELECT t.*, udf(t.x) AS food FROM t JOIN u ON t.d = u.id",
                "SELECT *, row_number() OVER (ORDER BY x, k, z, s, d) AS n, udf(x) AS food FROM t",
            ]
        )
        where = self._condition("", 3, asks_food=True)
        if draw.random() < 0.5:
            materialized = draw.choice(["", "MATERIALIZED ", "NOT MATERIALIZED "])
            return f"WITH q AS {materialized}({inner}) SELECT k, food FROM q WHERE {where}"
        return f"SELECT k, s FROM ({inner}) AS q WHERE {where}"

    def _grouped(self) -> str:
        draw = self._draw
        if draw.random() < 0.3:
            where = self._condition("", 2)
            return (
                f"SELECT k, x FROM t WHERE {self._cheap('')} QUALIFY row_number() "
                f"OVER (PARTITION BY k ORDER BY x, s) <= {draw.randrange(1, 4)} AND {where}"
            )
        having = draw.choice(
            ["count(*) > 1", "max(k) = 2", "min(s) < 'b' OR udf(x) = 'a'", "x > 'xx'", "sum(k) > 3"]
        )
        where = self._cheap("")
        return f"SELECT x, count(*) AS n FROM t WHERE {where} GROUP BY x HAVING udf(x) <> 'c' AND {having}"

    def _condition(self, prefix: str, depth: int, *, asks_food: bool = False) -> str:
        draw = self._draw
        parts = [self._model(prefix, asks_food)]
        for _ in range(draw.randrange(1, 4)):
            roll = draw.random()
            if roll < 0.25 and depth > 0:
                parts.append(f"({self._condition(prefix, depth - 1, asks_food=asks_food)})")
            elif roll < 0.4:
                parts.append(self._model(prefix, asks_food))
            else:
                parts.append(self._cheap(prefix))
        draw.shuffle(parts)
        joined = draw.choice([" AND ", " AND ", " OR "]).join(parts)
        return f"NOT ({joined})" if depth < 3 and draw.random() < 0.15 else joined

    def _model(self, p: str, asks_food: bool) -> str:
        choices = [
            f"udf({p}x) = 'a'",
            f"udf2({p}x) IN ('a', 'b')",
            f"udf({p}x) IS NULL",
            f"udf({p}x) <> {p}s",
            f"NOT udf({p}x) LIKE 'b%'",
            f"is_a({p}x)",
            f"udf(udf2({p}x)) = 'b'",
            f"CASE WHEN {p}k = 1 THEN udf({p}x) END = 'a'",
        ]
        return self._draw.choice([*choices, "food = 'a'", "food IS NOT NULL"] if asks_food else choices)

    def _cheap(self, p: str) -> str:
        return self._draw.choice(
            [
                f"{p}k = 2",
                f"{p}k < {p}z",
                f"{p}k + {p}z = 3",
                f"twice({p}k) = 4",
                f"md5({p}s) LIKE '%a%'",
                f"{p}s IN ('1', 'soup', NULL)",
                f"{p}s = 'soup'",
                f"{p}s IS NOT NULL",
                f"{p}d BETWEEN 2 AND 6",
                f"({p}k = 1 OR {p}s = '22')",
                f"{p}day >= '2026-04-01'",
                f"{p}f < 0.5",
                f"{p}s::INTEGER > 5",
                f"{p}s = 22",
                f"10 // ({p}k - 1) > 3",
                f"{p}k IN (SELECT id FROM u WHERE flag = 1)",
                f"{p}d NOT IN (SELECT id FROM w)",
                f"EXISTS (SELECT 1 FROM u AS v WHERE v.id = {p}d AND v.name = 'red')",
                f"{p}k = (SELECT max(id) FROM w WHERE w.s = 'soup') - 6",
                f"length({p}s) > 1",
                f"coalesce({p}s, 'soup') = 'soup'",
                "random() >= 0",
            ]
        )

    def _other(self) -> str:
        return self._draw.choice(
            [
                "u.flag = 1",
                "u.name = 'red'",
                "u.id < t.k",
                "u.name::INTEGER = 1",
                "udf(u.x) = 'b'",
                "u.flag IS NULL",
            ]
        )
