"""What counts as a twin, what it must return, and who may call it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.postgres.batch.session import Session, layers_of

QUERY = "SELECT id, plain(path) FROM items WHERE id < 30 ORDER BY id"
PLAIN = "CREATE FUNCTION plain(text) RETURNS text {} LANGUAGE plpgsql AS 'BEGIN RETURN ''p'' || $1; END'"
TWIN = (
    "CREATE FUNCTION {}({}) RETURNS {} {} LANGUAGE plpgsql AS"
    " 'BEGIN RETURN ARRAY(SELECT ''p'' || x FROM unnest($1) WITH ORDINALITY AS u(x, i) ORDER BY i); END'"
)


def twin(
    name: str = "plain_batch", arguments: str = "text[]", result: str = "text[]", marks: str = "STABLE"
) -> str:
    return TWIN.format(name, arguments, result, marks)


def is_batched(session: Session, query: str = QUERY) -> bool:
    return bool(layers_of(session.plan(query)))


def test_a_twin_has_the_name_the_types_and_the_marks(own: Session) -> None:
    own.must(PLAIN.format("STABLE"), twin())
    assert is_batched(own)
    assert own.must(QUERY).rows[:2] == [(1, "ppath/1"), (2, "ppath/2")]


@pytest.mark.parametrize(
    ("plain_marks", "near_twin"),
    [
        ("STABLE", twin(name="plain_batches")),
        ("STABLE", twin(arguments="varchar[]")),
        ("STABLE", twin(arguments="text[], int[]")),
        ("STABLE", twin(arguments="VARIADIC text[]")),
        ("STABLE", twin(result="varchar[]")),
        ("STABLE", twin(result="text")),
        ("STABLE", twin(result="SETOF text[]").replace("RETURN ARRAY", "RETURN QUERY SELECT ARRAY")),
        ("STABLE", twin(marks="VOLATILE")),
        ("STABLE", twin(marks="STABLE PARALLEL SAFE")),
        ("STABLE", twin(marks="STABLE SECURITY DEFINER")),
        ("STABLE SECURITY DEFINER", twin()),
        ("VOLATILE", twin()),
        ("STABLE", "CREATE SCHEMA other; " + twin(name="other.plain_batch")),
        ("STABLE", twin() + "; CREATE ROLE someone; ALTER FUNCTION plain_batch OWNER TO someone"),
    ],
)
def test_a_near_miss_is_no_twin(own: Session, plain_marks: str, near_twin: str) -> None:
    own.must(PLAIN.format(plain_marks), near_twin)
    try:
        assert not is_batched(own)
    finally:
        own.run("DROP OWNED BY someone; DROP ROLE someone")


def test_a_strangers_function_cannot_pose_as_a_twin(connect: Callable[..., Session]) -> None:
    """Whoever may create functions in the schema must not get at others' inputs that way."""
    owner = connect()
    owner.must(
        PLAIN.format("STABLE"), "CREATE ROLE stranger LOGIN", "GRANT CREATE ON SCHEMA public TO stranger"
    )
    stranger = connect(user="stranger")
    stranger.must(twin())
    assert not is_batched(owner)
    stranger.close()
    owner.must("DROP OWNED BY stranger; DROP ROLE stranger")


def test_a_twin_is_found_as_soon_as_it_is_created(own: Session) -> None:
    own.must(PLAIN.format("STABLE"))
    assert not is_batched(own)
    own.must(twin())
    assert is_batched(own)


def test_a_prepared_plan_ends_with_its_twin(connect: Callable[..., Session]) -> None:
    session, other = connect(), connect()
    session.must(PLAIN.format("STABLE"), twin(), f"PREPARE q AS {QUERY}", "EXECUTE q", "EXECUTE q")
    assert is_batched(session, "EXECUTE q")
    other.must("DROP FUNCTION plain_batch")
    assert session.must("EXECUTE q").rows[0] == (1, "ppath/1")
    assert not is_batched(session, "EXECUTE q")


