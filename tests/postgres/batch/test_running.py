"""The node at work: sizes of batches, errors and whose they are, what EXPLAIN ANALYZE tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ml_udf.errors import error_classes
from tests.postgres.batch.session import Outcome, Session, layers_of
from tests.waiting import once, wait_until


def sizes(outcome: Outcome) -> list[int]:
    return [len(call.inputs) for call in outcome.batches]


def test_batches_grow_while_the_reader_goes_on(own: Session) -> None:
    assert sizes(own.must("SELECT score(id) FROM big WHERE id <= 2000")) == [16, 64, 256, 1024, 640]


def test_a_reader_of_everything_gets_full_batches_at_once(own: Session) -> None:
    assert sizes(own.must("SELECT sum(score(id)) FROM big")) == [4096, 904]


def test_batch_rows_is_the_largest_batch(own: Session) -> None:
    own.must("SET ml_udf.gather_rows = 100")
    assert sizes(own.must("SELECT sum(score(id)) FROM big WHERE id <= 250")) == [100, 100, 50]
    assert max(sizes(own.must("SELECT score(id) FROM big"))) == 100
    own.must("SET ml_udf.gather_rows = 1")
    assert sizes(own.must("SELECT score(id) FROM items LIMIT 3")) == [1, 1, 1]


def test_work_mem_ends_a_batch(own: Session) -> None:
    own.must("SET work_mem = '64kB'")
    query = "SELECT max(label(repeat('x', 2000) || id)) FROM items"
    batches = sizes(own.must(query))
    assert sum(batches) == 200
    assert 20 <= max(batches) <= 32


def test_a_batch_is_bounded_however_large_work_mem_is(own: Session) -> None:
    own.must(
        "SET work_mem = '2GB'",
        "CREATE FUNCTION width(text) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN length($1); END'",
        "CREATE FUNCTION width_batch(text[]) RETURNS int[] STABLE LANGUAGE plpgsql AS"
        " $$BEGIN RAISE NOTICE 'batch width %', to_json(array_fill(1, ARRAY[cardinality($1)]));"
        " RETURN array_fill(length($1[1]), ARRAY[cardinality($1)]); END$$",
    )
    batches = sizes(own.must("SELECT max(width(id || repeat('x', 1000000))) FROM items WHERE id <= 100"))
    assert sum(batches) == 100
    assert 60 <= max(batches) <= 68


def test_one_row_may_exceed_work_mem(own: Session) -> None:
    own.must("SET work_mem = '64kB'")
    assert sizes(own.must("SELECT max(label(repeat('x', 200000) || id)) FROM items WHERE id < 4")) == [
        1,
        1,
        1,
    ]


def test_large_results_make_later_batches_smaller(own: Session) -> None:
    own.must(
        "SET work_mem = '64kB'",
        "CREATE FUNCTION wide(int) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN RETURN"
        " repeat(''x'', 4000); END'",
        "CREATE FUNCTION wide_batch(int[]) RETURNS text[] STABLE LANGUAGE plpgsql AS"
        " $$BEGIN RAISE NOTICE 'batch wide %', to_json($1);"
        " RETURN array_fill(repeat('x', 4000), ARRAY[cardinality($1)]); END$$",
    )
    batches = sizes(own.must("SELECT count(wide(id)) FROM big WHERE id <= 3000"))
    assert sum(batches) == 3000
    assert max(batches[1:]) <= 20


def test_a_toasted_input_is_sent_whole(own: Session) -> None:
    own.must(
        "CREATE TABLE long (t text)",
        "ALTER TABLE long ALTER t SET STORAGE EXTERNAL",
        "INSERT INTO long SELECT repeat(i::text, 5000) FROM generate_series(1, 3) AS i,"
        " generate_series(1, 2)",
    )
    outcome = own.must("SELECT length(t), label(t) FROM long")
    assert sorted(outcome.rows) == [(5000, f"{i}{i}{i}") for i in (1, 1, 2, 2, 3, 3)]
    assert outcome.sent == 3


def test_equal_is_what_looks_the_same(own: Session) -> None:
    own.must(
        "CREATE FUNCTION digits(numeric) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN"
        " scale($1); END'",
        "CREATE FUNCTION digits_batch(numeric[]) RETURNS int[] STABLE LANGUAGE plpgsql AS"
        " $$BEGIN RAISE NOTICE 'batch digits %', to_json($1); RETURN ARRAY(SELECT scale(x) FROM"
        " unnest($1) WITH ORDINALITY AS u(x, i) ORDER BY i); END$$",
    )
    outcome = own.must("SELECT digits(x) FROM (VALUES (1.0), (1.00), (1.0), (1)) AS v(x)")
    assert outcome.rows == [(1,), (2,), (1,), (0,)]
    assert outcome.sent == 3


def test_the_error_is_that_of_the_first_row_at_fault(own: Session) -> None:
    """Whatever row the twin complained about, and however many more were in its batch."""
    outcome = own.run("SELECT id, label(path) FROM dirty")
    assert outcome.error == ("22P02", "cannot label bad/25")
    tries = [call.inputs for call in outcome.batches]
    assert tries[-1] == ["bad/25"]
    assert max(sizes(outcome)) <= 16


def test_rows_in_front_of_an_error_reach_a_cursor(own: Session) -> None:
    own.must("BEGIN", "DECLARE c CURSOR FOR SELECT id, label(path) FROM dirty")
    assert len(own.must("FETCH 24 FROM c").rows) == 24
    assert own.run("FETCH 1 FROM c").error == ("22P02", "cannot label bad/25")
    own.run("ROLLBACK")


# Of every error that ml_udf raises: does it speak of the system, or of the row that was asked for?
SYSTEM = {
    *("08001", "08006", "25001", "25006", "28000", "53100", "53400", "55P03", "57014", "58000", "58030"),
}
ROW = {error.sqlstate for error in error_classes()} - SYSTEM


@pytest.mark.parametrize("code", sorted(ROW))
def test_a_row_that_nobody_reaches_fails_nothing_whatever_its_error(own: Session, code: str) -> None:
    own.must(
        f"""CREATE FUNCTION read_file(n int) RETURNS int STABLE STRICT LANGUAGE plpgsql AS $$BEGIN
            IF n = 15 THEN RAISE 'row 15' USING ERRCODE = '{code}'; END IF; RETURN n; END$$;
        CREATE FUNCTION read_file_batch(ns int[]) RETURNS int[] STABLE LANGUAGE plpgsql AS $$BEGIN
            IF 15 = ANY (ns) THEN RAISE 'row 15' USING ERRCODE = '{code}'; END IF; RETURN ns; END$$;
        CREATE FUNCTION until_four() RETURNS int LANGUAGE plpgsql AS $$DECLARE r record; BEGIN
            FOR r IN SELECT id, read_file(id) AS n FROM items WHERE id < 20 LOOP
                EXIT WHEN r.n = 4;
            END LOOP; RETURN r.n; END$$;
        SET enable_indexscan = off; SET enable_bitmapscan = off"""
    )
    scan = "FROM items WHERE read_file(id) IS NOT NULL AND id < 20"
    assert own.must(f"SELECT id {scan} LIMIT 14").rows[-1] == (14,)
    assert own.must(f"SELECT EXISTS (SELECT 1 {scan} OFFSET 1)").rows == [(True,)]
    assert own.must("SELECT until_four()").rows == [(4,)]
    own.must("BEGIN", f"DECLARE c CURSOR FOR SELECT id {scan}")
    assert own.must("FETCH 14 FROM c").rows[-1] == (14,)
    assert own.run("FETCH 1 FROM c").error == (code, "row 15")
    own.must("ROLLBACK")


@pytest.mark.parametrize("code", sorted({*SYSTEM, "53200", "XX000", "40001", "58030", "F0000"}))
def test_an_error_of_the_system_is_raised_at_once(own: Session, code: str) -> None:
    own.must(
        "CREATE FUNCTION down(int) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
        "CREATE FUNCTION down_batch(int[]) RETURNS int[] STABLE LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE NOTICE 'batch down %', to_json($1); RAISE 'gone' USING ERRCODE = '{code}'; END$$",
    )
    outcome = own.run("SELECT down(id) FROM items")
    assert outcome.error == (code, "gone")
    assert sizes(outcome) == [16]


def test_a_caught_error_leaves_the_session_whole(own: Session) -> None:
    own.must("BEGIN", "SAVEPOINT s")
    assert own.run("SELECT label(path) FROM dirty").error is not None
    own.must("ROLLBACK TO s")
    assert own.must("SELECT DISTINCT label(path) FROM items").sent == 7
    own.must(
        "DO $$ BEGIN FOR i IN 1 .. 50 LOOP BEGIN PERFORM label(path) FROM dirty;"
        " EXCEPTION WHEN data_exception THEN NULL; END; END LOOP; END $$",
        "COMMIT",
    )


def test_an_unwanted_error_does_not_come_back_on_a_rescan(own: Session) -> None:
    """Each outer row stops in front of the bad one; the calls' states are made anew."""
    query = (
        "SELECT u.grp, (SELECT count(*) FROM (SELECT 1 FROM dirty WHERE label(path || left(u.name, 0)) > 'A'"
        " LIMIT 20) AS s) FROM users AS u"
    )
    assert own.must(query).rows == [(grp, 20) for grp in range(7)]


