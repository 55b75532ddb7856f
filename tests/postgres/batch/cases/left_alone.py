"""Calls that stay row by row, because a batch could not be sure to mean the same."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

CASES = [
    Case("no table", "SELECT label('x')", 0, (), singles=1),
    Case("VALUES of calls", "SELECT * FROM (VALUES (label('a')), (label('b'))) AS v(n)", 0, (), singles=2),
    Case("an inserted row", "INSERT INTO users VALUES (99, label('a'))", 0, (), singles=1),
    Case(
        "a volatile argument",
        "SELECT id, label(path || (random() * 0)::int) FROM items WHERE id < 9",
        0,
        (),
        singles=8,
    ),
    Case(
        "a volatile guard",
        "SELECT CASE WHEN random() < 2 THEN label(path) END FROM items WHERE id < 9",
        0,
        (),
        singles=8,
    ),
    Case(
        "a guard with a subquery",
        "SELECT CASE WHEN (SELECT count(*) FROM users WHERE users.grp < items.grp) > 1 THEN"
        " label(path) END FROM items"
        " WHERE id < 9",
        0,
        (),
        singles=5,
    ),
    Case(
        "a condition of an outer join that is no key",
        "SELECT i.id FROM users AS u LEFT JOIN items AS i ON i.grp = u.grp AND label(path || name) > 'Q'",
        0,
        (),
        singles=200,
        before=("SET LOCAL enable_nestloop = off", "SET LOCAL enable_mergejoin = off"),
    ),
    Case(
        "the second column of a row comparison",
        "SELECT id FROM items WHERE (grp, label(path)) < (1, 'PA6')",
        0,
        (),
        singles=40,
    ),
    Case(
        "a subscript",
        "SELECT (ARRAY['a', 'b', 'c'])[length(label(path))] FROM items WHERE id < 9",
        0,
        (),
        singles=8,
    ),
    Case(
        "an index condition",
        "SELECT id FROM big WHERE id = length(label('x'))",
        None,
        (),
        singles=2,
        before=("SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
    ),
    Case(
        "volatile conditions in front of a limit",
        "SELECT id FROM items WHERE nextval('pg_temp.s') > 0 AND is_food(path) LIMIT 2",
        0,
        (),
        singles=2,
        before=("CREATE TEMP SEQUENCE s",),
        after=("SELECT last_value FROM s",),
    ),
    Case(
        "volatile conditions that see what the select list does",
        "SELECT nextval('pg_temp.s'), label(path) FROM items WHERE currval('pg_temp.s') < 5",
        0,
        (),
        singles=4,
        before=("CREATE TEMP SEQUENCE s", "SELECT nextval('pg_temp.s')"),
    ),
    Case(
        "volatile conditions behind a call that see what the select list does",
        "SELECT nextval('pg_temp.s'), label(path) FROM items WHERE is_food(path) AND pg_temp.seen() < 5",
        0,
        (),
        singles=None,
        before=(
            "CREATE TEMP SEQUENCE s",
            "SELECT nextval('pg_temp.s')",
            "CREATE FUNCTION pg_temp.seen() RETURNS int COST 100000 LANGUAGE plpgsql"
            " AS 'BEGIN RETURN currval(''pg_temp.s''); END'",
        ),
    ),
    Case(
        "locks below a limit",
        "SELECT label(path) FROM (SELECT * FROM items WHERE id < 20 OFFSET 0 FOR UPDATE) AS s WHERE"
        " is_food(path) LIMIT 2",
        0,
        (),
        singles=2 + 2,
    ),
    Case(
        "outputs of a subquery that assigns several columns",
        "UPDATE items SET (path, features) = (SELECT name, ARRAY[1.0] FROM users WHERE users.grp = items.grp)"
        " WHERE id < 4 AND label(path) > 'A'",
        None,
        ("Index Scan",),
        before=("SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
        after=("SELECT * FROM items ORDER BY id",),
    ),
    Case(
        "a function without a twin",
        "SELECT pg_temp.twinless(path) FROM items WHERE id < 9",
        0,
        (),
        before=(
            "CREATE FUNCTION pg_temp.twinless(text) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN"
            " RETURN $1; END'",
        ),
    ),
    Case(
        "MERGE actions, into which a simple subquery dissolves",
        "MERGE INTO users USING (SELECT id, label(path) AS n FROM items WHERE id < 9) AS s ON"
        " users.grp = s.id"
        " WHEN MATCHED THEN UPDATE SET name = s.n WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.n)",
        0,
        (),
        singles=8,
        after=("SELECT * FROM users ORDER BY grp",),
    ),
    Case(
        "a PL/pgSQL expression",
        "SELECT pg_temp.one('x')",
        0,
        (),
        singles=1,
        before=(
            "CREATE FUNCTION pg_temp.one(x text) RETURNS text LANGUAGE plpgsql AS"
            " 'DECLARE y text; BEGIN y := label(x); RETURN y; END'",
        ),
    ),
]
