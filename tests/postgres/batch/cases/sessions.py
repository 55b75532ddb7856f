"""Prepared statements, cursors, savepoints: what a session keeps between statements."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

SCAN = ("Seq Scan",)
NO_INDEX = ("SET LOCAL enable_indexscan = off", "SET LOCAL enable_bitmapscan = off")
OUT = "CREATE TEMP TABLE out (id int PRIMARY KEY, n text DEFAULT 'none') ON COMMIT DROP"
READ = ("SELECT * FROM out ORDER BY id",)
ITEMS = ("SELECT * FROM items ORDER BY id",)


def prepared(mode: str) -> tuple[str, ...]:
    return (
        f"SET LOCAL plan_cache_mode = {mode}",
        "DEALLOCATE ALL",
        "PREPARE p (int, int) AS SELECT id, label(path), score($2) FROM items WHERE id < $1 AND"
        " score(id) > $2",
    )


CASES = [
    Case(
        "a prepared statement, custom plan",
        "EXECUTE p (20, 5)",
        None,
        ("Custom Scan", *SCAN),
        before=(*prepared("force_custom_plan"), *NO_INDEX),
        after=("EXECUTE p (10, 3)", "EXECUTE p (200, 100)"),
    ),
    Case(
        "a prepared statement, generic plan",
        "EXECUTE p (20, 5)",
        None,
        ("Custom Scan", *SCAN),
        before=(*prepared("force_generic_plan"), *NO_INDEX),
        after=("EXECUTE p (10, 3)", "EXECUTE p (200, 100)"),
    ),
    Case(
        "a prepared LIMIT",
        "EXECUTE l (3)",
        3 + 8,
        SCAN,
        before=(
            "DEALLOCATE ALL",
            "PREPARE l (int) AS SELECT score(id) FROM items LIMIT $1",
            "SET LOCAL plan_cache_mode = force_generic_plan",
        ),
        after=("EXECUTE l (8)",),
    ),
    Case(
        "a cursor",
        "DECLARE c CURSOR FOR SELECT id, label(path) FROM items",
        7,
        SCAN,
        after=("FETCH 3 FROM c", "FETCH 2 FROM c", "MOVE 5 FROM c", "FETCH ALL FROM c", "FETCH 1 FROM c"),
        plan="SELECT id, label(path) FROM items",
        ordered=True,
    ),
    Case(
        "a cursor that is closed early",
        "DECLARE c CURSOR FOR SELECT id FROM dirty WHERE label(path) > 'A'",
        None,
        SCAN,
        after=("FETCH 10 FROM c", "CLOSE c"),
        plan="SELECT id FROM dirty WHERE label(path) > 'A'",
        ordered=True,
    ),
    Case(
        "a holdable cursor",
        "DECLARE c CURSOR WITH HOLD FOR SELECT id, label(path) FROM items",
        7,
        SCAN,
        after=("FETCH 3 FROM c", "COMMIT", "FETCH ALL FROM c", "CLOSE c"),
        plan="SELECT id, label(path) FROM items",
        ordered=True,
    ),
    Case(
        "a scrolling cursor over a join",
        "DECLARE c SCROLL CURSOR FOR SELECT id, label(path) FROM items JOIN users USING (grp) ORDER"
        " BY price, id",
        None,
        ("Hash Join",),
        after=("FETCH 5 FROM c", "FETCH BACKWARD 3 FROM c", "FETCH LAST FROM c", "FETCH FIRST FROM c"),
        plan="SELECT id, label(path) FROM items JOIN users USING (grp) ORDER BY price, id",
        ordered=True,
    ),
    Case(
        "a scrolling cursor over a scan stays row by row",
        "DECLARE c SCROLL CURSOR FOR SELECT id, label(path) FROM items",
        0,
        SCAN,
        singles=5 + 3,
        after=("FETCH 5 FROM c", "FETCH BACKWARD 3 FROM c"),
        plan="SELECT id, label(path) FROM items",
        ordered=True,
    ),
    Case(
        "WHERE CURRENT OF",
        "DECLARE c CURSOR FOR SELECT id, label(path) FROM items WHERE is_food(path)",
        None,
        ("Custom Scan", *SCAN),
        after=(
            "FETCH 3 FROM c",
            "UPDATE items SET grp = 1000 WHERE CURRENT OF c",
            "FETCH 4 FROM c",
            "DELETE FROM items WHERE CURRENT OF c",
            *ITEMS,
        ),
        plan="SELECT id, label(path) FROM items WHERE is_food(path)",
        ordered=True,
    ),
    Case(
        "WHERE CURRENT OF over partitions",
        "DECLARE c CURSOR FOR SELECT id, label(path) FROM parted",
        None,
        ("Append",),
        after=(
            "FETCH 40 FROM c",
            "UPDATE parted SET path = 'current' WHERE CURRENT OF c",
            "SELECT * FROM parted ORDER BY id",
        ),
        plan="SELECT id, label(path) FROM parted",
        ordered=True,
    ),
    Case(
        "WHERE CURRENT OF an index-only scan",
        "DECLARE c CURSOR FOR SELECT id, score(id) FROM big WHERE id < 20",
        None,
        ("Index Only Scan",),
        before=("SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
        after=("FETCH 3 FROM c", "DELETE FROM big WHERE CURRENT OF c", "SELECT id FROM big WHERE id < 20"),
        plan="SELECT id, score(id) FROM big WHERE id < 20",
        ordered=True,
    ),
    Case(
        "WHERE CURRENT OF a locking cursor",
        "DECLARE c CURSOR FOR SELECT id, label(path) FROM items FOR UPDATE",
        None,
        SCAN,
        after=("FETCH 3 FROM c", "DELETE FROM items WHERE CURRENT OF c", *ITEMS),
        plan="SELECT id, label(path) FROM items FOR UPDATE",
        ordered=True,
    ),
    Case(
        "a savepoint that is rolled back",
        "SELECT label(path) FROM dirty WHERE path LIKE 'path%'",
        7 + 7,
        SCAN,
        after=("SAVEPOINT s", "UPDATE items SET path = label(path)", "ROLLBACK TO s", *ITEMS),
    ),
    Case(
        "a function of queries in PL/pgSQL",
        "SELECT pg_temp.total()",
        None,
        (),
        before=(
            "CREATE FUNCTION pg_temp.total() RETURNS text LANGUAGE plpgsql AS $$ DECLARE r record; t"
            " text := ''; v text;"
            " BEGIN FOR r IN SELECT id, label(path) AS n FROM items LOOP EXIT WHEN r.id > 10; t := t"
            " || r.n; END LOOP;"
            " SELECT label(path) INTO v FROM items WHERE id = 3;"
            " BEGIN PERFORM label(path) FROM dirty; EXCEPTION WHEN invalid_text_representation THEN"
            " t := t || 'x'; END;"
            " RETURN t || v; END $$",
        ),
    ),
    Case(
        "a call within a trigger's query",
        "UPDATE out SET n = 'x' WHERE id < 4",
        None,
        (),
        before=(
            OUT,
            "CREATE FUNCTION pg_temp.relabel() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN NEW.n := (SELECT max(label(path)) FROM items WHERE items.id <= NEW.id); RETURN"
            " NEW; END$$",
            "CREATE TRIGGER relabelled BEFORE UPDATE ON out FOR EACH ROW EXECUTE FUNCTION pg_temp.relabel()",
            "INSERT INTO out SELECT id FROM items",
        ),
        after=READ,
    ),
    Case(
        "transition tables",
        "INSERT INTO out SELECT id, path FROM items WHERE id < 20",
        None,
        (),
        before=(
            OUT,
            "CREATE TEMP TABLE log (n text) ON COMMIT DROP",
            "CREATE FUNCTION pg_temp.note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO log SELECT label(n) FROM fresh; RETURN NULL; END$$",
            "CREATE TRIGGER noted AFTER INSERT ON out REFERENCING NEW TABLE AS fresh"
            " FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.note()",
        ),
        after=("TABLE log",),
    ),
]
