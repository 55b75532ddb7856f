"""`score_table(…, watch => true)` and `ml-udf score --watch`: answers follow their rows."""

from __future__ import annotations

import contextlib

import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.score_watch import WatchWorker
from ml_udf.client import Client
from ml_udf.client.transport import Abort
from ml_udf.errors import BadOption
from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of
from tests.postgres.scored import make_table, refused
from tests.postgres.watched import (
    FRESH_S,
    INTO,
    NOTED,
    WATCH,
    wait_until_fresh,
    worker,
    wrong_answers,
    wrong_scores,
)
from tests.typed_server import typed_server, vector_of
from tests.waiting import wait_until


def test_what_is_inserted_updated_and_deleted_is_answered_beside_its_row(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 3000)
    engine.query(WATCH + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        assert wrong_answers(engine) == []
        assert sorted(fake_server.rows) == sorted(f"/{n}" for n in range(1, 3001))
        fake_server.forget()
        engine.query(
            "INSERT INTO foodlog (id, image_path) SELECT n, '/' || n FROM generate_series(4001, 6500) n"
        )
        engine.query("UPDATE foodlog SET image_path = '/new' || id WHERE id <= 10")
        engine.query("UPDATE foodlog SET age = age + 1")
        engine.query("UPDATE foodlog SET image_path = NULL WHERE id = 11")
        engine.query("UPDATE foodlog SET id = 9999 WHERE id = 12")
        engine.query("DELETE FROM foodlog WHERE id BETWEEN 100 AND 200")
        wait_until_fresh(engine)
    assert wrong_answers(engine) == []
    asked = [*(f"/{n}" for n in range(4001, 6501)), *(f"/new{n}" for n in range(1, 11))]
    assert sorted(fake_server.rows) == sorted(asked)


def test_a_table_of_answers_follows_its_rows(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 500)
    engine.query(INTO + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        assert wrong_scores(engine) == []
        engine.query("INSERT INTO foodlog (id, image_path) VALUES (1001, '/1001')")
        engine.query("UPDATE foodlog SET image_path = '/new' || id WHERE id <= 10")
        engine.query("UPDATE foodlog SET image_path = NULL WHERE id = 11")
        engine.query("UPDATE foodlog SET id = 9999 WHERE id = 12")
        engine.query("DELETE FROM foodlog WHERE id BETWEEN 100 AND 200")
        wait_until_fresh(engine)
        assert wrong_scores(engine) == []
        engine.query("TRUNCATE foodlog")
        wait_until_fresh(engine)
    assert engine.query("SELECT * FROM scores") == []


def test_a_new_version_answers_every_row_once_more(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 400)
    engine.query(WATCH + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        fake_server.forget()
        fake_server.version = "2"
        wait_until(lambda: versions(engine) == [("2", 400)], FRESH_S)
        wait_until_fresh(engine)
    assert sorted(fake_server.rows) == sorted(f"/{n}" for n in range(1, 401))
    assert engine.value("SELECT version FROM ml_udf.watches") == "2"


def versions(engine: Engine) -> list[tuple[str, int]]:
    return engine.query("SELECT food_model_version, count(*) FROM foodlog GROUP BY 1")


def test_faults_of_rows_are_stored_beside_them_and_hold_up_no_other(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 200)
    engine.query("UPDATE foodlog SET image_path = 'missing' || id WHERE id % 50 = 0")
    engine.query(WATCH + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        faulty = engine.query(
            "SELECT id, split_part(food_error, ':', 1) FROM foodlog WHERE food IS NULL ORDER BY 1"
        )
        assert faulty == [(n, "input_not_found") for n in (50, 100, 150, 200)]
        engine.query("UPDATE foodlog SET image_path = '/found' WHERE id = 50")
        wait_until_fresh(engine)
        assert engine.query("SELECT food, food_error FROM foodlog WHERE id = 50") == [
            (label_of("/found"), None)
        ]
        (shown,) = engine.query("SELECT answered, failed, retry_rows FROM ml_udf.watches")
        assert shown[1:] == (4, 4)


def test_a_paused_watch_notes_and_answers_when_it_is_resumed(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 50)
    engine.query(WATCH + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        engine.query("SELECT ml_udf.pause_watch(id) FROM ml_udf.watches")
        fake_server.forget()
        engine.query("UPDATE foodlog SET image_path = '/later' || id")
        assert engine.query("SELECT state, lag_rows FROM ml_udf.watches") == [("paused", 50)]
        engine.query("SELECT ml_udf.resume_watch(id) FROM ml_udf.watches")
        wait_until_fresh(engine)
        assert wrong_answers(engine) == []
        engine.query("SELECT ml_udf.drop_watch(id) FROM ml_udf.watches")
    assert engine.query("SELECT 1 FROM pg_trigger WHERE tgname LIKE 'ml_udf%'") == []
    assert engine.query("SELECT 1 FROM pg_proc WHERE proname LIKE 'ml_udf_note%'") == []
    engine.query("UPDATE foodlog SET image_path = '/alone'")
    assert engine.query(NOTED) == []


def test_a_writer_needs_no_right_but_to_the_table(engine: Engine, fake_server: OipServer) -> None:
    engine.query("DROP ROLE IF EXISTS owner_of_food; DROP ROLE IF EXISTS writer_of_food")
    engine.query("CREATE ROLE owner_of_food IN ROLE ml_udf_reader; CREATE ROLE writer_of_food")
    make_table(engine, 20)
    engine.query(
        "GRANT CREATE ON SCHEMA public TO owner_of_food; ALTER TABLE foodlog OWNER TO owner_of_food;"
        " ALTER TABLE audit OWNER TO owner_of_food;"
        " GRANT SELECT, INSERT, UPDATE, DELETE ON foodlog TO writer_of_food;"
        " GRANT INSERT ON audit TO writer_of_food"
    )
    engine.query("SET ROLE writer_of_food")
    assert refused(engine, WATCH + ")")[0] == "42501"
    engine.query("SET ROLE owner_of_food")
    engine.query(WATCH + ")")
    engine.query("SET ROLE writer_of_food")
    engine.query("SET search_path = pg_temp")
    engine.query("CREATE TEMP TABLE _note (watch int, size int, keys text[])")
    engine.query("INSERT INTO public.foodlog (id, image_path) VALUES (100, '/100')")
    engine.query("UPDATE public.foodlog SET image_path = '/new' WHERE id = 1")
    assert refused(engine, "SELECT * FROM ml_udf.watches")[0] == "42501"
    assert engine.query("SELECT * FROM ml_udf._note") == []
    assert engine.query("SELECT * FROM ml_udf._watch") == []
    assert refused(engine, "DELETE FROM ml_udf._note")[0] == "42501"
    assert refused(engine, "INSERT INTO ml_udf._note (watch, size, keys) VALUES (1, 0, '{}')")[0] == "42501"
    assert refused(engine, "SELECT * FROM ml_udf._new_note")[0] == "42501"
    assert refused(engine, "SELECT * FROM ml_udf._take_ring_notes()")[0] == "42501"
    assert refused(engine, "DELETE FROM ml_udf._marked")[0] == "42501"
    engine.query("RESET ROLE; SET search_path = public")
    assert engine.query("SELECT ids FROM ml_udf._take_ring_notes() ORDER BY noted_at") == [([100],), ([1],)]
    with worker(engine, fake_server):
        wait_until_fresh(engine)
    assert wrong_answers(engine) == []
    engine.query("DROP OWNED BY owner_of_food, writer_of_food; DROP ROLE owner_of_food, writer_of_food")


@pytest.mark.security
def test_what_a_writer_sets_changes_nothing_of_what_is_done_with_the_owners_rights(engine: Engine) -> None:
    engine.query("DROP ROLE IF EXISTS owner_of_food; DROP ROLE IF EXISTS writer_of_food")
    engine.query("CREATE ROLE owner_of_food IN ROLE ml_udf_reader; CREATE ROLE writer_of_food")
    make_table(engine, 5)
    engine.query(
        "GRANT CREATE ON SCHEMA public TO owner_of_food; ALTER TABLE foodlog OWNER TO owner_of_food;"
        " GRANT INSERT, UPDATE, DELETE, TRUNCATE ON foodlog TO writer_of_food;"
        " GRANT SELECT ON foodlog TO writer_of_food;"
        " CREATE SCHEMA traps AUTHORIZATION writer_of_food; GRANT USAGE ON SCHEMA traps TO PUBLIC;"
        " CREATE TABLE traps.sprung (by text); GRANT INSERT, SELECT ON traps.sprung TO PUBLIC"
    )
    engine.query("SET ROLE writer_of_food")
    engine.query(
        "CREATE FUNCTION traps.equal(a text, b text) RETURNS boolean LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO traps.sprung VALUES (current_user); RETURN a OPERATOR(pg_catalog.=) b; END$$;"
        "CREATE OPERATOR traps.= (LEFTARG = text, RIGHTARG = text, FUNCTION = traps.equal)"
    )
    for condition in ("", ", condition => 'age > 1'"):
        engine.query("RESET ROLE; SET search_path = public; TRUNCATE traps.sprung; SET ROLE owner_of_food")
        engine.query(INTO + condition + ")")
        engine.query("SET ROLE writer_of_food; SET search_path = traps, pg_catalog, public")
        assert engine.value("SELECT 'a'::text = 'a'::text") is True
        engine.query("INSERT INTO foodlog (id, image_path, age) VALUES (100, '/100', 20)")
        engine.query("UPDATE foodlog SET image_path = '/101', age = 0 WHERE id = 100")
        engine.query("DELETE FROM foodlog")
        engine.query("TRUNCATE foodlog")
        assert set(engine.query("SELECT by FROM sprung")) == {("writer_of_food",)}, "the trap's own test"
    engine.query("RESET ROLE; SET search_path = public")
    engine.query(
        "DROP OWNED BY owner_of_food, writer_of_food CASCADE; DROP ROLE owner_of_food, writer_of_food"
    )


@pytest.mark.security
def test_a_reader_watches_no_table_of_others_and_holds_up_no_watch_of_theirs(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query("DROP ROLE IF EXISTS reader_of_food; CREATE ROLE reader_of_food IN ROLE ml_udf_reader")
    make_table(engine, 20)
    engine.query("CREATE TABLE scores (id int PRIMARY KEY); CREATE SCHEMA own AUTHORIZATION reader_of_food")
    engine.query("SET ROLE reader_of_food; CREATE TABLE own.photos (id int PRIMARY KEY, image_path text)")
    its = "INSERT INTO ml_udf._watch (owner, relation, target, place, definition) VALUES ('reader_of_food'"
    for tables in ("'foodlog', 'foodlog'", "'foodlog', 'own.photos'", "'own.photos', 'scores'"):
        assert refused(engine, f"{its}, {tables}, 'food', '{{}}')")[0] == "42501"
    definitions = ('{"server": "ml_udf"}', '{"server": "ml_udf", "key": 3, "asked": [1]}')
    for number, definition in enumerate(definitions):
        engine.query(f"{its}, 'own.photos', 'own.photos', 'p{number}', '{definition}')")
    for change in ("relation = 'foodlog'", "target = 'foodlog'", "place = 'food'", "id = 1000"):
        assert refused(engine, f"UPDATE ml_udf._watch SET {change}")[0] == "42501"
    endless = "SELECT id, now(), 3, NULL, '{1, 9223372036854775807}' FROM ml_udf._watch"
    assert refused(engine, f"INSERT INTO ml_udf._new_note {endless}")[0] == "42501"
    engine.query("RESET ROLE")
    engine.query("ALTER TABLE foodlog RENAME age TO years; ALTER TABLE foodlog RENAME years TO age")
    engine.query(WATCH + ")")
    with worker(engine, fake_server):
        wait_until(lambda: wrong_answers(engine) == [], FRESH_S)
        faults = "SELECT last_error FROM ml_udf.watches WHERE owner = 'reader_of_food'"
        wait_until(lambda: all(fault for (fault,) in engine.query(faults)), FRESH_S)
        assert all("cannot be read" in fault for (fault,) in engine.query(faults))
        engine.query("INSERT INTO foodlog (id, image_path) VALUES (50, '/50')")
        wait_until(lambda: wrong_answers(engine) == [], FRESH_S)
    engine.query("DROP OWNED BY reader_of_food CASCADE; DROP ROLE reader_of_food")


def test_a_place_that_another_roles_watch_has_is_told_with_who_drops_it(engine: Engine) -> None:
    engine.query("CREATE ROLE cook IN ROLE ml_udf_reader; CREATE ROLE baker IN ROLE ml_udf_reader")
    engine.query("GRANT CREATE ON SCHEMA public TO cook, baker")
    make_table(engine, 3)
    engine.query("ALTER TABLE foodlog OWNER TO cook; SET ROLE cook")
    engine.query(WATCH + ")")
    engine.query("RESET ROLE; ALTER TABLE foodlog OWNER TO baker; SET ROLE baker")
    sqlstate, message = refused(engine, WATCH + ")")
    assert sqlstate == "42710"
    assert "a watch of another role answers into foodlog.food already" in message
    engine.query("RESET ROLE")
    engine.query(message.partition("drops it: ")[2] + " FROM ml_udf.watches")
    engine.query("SET ROLE baker")
    engine.query(WATCH + ")")
    engine.query("RESET ROLE; DROP OWNED BY cook, baker CASCADE; DROP ROLE cook, baker")


def test_keys_of_several_quoted_columns_of_any_type_are_followed(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query(
        """CREATE TABLE "My ""Log" ("Day's" date, "k,{" text, "Path" text, age int,
               "PATH 2" text GENERATED ALWAYS AS ('/' || "Path") STORED, PRIMARY KEY ("Day's", "k,{"));
           INSERT INTO "My ""Log" SELECT date '2025-01-31' + n % 9, 'a"\\,{' || n, 'p' || n, 1
               FROM generate_series(1, 90) n"""
    )
    engine.query(
        """CALL ml_udf.score_table('"My ""Log"', 'udf_food_name', '"PATH 2"', result_table => 'scores',
               condition => 'age < 5', watch => true)"""
    )
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        fake_server.forget()
        engine.query("SET datestyle = 'SQL, DMY'")
        engine.query(
            """INSERT INTO "My ""Log" VALUES ('02/03/2025', 'new', 'n', 1), ('02/03/2025', 'old', 'o', 9)"""
        )
        engine.query("""UPDATE "My ""Log" SET "Path" = 'q' WHERE "k,{" = 'a"\\,{7'""")
        engine.query("RESET datestyle")
        wait_until_fresh(engine)
        assert sorted(fake_server.rows) == ["/n", "/q"]
        engine.query("""UPDATE "My ""Log" SET age = 2 WHERE "k,{" = 'old'""")
        wait_until_fresh(engine)
    rows = engine.query("""SELECT "PATH 2", value FROM "My ""Log" FULL JOIN scores USING ("Day's", "k,{")""")
    assert len(rows) == 92
    assert [row for row in rows if row[1] != label_of(row[0])] == []


def test_partitions_are_followed_by_whatever_name_they_are_written(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query(
        """CREATE TABLE foodlog (id int, part int, image_path text, PRIMARY KEY (id, part))
               PARTITION BY LIST (part);
           CREATE TABLE log1 PARTITION OF foodlog FOR VALUES IN (1);
           INSERT INTO foodlog SELECT n, 1, '/' || n FROM generate_series(1, 20) n"""
    )
    engine.query(INTO + ")")
    with worker(engine, fake_server):
        engine.query("CREATE TABLE log2 PARTITION OF foodlog FOR VALUES IN (2)")
        engine.query("CREATE TABLE log3 (id int, part int, image_path text, PRIMARY KEY (id, part))")
        engine.query("INSERT INTO log3 VALUES (900, 3, '/900')")
        engine.query("ALTER TABLE foodlog ATTACH PARTITION log3 FOR VALUES IN (3)")
        engine.query("INSERT INTO log2 VALUES (100, 2, '/100')")
        engine.query("UPDATE foodlog SET part = 2 WHERE id = 1")
        engine.query("DELETE FROM log1 WHERE id = 2")
        wait_until_fresh(engine)
        assert len(engine.query("SELECT 1 FROM scores")) == 21
        assert wrong_scores(engine) == []
        engine.query("ALTER TABLE foodlog DETACH PARTITION log3")
        wait_until_fresh(engine)
        assert wrong_scores(engine) == []


def test_who_makes_or_changes_a_table_waits_for_no_partition_of_another_one(engine: Engine) -> None:
    """Two workers of pg_restore that add keys to partitions would wait for each other, too."""
    engine.query(
        """CREATE TABLE foodlog (id int, part int, image_path text, PRIMARY KEY (id, part))
               PARTITION BY LIST (part);
           CREATE TABLE log1 PARTITION OF foodlog FOR VALUES IN (1);
           CREATE TABLE log2 PARTITION OF foodlog FOR VALUES IN (2)"""
    )
    engine.query(INTO + ")")
    other = Engine(engine.dsn)
    try:
        other.query("SET lock_timeout = '5s'")
        engine.query("BEGIN; ALTER TABLE log1 ADD CHECK (id > 0)")
        other.query("CREATE TABLE elsewhere (id int)")
        other.query("ALTER TABLE log2 ADD CHECK (id > 0)")
        other.query("DROP TABLE elsewhere")
        engine.query("COMMIT")
    finally:
        other.close()


def test_partitions_that_come_within_others_and_savepoints_are_followed(
    engine: Engine, fake_server: OipServer
) -> None:
    engine.query(
        """CREATE TABLE foodlog (id int, part int, image_path text, PRIMARY KEY (id, part))
               PARTITION BY LIST (part)"""
    )
    engine.query(INTO + ")")
    engine.query(
        """BEGIN; SAVEPOINT s;
           CREATE TABLE log1 (id int, part int, image_path text, PRIMARY KEY (id, part))
               PARTITION BY LIST (id);
           CREATE TABLE log2 PARTITION OF log1 DEFAULT; RELEASE s;
           SAVEPOINT t; ALTER TABLE foodlog ATTACH PARTITION log1 FOR VALUES IN (1);
           CREATE TABLE log3 PARTITION OF log1 FOR VALUES IN (3); RELEASE t; COMMIT"""
    )
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        engine.query("INSERT INTO log2 VALUES (2, 1, '/2'); INSERT INTO log3 VALUES (3, 1, '/3')")
        wait_until_fresh(engine)
        assert engine.value("SELECT count(*) FROM scores") == 2
        assert wrong_scores(engine) == []


def test_a_change_leaves_triggers_of_partitions_to_a_restore_that_goes_on(engine: Engine) -> None:
    """A parallel one adds keys while it makes triggers: who makes them first would fail the other."""
    engine.query(
        """CREATE TABLE foodlog (id int, part int, image_path text, PRIMARY KEY (id, part))
               PARTITION BY LIST (part);
           CREATE TABLE log1 PARTITION OF foodlog DEFAULT"""
    )
    engine.query(INTO + ")")
    made = "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'log1'::regclass"
    triggers = engine.query(made)
    for name, _ in triggers:
        engine.query(f"DROP TRIGGER {name} ON log1")
    engine.query("ALTER TABLE foodlog ADD CHECK (id > 0)")
    for _, trigger in triggers:
        engine.query(trigger)
    assert engine.query(made) == triggers


def test_the_answers_of_a_partition_that_is_dropped_go_too(engine: Engine, fake_server: OipServer) -> None:
    engine.query(
        """CREATE SCHEMA old;
           CREATE TABLE foodlog (id int, part int, image_path text, PRIMARY KEY (id, part))
               PARTITION BY LIST (part);
           CREATE TABLE log1 PARTITION OF foodlog FOR VALUES IN (1);
           CREATE TABLE log2 PARTITION OF foodlog FOR VALUES IN (2) PARTITION BY LIST (id);
           CREATE TABLE log3 PARTITION OF log2 DEFAULT;
           CREATE TABLE old.log4 PARTITION OF foodlog FOR VALUES IN (4);
           CREATE TABLE log5 PARTITION OF foodlog DEFAULT;
           INSERT INTO foodlog SELECT n, 1 + n % 5, '/' || n FROM generate_series(1, 25) n"""
    )
    engine.query(INTO + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        fake_server.forget()
        for left, drop in (
            (20, "TABLE log1"),
            (15, "TABLE log3"),
            (10, "SCHEMA old CASCADE"),
            (10, "TABLE log2"),
        ):
            engine.query(f"DROP {drop}")
            wait_until_fresh(engine)
            assert engine.value("SELECT count(*) FROM scores") == left
            assert wrong_scores(engine) == []
        assert fake_server.rows == []


@pytest.mark.security
def test_who_drops_a_table_of_his_own_has_no_table_of_others_looked_at(engine: Engine) -> None:
    engine.query(
        """CREATE TABLE foodlog (id int PRIMARY KEY, image_path text) PARTITION BY LIST (id);
           CREATE ROLE dropper; GRANT CREATE ON SCHEMA public TO dropper"""
    )
    engine.query(INTO + ")")
    watch = engine.value("SELECT id FROM ml_udf.watches")
    engine.query("DELETE FROM ml_udf._note")
    engine.query(
        f"""SET ROLE dropper; CREATE TABLE own (id int PRIMARY KEY) PARTITION BY LIST (id);
           CREATE TABLE part PARTITION OF own DEFAULT;
           CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
           CREATE TRIGGER ml_udf_note_{watch}_insert AFTER INSERT ON part EXECUTE FUNCTION f();
           DROP TABLE part; DROP TABLE own; DROP FUNCTION f(); RESET ROLE"""
    )
    assert engine.query("SELECT 1 FROM ml_udf._note") == []
    engine.query("DROP OWNED BY dropper; DROP ROLE dropper")


def test_a_watch_is_changed_by_asking_for_it_again(engine: Engine, fake_server: OipServer) -> None:
    make_table(engine, 60)
    engine.query("ALTER TABLE foodlog ADD COLUMN other text; UPDATE foodlog SET other = 'o' || id")
    engine.query(WATCH + ")")
    with worker(engine, fake_server):
        wait_until_fresh(engine)
        engine.query(WATCH.replace("'image_path'", "'other'") + ")")
        wait_until_fresh(engine)
        engine.query("INSERT INTO foodlog (id, other) VALUES (100, 'o100')")
        wait_until_fresh(engine)
        assert engine.query("SELECT id, input FROM ml_udf.watches") == [
            (engine.value("SELECT max(id) FROM ml_udf._watch"), "other")
        ]
    assert [
        row for row in engine.query("SELECT other, food FROM foodlog") if row[1] != label_of(row[0])
    ] == []


def test_what_cannot_be_watched_is_refused_with_what_to_do(engine: Engine) -> None:
    engine.query(
        "CREATE TABLE bare (id int PRIMARY KEY, p text, food text); CREATE TABLE loose (p text, food text)"
    )
    call = "CALL ml_udf.score_table('{}', 'udf_food_name', 'p', output => 'food', watch => true)"
    state, told = refused(engine, call.format("bare"))
    assert state == "22023"
    assert (
        '"food_error" text, ADD COLUMN "food_input_hash" uuid, ADD COLUMN "food_model_version" text' in told
    )
    assert refused(engine, call.format("loose"))[0] == "42P10"
    engine.query("CREATE TEMP TABLE brief (id int PRIMARY KEY, p text)")
    into = call.replace("output => 'food'", "result_table => 'scores'")
    assert "temporary" in refused(engine, into.format("brief"))[1]
    engine.query("CREATE VIEW seen AS SELECT * FROM bare")
    assert (
        "no table"
        in refused(engine, into.format("seen").replace("watch =>", "key => ARRAY['id'], watch =>"))[1]
    )
    assert refused(engine, "SELECT ml_udf.drop_watch(77)")[0] == "42704"


def test_a_worker_says_what_the_database_lacks(
    cluster: Sandbox, engine: Engine, fake_server: OipServer
) -> None:
    def said(dsn: str) -> str:
        with contextlib.closing(Client(fake_server.url)) as client, pytest.raises(BadOption) as raised:
            WatchWorker(dsn, client, server="ml_udf", lanes=1, stop=Abort(), say=print).run()
        return f"{raised.value.message}; {raised.value.hint}"

    engine.query("ALTER FUNCTION ml_udf._gather_notes() RENAME TO _of_later")
    try:
        assert "older than this worker; ALTER EXTENSION ml_udf UPDATE" in said(engine.dsn)
    finally:
        engine.query("ALTER FUNCTION ml_udf._of_later() RENAME TO _gather_notes")
    assert "knows no watches" in said(cluster.dsn())


def test_a_dropped_table_takes_its_watch_along_and_a_watched_column_keeps_its_name(engine: Engine) -> None:
    make_table(engine, 5)
    engine.query(WATCH + ")")
    engine.query(INTO + ")")
    assert refused(engine, "ALTER TABLE foodlog RENAME image_path TO photo")[0] == "2BP01"
    engine.query("ALTER TABLE foodlog RENAME age TO years")
    engine.query("DROP TABLE scores")
    assert len(engine.query("SELECT 1 FROM ml_udf._watch")) == 1
    engine.query("INSERT INTO foodlog (id, image_path) VALUES (50, '/50')")
    engine.query("DROP TABLE foodlog")
    assert engine.query("SELECT 1 FROM ml_udf._watch") == []
    assert engine.query(NOTED) == []
    assert engine.query("SELECT 1 FROM ml_udf._marked") == []
    assert engine.query("SELECT 1 FROM pg_proc WHERE proname LIKE 'ml_udf_note%'") == []


def test_workers_share_the_rows_and_a_row_that_somebody_holds_waits_alone(
    engine: Engine, fake_server: OipServer
) -> None:
    make_table(engine, 10)
    engine.query(WATCH + ", batch_rows => 50)")
    with worker(engine, fake_server), worker(engine, fake_server):
        wait_until_fresh(engine)
        fake_server.forget()
        fake_server.delay_s = 0.05
        for begin in range(1000, 2000, 100):
            engine.query(
                "INSERT INTO foodlog (id, image_path)"
                f" SELECT n, '/' || n FROM generate_series({begin}, {begin + 99}) n"
            )
        holder = Engine(engine.dsn)
        try:
            holder.query("BEGIN")
            holder.query("UPDATE foodlog SET age = 1, image_path = '/held' WHERE id = 1999")
            unanswered = "SELECT count(*) FROM foodlog WHERE food IS NULL"
            wait_until(lambda: engine.value(unanswered) <= 1, FRESH_S)
            holder.query("COMMIT")
        finally:
            holder.close()
        wait_until_fresh(engine)
    assert wrong_answers(engine) == []
    assert engine.query("SELECT id FROM audit GROUP BY id HAVING count(*) > 1 AND id <> 1999") == []


def test_embeddings_follow_their_texts(engine: Engine) -> None:
    engine.query(
        """CREATE TABLE texts (id int PRIMARY KEY, t text, v real[], v_error text, v_input_hash uuid,
               v_model_version text, seen int);
           INSERT INTO texts (id, t) SELECT n, repeat('a', n) FROM generate_series(1, 30) n"""
    )
    with typed_server() as typed:
        engine.query(f"ALTER SERVER ml_udf OPTIONS (SET url '{typed.url}')")
        engine.query("SELECT ml_udf.create_function('udf_vector')")
        engine.query("CALL ml_udf.score_table('texts', 'udf_vector', 't', output => 'v', watch => true)")
        with worker(engine, typed):
            wait_until_fresh(engine)
            engine.query("UPDATE texts SET t = 'other' || id WHERE id < 5")
            engine.query("UPDATE texts SET seen = 1")
            wait_until_fresh(engine)
    for text, vector in engine.query("SELECT t, v FROM texts"):
        assert vector == pytest.approx(vector_of(text))