def test_a_prepared_plan_follows_its_twins_new_body(connect: Callable[..., Session]) -> None:
    session, other = connect(), connect()
    session.must(PLAIN.format("STABLE"), twin(), f"PREPARE q AS {QUERY}")
    session.must(*["EXECUTE q"] * 7)
    other.must(twin().replace("CREATE", "CREATE OR REPLACE").replace("''p''", "''new ''"))
    assert session.must("EXECUTE q").rows[0] == (1, "new path/1")


OF_SETTING = "coalesce(current_setting('own.{}', true), '')"


def test_a_twin_is_called_under_the_settings_that_its_function_was_given(own: Session) -> None:
    both = " || ".join(OF_SETTING.format(name) for name in ("one", "two"))
    body = f"'BEGIN RETURN {both.replace(chr(39), 2 * chr(39))}; END'"
    own.must(
        f"CREATE FUNCTION plain(text) RETURNS text STABLE LANGUAGE plpgsql AS {body}",
        twin().replace("''p'' || x", both.replace("'", "''")),
        "ALTER FUNCTION plain SET own.one = 'f'",
        "ALTER FUNCTION plain SET own.two = 'f'",
        "ALTER FUNCTION plain_batch SET own.two = 'twin'",
    )
    assert own.must(QUERY).rows[0] == (1, "ftwin")
    assert own.must(f"SELECT {both}").rows == [("",)]
    own.must(f"PREPARE q AS {QUERY}", "EXECUTE q", "ALTER FUNCTION plain RESET own.one")
    assert own.must("EXECUTE q").rows[0] == (1, "twin")
    failing = "CREATE OR REPLACE FUNCTION plain_batch(text[]) RETURNS text[] STABLE LANGUAGE plpgsql AS"
    own.must(failing + " 'BEGIN RAISE ''no''; END'", "ALTER FUNCTION plain SET own.one = 'f'", "BEGIN")
    assert own.run("SAVEPOINT s", QUERY).error == ("P0001", "no")
    assert own.must("ROLLBACK TO s", f"SELECT {both}", "ROLLBACK").rows == [("",)]


def test_turning_batching_off_reaches_prepared_plans(own: Session) -> None:
    own.must("PREPARE q AS SELECT id, label(path) FROM items", *["EXECUTE q"] * 7)
    assert own.must("SET ml_udf.batching = off", "EXECUTE q").batches == []
    assert own.must("RESET ml_udf.batching", "EXECUTE q").sent == 7
    assert own.must("BEGIN", "SET LOCAL ml_udf.batching = off", "EXECUTE q", "ROLLBACK").batches == []
    assert own.must("EXECUTE q").sent == 7


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("$1[2:]", "function plain_batch(text[]) returned 6 results for 7 inputs"),
        ("$1 || 'more'::text", "function plain_batch(text[]) returned 8 results for 7 inputs"),
        ("'{}'::text[]", "function plain_batch(text[]) returned 0 results for 7 inputs"),
        ("NULL::text[]", "function plain_batch(text[]) returned NULL instead of an array of 7 results"),
        ("ARRAY[$1]", "function plain_batch(text[]) returned 1 results for 7 inputs"),
    ],
)
def test_a_wrong_number_of_results_is_an_error(own: Session, returns: str, message: str) -> None:
    own.must(
        PLAIN.format("STABLE"),
        "CREATE FUNCTION plain_batch(text[]) RETURNS text[] STABLE LANGUAGE plpgsql AS $$BEGIN"
        f" RETURN {returns}; END$$",
    )
    error = own.run(QUERY).error
    assert error is not None
    assert error[0][:2] == "39"
    assert error[1] == message


def test_an_array_may_start_anywhere(own: Session) -> None:
    own.must(
        PLAIN.format("STABLE"),
        "CREATE FUNCTION plain_batch(text[]) RETURNS text[] STABLE LANGUAGE plpgsql AS"
        " $$DECLARE r text[]; BEGIN FOR i IN 1 .. cardinality($1) LOOP r[i + 5] := 'p' || $1[i]; END LOOP;"
        " RETURN r; END$$",
    )
    assert own.must(QUERY).rows[6] == (7, "ppath/0")