# Two layers, whose rows pass a node of another kind in between; the faulty row comes 25th.
TWO_LAYERS = {
    "an append": "SELECT score(length(l)) FROM (SELECT label(path) AS l FROM dirty UNION ALL"
    " SELECT label(path) || grp FROM items) AS u",
    "an ordered append": "SELECT score(length(l)) FROM (SELECT id, label(path) AS l FROM dirty UNION ALL"
    " SELECT id + 1000, label(path) || grp FROM items ORDER BY id) AS u",
    "a nested loop": "SELECT score(d.id + u.grp) FROM (SELECT id, label(path) AS l FROM dirty OFFSET 0) AS d"
    " JOIN users AS u ON u.grp = d.id - d.id WHERE d.l IS DISTINCT FROM 'x'",
    "a hash join": "SELECT score(d.id + u.grp) FROM (SELECT id, label(path) AS l FROM dirty OFFSET 0) AS d"
    " LEFT JOIN users AS u ON u.grp = d.id % 3 AND d.l IS DISTINCT FROM 'x'",
    "a right join": "SELECT score(u.grp), l FROM (SELECT id, label(path) AS l FROM dirty OFFSET 0) AS d"
    " RIGHT JOIN users AS u ON u.grp = d.id",
}


@pytest.mark.parametrize("query", TWO_LAYERS.values(), ids=TWO_LAYERS.keys())
@pytest.mark.parametrize("join", ["hashjoin", "nestloop", "mergejoin"])
def test_the_error_of_a_lower_layer_waits_for_its_row_too(own: Session, query: str, join: str) -> None:
    for other in {"hashjoin", "nestloop", "mergejoin"} - {join}:
        own.must(f"SET enable_{other} = off")
    own.must("SET ml_udf.batching = off", "BEGIN", f"DECLARE c CURSOR FOR {query}")
    row_by_row = 0
    while own.run("FETCH 1 FROM c").error is None:
        row_by_row += 1
        assert row_by_row < 1000
    own.must("ROLLBACK", "SET ml_udf.batching = on", "BEGIN", f"DECLARE c CURSOR FOR {query}")
    assert len(own.must(f"FETCH {row_by_row} FROM c").rows) == row_by_row
    assert own.run("FETCH 1 FROM c").error == ("22P02", "cannot label bad/25")
    own.must("ROLLBACK")


