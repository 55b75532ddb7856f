"""A function of numbers that follows plans on a running server, and says what it expects of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ml_udf.errors import BadOption
from server.ensemble.worths import fit_of_worths
from tests.contract.oip_wire import Reply, call, infer_body
from tests.engines import DuckDb
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.task_models import price_model

# As if `dear` had been of no use on held-out rows.
FIT = fit_of_worths(("price", "dear"), {(0,): 0.9, (1,): 0.5, (0, 1): 0.9}, 400, rule="mean", measure="r2")
BODY = {"models": ["price", "dear"], "slo_ms": 5000}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    made = tmp_path_factory.mktemp("made")
    with inference_server(tmp_path_factory.mktemp("home"), flags=[ANEW]) as server:
        server.deploy(price_model(made))
        server.deploy(price_model(made, "dear", a_gram=4.0))
        with server.client() as client:
            client.put("/v1/functions/udf_prices", BODY)
        server.keep_fit(FIT.to_json())
        yield server


def test_rows_of_a_query_are_asked_of_the_cheapest_that_are_worth_as_much(server: InferenceServer) -> None:
    with server.client() as client:
        told = client.get("/v1/functions/udf_prices")
    assert (told["select"], told["fitted"]["measure"], told["fitted"]["value"]) == ("value", "r2", 0.9)
    engine = DuckDb(server.url, ["udf_prices"])
    try:
        assert engine.query("SELECT udf_prices(10, 1)")[0][0] in (21.0, 31.0), "no plan may be there yet"
        rows = engine.query("SELECT DISTINCT udf_prices(i, 1) - 2.0 * i FROM range(300) AS t(i)")
        assert rows == [(1.0,)], "`price` alone: twice the grams, and the fat"
        query = "FROM ml_udf.functions WHERE name = 'udf_prices'"
        ((policy, measure, expected),) = engine.query(
            f"SELECT selection.policy, selection.measure, selection.expected_accuracy {query}"
        )
        assert (policy, measure, expected) == ("value", "r2", 0.9)
    finally:
        engine.close()


def test_an_accuracy_is_a_least_share_of_the_variance(server: InferenceServer) -> None:
    def asked(least: float) -> Reply:
        body = infer_body("[10, 1]", name="row", outputs=("value", "answered_by"), ml_udf_min_accuracy=least)
        return call(server.port, "POST", "/v2/models/udf_prices/infer", body)

    assert asked(0.8).status == 200
    refused = asked(0.95)
    assert refused.status == 400
    assert "have an accuracy of 0.95 together" in refused.error
    assert "its r2" in refused.error


def test_a_policy_that_reads_confidences_is_refused(server: InferenceServer) -> None:
    with server.client() as client, pytest.raises(BadOption, match="one of value, gear, slackfit, async"):
        client.put("/v1/functions/udf_prices", {**BODY, "select": "exp3"})
