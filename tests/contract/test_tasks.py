"""Every task, by models that really answer: over the protocol in both its forms, over REST, at `local:`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from PIL import Image

from ml_udf.errors import BadOption
from tests.contract.oip_wire import Reply, call, infer_body
from tests.engines import DuckDb, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, write_manifest
from tests.task_models import (
    COLOURS,
    QUADRANTS,
    boxes_model,
    brightness_model,
    colours_model,
    generation_model,
    price_model,
    tags_model,
    text_value_model,
)

FUNCTIONS = (
    "udf_bright",
    "udf_colours",
    "udf_boxes",
    "udf_strict",
    "udf_fused",
    "udf_price",
    "udf_prices",
    "udf_tags",
    "udf_value",
    "udf_write",
    "udf_meaning",
)


@pytest.fixture(scope="module")
def pictures(open_folder: Path) -> Path:
    folder = open_folder / "pictures"
    folder.mkdir()
    for name, colour in {"white": (255, 255, 255), "red": (255, 0, 0), "dark": (51, 51, 51)}.items():
        Image.new("RGB", (64, 32), colour).save(folder / f"{name}.png")
    (folder / "text.png").write_text("no picture")
    return folder


@pytest.fixture(scope="module")
def server(open_folder: Path, pictures: Path) -> Iterator[InferenceServer]:
    made = open_folder / "tasks"
    with inference_server(open_folder / "tasks-served", media_roots=[pictures]) as running:
        running.deploy(brightness_model(made, interval=5.0), "udf_bright")
        running.deploy(colours_model(made), "udf_colours")
        running.deploy(colours_model(made, "soft", sharpness=4.0))
        running.deploy(boxes_model(made), "udf_boxes")
        running.deploy(boxes_model(made, "shifted", shift=2.0))
        running.deploy(price_model(made), "udf_price")
        running.deploy(price_model(made, "dear", a_gram=4.0))
        running.deploy(tags_model(made), "udf_tags")
        running.deploy(text_value_model(made), "udf_value")
        running.deploy(boxes_of_hashing(made), "udf_many")
        running.deploy(generation_model(made, content="json"), "udf_write")
        running.deploy(hashing_model(made, features=3))
        running.deploy(brightness_model(made, "dazzled", dazzled=True), "udf_dazzled")
        with running.client() as client:
            client.put("/v1/functions/udf_prices", {"models": ["price", "dear"]})
            for name in ("udf_learned_duckdb", "udf_learned_postgres"):
                client.put(f"/v1/functions/{name}", {"models": ["price", "dear"], "combine": "weighted_mean"})
            client.put("/v1/functions/udf_fused", {"models": ["quadrants", "shifted"]})
            client.put("/v1/functions/udf_lenient", {"models": ["soft"]})
            client.put("/v1/functions/udf_strict", {"models": ["soft"], "thresholds": {"red": 0.95}})
            client.put("/v1/functions/udf_meaning", {"models": ["text_hash"], "task": "text-embedding"})
        yield running


def boxes_of_hashing(folder: Path) -> Path:
    """A detector that finds as many boxes as a row may have."""
    return write_manifest(
        folder,
        "many_boxes",
        task="object-detection",
        architecture="hashing",
        architecture_options={"boxes": 1000},
        input={"form": "path"},
    )


def asked(
    server: InferenceServer, function: str, name: str, *rows: str, outputs: tuple[str, ...] = ()
) -> Reply:
    return call(
        server.port, "POST", f"/v2/models/{function}/infer", infer_body(*rows, name=name, outputs=outputs)
    )


def outputs_of(reply: Reply) -> dict[str, dict[str, Any]]:
    assert reply.status == 200, reply.body
    return {output["name"]: output for output in reply.json()["outputs"]}


@pytest.mark.parametrize(
    ("function", "outputs", "on_request"),
    [
        (
            "udf_bright",
            [("value", "FP64", [-1], ""), ("low", "FP64", [-1], ""), ("high", "FP64", [-1], "")],
            2,
        ),
        ("udf_colours", [("labels", "BYTES", [-1], "labels"), ("scores", "FP32", [-1, 3], "")], 1),
        ("udf_boxes", [("boxes", "BYTES", [-1], "boxes")], 0),
        ("udf_write", [("text", "BYTES", [-1], "json")], 0),
        ("udf_meaning", [("embedding", "FP32", [-1, 3], "")], 0),
    ],
)
def test_the_metadata_says_what_the_columns_hold(
    function: str, outputs: list[tuple[str, str, list[int], str]], on_request: int, server: InferenceServer
) -> None:
    told = call(server.port, "GET", f"/v2/models/{function}").json()
    found = [
        (each["name"], each["datatype"], each["shape"], each.get("parameters", {}).get("content", ""))
        for each in told["outputs"]
    ]
    assert found == outputs
    names = [name for name, *_ in outputs]
    assert [n for n in told["parameters"]["outputs_on_request"] if n in names] == names[
        len(names) - on_request :
    ]


@pytest.mark.parametrize("binary", [True, False])
def test_an_unmodified_triton_client_reads_every_answer(
    binary: bool, server: InferenceServer, pictures: Path
) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")

    def ask(function: str, name: str, rows: list[str], *outputs: str) -> dict[str, np.ndarray]:
        tensor = triton.InferInput(name, [len(rows)], "BYTES")
        tensor.set_data_from_numpy(np.array([row.encode() for row in rows], object), binary_data=binary)
        wanted = [triton.InferRequestedOutput(output, binary_data=binary) for output in outputs]
        reply = client.infer(function, [tensor], outputs=wanted)
        return {output: reply.as_numpy(output) for output in outputs}

    try:
        dark, white, red = (f"{pictures}/{name}.png" for name in ("dark", "white", "red"))
        bright = ask("udf_bright", "image_path", [dark, white], "value", "low", "high")
        assert [bright[name].tolist() for name in ("value", "low", "high")] == [
            [20, 100],
            [15, 95],
            [25, 105],
        ]
        assert bright["value"].dtype == np.float64
        colours = ask("udf_colours", "image_path", [dark, white, red], "labels", "scores")
        assert [json.loads(text) for text in colours["labels"]] == [[], list(COLOURS), ["red"]]
        np.testing.assert_allclose(colours["scores"][2], [1, 0, 0], atol=1e-6)
        (boxes,) = ask("udf_boxes", "image_path", [dark], "boxes")["boxes"]
        assert [box["label"] for box in json.loads(boxes)] == list(QUADRANTS)
        assert json.loads(boxes)[3]["box"] == [32, 16, 64, 32]
        values = ask("udf_value", "text", ["one"], "value")["value"]
        assert values[0] == pytest.approx(zlib.crc32(b"one", 0) / (1 << 32), rel=1e-6)
        assert json.loads(ask("udf_write", "text", ["one"], "text")["text"][0]) == f"{zlib.crc32(b'one'):08x}"
        assert ask("udf_meaning", "text", ["one", "two"], "embedding")["embedding"].shape == (2, 3)
    finally:
        client.close()


def test_a_value_without_an_interval_has_null_for_its_ends(server: InferenceServer) -> None:
    reply = outputs_of(asked(server, "udf_price", "row", "[10, 1]", outputs=("value", "low")))
    assert (reply["value"]["data"], reply["low"]["data"]) == ([21.0], [None])


def test_the_reply_says_what_a_column_holds(server: InferenceServer) -> None:
    told = outputs_of(asked(server, "udf_tags", "row", "[100, 10]"))
    assert told["labels"]["parameters"] == {"content": "labels"}
    assert told["labels"]["data"] == ['["heavy", "fat"]']


def test_each_row_at_fault_has_its_error_and_spoils_no_other(server: InferenceServer, pictures: Path) -> None:
    rows = [f"{pictures}/dark.png", f"{pictures}/text.png", f"{pictures}/none.png"]
    for function, value in (("udf_bright", "value"), ("udf_boxes", "boxes"), ("udf_colours", "labels")):
        told = outputs_of(asked(server, function, "image_path", *rows, outputs=(value, "error")))
        codes = [error.partition(":")[0] for error in told["error"]["data"]]
        assert codes == ["", "input_undecodable", "input_not_found"]
        assert told[value]["data"][0]
    assert asked(server, "udf_bright", "image_path", *rows).error.startswith("input_undecodable: row 1")


def test_what_is_no_number_is_its_rows_error(server: InferenceServer, pictures: Path) -> None:
    rows = [f"{pictures}/white.png", f"{pictures}/dark.png"]
    told = outputs_of(asked(server, "udf_dazzled", "image_path", *rows, outputs=("value", "error")))
    assert told["error"]["data"][0].startswith("internal: ")
    assert told["value"]["data"] == [None, 20.0]


@pytest.mark.parametrize("function", ["udf_tags", "udf_price"])
def test_no_rows_have_no_answers(function: str, server: InferenceServer) -> None:
    (output, *_) = outputs_of(asked(server, function, "row")).values()
    assert (output["shape"], output["data"]) == ([0], [])


def test_several_members_answer_as_one(server: InferenceServer, pictures: Path) -> None:
    told = outputs_of(asked(server, "udf_prices", "row", "[10, 1]", outputs=("value", "answered_by")))
    assert (told["value"]["data"], told["answered_by"]["data"]) == ([31.0], ["price,dear"])
    fused = outputs_of(asked(server, "udf_fused", "image_path", f"{pictures}/dark.png"))
    (boxes,) = [json.loads(text) for text in fused["boxes"]["data"]]
    corner = next(box for box in boxes if box["label"] == "upper left")
    # Half of (0, 0, 32, 16) and half of (8, 0, 40, 16), both of the same score.
    assert corner == {"label": "upper left", "score": pytest.approx(0.2), "box": [4, 0, 36, 16]}


def test_as_many_boxes_as_a_row_may_have_are_answered(server: InferenceServer, pictures: Path) -> None:
    told = outputs_of(asked(server, "udf_many", "image_path", f"{pictures}/red.png"))
    boxes = json.loads(told["boxes"]["data"][0])
    assert (len(boxes), boxes[0]["score"], boxes[999]["box"]) == (1000, 1.0, [9990, 0, 10000, 10])


def test_the_config_tells_the_types_of_numbers(server: InferenceServer) -> None:
    told = call(server.port, "GET", "/v2/models/udf_bright/config").json()
    assert {output["name"]: output["data_type"] for output in told["output"]} == dict.fromkeys(
        ("value", "low", "high"), "TYPE_FP64"
    )


def test_a_functions_own_thresholds_come_before_its_models(server: InferenceServer, pictures: Path) -> None:
    for function, labels in (("udf_lenient", ["red"]), ("udf_strict", [])):
        told = outputs_of(asked(server, function, "image_path", f"{pictures}/red.png"))
        assert json.loads(told["labels"]["data"][0]) == labels


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"models": ["price"], "min_confidence": 0.5}, "answered without a confidence"),
        ({"models": ["price"], "default": "0"}, "answered without a confidence"),
        ({"models": ["price"], "thresholds": {"a": 0.5}}, "has no thresholds; leave 'thresholds' out"),
        ({"models": ["colours"], "thresholds": {"white": 0.5}}, "names 'white', which is no class of it"),
        ({"models": ["colours"], "thresholds": {"red": 5}}, "must be a number from 0 to 1, not 5"),
        (
            {"models": ["price", "dear"], "combine": "log_pool"},
            "'combine' must be one of mean, weighted_mean",
        ),
        ({"models": ["price", "dear"], "select": "exp3"}, "selects by how sure members are of one class"),
        ({"models": ["price", "dear"], "select": "value"}, "and that was not counted"),
        ({"models": ["price", "tags"]}, "members must share their task"),
        ({"models": ["writer"], "combine": "mean"}, "leave 'combine' out"),
    ],
)
def test_what_a_task_does_not_know_is_refused_when_it_is_deployed(
    body: dict[str, object], said: str, server: InferenceServer
) -> None:
    with server.client() as client, pytest.raises(BadOption, match=said):
        client.put("/v1/functions/udf_refused", body)


def test_what_nobody_measured_is_asked_for_no_accuracy(server: InferenceServer) -> None:
    body = infer_body("[1, 1]", name="row", ml_udf_min_accuracy=0.5)
    reply = call(server.port, "POST", "/v2/models/udf_prices/infer", body)
    assert (reply.status, "was not measured on held-out rows" in reply.error) == (400, True)


def test_a_goal_that_is_short_leaves_somebody_to_answer(server: InferenceServer) -> None:
    body = infer_body("[10, 1]", name="row", outputs=("value", "answered_by"), ml_udf_slo_ms=0.001)
    told = outputs_of(call(server.port, "POST", "/v2/models/udf_prices/infer", body))
    by = {"price": 21.0, "dear": 41.0, "price,dear": 31.0}
    assert told["value"]["data"] == [by[told["answered_by"]["data"][0]]]


def test_rest_says_task_and_outputs(server: InferenceServer) -> None:
    with server.client() as client:
        function = next(row for row in client.listed("functions") if row["name"] == "udf_boxes")
        assert (function["task"], function["outputs"][0]["parameters"]) == (
            "object-detection",
            {"content": "boxes"},
        )
        assert {row["task"] for row in client.listed("models")} >= {"tabular-regression", "text-generation"}
    reply = call(server.port, "POST", "/classify?function=udf_bright", b"x", {"Content-Type": "image/png"})
    assert (reply.status, "answers value, no label" in reply.error) == (400, True)


@pytest.fixture(scope="module", params=["http", "local"])
def engine(request: pytest.FixtureRequest, server: InferenceServer, pictures: Path) -> Iterator[DuckDb]:
    endpoint = server.url if request.param == "http" else f"local:{server.home}?media_root={pictures}"
    made = DuckDb(endpoint, FUNCTIONS)
    yield made
    made.close()


def test_sql_has_the_same_answers_with_and_without_a_server(engine: DuckDb, pictures: Path) -> None:
    ((value, labels, boxes),) = engine.query(
        f"SELECT udf_bright(p), udf_colours(p), udf_boxes(p) FROM (SELECT '{pictures}/red.png' AS p)"
    )
    assert value == pytest.approx(100 / 3, rel=1e-6)
    assert labels == ["red"]
    assert [box["label"] for box in boxes] == list(QUADRANTS)
    assert boxes[3]["box"] == [32, 16, 64, 32]
    told = engine.query("SELECT udf_price(10, 1), udf_prices(10, 1), udf_tags(100, 9), udf_price(NULL, 1)")
    assert told == [(21.0, 31.0, ["heavy"], 1.0)], (
        "a missing number is 0 with its flag, of which nothing is made"
    )
    assert engine.query("SELECT udf_value(NULL), udf_write('one'), len(udf_meaning('one'))") == [
        (None, f'"{zlib.crc32(b"one"):08x}"', 3)
    ]


def test_thresholds_and_fusion_are_the_functions_with_and_without_a_server(
    engine: DuckDb, pictures: Path
) -> None:
    ((labels, boxes),) = engine.query(
        f"SELECT udf_strict('{pictures}/red.png'), udf_fused('{pictures}/dark.png')"
    )
    assert labels == []
    assert next(box["box"] for box in boxes if box["label"] == "upper left") == [4, 0, 36, 16]


def test_probabilities_of_labels_are_asked_for_by_name(engine: DuckDb, pictures: Path) -> None:
    ((scores,),) = engine.query(f"SELECT ml_udf.scores('udf_colours', '{pictures}/red.png')")
    assert scores["red"] > 0.99
    assert scores["blue"] < 0.01


def test_the_view_of_functions_says_what_a_column_holds(engine: DuckDb) -> None:
    rows = engine.query(
        "SELECT name, outputs[1].parameters.content FROM ml_udf.functions"
        " WHERE name IN ('udf_boxes', 'udf_colours', 'udf_bright') ORDER BY name"
    )
    assert rows == [("udf_boxes", "boxes"), ("udf_bright", None), ("udf_colours", "labels")]


# One of the four as it is found, one of which three quarters are.
DRAWN = '[{"label": "upper left", "box": [0, 0, 32, 16]}, {"label": "lower right", "box": [40, 16, 64, 32]}]'
HOW_WELL = [("map_50", 1.0, 0.0, 1), ("map", 0.8, 0.0, 1)]


@pytest.mark.parametrize("type_", ["VARCHAR", "STRUCT(label VARCHAR, box DOUBLE[])[]"])
def test_boxes_are_evaluated_by_mean_average_precision(engine: DuckDb, pictures: Path, type_: str) -> None:
    query = f"SELECT '{pictures}/dark.png' AS p, '{DRAWN}'::JSON::{type_} AS drawn"
    rows = engine.query(f"SELECT * FROM ml_udf.evaluate('udf_boxes', $${query}$$, target := 'drawn')")
    assert rows == [pytest.approx(row) for row in HOW_WELL]
    query = f"SELECT '{pictures}/dark.png' AS p, 'a plate' AS drawn"
    with pytest.raises(SqlError, match="is no list of boxes"):
        engine.query(f"SELECT * FROM ml_udf.evaluate('udf_boxes', $${query}$$, target := 'drawn')")


@pytest.mark.parametrize("engine_name", ["duckdb", "postgres"])
def test_labels_of_numbers_in_sql_teach_who_errs_less(
    engine_name: str, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    function = f"udf_learned_{engine_name}"
    made = make_engine(engine_name, server.url, request, [function])
    try:
        asked = f"SELECT {function}(10, 1)"
        assert made.query(asked) == [(31.0,)]
        label = "SELECT ml_udf.feedback('{}', '[' || g || ', 1]', (2.0 * g + 1)::text) FROM {} AS t(g)"
        series = "generate_series(1, 40)"
        assert made.query(label.format(function, series)) == [("counted",)] * 40
        ((value,),) = made.query(asked)
        assert value == pytest.approx(21.0, abs=1e-3), "the other one says 41"
        assert made.query(label.format(function, series)) == [("repeated",)] * 40
        of = f"FROM ml_udf.functions WHERE name = '{function}'"
        field = (
            "feedback.rmse_by_member['price']"
            if engine_name == "duckdb"
            else ("(feedback->'rmse_by_member'->>'price')::float8")
        )
        assert made.query(f"SELECT {field} {of}") == [(0.0,)]
        with pytest.raises(SqlError, match="is no number"):
            made.query(f"SELECT ml_udf.feedback('{function}', '[1, 1]', 'dear')")
        ((id_,),) = made.query(
            f"SELECT (d).prediction FROM (SELECT ml_udf.detail('{function}', '[77, 1]') AS d) AS t"
        )
        by_id = f"SELECT ml_udf.feedback_by_id('{function}', '{id_}', '{{}}')"
        assert made.query(by_id.format("155.0")) == [("counted",)]
        assert made.query(f"SELECT ml_udf.feedback('{function}', '[77, 1]', '155')") == [("repeated",)]
        assert made.query(by_id.format("156")) == [("changed",)]
        with pytest.raises(SqlError, match="is no number"):
            made.query(by_id.format("dear"))
    finally:
        made.close()
    body = {"function": function, "inputs": ["[500, 1]", "[600, 1]"], "labels": [1001, 1201.0]}
    with server.client() as client:
        told = client.post("/v1/feedback", body)
    assert (told["outcomes"], told["learns"]) == (["counted"] * 2, True)


def test_a_bad_row_fails_the_statement_in_sql(engine: DuckDb, pictures: Path) -> None:
    with pytest.raises(SqlError) as caught:
        engine.query(f"SELECT udf_boxes('{pictures}/text.png')")
    assert caught.value.sqlstate == "22P03"


def test_postgresql_has_the_same_answers_in_its_own_types(
    server: InferenceServer, pictures: Path, request: pytest.FixtureRequest
) -> None:
    engine = make_engine("postgres", server.url, request, FUNCTIONS)
    try:
        ((value, labels, boxes, kinds),) = engine.query(
            "SELECT udf_bright(p), udf_colours(p), udf_boxes(p), "
            "ARRAY[pg_typeof(udf_bright(p)), pg_typeof(udf_colours(p)), pg_typeof(udf_boxes(p))]::text[] "
            f"FROM (SELECT '{pictures}/red.png' AS p) AS one"
        )
        assert kinds == ["double precision", "text[]", "jsonb"]
        assert value == pytest.approx(100 / 3, rel=1e-6)
        assert labels == ["red"]
        assert [box["label"] for box in boxes] == list(QUADRANTS)
        assert boxes[3]["box"] == [32, 16, 64, 32]
        told = engine.query(
            "SELECT udf_price(10, 1), udf_prices(10, 1), udf_tags(100, 9), udf_price(NULL, 1)"
        )
        assert told == [(21.0, 31.0, ["heavy"], 1.0)]
        assert engine.query(
            "SELECT udf_value(NULL), udf_write('one'), cardinality(udf_meaning('one')::real[])"
        ) == [(None, f"{zlib.crc32(b'one'):08x}", 3)]
        ((scores, red, top, shown),) = engine.query(
            "SELECT ml_udf.scores('udf_colours', b), ml_udf.score('udf_colours', b, 'red'), "
            "ml_udf.top_k('udf_colours', b, 1), (ml_udf.detail('udf_bright', b)).columns "
            f"FROM (SELECT '\\x{(pictures / 'red.png').read_bytes().hex()}'::bytea AS b) AS one"
        )
        assert scores["red"] == red == top[0]["score"] > 0.99
        assert shown == {"value": value, "low": pytest.approx(value - 5), "high": pytest.approx(value + 5)}
        dishes = "(VALUES (10.0, 1.0), (4.0, 2.0)) AS v(grams, fat)"
        query = f"SELECT grams, fat, 2.0 * grams + fat AS price FROM {dishes}"
        rows = engine.query(
            f"SELECT metric, value FROM ml_udf.evaluate('udf_price', '{query}', target => 'price')"
        )
        assert dict(rows) == {"rmse": 0.0, "mae": 0.0, "r2": 1.0}
        query = f"SELECT '{pictures}/dark.png' AS p, '{DRAWN}'::jsonb AS drawn"
        rows = engine.query(f"SELECT * FROM ml_udf.evaluate('udf_boxes', $${query}$$, target => 'drawn')")
        assert rows == [pytest.approx(row) for row in HOW_WELL]
    finally:
        engine.close()