def test_a_lower_layers_error_that_nobody_wanted_does_not_come_back_on_a_rescan(own: Session) -> None:
    query = (
        "SELECT u.grp, (SELECT count(s) FROM (SELECT score(length(l)) AS s FROM (SELECT label(path) AS l"
        " FROM dirty WHERE path > left(u.name, 0) UNION ALL SELECT name FROM labels) AS a LIMIT 20) AS b)"
        " FROM users AS u"
    )
    assert own.must(query).rows == [(grp, 20) for grp in range(7)]


def test_explain_analyze_counts_batches(own: Session) -> None:
    (layer,) = layers_of(own.plan("SELECT label(path) FROM items", analyze=True))
    (call,) = layer["Batched Calls"]
    assert call["Batched"] == "label(items.path)"
    assert (call["Batches"], call["Rows"], call["Inputs Sent"]) == (1, 200, 7)
    assert (call["Minimum Batch Size"], call["Maximum Batch Size"], call["Average Batch Size"]) == (7, 7, 7.0)


def test_explain_analyze_shows_times_unless_told_not_to(own: Session) -> None:
    timed = "\n".join(line for (line,) in own.must("EXPLAIN (ANALYZE) SELECT label(path) FROM items").rows)
    untimed = own.must("EXPLAIN (ANALYZE, TIMING OFF) SELECT label(path) FROM items").rows
    assert "Inputs: 7 of 200 rows sent in 1 batches" in timed
    assert "Batch Time: total=" in timed
    assert not any("Batch Time" in line for (line,) in untimed)


