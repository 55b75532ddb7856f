"""A table to score, an audit of every answer that is stored, and what must hold at the end."""

from __future__ import annotations

import psycopg
import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import label_of

TABLE = """
    CREATE TABLE foodlog (
        id int PRIMARY KEY, image_path text, age int,
        food text, food_error text, food_input_hash uuid, food_model_version text, food_scored_at timestamptz,
        food_confidence float8
    );
    CREATE TABLE audit (id int, food text, at timestamptz DEFAULT clock_timestamp());
    CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO audit (id, food) VALUES (new.id, new.food); RETURN new; END $$;
    CREATE TRIGGER noted AFTER UPDATE OF food ON foodlog FOR EACH ROW EXECUTE FUNCTION noted();"""

INTO = "CALL ml_udf.score_table('foodlog', 'udf_food_name', 'image_path', result_table => 'scores'"
CALL = "CALL ml_udf.score_table('foodlog', 'udf_food_name', 'image_path', output => 'food'"


def make_table(engine: Engine, rows: int) -> None:
    engine.query(TABLE)
    engine.query(
        "INSERT INTO foodlog (id, image_path, age)"
        f" SELECT n, '/' || n, n % 90 FROM generate_series(1, {rows}) n"
    )


def call(engine: Engine, more: str = "", what: str = CALL) -> tuple[int, int, int]:
    """(answered, failed, missed)"""
    ((answered, failed, missed),) = engine.query(what + (f", {more}" if more else "") + ")")
    return answered, failed, missed


def assert_each_row_was_scored_once(engine: Engine, rows: int) -> None:
    assert engine.value("SELECT count(*) FROM foodlog") == rows
    wrong = [
        (row, food)
        for row, food in engine.query("SELECT id, food FROM foodlog")
        if food != label_of(f"/{row}")
    ]
    assert wrong == []
    assert engine.query("SELECT id, count(*) FROM audit GROUP BY id HAVING count(*) <> 1") == []
    assert engine.value("SELECT count(*) FROM audit") == rows


def refused(engine: Engine, sql: str) -> tuple[str, str]:
    """(SQLSTATE, message and hint)"""
    with pytest.raises(psycopg.Error) as caught:
        engine.query(sql)
    diagnostic = caught.value.diag
    return caught.value.sqlstate or "", f"{diagnostic.message_primary}\n{diagnostic.message_hint}"
