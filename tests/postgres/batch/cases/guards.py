"""Calls that are reached for some rows only, and would raise for others."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

SCAN = ("Seq Scan",)
GOOD = "path NOT LIKE 'bad%'"

CASES = [
    Case("a call that raises", "SELECT label(path) FROM dirty", None, SCAN),
    Case("a filter guards the select list", f"SELECT label(path) FROM dirty WHERE {GOOD}", 7, SCAN),
    Case(
        "an earlier condition guards a later one",
        f"SELECT id FROM dirty WHERE {GOOD} AND label(path) > 'A'",
        7,
        SCAN,
    ),
    Case(
        "CASE guards its result",
        f"SELECT CASE WHEN {GOOD} THEN label(path) ELSE 'bad' END FROM dirty",
        7,
        SCAN,
    ),
    Case(
        "CASE guards its ELSE",
        "SELECT CASE WHEN path LIKE 'bad%' THEN 'bad' ELSE label(path) END FROM dirty",
        7,
        SCAN,
    ),
    Case(
        "CASE with an operand",
        "SELECT CASE divisor WHEN 5 THEN 'five' WHEN 6 THEN label('six') ELSE '?' END FROM dirty",
        1,
        SCAN,
    ),
    Case(
        "CASE of a call",
        f"SELECT CASE label(path) WHEN 'PA6' THEN 1 ELSE 0 END FROM dirty WHERE {GOOD}",
        7,
        SCAN,
    ),
    Case(
        "CASE with a call in its condition and one in its result",
        "SELECT CASE WHEN is_food(path) THEN label(path) ELSE 'no' END FROM items",
        7 + 5,
        ("Custom Scan", *SCAN),
    ),
    Case(
        "CASE whose second condition is a call",
        "SELECT CASE WHEN path LIKE 'bad%' THEN 0 WHEN label(path) = 'PA6' THEN 1 ELSE 2 END FROM dirty",
        7,
        SCAN,
    ),
    Case(
        "CASE whose guard would divide by zero elsewhere",
        "SELECT CASE WHEN divisor = 0 THEN -1 WHEN 100 / divisor > 9 THEN score(divisor) ELSE 0 END"
        " FROM dirty",
        10,
        SCAN,
    ),
    Case(
        "CASE within CASE",
        f"SELECT CASE WHEN divisor > 3 THEN CASE WHEN {GOOD} THEN label(path) END ELSE 'low' END FROM dirty",
        7,
        SCAN,
    ),
    Case(
        "CASE guards the argument",
        f"SELECT label(CASE WHEN {GOOD} THEN path END) FROM dirty",
        7,
        SCAN,
    ),
    Case(
        "COALESCE",
        "SELECT coalesce(CASE WHEN id % 2 = 0 THEN 'even' END, label('odd' || id % 3)) FROM items",
        3,
        SCAN,
    ),
    Case(
        "COALESCE of a call and another",
        "SELECT coalesce(match(path, 1)::text, label(path)) FROM items",
        7 + 1,
        ("Custom Scan", *SCAN),
    ),
    Case("AND in the select list", f"SELECT {GOOD} AND label(path) = 'PA6' FROM dirty", 7, SCAN),
    Case("AND after NULL goes on", "SELECT flag AND is_food(path) FROM items", 7, SCAN),
    Case("OR in the select list", "SELECT path LIKE 'bad%' OR label(path) = 'PA6' FROM dirty", 7, SCAN),
    Case("OR in the filter", "SELECT id FROM dirty WHERE path LIKE 'bad%' OR label(path) = 'PA6'", 7, SCAN),
    Case(
        "OR of two calls",
        "SELECT id FROM items WHERE is_food(path) OR label(path) = 'PA6'",
        9,
        ("Custom Scan", *SCAN),
    ),
    Case("NOT of a call", "SELECT id FROM items WHERE NOT is_food(path)", 7, SCAN),
    Case(
        "a division guarded by a call",
        "SELECT id, 10 / divisor FROM dirty WHERE score(divisor) > 1",
        16 + 20,
        SCAN,
    ),
    Case(
        "a division in the select list, guarded by the filter",
        "SELECT 10 / divisor, label(path) FROM dirty WHERE divisor > 0 AND id < 20",
        7,
        SCAN,
    ),
    Case(
        "a division behind a call in the filter",
        "SELECT id FROM dirty WHERE score(divisor) > 1 AND pg_temp.tenth(divisor) > 2",
        16 + 20,
        SCAN,
        before=(
            "CREATE FUNCTION pg_temp.tenth(int) RETURNS int STABLE COST 100000 LANGUAGE plpgsql"
            " AS 'BEGIN RETURN 10 / $1; END'",
        ),
    ),
    Case("NULLIF", "SELECT nullif(label(path), 'PA6') FROM items", 7, SCAN),
    Case("GREATEST of calls", "SELECT greatest(score(grp), score(id % 2)) FROM items", 7, SCAN),
    Case(
        "a row comparison's first column",
        "SELECT id FROM items WHERE (label(path), id) > ('PA6', 9)",
        7,
        SCAN,
    ),
    Case("IS DISTINCT FROM", "SELECT id FROM items WHERE label(path) IS DISTINCT FROM 'PA6'", 7, SCAN),
    Case("a row of calls", "SELECT ROW(label(path), score(grp)) FROM items", 12, SCAN),
    Case(
        "a constructed array of calls",
        "SELECT ARRAY[label(path), 'x', label(path || 'y')] FROM items",
        14,
        SCAN,
    ),
    Case(
        "a subscript of a constant array",
        "SELECT (ARRAY['a', 'b', 'c'])[length(label(path))] FROM items",
        None,
        (),
        singles=200,
    ),
    Case("a cast of a call", "SELECT score(grp)::text || 'x', label(path)::varchar(2) FROM items", 12, SCAN),
    Case("LIMIT stops before the row that raises", "SELECT id, label(path) FROM dirty LIMIT 24", 7, SCAN),
    Case(
        "LIMIT is satisfied in front of the row that raises",
        "SELECT id FROM dirty WHERE label(path) > 'A' LIMIT 18",
        None,
        SCAN,
    ),
    Case(
        "LIMIT reaches the row that raises",
        "SELECT id FROM dirty WHERE label(path) > 'A' LIMIT 30",
        None,
        SCAN,
    ),
    Case(
        "LIMIT stops before an argument that raises",
        "SELECT score(100 / (id - 30)) FROM items WHERE is_food(path) LIMIT 3",
        None,
        ("Custom Scan", *SCAN),
    ),
    Case(
        "LIMIT stops before an argument of the filter raises",
        "SELECT id FROM items WHERE score(100 / (id - 30)) < 0 LIMIT 3",
        None,
        SCAN,
    ),
    Case(
        "LIMIT stops before the cheap filter raises",
        "SELECT id FROM items WHERE 100 / (id - 30) < 0 AND is_food(path) LIMIT 3",
        None,
        SCAN,
    ),
    Case(
        "EXISTS stops before the row that raises",
        "SELECT EXISTS (SELECT 1 FROM dirty WHERE label(path) = 'PA6')",
        None,
        SCAN,
    ),
    Case(
        "a call behind another call that would raise",
        "SELECT id FROM dirty WHERE score(divisor) > 30 AND label(path) > 'A' LIMIT 2",
        None,
        ("Custom Scan", *SCAN),
    ),
]