def test_explain_shows_guards_and_filters(own: Session) -> None:
    plan = own.plan("SELECT CASE WHEN grp > 2 THEN label(path) END FROM items WHERE is_food(path)")
    top, bottom = layers_of(plan)
    assert top["Batched Calls"] == [{"Batched": "label(items.path)", "Only If": "((items.grp > 2) IS TRUE)"}]
    assert bottom["Filter"] == "(is_food(items.path))"
    assert bottom["Plans"][0]["Node Type"] == "Seq Scan"


def test_explain_analyze_adds_up_workers(own: Session) -> None:
    own.must(
        "SET parallel_setup_cost = 0",
        "SET parallel_tuple_cost = 0",
        "SET min_parallel_table_scan_size = 0",
        "SET max_parallel_workers_per_gather = 2",
    )
    plan = own.plan("SELECT max(score(id)) FROM big", analyze=True)
    (layer,) = layers_of(plan)
    assert layer["Parallel Aware"]
    (call,) = layer["Batched Calls"]
    assert call["Rows"] == call["Inputs Sent"] == 5000


def test_the_phantom_of_a_hash_join_is_not_counted(own: Session) -> None:
    own.must("SET enable_nestloop = off", "SET enable_mergejoin = off")
    query = "SELECT count(*) FROM items JOIN labels ON label(path) = labels.name"
    (layer,) = layers_of(own.plan(query, analyze=True))
    assert layer["Actual Rows"] == 200


def test_a_hash_join_with_nothing_to_join_calls_nothing(own: Session) -> None:
    own.must(
        "SET enable_nestloop = off",
        "SET enable_mergejoin = off",
        "CREATE TABLE none (name text)",
        "ANALYZE none",
    )
    outcome = own.must("SELECT count(*) FROM dirty JOIN none ON label(path) = none.name")
    assert outcome.rows == [(0,)]
    assert outcome.batches == []


