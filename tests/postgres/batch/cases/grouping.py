"""Aggregates, grouping sets, windows, DISTINCT, ORDER BY, LIMIT."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

SCAN = ("Seq Scan",)
NO_INDEX = tuple(f"SET LOCAL enable_{kind} = off" for kind in ("indexscan", "indexonlyscan", "bitmapscan"))
NO_INDEX = (*NO_INDEX, "SET LOCAL enable_incremental_sort = off")
HASHED = ("SET LOCAL enable_sort = off", *NO_INDEX)
SORTED = ("SET LOCAL enable_hashagg = off", *NO_INDEX)

CASES = [
    Case("grouped by a call", "SELECT label(path), count(*) FROM items GROUP BY 1", 7, SCAN),
    Case(
        "grouped by a call, sorted",
        "SELECT label(path), count(*) FROM items GROUP BY 1",
        7,
        SCAN,
        before=SORTED,
    ),
    Case(
        "the query this is about",
        "SELECT label(path) AS name, count(*) FROM items WHERE grp > 2 GROUP BY name ORDER BY"
        " count(*) DESC, name",
        7,
        SCAN,
        ordered=True,
    ),
    Case("an aggregate of a call", "SELECT max(label(path)) FROM items", 7, SCAN),
    Case(
        "an aggregate of a call per group",
        "SELECT grp, avg(score(id)) FROM items GROUP BY grp",
        200,
        SCAN,
        before=HASHED,
    ),
    Case(
        "an aggregate of a call of a call",
        "SELECT sum(score(match(path, 1))) FROM items",
        7 + 7,
        ("Custom Scan", *SCAN),
    ),
    Case(
        "a sorted aggregate's call",
        "SELECT grp, avg(score(id)) FROM items GROUP BY grp",
        None,
        ("Sort",),
        before=SORTED,
    ),
    Case("a call of an aggregate", "SELECT label(max(path)) FROM items", 1, ("Aggregate",)),
    Case(
        "a call of an aggregate per group",
        "SELECT grp, label(max(path)) FROM items GROUP BY grp",
        1,
        ("Aggregate",),
    ),
    Case(
        "a call of an aggregate of a call",
        "SELECT label(max(label(path))) FROM items",
        8,
        ("Aggregate", *SCAN),
    ),
    Case(
        "a call in HAVING",
        "SELECT grp FROM items GROUP BY grp HAVING score(count(*)) > 3",
        1,
        ("Aggregate",),
    ),
    Case(
        "a call of an aggregate of calls in HAVING",
        "SELECT grp FROM items GROUP BY grp HAVING max(label(path)) = 'PA6' AND count(*) > 1",
        7,
        SCAN,
        before=HASHED,
    ),
    Case(
        "an aggregate's FILTER with a call",
        "SELECT count(*) FILTER (WHERE is_food(path)) FROM items",
        7,
        SCAN,
    ),
    Case(
        "FILTER guards an aggregate's argument",
        "SELECT sum(score(id)) FILTER (WHERE id <= 10) FROM items",
        10,
        SCAN,
    ),
    Case(
        "FILTER guards a call that would raise",
        "SELECT max(label(path)) FILTER (WHERE path NOT LIKE 'bad%') FROM dirty",
        7,
        SCAN,
    ),
    Case(
        "an aggregate that orders by a call",
        "SELECT array_agg(id ORDER BY label(path), id) FROM items WHERE id < 9",
        None,
        SCAN,
    ),
    Case("a distinct aggregate of a call", "SELECT count(DISTINCT label(path)) FROM items", 7, SCAN),
    Case("two aggregates of one call", "SELECT min(label(path)), max(label(path)) FROM items", 7, SCAN),
    Case(
        "an ordered-set aggregate of a call",
        "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY score(grp)) FROM items",
        5,
        SCAN,
    ),
    Case(
        "GROUPING SETS",
        "SELECT grp, label(path), count(*) FROM items GROUP BY GROUPING SETS ((grp), (label(path)), ())",
        7,
        SCAN,
    ),
    Case(
        "ROLLUP over a call, an aggregate of another",
        "SELECT label(path), grp, sum(score(id)), GROUPING(grp) FROM items GROUP BY ROLLUP (1, 2)",
        None,
        ("Sort", *SCAN),
        before=SORTED,
    ),
    Case(
        "a call over grouping sets",
        "SELECT grp, score(grp), count(*) FROM items GROUP BY CUBE (grp, flag)",
        None,
        ("Aggregate",),
    ),
    Case("DISTINCT calls", "SELECT DISTINCT label(path) FROM items", 7, SCAN),
    Case(
        "DISTINCT ON a call",
        "SELECT DISTINCT ON (label(path)) label(path), id FROM items ORDER BY 1, 2",
        7,
        SCAN,
        ordered=True,
    ),
    Case("ordered by a call", "SELECT id FROM items ORDER BY label(path), id", 7, SCAN, ordered=True),
    Case(
        "ordered by a call that is shown",
        "SELECT label(path), id FROM items ORDER BY 1 DESC, 2",
        7,
        SCAN,
        ordered=True,
    ),
    Case(
        "ordered by a call, limited",
        "SELECT id FROM items ORDER BY label(path), id LIMIT 5",
        7,
        SCAN,
        ordered=True,
    ),
    Case("LIMIT sends as many", "SELECT id, label(path) FROM items LIMIT 3", 3, SCAN),
    Case(
        "LIMIT sends as many, though equal ones are sent once",
        "SELECT label('x' || id / 2) FROM items LIMIT 3",
        2,
        SCAN,
    ),
    Case("LIMIT and OFFSET", "SELECT id, label(path) FROM items OFFSET 2 LIMIT 3", 5, SCAN),
    Case("LIMIT zero", "SELECT label(path) FROM items LIMIT 0", 0, SCAN),
    Case("LIMIT NULL", "SELECT score(id) FROM items LIMIT NULL", None, SCAN),
    Case("LIMIT beyond the end", "SELECT score(id) FROM items LIMIT 1000", 200, SCAN),
    Case(
        "LIMIT of a large number",
        "SELECT score(id) FROM big LIMIT 4500",
        4500,
        SCAN,
    ),
    Case("OFFSET alone", "SELECT label(path) FROM items OFFSET 190", 7, SCAN),
    Case(
        "LIMIT over a sort that comes first",
        "SELECT id, score(id) FROM items ORDER BY price, id LIMIT 3",
        3,
        ("Result",),
        ordered=True,
    ),
    Case(
        "LIMIT from a subquery",
        "SELECT score(id) FROM items LIMIT (SELECT 4)",
        4,
        SCAN,
    ),
    Case(
        "LIMIT WITH TIES",
        "SELECT grp, score(grp) FROM items ORDER BY grp FETCH FIRST 3 ROWS WITH TIES",
        1 + 5,
        ("Result",),
        ordered=True,
        before=NO_INDEX,
    ),
    Case(
        "LIMIT over a filter by a call",
        "SELECT id FROM items WHERE is_food(path) LIMIT 2",
        7,
        SCAN,
    ),
    Case(
        "LIMIT over a filter by a call, and a call of the survivors",
        "SELECT score(id) FROM items WHERE is_food(path) LIMIT 2",
        7 + 2,
        ("Custom Scan", *SCAN),
    ),
    Case(
        "LIMIT over a hidden subquery",
        "SELECT * FROM (SELECT label(path) AS n, id FROM items OFFSET 0) AS s LIMIT 4",
        4,
        SCAN,
    ),
    Case(
        "LIMIT over a union",
        "SELECT score(id) FROM items UNION ALL SELECT score(grp) FROM users LIMIT 6",
        6,
        ("Append",),
    ),
    Case(
        "a window over a call",
        "SELECT id, rank() OVER (ORDER BY label(path)) FROM items",
        7,
        SCAN,
    ),
    Case(
        "a window function of a call",
        "SELECT id, lag(label(path)) OVER (ORDER BY id) FROM items",
        7,
        ("Sort",),
        before=NO_INDEX,
    ),
    Case(
        "an aggregate of a call as a window",
        "SELECT id, sum(score(grp)) OVER (PARTITION BY grp ORDER BY id) FROM items",
        None,
        ("Sort",),
        before=NO_INDEX,
    ),
    Case(
        "a window's FILTER",
        "SELECT id, count(*) FILTER (WHERE is_food(path)) OVER (ORDER BY id) FROM items",
        7,
        ("Sort",),
        before=NO_INDEX,
    ),
    Case(
        "a call of a window function",
        "SELECT id, score(row_number() OVER (ORDER BY id)) FROM items WHERE id < 20",
        19,
        ("WindowAgg",),
        before=NO_INDEX,
    ),
    Case(
        "partitioned by a call",
        "SELECT id, row_number() OVER (PARTITION BY label(path) ORDER BY id) FROM items",
        7,
        SCAN,
        before=NO_INDEX,
    ),
    Case(
        "the first two of each window, labelled",
        "SELECT * FROM (SELECT id, grp, label(path), row_number() OVER (PARTITION BY grp ORDER BY"
        " id) AS n FROM items)"
        " AS s WHERE n <= 2",
        None,
        ("WindowAgg",),
        before=NO_INDEX,
    ),
    Case(
        "two windows and a call",
        "SELECT id, rank() OVER (ORDER BY grp), sum(score(grp)) OVER (ORDER BY id), label(path) FROM items",
        None,
        ("WindowAgg", "Sort"),
        before=NO_INDEX,
    ),
]
