"""`ml_udf.feedback` on both engines: the same outcomes, NULLs, words and rights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_udf.errors import error_from_code
from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer

LABELLED = "(VALUES {}) AS labelled(input, label)"


@pytest.fixture
def engine(engine_name: str, server: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, server.url, request)
    yield made
    made.close()


def labelled(*rows: tuple[str | None, str | None]) -> str:
    texts = [", ".join("NULL" if value is None else f"'{value}'" for value in row) for row in rows]
    return LABELLED.format(", ".join(f"({text})" for text in texts))


def test_a_label_is_counted_once_changed_and_repeated(engine: Engine) -> None:
    ask = "SELECT ml_udf.feedback('udf_text', '{}', '{}')"
    text = f"soup of {engine.name}"
    assert engine.query(ask.format(text, "pizza")) == [("counted",)]
    assert engine.query(ask.format(text, "pizza")) == [("repeated",)]
    assert engine.query(ask.format(text, "sushi")) == [("changed",)]


def test_a_whole_query_is_sent_in_batches(engine: Engine, server: InferenceServer) -> None:
    if engine.name == "postgres-by-row":
        pytest.skip("one request a row, as without the batching module")
    before = server.successes("udf_text")
    query = (
        "SELECT count(ml_udf.feedback('udf_text', input, label)) FROM"
        " (SELECT '{} ' || i AS input, CASE WHEN i % 10 = 0 THEN NULL ELSE 'laksa' END AS label"
        f" FROM {series(engine)} AS t(i)) AS labelled"
    )
    assert engine.query(query.format(engine.name)) == [(1800,)]
    assert server.successes("udf_text") - before <= 10


def test_null_is_not_counted_and_gives_null(engine: Engine) -> None:
    rows = labelled((f"null {engine.name}", "pizza"), (None, "pizza"), ("b", None))
    query = f"SELECT ml_udf.feedback('udf_text', input, label) FROM {rows}"
    assert engine.query(query) == [("counted",), (None,), (None,)]
    assert engine.query("SELECT ml_udf.feedback(NULL, 'a', 'pizza')") == [(None,)]


FAULTS = {
    "unknown_label": (
        "SELECT ml_udf.feedback('udf_text', 'a', 'pasta')",
        "22023",
        "'pasta' is no class of udf_text; there are laksa, pizza, satay, sushi",
    ),
    "unknown_function": (
        "SELECT ml_udf.feedback('udf_texts', 'a', 'pizza')",
        "42704",
        "there is no function or model 'udf_texts' here",
    ),
    "input_not_found": ("SELECT ml_udf.feedback('udf_photo', 'no.jpg', 'pizza')", "58P01", "no.jpg"),
    "input_undecodable": ("SELECT ml_udf.feedback('udf_photo', 'text.jpg', 'pizza')", "22P03", ""),
    "bad_option": (
        "SELECT ml_udf.feedback('udf_features', '0.jpg', 'pizza')",
        "22023",
        "udf_features answers image-embedding, which has no labels to give",
    ),
}


@pytest.mark.parametrize("code", FAULTS)
def test_faults_are_told_in_the_same_words(engine: Engine, code: str) -> None:
    query, sqlstate, words = FAULTS[code]
    with pytest.raises(SqlError) as caught:
        engine.query(query)
    assert caught.value.sqlstate == sqlstate
    assert words in caught.value.text
    assert error_from_code(code, "").usual_hint in caught.value.text


def test_with_on_error_null_a_row_at_fault_is_null_and_warned_of(engine: Engine) -> None:
    engine.set("on_error", "null")
    rows = labelled((f"fine {engine.name}", "pizza"), ("b", "pasta"))
    query = f"SELECT ml_udf.feedback('udf_text', input, label) FROM {rows}"
    assert engine.query(query) == [("counted",), (None,)]
    (warning,) = engine.warned()
    assert "udf_text: 1 input could not be answered and gave NULL; the first: unknown_label: " in warning


def test_a_cancelled_statement_returns_soon_and_keeps_nothing_that_was_not_answered(engine: Engine) -> None:
    ask = f"SELECT ml_udf.feedback('udf_slow', 'slow {engine.name}', 'pizza')"
    timer = engine.cancel_after(0.5)
    began_s = time.monotonic()
    with pytest.raises(SqlError):
        engine.query(ask)
    took_s = time.monotonic() - began_s
    timer.join()
    assert took_s < 2.5
    assert engine.query("SELECT feedback FROM ml_udf.functions WHERE name = 'udf_slow'") == [(None,)]


def test_a_statement_that_is_cancelled_and_asked_again_counts_each_row_once(engine: Engine) -> None:
    rows = 300 if engine.name == "postgres-by-row" else 3000
    series = f"range({rows})" if engine.name == "duckdb" else f"generate_series(1, {rows})"
    query = (
        f"SELECT outcome, count(*) FROM (SELECT ml_udf.feedback('udf_text', 'again {engine.name} ' || i, "
        f"'satay') AS outcome FROM {series} AS t(i)) AS told GROUP BY 1 ORDER BY 1"
    )
    timer = engine.cancel_after(0.1)
    with contextlib.suppress(SqlError):
        engine.query(query)
    timer.join()
    time.sleep(0.2)  # a cancel that comes too late is over
    told = dict(engine.query(query))
    assert told.keys() <= {"counted", "repeated"}
    assert sum(told.values()) == rows
    assert engine.query(query) == [("repeated", rows)]


def test_the_view_shows_what_feedback_says(engine: Engine) -> None:
    engine.query("SELECT ml_udf.feedback('udf_photo', '1.jpg', 'pizza')")
    field = "feedback->>'{}'" if engine.name != "duckdb" else "feedback.{}"
    columns = ", ".join(field.format(name) for name in ("rows", "learns"))
    ((rows, learns),) = engine.query(f"SELECT {columns} FROM ml_udf.functions WHERE name = 'udf_photo'")
    assert (int(rows), str(learns).lower()) == (1, "false")
    assert engine.query("SELECT feedback FROM ml_udf.functions WHERE name = 'udf_slow'") == [(None,)]


def test_bytes_of_an_image_are_labelled_as_paths_are(engine: Engine, photos: Path) -> None:
    content = (photos / "2.jpg").read_bytes().hex()
    literal = f"from_hex('{content}')" if engine.name == "duckdb" else f"'\\x{content}'::bytea"
    first = engine.query(f"SELECT ml_udf.feedback('udf_photo', {literal}, 'pizza')")
    assert first in ([("counted",)], [("repeated",)])
    assert engine.query(f"SELECT ml_udf.feedback('udf_photo', {literal}, 'pizza')") == [("repeated",)]


def test_a_folder_is_no_server_that_could_learn(
    engine_name: str, server: InferenceServer, photos: Path, request: pytest.FixtureRequest
) -> None:
    engine = make_engine(engine_name, f"local:{server.home}?media_root={photos}", request)
    try:
        with pytest.raises(SqlError) as caught:
            engine.query("SELECT ml_udf.feedback('udf_text', 'a', 'pizza')")
    finally:
        engine.close()
    assert caught.value.sqlstate == "22023"
    assert "feedback on udf_text is given to a server" in caught.value.text


@pytest.mark.security
def test_only_an_administrator_gives_feedback(engine: Engine) -> None:
    if engine.name == "duckdb":
        pytest.skip("whoever holds the token may; the server says so (tests/e2e/test_feedback.py)")
    rights = engine.query(
        "SELECT DISTINCT r.rolname::text, has_function_privilege(r.oid, p.oid, 'EXECUTE')"
        " FROM pg_proc p, pg_roles r"
        " WHERE p.pronamespace = 'ml_udf'::regnamespace AND p.proname LIKE 'feedback%'"
        " AND r.rolname IN ('ml_udf_reader', 'ml_udf_trainer', 'ml_udf_admin') ORDER BY 1"
    )
    assert rights == [("ml_udf_admin", True), ("ml_udf_reader", False), ("ml_udf_trainer", False)]


def series(engine: Engine) -> str:
    return "range(2000)" if engine.name == "duckdb" else "generate_series(0, 1999)"
