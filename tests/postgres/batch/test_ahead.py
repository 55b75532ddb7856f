"""Twins that can answer later: when they are asked to begin, for what, and when to forget it."""

from __future__ import annotations

import pytest

from tests.postgres.batch.session import Session

LATER = """
    CREATE FUNCTION later(int) RETURNS int STABLE STRICT LANGUAGE plpgsql AS 'BEGIN RETURN $1 * 2; END';
    CREATE FUNCTION later_batch(xs int[]) RETURNS int[] STABLE STRICT LANGUAGE plpgsql
    SET ml_udf.answers_later = on AS $$
    BEGIN
        RAISE NOTICE 'asked % %', current_setting('ml_udf.asked'), cardinality(xs);
        IF current_setting('ml_udf.asked') <> 'answers' THEN RETURN NULL; END IF;
        IF 0 = ANY (xs) THEN RAISE 'zero' USING ERRCODE = '22012'; END IF;
        RETURN ARRAY(SELECT x * 2 FROM unnest(xs) WITH ORDINALITY AS u(x, i) ORDER BY i);
    END $$
"""


@pytest.fixture
def later(own: Session) -> Session:
    own.must(LATER, "SET ml_udf.gather_rows = 100")
    return own


def asked(session: Session, query: str) -> list[str]:
    """What the twin was asked, in order, and over how many inputs."""
    notices = session.must(query).notices
    return [notice.removeprefix("asked ") for notice in notices]


def test_each_batch_is_begun_while_the_one_before_is_computed(later: Session) -> None:
    assert asked(later, "SELECT sum(later(id)) FROM big WHERE id <= 250") == [
        "begin 100",
        "begin 100",
        "answers 100",
        "begin 50",
        "answers 100",
        "answers 50",
    ]


def test_a_single_batch_is_just_answered(later: Session) -> None:
    assert asked(later, "SELECT sum(later(id)) FROM big WHERE id <= 90") == ["answers 90"]


def test_without_overlap_nothing_is_begun(later: Session) -> None:
    later.must("SET ml_udf.overlap = off")
    assert asked(later, "SELECT sum(later(id)) FROM big WHERE id <= 150") == ["answers 100", "answers 50"]


def test_a_twin_that_does_not_say_so_is_never_asked_to_begin(later: Session) -> None:
    later.must("ALTER FUNCTION later_batch RESET ml_udf.answers_later")
    assert asked(later, "SELECT sum(later(id)) FROM big WHERE id <= 150") == ["answers 100", "answers 50"]


def test_a_twin_that_answers_at_once_is_not_asked_to_begin_again(later: Session) -> None:
    later.must(
        "CREATE OR REPLACE FUNCTION later_batch(xs int[]) RETURNS int[] STABLE STRICT LANGUAGE plpgsql"
        " SET ml_udf.answers_later = on AS $$ BEGIN"
        " RAISE NOTICE 'asked % %', current_setting('ml_udf.asked'), cardinality(xs); RETURN xs; END $$"
    )
    query = "SELECT sum(later(id)) FROM big WHERE id <= 250"
    assert asked(later, query) == ["begin 100", "answers 100", "answers 50"]


def test_a_reader_that_may_stop_is_run_ahead_of_in_full_batches_only(later: Session) -> None:
    begun = asked(later, "SELECT later(id) FROM big WHERE id <= 300")
    assert begun[:4] == ["answers 16", "answers 64", "begin 100", "begin 100"]
    assert sum(int(notice.split()[1]) for notice in begun if notice.startswith("answers")) == 300


def test_what_a_rescan_leaves_behind_is_forgotten(later: Session) -> None:
    query = (
        "SELECT g, (SELECT count(*) FROM (SELECT 1 FROM big WHERE later(id) > g LIMIT 120) AS s)"
        " FROM generate_series(1, 2) AS g"
    )
    assert "forget 0" in asked(later, query)


def test_an_error_is_raised_for_its_row_whatever_was_begun(later: Session) -> None:
    query = "SELECT id, later(250 - id) FROM big WHERE id <= 400"
    later.must("BEGIN", f"DECLARE c CURSOR WITH HOLD FOR SELECT * FROM ({query} OFFSET 0) AS s LIMIT 249")
    assert len(later.must("COMMIT", "FETCH ALL FROM c").rows) == 249
    assert later.run(query).error == ("22012", "zero")


def test_an_error_in_beginning_is_that_of_the_answer(later: Session) -> None:
    later.must(
        "CREATE OR REPLACE FUNCTION later_batch(xs int[]) RETURNS int[] STABLE STRICT LANGUAGE plpgsql"
        " SET ml_udf.answers_later = on AS $$ BEGIN IF current_setting('ml_udf.asked') = 'begin' THEN"
        " RAISE 'cannot begin' USING ERRCODE = '22023'; END IF; RETURN xs; END $$"
    )
    assert len(later.must("SELECT later(id) FROM big WHERE id <= 400").rows) == 400


def test_explain_analyze_counts_a_batch_once(later: Session) -> None:
    lines = [line for (line,) in later.must("EXPLAIN (ANALYZE) SELECT sum(later(id)) FROM big").rows]
    assert any("Inputs: 5000 of 5000 rows sent in 50 batches" in line for line in lines)


def test_nobody_can_set_what_is_asked(later: Session) -> None:
    error = later.run("SET ml_udf.asked = 'begin'").error
    assert error is not None
    assert error[0] == "55P02"
