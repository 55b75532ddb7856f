"""Where `ml_udf.score_table` stores answers: columns, tables of their own; keys and values of every type."""

from __future__ import annotations

import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server
from tests.postgres.scored import INTO, call, make_table, refused


@pytest.fixture
def table(engine: Engine) -> Engine:
    make_table(engine, 3000)
    return engine


def test_a_table_of_answers_is_created_and_filled(table: Engine) -> None:
    assert call(table, what=INTO) == (3000, 0, 0)
    columns = table.query(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = 'scores'::regclass AND attnum > 0"
    )
    assert columns == [
        ("id", "integer"),
        ("value", "text"),
        ("confidence", "double precision"),
        ("error", "text"),
        ("model_version", "text"),
        ("input_hash", "uuid"),
        ("scored_at", "timestamp with time zone"),
    ]
    found = table.query("SELECT id, value FROM scores JOIN foodlog USING (id)")
    assert sorted(found) == [(n, label_of(f"/{n}")) for n in range(1, 3001)]
    assert call(table, what=INTO) == (0, 0, 0)


def test_a_table_of_answers_follows_changed_inputs(table: Engine) -> None:
    call(table, what=INTO)
    table.query("UPDATE foodlog SET image_path = '/other' WHERE id = 7")
    assert call(table, what=INTO) == (1, 0, 0)
    assert table.value("SELECT value FROM scores WHERE id = 7") == label_of("/other")


def test_a_table_of_ones_own_with_key_and_value_is_enough(table: Engine) -> None:
    table.query("CREATE TABLE scores (value varchar(20), id int UNIQUE)")
    assert call(table, what=INTO) == (3000, 0, 0)
    assert call(table, what=INTO) == (0, 0, 0)


def test_a_view_is_scored_into_a_table(table: Engine) -> None:
    table.query("CREATE VIEW adults AS SELECT id, image_path AS p FROM foodlog WHERE age >= 18")
    into = "CALL ml_udf.score_table('adults', 'udf_food_name', 'p', result_table => 'scores'"
    assert refused(table, into + ")")[0] == "42P10"
    assert call(table, "key => ARRAY['id']", into)[0] == table.value("SELECT count(*) FROM adults")


def test_composite_keys_and_odd_names_work(engine: Engine) -> None:
    engine.query(
        """CREATE SCHEMA "Shop ""x";
        CREATE TABLE "Shop ""x"."Food; --" ("user" text COLLATE "C", "time" timestamptz, "n.m" numeric,
            "Image Path" text, "the ""food" text, PRIMARY KEY ("user", "time", "n.m"));
        INSERT INTO "Shop ""x"."Food; --"
        SELECT 'u''' || n % 7, '2024-01-01'::timestamptz + n % 11 * interval '1.5 s', n / 8.0, '/' || n
        FROM generate_series(1, 2500) n"""
    )
    sql = """CALL ml_udf.score_table('"Shop ""x"."Food; --"', 'food', 'Image Path', server => 'ml_udf'"""
    assert call(engine, "output => 'the \"food'", sql) == (2500, 0, 0)
    found = engine.query('SELECT "Image Path", "the ""food" FROM "Shop ""x"."Food; --"')
    assert all(food == label_of(path) for path, food in found)
    assert call(engine, 'result_table => \'"Shop ""x"."Sc"\'', sql) == (2500, 0, 0)
    assert call(engine, 'result_table => \'"Shop ""x"."Sc"\'', sql) == (0, 0, 0)


