"""A fault is told in the same words on every engine: SQLSTATE, what happened, what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ml_udf.client.exchange import ROW_FAULTS
from ml_udf.errors import Cancelled, MlUdfError, error_classes
from tests.engines import FUNCTIONS, Engine, SqlError, make_engine
from tests.postgres.oip_server import WHAT_HAPPENED, OipServer, oip_server

CODES = {error.code: error for error in error_classes() if error is not MlUdfError}
OF_REQUESTS = {
    code: error for code, error in CODES.items() if not issubclass(error, (*ROW_FAULTS, Cancelled))
}


@pytest.fixture(scope="module")
def faulty_server() -> Iterator[OipServer]:
    with oip_server() as server:
        server.functions = dict.fromkeys(FUNCTIONS, "text")
        yield server


@pytest.fixture
def engine(engine_name: str, faulty_server: OipServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, faulty_server.url, request)
    yield made
    made.close()


def test_every_error_of_a_row_is_told_alike(engine: Engine) -> None:
    for code, error in CODES.items():
        with pytest.raises(SqlError) as caught:
            engine.query(f"SELECT udf_text('fault:{code}')")
        check(caught.value, error)
        assert f"udf_text('fault:{code}')" in caught.value.text


def test_every_error_of_a_request_is_told_alike(engine: Engine) -> None:
    for code, error in OF_REQUESTS.items():
        with pytest.raises(SqlError) as caught:
            engine.query(f"SELECT udf_text('refuse:{code}')")
        check(caught.value, error)


def test_with_on_error_null_the_warning_tells_it_alike(engine: Engine) -> None:
    engine.set("on_error", "null")
    for code, error in CODES.items():
        assert engine.query(f"SELECT udf_text('fault:{code}')") == [(None,)]
        (warning,) = engine.warned()
        assert f"udf_text: 1 input could not be answered and gave NULL; the first: {code}: " in warning
        assert error.usual_hint in warning


def check(caught: SqlError, error: type[MlUdfError]) -> None:
    assert caught.sqlstate == error.sqlstate
    assert WHAT_HAPPENED in caught.text
    assert caught.text.count(error.usual_hint) == 1
