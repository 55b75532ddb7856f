"""What the triggers of a watch note: the batching module in memory, or each row by PL/pgSQL without it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer
from tests.postgres.scored import make_table
from tests.postgres.watched import INTO, WATCH, wait_until_fresh, worker, wrong_answers, wrong_scores

ROWS = "INSERT INTO foodlog (id, image_path) SELECT n, '/' || n FROM generate_series({}, {}) n"
NOTED = """
    SELECT size, ids FROM (SELECT watch, noted_at, size, ids FROM ml_udf._note
                           UNION ALL SELECT watch, noted_at, size, ids FROM ml_udf._new_note
                           UNION ALL SELECT watch, noted_at, size, ids FROM ml_udf._take_ring_notes()) AS n
    WHERE size > 0 AND watch IN (SELECT id FROM ml_udf._watch) ORDER BY noted_at, ids"""
# What a crash does to tables that are not logged.
CRASH = "TRUNCATE ml_udf._new_note, ml_udf._marked, ml_udf._rings"


def watched(engine: Engine, what: str = WATCH, rows: int = 0) -> None:
    make_table(engine, rows)
    engine.query(what + ")")


def asked_of(*runs: tuple[int, int]) -> list[str]:
    return sorted(f"/{n}" for first, last in runs for n in range(first, last + 1))


def noted(engine: Engine, sql: str = NOTED, *parameters: object) -> list[tuple[Any, ...]]:
    """What is noted, and stays so: what a statement takes of the rings is theirs again after a rollback."""
    if engine.connection.info.transaction_status != TransactionStatus.IDLE:
        return engine.query(sql, *parameters)
    with engine.connection.transaction(force_rollback=True):
        return engine.query(sql, *parameters)


def without_module(engine: Engine) -> None:
    """The functions as a database has them that was restored where the module is not."""
    engine.query(
        """CREATE OR REPLACE FUNCTION ml_udf._note_key(watch integer, key anyelement) RETURNS boolean
               LANGUAGE sql AS 'SELECT true';
           CREATE OR REPLACE FUNCTION ml_udf._note_change(watch integer, key_before anyelement,
                   key_now anyelement, input_before anycompatible, input_now anycompatible) RETURNS boolean
               LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
               SELECT key_before::text COLLATE "C" <> key_now::text COLLATE "C"
                      OR input_before::text COLLATE "C" IS DISTINCT FROM input_now::text COLLATE "C" $$"""
    )


def test_a_transaction_notes_once_what_its_statements_wrote(engine: Engine) -> None:
    watched(engine)
    with engine.connection.transaction():
        for n in (1, 2, 3):
            engine.query(ROWS.format(n, n))
        engine.query("UPDATE foodlog SET age = 1")
        assert noted(engine) == []
    assert noted(engine) == [(3, [1, 3])], "a run is its first and last key"
    engine.query("UPDATE foodlog SET image_path = '/other' WHERE id <> 2")
    engine.query("INSERT INTO foodlog (id, image_path) VALUES (70, 'a'), (-5, 'b'), (71, 'c')")
    assert noted(engine)[1:] == [(2, [1, 3]), (3, [70, -5, 71])]


def test_a_bulk_is_noted_in_parts_that_several_lanes_can_take(engine: Engine) -> None:
    watched(engine)
    engine.query(ROWS.format(1, 2500))
    assert noted(engine) == [(1000, [1, 1000]), (1000, [1001, 2000]), (500, [2001, 2500])]


def test_what_is_rolled_back_to_a_savepoint_takes_no_other_key_along(
    engine: Engine, fake_server: OipServer
) -> None:
    watched(engine)
    with engine.connection.transaction():
        engine.query(ROWS.format(1, 700))
        with engine.connection.transaction():
            engine.query(ROWS.format(5001, 6600))
            raise psycopg.Rollback
        with engine.connection.transaction():
            engine.query(ROWS.format(701, 1900))
        engine.query(ROWS.format(1901, 2100))
    with worker(engine, fake_server):
        wait_until_fresh(engine)
    assert wrong_answers(engine) == []
    assert sorted(fake_server.rows) == asked_of((1, 2100))


def test_blocks_that_catch_their_errors_note_every_row_that_stays(
    engine: Engine, fake_server: OipServer
) -> None:
    watched(engine)
    engine.query(
        """DO $$ BEGIN FOR n IN 1..3000 LOOP
               BEGIN
                   INSERT INTO foodlog (id, image_path) VALUES (n, '/' || n);
                   IF n % 3 = 0 THEN RAISE 'no'; END IF;
               EXCEPTION WHEN raise_exception THEN NULL;
               END;
           END LOOP; END $$"""
    )
    with worker(engine, fake_server):
        wait_until_fresh(engine)
    assert wrong_answers(engine) == []
    assert sorted(fake_server.rows) == sorted(f"/{n}" for n in range(1, 3001) if n % 3)


def test_prepared_and_read_only_ends_of_a_transaction_store_what_it_noted(engine: Engine) -> None:
    watched(engine)
    engine.query("BEGIN")
    engine.query(ROWS.format(1, 2))
    engine.query("PREPARE TRANSACTION 'held'")
    engine.query("COMMIT PREPARED 'held'")
    engine.query("BEGIN")
    engine.query(ROWS.format(3, 3))
    engine.query("SET TRANSACTION READ ONLY")
    engine.query("COMMIT")
    assert noted(engine) == [(2, [1, 2]), (1, [3])]
    engine.query("BEGIN")
    engine.query(ROWS.format(4, 2000))
    engine.query("ROLLBACK")
    assert len(noted(engine)) == 2


def test_after_a_crash_nothing_is_missed_and_nothing_asked_again(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 300)
    engine.query(INTO.replace(", watch => true", "") + ")")
    engine.query(INTO + ")")
    engine.query("DELETE FROM ml_udf._note")  # that wants the first look
    fake_server.forget()
    engine.query(ROWS.format(1001, 1005))
    engine.query("UPDATE foodlog SET image_path = '/new' WHERE id = 7")
    engine.query("DELETE FROM foodlog WHERE id = 8")
    engine.query(CRASH)
    assert noted(engine) == []
    assert engine.value("SELECT lag_rows FROM ml_udf.watches") is None, "nobody knows"
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        assert wrong_scores(engine) == []
    assert sorted(fake_server.rows) == sorted([*asked_of((1001, 1005)), "/new"])


def test_what_a_prepared_transaction_notes_outlives_a_crash(engine: Engine) -> None:
    watched(engine)
    engine.query("BEGIN")
    engine.query(ROWS.format(1, 1001))
    engine.query("PREPARE TRANSACTION 'held'")
    engine.query(CRASH)
    assert engine.value("SELECT ml_udf._gather_notes()") == 0
    engine.query("COMMIT PREPARED 'held'")
    assert engine.query("SELECT size, ids FROM ml_udf._note WHERE size > 0 ORDER BY id") == [
        (1000, [1, 1000]),
        (1, [1001]),
    ]


def test_what_commits_noted_is_gathered_into_few_notes_and_what_nobody_watches_goes(engine: Engine) -> None:
    watched(engine)
    texts = "CREATE TABLE texts (id text PRIMARY KEY, image_path text)"
    engine.query(texts)
    engine.query(WATCH.replace("foodlog", "texts").replace("output => 'food'", "result_table => 's'") + ")")
    for n in (5, 3, 9):
        engine.query(ROWS.format(n, n))
        engine.query("INSERT INTO texts VALUES (%s, '/')", f'{{,"{n}')
    engine.query(ROWS.format(11, 12))
    engine.query(ROWS.format(101, 700))
    engine.query("INSERT INTO ml_udf._new_note VALUES (-1, now(), 1, NULL, '{1}')")
    taken = noted(engine, "SELECT min(noted_at) FROM ml_udf._take_ring_notes()")
    assert engine.value("SELECT ml_udf._gather_notes()") == 9
    assert engine.value("SELECT ml_udf._gather_notes()") == 0
    assert engine.query(
        "SELECT size, keys, ids FROM ml_udf._note WHERE size > 0 ORDER BY watch, noted_at"
    ) == [
        (5, [], [5, 3, 9, 11, 12]),
        (600, [], [101, 700]),
        (3, ['{,"5', '{,"3', '{,"9'], None),
    ]
    assert engine.query("SELECT min(noted_at) FROM ml_udf._note WHERE size > 0") == taken


def test_a_session_that_has_noted_notes_for_the_watch_that_comes_after(engine: Engine) -> None:
    watched(engine)
    engine.query(ROWS.format(1, 1))
    engine.query("SELECT ml_udf.drop_watch(id) FROM ml_udf.watches")
    assert engine.query("SELECT watch FROM ml_udf._marked") == []
    engine.query(ROWS.format(2, 2))
    assert noted(engine) == []
    engine.query(WATCH + ")")
    engine.query(ROWS.format(3, 3))
    assert noted(engine) == [(1, [3])]


def test_who_writes_by_a_view_is_noted_and_who_cannot_write_notes_nothing(engine: Engine) -> None:
    watched(engine)
    engine.query("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger")
    engine.query("CREATE VIEW photos AS SELECT id, image_path FROM foodlog; GRANT ALL ON photos TO stranger")
    watch = engine.value("SELECT id FROM ml_udf._watch")
    engine.query("SET ROLE stranger")
    engine.query("SELECT ml_udf._note_key(%s, 5)", watch)
    engine.query("INSERT INTO photos VALUES (1, '/1')")
    engine.query("RESET ROLE")
    assert noted(engine) == [(1, [1])]
    engine.query("DROP OWNED BY stranger; DROP ROLE stranger")


@pytest.mark.parametrize("kind", ["uuid", "text", "varchar(40)", "smallint"])
def test_keys_of_other_types_are_followed(engine: Engine, fake_server: OipServer, kind: str) -> None:
    engine.query(f"CREATE TABLE foodlog (id {kind} PRIMARY KEY, image_path text, age int)")
    key = {"uuid": "md5(n::text)::uuid", "smallint": "n"}.get(kind, "'{,\"é' || n")
    engine.query(INTO + ")")
    engine.query(f"INSERT INTO foodlog SELECT {key}, '/' || n FROM generate_series(1, 1200) n")
    engine.query("UPDATE foodlog SET image_path = '/new' WHERE image_path = '/7'; UPDATE foodlog SET age = 1")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        engine.query("DELETE FROM foodlog WHERE image_path = '/9'")
        wait_until_fresh(engine)
    assert wrong_scores(engine) == []
    assert len(engine.query("SELECT 1 FROM scores")) == 1199


def test_a_watch_goes_on_where_the_module_is_not(engine: Engine, fake_server: OipServer) -> None:
    watched(engine, INTO, 5)
    without_module(engine)
    try:
        engine.query(ROWS.format(6, 8))
        engine.query("UPDATE foodlog SET age = 1")
        engine.query("UPDATE foodlog SET image_path = '/new' WHERE id = 1")
        engine.query("UPDATE foodlog SET id = 90 WHERE id = 2")
        engine.query("DELETE FROM foodlog WHERE id = 3")
        keys = engine.query("SELECT unnest(keys) FROM ml_udf._note ORDER BY id")
        assert [key for (key,) in keys] == ["6", "7", "8", "1", "1", "2", "90", "3"]
        with worker(engine, fake_server):
            wait_until_fresh(engine)
        assert wrong_scores(engine) == []
        engine.query("TRUNCATE foodlog")
        with worker(engine, fake_server):
            wait_until_fresh(engine)
        assert engine.query("SELECT 1 FROM scores") == []
        engine.query(INTO + ")")
        assert (
            engine.value("SELECT count(*) FROM pg_trigger WHERE tgname ~ 'ml_udf' AND tgnewtable <> ''") == 2
        )
    finally:
        assert engine.value("SELECT ml_udf.note_in_module()")
    engine.query(INTO + ")")
    assert engine.query("SELECT 1 FROM pg_trigger WHERE tgname ~ 'ml_udf' AND tgnewtable <> ''") == []


def test_the_lag_has_the_rows_of_a_table_that_is_looked_at_as_a_whole(
    engine: Engine, fake_server: OipServer
) -> None:
    watched(engine, WATCH + ", batch_rows => 100", 1000)
    lag = "SELECT lag_rows FROM ml_udf.watches"
    assert engine.value(lag) is None, "nobody has counted yet"
    seen = set()
    fake_server.delay_s = 0.1
    with worker(engine, fake_server):
        while (rows := engine.value(lag)) != 0:
            seen.add(rows)
        wait_until_fresh(engine)
    assert engine.query("SELECT lag_rows, sweep_rows FROM ml_udf.watches JOIN ml_udf._watch USING (id)") == [
        (0, None)
    ]
    assert {rows for rows in seen if rows} <= set(range(1, 1001))
    assert len(seen) > 2, "it goes down as rows are answered"
    assert wrong_answers(engine) == []


FORGET = "TRUNCATE ml_udf._new_note; SELECT count(*) FROM ml_udf._take_ring_notes()"
WRITES = (
    "INSERT INTO {t} SELECT n, '/' || n, 0 FROM generate_series(1, 20) n",
    "INSERT INTO {t} VALUES (21, NULL, 0), (22, repeat('long', 5000), 0)",
    "INSERT INTO {t} VALUES (1, '/', 0), (23, '/', 0) ON CONFLICT (id) DO UPDATE SET photo = '/again'",
    "INSERT INTO {t} VALUES (2, '/2', 0) ON CONFLICT DO NOTHING",
    "UPDATE {t} SET age = age + 1",
    "UPDATE {t} SET photo = photo || '' WHERE id < 5",
    "UPDATE {t} SET photo = NULL WHERE id = 3",
    "UPDATE {t} SET photo = '/21' WHERE id = 21",
    "UPDATE {t} SET id = id + 100 WHERE id IN (4, 5)",
    "WITH gone AS (DELETE FROM {t} WHERE id = 6 RETURNING id) UPDATE {t} SET photo = '/w' WHERE id = 7",
    "MERGE INTO {t} USING (VALUES (8), (24)) AS s (id) ON {t}.id = s.id"
    " WHEN MATCHED THEN UPDATE SET photo = '/m' WHEN NOT MATCHED THEN INSERT VALUES (s.id, '/m', 0)",
    "DELETE FROM {t} WHERE id BETWEEN 9 AND 11",
)
NEW_KEYS = """
    SELECT unnest(ids) AS key, size FROM (SELECT watch, size, ids FROM ml_udf._new_note UNION ALL
                                          SELECT watch, size, ids FROM ml_udf._take_ring_notes()) AS n
    WHERE watch = %s ORDER BY key"""


def watched_as(engine: Engine, table: str, answers: str) -> int:
    """A watch of a table of three columns; its number."""
    engine.query(f"CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, photo text, age int)")
    engine.query(
        f"CALL ml_udf.score_table('{table}', 'udf_food_name', 'photo', result_table => '{answers}',"
        " watch => true)"
    )
    return int(engine.value("SELECT max(id) FROM ml_udf._watch"))


def test_conditions_that_the_module_prepares_note_what_those_of_postgresql_do(engine: Engine) -> None:
    ours, others = watched_as(engine, "ours", "a"), watched_as(engine, "others", "b")
    for event in ("insert", "update", "delete"):  # named otherwise they are left to PostgreSQL
        engine.query(f"ALTER TRIGGER ml_udf_note_{others}_{event} ON others RENAME TO other_{event}")
    count = 0
    for write in WRITES:
        for table in ("ours", "others"):
            engine.query(write.format(t=table))
        keys = noted(engine, NEW_KEYS, ours)
        assert keys == noted(engine, NEW_KEYS, others), write
        count += len(keys)
        engine.query(FORGET)
    assert count == 18


def test_a_session_follows_what_becomes_of_the_triggers_that_it_knows(engine: Engine) -> None:
    first, second = watched_as(engine, "meals", "a"), watched_as(engine, "meals", "b")
    numbers = iter(range(1, 100))

    def watching() -> list[int]:
        """The watches that note a row that comes."""
        engine.query(FORGET)
        engine.query(f"INSERT INTO meals (id, photo) VALUES ({next(numbers)}, '/')")
        return [watch for (watch,) in engine.query("SELECT watch FROM ml_udf._ring_notes() ORDER BY 1")]

    assert watching() == watching() == [first, second]
    trigger = f"ml_udf_note_{first}_insert"
    engine.query(f"ALTER TABLE meals DISABLE TRIGGER {trigger}")
    assert watching() == watching() == [second]
    engine.query(f"ALTER TABLE meals ENABLE TRIGGER {trigger}")
    engine.query("ALTER TABLE meals ADD COLUMN more int, DROP COLUMN age, ADD COLUMN age int")
    assert watching() == watching() == [first, second]
    engine.query(
        f"CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON meals FOR EACH ROW"
        f" WHEN (ml_udf._note_key({second}, new.id)) EXECUTE FUNCTION ml_udf_note_{first}()"
    )
    assert watching() == watching() == [second]
    engine.query("SELECT ml_udf.drop_watch(%s)", second)
    assert watching() == watching() == []
    engine.query(f"DROP TRIGGER {trigger} ON meals; SELECT ml_udf.drop_watch({first})")
    assert watching() == []
    third = watched_as(engine, "meals", "c")
    assert watching() == watching() == [third]


def test_a_copy_stores_what_it_notes_when_it_commits(engine: Engine) -> None:
    watch = watched_as(engine, "meals", "a")
    with engine.connection.transaction():
        with engine.connection.cursor().copy("COPY meals FROM STDIN") as copy:
            copy.write("".join(f"{n}\t/{n}\t0\n" for n in range(1, 2501)))
        assert engine.query("SELECT 1 FROM ml_udf._note WHERE size > 0") == []
    assert noted(engine, "SELECT size, ids FROM ml_udf._take_ring_notes() WHERE watch = %s", watch) == [
        (1000, [1, 1000]),
        (1000, [1001, 2000]),
        (500, [2001, 2500]),
    ]