@pytest.mark.parametrize(
    "kind", ["bigint", "float8", "text", "uuid", "date", "numeric", "bytea", "interval", "char(12)"]
)
def test_keys_of_any_type_that_has_an_order_work(engine: Engine, kind: str) -> None:
    made = {
        "uuid": "md5(n::text)::uuid",
        "date": "'2024-01-01'::date + n",
        "bytea": "('k' || n)::bytea",
        "interval": "n * interval '7 minutes'",
    }.get(kind, f"(n * 3)::{kind}")
    engine.query(
        f"""CREATE TABLE t (k {kind} PRIMARY KEY, path text, food text);
            INSERT INTO t SELECT {made}, '/' || n FROM generate_series(1, 300) n"""
    )
    sql = "CALL ml_udf.score_table('t', 'udf_food_name', 'path', batch_rows => 37"
    assert call(engine, "output => 'food'", sql) == (300, 0, 0)
    assert call(engine, "result_table => 'scores'", sql) == (300, 0, 0)
    assert call(engine, "result_table => 'scores'", sql) == (0, 0, 0)


def test_how_a_session_shows_values_changes_no_key_and_stays_as_it_is(engine: Engine) -> None:
    engine.query(
        """CREATE TABLE t (f float8, d date, i interval, b bytea, path text, PRIMARY KEY (f, d, i, b));
           INSERT INTO t SELECT n / 3.0::float8, '2026-01-01'::date + n, n * '1 day 0.5 s'::interval,
               int4send(n * 65537), '/' || n FROM generate_series(1, 300) n"""
    )
    settings = {
        "DateStyle": "German, DMY",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "-5",
    }
    for name, value in settings.items():
        engine.query(f"SET {name} = '{value}'")
    sql = "CALL ml_udf.score_table('t', 'udf_food_name', 'path', batch_rows => 37, result_table => 'scores'"
    assert call(engine, "", sql) == (300, 0, 0)
    assert {name: engine.value(f"SHOW {name}") for name in settings} == settings
    engine.query("RESET ALL")
    assert call(engine, "", sql) == (0, 0, 0)


def test_partitioned_tables_work(engine: Engine) -> None:
    engine.query(
        """CREATE TABLE p (id int, path text, food text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
           CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (500);
           CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (500) TO (5000);
           INSERT INTO p SELECT n, '/' || n FROM generate_series(1, 1200) n"""
    )
    sql = "CALL ml_udf.score_table('p', 'udf_food_name', 'path', output => 'food'"
    assert call(engine, what=sql) == (1200, 0, 0)


def test_bytes_are_sent_as_images(engine: Engine, fake_server: OipServer) -> None:
    engine.query(
        """CREATE TABLE photos (id int PRIMARY KEY, photo bytea, food text);
           INSERT INTO photos SELECT n, ('image' || n)::bytea FROM generate_series(1, 200) n"""
    )
    sql = "CALL ml_udf.score_table('photos', 'udf_food_name', 'photo', output => 'food'"
    assert call(engine, what=sql) == (200, 0, 0)
    assert engine.value("SELECT food FROM photos WHERE id = 9") == label_of("image9")
    assert set(fake_server.inputs) == {"image"}


def test_vectors_and_numbers_are_scored_into_their_types(engine: Engine) -> None:
    sql = "CALL ml_udf.score_table('v', 'total', 'features'"
    with oip_server(ours=False) as foreign:
        foreign.functions["total"] = "numbers"
        engine.query(
            f"""CREATE SERVER other FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{foreign.url}');
                SELECT ml_udf.create_function(
                    'total', server => 'other', input => 'float8[]', returns => 'float8');
                CREATE TABLE v (id int PRIMARY KEY, features float4[], total float8, whole int);
                INSERT INTO v SELECT n, ARRAY[n, 1, 2] FROM generate_series(1, 50) n"""
        )
        assert call(engine, "output => 'total'", sql) == (50, 0, 0)
        assert call(engine, "result_table => 'totals'", sql) == (50, 0, 0)
        assert refused(engine, sql + ", output => 'whole')")[0] == "42804"
    stored = "SELECT DISTINCT total - id, pg_typeof(value)::text FROM v JOIN totals USING (id)"
    assert engine.query(stored + " WHERE value = total") == [(3.0, "double precision")]