def test_twins_may_be_of_any_language(own: Session) -> None:
    own.must(
        PLAIN.format("STABLE"),
        "CREATE FUNCTION plain_batch(text[]) RETURNS text[] STABLE LANGUAGE sql AS"
        " $$SELECT array_agg('p' || x ORDER BY i) FROM unnest($1) WITH ORDINALITY AS u(x, i)$$",
    )
    assert is_batched(own)
    assert own.must(QUERY).rows[0] == (1, "ppath/1")


def test_a_twin_runs_as_its_owner_if_it_says_so(connect: Callable[..., Session]) -> None:
    owner = connect()
    owner.must(
        "CREATE ROLE guest LOGIN",
        "GRANT SELECT ON items TO guest",
        "CREATE FUNCTION whose(text) RETURNS text STABLE SECURITY DEFINER LANGUAGE plpgsql AS"
        " 'BEGIN RETURN current_user; END'",
        "CREATE FUNCTION whose_batch(text[]) RETURNS text[] STABLE SECURITY DEFINER LANGUAGE plpgsql AS"
        " 'BEGIN RETURN array_fill(current_user::text, ARRAY[cardinality($1)]); END'",
    )
    guest = connect(user="guest")
    assert guest.must("SELECT DISTINCT whose(path) FROM items").rows == [("postgres",)]
    guest.close()
    owner.must("DROP OWNED BY guest; DROP ROLE guest")


@pytest.mark.parametrize("function", ["label(text)", "label_batch(text[])"])
def test_the_right_to_execute_is_needed_on_both(connect: Callable[..., Session], function: str) -> None:
    owner = connect()
    owner.must(
        f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC",
        "CREATE ROLE guest LOGIN",
        "GRANT SELECT ON items TO guest",
    )
    guest = connect(user="guest")
    refused = guest.run("SELECT label(path) FROM items")
    assert refused.error == ("42501", f"permission denied for function {function.split('(')[0]}")
    assert refused.batches == []
    owner.must(f"GRANT EXECUTE ON FUNCTION {function} TO guest")
    assert guest.must("SELECT label(path) FROM items").sent == 7
    guest.close()
    owner.must("DROP OWNED BY guest; DROP ROLE guest")


def test_a_right_lost_between_planning_and_running_is_missed(connect: Callable[..., Session]) -> None:
    owner = connect()
    owner.must("CREATE ROLE guest LOGIN", "GRANT SELECT ON items TO guest")
    guest = connect(user="guest")
    guest.must("PREPARE q AS SELECT label(path) FROM items", *["EXECUTE q"] * 7)
    owner.must("REVOKE EXECUTE ON FUNCTION label_batch(text[]) FROM PUBLIC")
    error = guest.run("EXECUTE q").error
    assert error is not None
    assert error[0] == "42501"
    guest.close()
    owner.must("DROP OWNED BY guest; DROP ROLE guest")


def test_a_name_that_leaves_no_room_for_the_suffix_has_no_twin(own: Session) -> None:
    name = "n" * 60
    own.must(PLAIN.format("STABLE").replace("plain", name), twin(name=f"{name}_ba"))
    assert not is_batched(own, QUERY.replace("plain", name))


def test_the_wrapper_of_vectors_has_one_column(own: Session) -> None:
    own.must(
        "CREATE TYPE two AS (v float8[], w int)",
        "CREATE FUNCTION norm(float8[]) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
        "CREATE FUNCTION norm_batch(two[]) RETURNS int[] STABLE LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    assert not is_batched(own, "SELECT norm(features) FROM items")


def test_a_wrapper_may_have_lost_columns(own: Session) -> None:
    own.must(
        "ALTER TYPE vector_of_float8 ADD ATTRIBUTE w int CASCADE",
        "ALTER TYPE vector_of_float8 DROP ATTRIBUTE w CASCADE",
    )
    outcome = own.must("SELECT DISTINCT embed(features) FROM items ORDER BY 1")
    assert outcome.sent == 4
    assert outcome.rows[0] == ([0.0, 15.0],)


def test_explaining_calls_nothing(session: Session) -> None:
    session.must("BEGIN")
    outcome = session.must("EXPLAIN SELECT label(path) FROM items WHERE label(path) > 'A'")
    session.must("ROLLBACK")
    assert outcome.batches == []
    assert outcome.singles == []