@pytest.mark.parametrize("how", ["cancel", "timeout", "terminate"])
def test_a_running_batch_is_given_up_at_once(connect: Callable[..., Session], how: str) -> None:
    """The twin here waits in PostgreSQL's own way; one that does not must look for interrupts itself."""
    session, other = connect(), connect()
    session.must(
        "CREATE FUNCTION slow(int) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
        "CREATE FUNCTION slow_batch(int[]) RETURNS int[] STABLE LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(60); RETURN $1; END'",
    )
    ((pid,),) = session.must("SELECT pg_backend_pid()").rows
    asleep = f"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {pid}"
    stop = f"SELECT pg_{how}_backend({pid})"
    if how == "timeout":
        session.must("SET statement_timeout = '300ms'")
        stop = "SELECT 1"
    begun_s = time.monotonic()
    with once(lambda: other.must(asleep).rows == [(True,)], lambda: other.must(stop)):
        error = session.run("SELECT slow(id) FROM items").error
    assert error is not None
    assert error[0] == ("57P01" if how == "terminate" else "57014")
    assert time.monotonic() - begun_s < 5
    assert other.must("SELECT count(label(path)) FROM items").rows == [(200,)]


def test_a_row_changed_meanwhile_is_labelled_anew(connect: Callable[..., Session]) -> None:
    """EvalPlanQual: the second UPDATE waits for the first, then looks at the row's new version."""
    first, second = connect(), connect()
    first.must("BEGIN", "UPDATE items SET path = 'path/6', grp = 50 WHERE id = 3")
    done: list[Outcome] = []
    update = (
        "UPDATE items SET price = length(label(path)) + right(label(path), 1)::int"
        " WHERE id < 5 AND is_food(path)"
    )
    waiting = threading.Thread(target=lambda: done.append(second.run(update)))
    waiting.start()
    watcher = connect()
    blocked = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE items SET price%'"
    )
    wait_until(lambda: watcher.must(blocked).rows != [(0,)])
    first.must("COMMIT")
    waiting.join()
    assert done[0].error is None
    prices = dict(watcher.must("SELECT id, price FROM items WHERE id < 5").rows)
    # Row 3 is no food any more in its new version, so it kept its price; row 4 never was.
    assert prices == {1: 4, 2: 5, 3: prices[3], 4: prices[4]}
    assert float(prices[3]) == 0.75


def test_locked_rows_are_skipped(connect: Callable[..., Session]) -> None:
    first, second = connect(), connect()
    first.must("BEGIN", "SELECT * FROM items WHERE id IN (1, 3) FOR UPDATE")
    outcome = second.must(
        "SELECT id, label(path) FROM items WHERE id < 10 ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED"
    )
    assert outcome.rows == [(2, "PA2"), (4, "PA4"), (5, "PA5")]
    first.run("ROLLBACK")


def test_the_cost_of_a_model_compiles_nothing(own: Session) -> None:
    own.must("SET jit = on")
    lines = own.must("EXPLAIN (ANALYZE) SELECT label(path), count(*) FROM items GROUP BY 1").rows
    assert not any("JIT" in line for (line,) in lines)


def test_expressions_of_the_node_can_be_compiled(own: Session) -> None:
    own.must("SET jit_above_cost = 0", "SET jit_inline_above_cost = 0", "SET jit_optimize_above_cost = 0")
    own.must("SET ml_udf.batch_everything = on")
    query = (
        "SELECT CASE WHEN grp > 2 THEN upper(lower(path)) END, abs(grp), features FROM items"
        " WHERE sqrt(grp) > 1 ORDER BY id"
    )
    expected = own.must("SET jit = off", query).rows
    assert own.must("SET jit = on", query).rows == expected


def test_twins_may_themselves_use_the_node(own: Session) -> None:
    own.must(
        "CREATE FUNCTION outer_label(text) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN RETURN"
        " label($1); END'",
        "CREATE FUNCTION outer_label_batch(text[]) RETURNS text[] STABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN ARRAY(SELECT label(x) FROM unnest($1) WITH ORDINALITY AS u(x, i) ORDER BY i); END'",
    )
    outcome = own.must("SELECT DISTINCT outer_label(path) FROM items")
    assert len(outcome.rows) == 7
    assert (outcome.sent, outcome.singles) == (7, [])
