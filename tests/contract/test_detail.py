"""`ml_udf.detail`: how a row was answered, the same on every engine and at every endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ml_udf.client import Client
from tests.engines import Engine
from tests.inference_server import InferenceServer
from tests.models import hashing_model, label_of

FIELDS = (
    "value",
    "confidence",
    "model_version",
    "error",
    "answered_by",
    "expected_accuracy",
    "device_seconds",
)


@pytest.fixture(scope="module")
def functions(server: InferenceServer, open_folder: Path) -> None:
    """udf_two: two members, which vote. udf_sure: one that is never sure enough."""
    server.deploy(hashing_model(open_folder / "made", "other_hash"))
    client = Client(server.url)
    client.put("/v1/functions/udf_two", {"models": ["text_hash", "other_hash"]})
    client.put("/v1/functions/udf_sure", {"models": ["photo_net"], "min_confidence": 1.0, "default": "none"})
    client.close()


@pytest.fixture
def engine(functions: None, engine: Engine) -> Engine:
    return engine


def details(engine: Engine, function: str, *inputs: str | None) -> list[dict[str, Any]]:
    listed = ", ".join("(CAST(NULL AS text))" if each is None else f"('{each}')" for each in inputs)
    fields = ", ".join(f"(d).{name}" for name in FIELDS)
    rows = engine.query(
        f"SELECT {fields} FROM (SELECT ml_udf.detail('{function}', t) AS d"
        f" FROM (VALUES {listed}) AS v(t)) AS told"
    )
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def test_an_answer_says_who_gave_it_what_is_expected_of_it_and_what_it_took(
    engine: Engine, endpoint: str
) -> None:
    found, nothing = details(engine, "udf_text", "a", None)
    assert (found["value"], found["error"]) == (label_of("a"), None)
    assert 0 < found["confidence"] <= 1
    assert found["model_version"]
    assert found["answered_by"] == ["text_hash"]
    assert found["expected_accuracy"] == 0.5, "as its manifest says"
    if endpoint.startswith("local:"):
        assert found["device_seconds"] is None, "nobody learns it there"
    else:
        assert 0 < found["device_seconds"] < 1
    assert set(nothing.values()) == {None}


def test_of_members_that_vote_nothing_is_expected(engine: Engine) -> None:
    (found,) = details(engine, "udf_two", "a")
    assert (found["value"], found["answered_by"]) == (label_of("a"), ["text_hash", "other_hash"])
    assert found["expected_accuracy"] is None


def test_a_default_answer_says_so_and_nothing_is_expected_of_it(engine: Engine) -> None:
    (found,) = details(engine, "udf_sure", "0.jpg")
    assert (found["value"], found["answered_by"]) == ("none", ["default"])
    assert found["expected_accuracy"] is None
    assert found["confidence"] < 1


def test_a_row_at_fault_has_its_error_and_nothing_else(engine: Engine) -> None:
    fault, fine = details(engine, "udf_photo", "no.jpg", "0.jpg")
    assert fault.pop("error").startswith("input_not_found: ")
    assert fault.pop("model_version") == fine["model_version"]
    assert set(fault.values()) == {None}
    assert fine["answered_by"] == ["photo_net"]


def test_bytes_of_an_image_are_answered_too(engine: Engine, photos: Path) -> None:
    if engine.name == "duckdb":
        pytest.skip("its generic functions take texts")
    content = f"'\\x{(photos / '0.jpg').read_bytes().hex()}'::bytea"
    ((who,),) = engine.query(f"SELECT (ml_udf.detail('udf_photo', {content})).answered_by")
    assert who == ["photo_net"]


def test_many_rows_are_asked_in_few_requests_and_keep_their_order(
    engine: Engine, endpoint: str, server: InferenceServer
) -> None:
    if engine.name == "postgres-by-row":
        pytest.skip("one request a row, as without the batching module")
    series = "range(2000)" if engine.name == "duckdb" else "generate_series(0, 1999)"
    before = server.successes("udf_text")
    rows = engine.query(
        f"SELECT i, (d).value FROM (SELECT i, ml_udf.detail('udf_text', 'row ' || i) AS d"
        f" FROM {series} AS t(i)) AS x ORDER BY i"
    )
    assert rows == [(number, label_of(f"row {number}")) for number in range(2000)]
    if not endpoint.startswith("local:"):
        assert server.successes("udf_text") - before <= 10


def test_the_view_of_functions_says_how_members_are_selected(engine: Engine, endpoint: str) -> None:
    field = "selection.{}" if engine.name == "duckdb" else "selection->>'{}'"
    names = ("policy", "gear", "expected_accuracy", "device_seconds_a_row")
    columns = ", ".join(field.format(name) for name in names)
    ((policy, gear, expected, taken_s),) = engine.query(
        f"SELECT {columns} FROM ml_udf.functions WHERE name = 'udf_text'"
    )
    assert (policy, gear) == ("all", None)
    if not endpoint.startswith("local:"):
        assert float(expected) == 0.5
        assert 0 < float(taken_s) < 1
