"""INSERT, UPDATE, DELETE, MERGE, triggers, COPY, CREATE TABLE AS."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

SCAN = ("Seq Scan",)
NO_INDEX = ("SET LOCAL enable_indexscan = off", "SET LOCAL enable_bitmapscan = off")
OUT = "CREATE TEMP TABLE out (id int PRIMARY KEY, n text DEFAULT 'none') ON COMMIT DROP"
READ = ("SELECT * FROM out ORDER BY id",)
ITEMS = ("SELECT * FROM items ORDER BY id",)
TRIGGER = (
    OUT,
    "CREATE TEMP TABLE log (id int, old text, new text) ON COMMIT DROP",
    "CREATE FUNCTION pg_temp.note() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN INSERT INTO log VALUES (NEW.id, OLD.n, NEW.n); RETURN NEW; END$$",
    "CREATE TRIGGER noted BEFORE UPDATE ON out FOR EACH ROW EXECUTE FUNCTION pg_temp.note()",
    "INSERT INTO out SELECT id, path FROM items WHERE id < 20",
)


CASES = [
    Case("INSERT", "INSERT INTO out SELECT id, label(path) FROM items", 7, SCAN, before=(OUT,), after=READ),
    Case(
        "INSERT of volatile values beside a call",
        "INSERT INTO out SELECT nextval('pg_temp.s'), label(path) FROM items WHERE is_food(path)",
        None,
        ("Custom Scan", *SCAN),
        before=(OUT, "CREATE TEMP SEQUENCE s"),
        after=("SELECT count(*), max(id) FROM out", "SELECT last_value FROM s"),
    ),
    Case(
        "INSERT RETURNING another call",
        "INSERT INTO out SELECT id, label(path) FROM items WHERE id < 5 RETURNING score(id)",
        4,
        SCAN,
        singles=4,
        before=(OUT, *NO_INDEX),
        after=READ,
    ),
    Case(
        "INSERT ON CONFLICT",
        "INSERT INTO out SELECT id % 10, label(path) FROM items ON CONFLICT (id) DO NOTHING",
        7,
        SCAN,
        before=(OUT,),
        after=READ,
    ),
    Case("UPDATE", "UPDATE items SET path = label(path)", 7, SCAN, after=ITEMS),
    Case(
        "UPDATE where a call holds",
        "UPDATE items SET grp = 99 WHERE label(path) = 'PA6' AND is_food(path)",
        None,
        ("Custom Scan", *SCAN),
        after=ITEMS,
    ),
    Case(
        "UPDATE FROM a join",
        "UPDATE items SET path = label(path || name) FROM users WHERE items.grp = users.grp",
        None,
        ("Hash Join",),
        before=("SET LOCAL enable_nestloop = off", "SET LOCAL enable_mergejoin = off"),
        after=ITEMS,
    ),
    Case(
        "UPDATE of several columns from one row",
        "UPDATE items SET (path, grp) = (label(path), length(label(path)))",
        7,
        SCAN,
        after=ITEMS,
    ),
    Case(
        "UPDATE of several columns from a subquery",
        "UPDATE items SET (path, grp) = (SELECT label(items.path || name), 7 FROM users WHERE"
        " users.grp = items.grp)"
        " WHERE id < 20",
        None,
        ("Index Scan",),
        before=("SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
        after=ITEMS,
    ),
    Case("UPDATE RETURNING", "UPDATE items SET grp = 1 WHERE id < 4 RETURNING label(path)", 0, (), singles=3),
    Case(
        "UPDATE with a trigger",
        "UPDATE out SET n = label(n)",
        7,
        SCAN,
        before=TRIGGER,
        after=("TABLE log", *READ),
    ),
    Case("DELETE", "DELETE FROM items WHERE NOT is_food(path)", 7, SCAN, after=ITEMS),
    Case(
        "DELETE USING",
        "DELETE FROM items USING labels WHERE labels.name = label(path) AND cuisine = 'thai'",
        None,
        SCAN,
        before=("SET LOCAL enable_nestloop = off", "SET LOCAL enable_mergejoin = off"),
        after=ITEMS,
    ),
    Case(
        "MERGE over labelled rows",
        "MERGE INTO out USING (SELECT id, label(path) AS n FROM items OFFSET 0) AS s ON out.id = s.id"
        " WHEN MATCHED AND s.n = 'PA6' THEN DELETE WHEN MATCHED THEN UPDATE SET n = s.n"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.n)",
        7,
        ("Seq Scan",),
        before=(OUT, "INSERT INTO out SELECT generate_series(1, 50)", "ANALYZE out"),
        after=READ,
    ),
    Case(
        "MERGE with a call in an action",
        "MERGE INTO out USING items AS s ON out.id = s.id WHEN NOT MATCHED AND s.id < 5 THEN INSERT"
        " VALUES (s.id, label(s.path))",
        0,
        (),
        singles=4,
        before=(OUT,),
        after=READ,
    ),
    Case(
        "a data-modifying CTE that feeds a call",
        "WITH moved AS (DELETE FROM items WHERE id < 20 RETURNING *) SELECT id, label(path) FROM moved",
        7,
        ("CTE Scan",),
        after=ITEMS,
    ),
    Case(
        "a data-modifying CTE with a call",
        "WITH moved AS (UPDATE items SET path = label(path) WHERE id < 20 RETURNING id, path) SELECT"
        " * FROM moved",
        7,
        SCAN,
        before=NO_INDEX,
        after=ITEMS,
    ),
    Case(
        "CREATE TABLE AS",
        "CREATE TEMP TABLE made ON COMMIT DROP AS SELECT id, label(path) AS n FROM items",
        7,
        SCAN,
        after=(
            "SELECT * FROM made ORDER BY id",
            "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = 'made'::regclass",
        ),
        plan="SELECT id, label(path) AS n FROM items",
    ),
    Case(
        "COPY",
        "COPY (SELECT id, label(path) FROM items) TO PROGRAM 'cat > /dev/null'",
        7,
        SCAN,
        plan="SELECT id, label(path) FROM items",
    ),
    Case(
        "a materialized view",
        "CREATE MATERIALIZED VIEW made AS SELECT id, label(path) AS n FROM items",
        14,
        SCAN,
        after=("REFRESH MATERIALIZED VIEW made", "SELECT * FROM made ORDER BY id"),
        plan="SELECT id, label(path) AS n FROM items",
    ),
    Case(
        "volatile values in the select list",
        "SELECT nextval('pg_temp.s'), label(path) FROM items WHERE id < 20",
        7,
        SCAN,
        before=("CREATE TEMP SEQUENCE s", *NO_INDEX),
        ordered=True,
    ),
    Case(
        "volatile values under a limit",
        "SELECT nextval('pg_temp.s'), label(path) FROM items WHERE is_food(path) LIMIT 5",
        None,
        ("Custom Scan", *SCAN),
        before=("CREATE TEMP SEQUENCE s",),
        after=("SELECT last_value FROM s",),
    ),
    Case(
        "a locked row per returned row",
        "SELECT label(path) FROM items WHERE id < 20 LIMIT 2 FOR UPDATE",
        2,
        SCAN,
        before=NO_INDEX,
    ),
    Case(
        "FOR UPDATE with a call as the filter",
        "SELECT id FROM items WHERE label(path) = 'PA6' FOR UPDATE",
        7,
        SCAN,
    ),
]
