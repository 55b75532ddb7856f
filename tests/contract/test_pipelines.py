"""Functions made of functions, by models that really look: over the protocol, REST and SQL."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

from ml_udf.cli.app import app
from ml_udf.client import Client, Options
from ml_udf.errors import BadOption, InputInvalid, MlUdfError, UnknownFunction
from ml_udf.tokens import TokenCalls
from tests.contract.oip_wire import call, infer_body
from tests.engines import SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import CLASSES, hashing_model
from tests.task_models import (
    QUADRANTS,
    boxes_model,
    brightness_model,
    colours_model,
    eyes_model,
    generation_model,
    text_value_model,
)

PIPELINES = ("udf_tones", "udf_seen", "udf_marked")
CROP: dict[str, Any] = {"crop": {}}


@pytest.fixture(scope="module")
def pictures(open_folder: Path) -> Path:
    folder = open_folder / "quarters"
    folder.mkdir()
    quarters = Image.new("RGB", (64, 32), (0, 0, 0))
    quarters.paste((255, 0, 0), (0, 0, 32, 16))  # its brightness is a third
    quarters.paste((255, 255, 255), (32, 16, 64, 32))
    quarters.save(folder / "quarters.png")
    Image.new("RGB", (64, 32)).save(folder / "dark.png")
    (folder / "text.png").write_text("no picture")
    return folder


@pytest.fixture(scope="module")
def server(open_folder: Path, pictures: Path) -> Iterator[InferenceServer]:
    made = open_folder / "stages"
    with inference_server(open_folder / "stages-served", media_roots=[pictures]) as running:
        running.deploy(boxes_model(made), "udf_quarters", thresholds=0.2)
        running.deploy(brightness_model(made, interval=5.0), "udf_bright")
        running.deploy(colours_model(made), "udf_colours")
        running.deploy(eyes_model(made), "udf_eyes")
        running.deploy(generation_model(made), "udf_write")
        running.deploy(text_value_model(made), "udf_value")
        running.deploy(hashing_model(made, "text_hash"), "udf_text")
        with running.client() as client:
            put = client.put
            put("/v1/functions/udf_tones", {"pipeline": ["udf_quarters", CROP, "udf_bright"]})
            put("/v1/functions/udf_seen", {"pipeline": ["udf_quarters", CROP, "udf_eyes"]})
            put("/v1/functions/udf_marked", {"pipeline": ["udf_write", "udf_text"], "slo_ms": 700})
        yield running


def objects(server: InferenceServer, function: str, *paths: str) -> list[list[dict[str, Any]]]:
    reply = call(server.port, "POST", f"/v2/models/{function}/infer", infer_body(*paths, name="image_path"))
    assert reply.status == 200, reply.body
    (output,) = reply.json()["outputs"]
    assert (output["name"], output["parameters"]) == ("objects", {"content": "json"})
    return [json.loads(text) for text in output["data"]]


def test_each_thing_in_a_picture_is_asked_of_the_next_stage(server: InferenceServer) -> None:
    ((first, second), nothing) = objects(server, "udf_tones", "quarters.png", "dark.png")
    assert (first["label"], first["box"]) == ("lower right", [32, 16, 64, 32])
    assert first["score"] > second["score"]
    assert first["answer"] == {"value": 100.0, "low": 95.0, "high": 105.0}
    assert (second["label"], second["box"]) == ("upper left", [0, 0, 32, 16])
    assert second["answer"]["value"] == pytest.approx(100 / 3, abs=0.5)
    assert nothing == []


def test_a_stage_answers_a_piece_as_it_answers_the_picture_of_it(
    server: InferenceServer, pictures: Path
) -> None:
    Image.open(pictures / "quarters.png").crop((0, 0, 32, 16)).save(pictures / "piece.png")
    body = infer_body("piece.png", name="image_path")
    alone = call(server.port, "POST", "/v2/models/udf_eyes/infer", body).json()["outputs"][0]["data"]
    ((_, second),) = objects(server, "udf_seen", "quarters.png")
    assert second["answer"]["embedding"] == pytest.approx(alone)


def test_a_call_of_many_rows_keeps_their_order(server: InferenceServer) -> None:
    found = objects(server, "udf_tones", *["quarters.png", "dark.png", "dark.png"] * 70)
    assert [len(each) for each in found] == [2, 0, 0] * 70


def test_a_failing_stage_names_itself_and_spoils_no_other_row(server: InferenceServer) -> None:
    paths = ["quarters.png", "text.png", "missing.png", "dark.png"]
    body = infer_body(*paths, name="image_path", outputs=("objects", "error", "answered_by"))
    reply = call(server.port, "POST", "/v2/models/udf_tones/infer", body).json()
    found = {output["name"]: output["data"] for output in reply["outputs"]}
    sound, text, missing, dark = found["error"]
    assert sound == dark == ""
    assert text.startswith("input_undecodable: stage 1 (udf_quarters): ")
    assert missing.startswith("input_not_found: stage 1 (udf_quarters): there is no file")
    assert len(json.loads(found["objects"][0])) == 2
    assert [found["answered_by"][0], found["answered_by"][3]] == ["quadrants,brightness", "quadrants"]


def test_texts_go_from_stage_to_stage(server: InferenceServer) -> None:
    written = call(
        server.port, "POST", "/v2/models/udf_write/infer", infer_body("a", "b", name="text")
    ).json()
    texts = written["outputs"][0]["data"]
    alone = call(server.port, "POST", "/v2/models/udf_text/infer", infer_body(*texts, name="text")).json()
    outputs = ("label", "scores")
    body = infer_body("a", "b", name="text", outputs=outputs)
    whole = call(server.port, "POST", "/v2/models/udf_marked/infer", body).json()
    assert [each["name"] for each in whole["outputs"]] == list(outputs)
    assert whole["outputs"][0]["data"] == alone["outputs"][0]["data"]


def test_what_is_said_of_a_pipeline(server: InferenceServer) -> None:
    with server.client() as client:
        told = client.get("/v1/functions/udf_tones")
        metadata = client.get("/v2/models/udf_marked")
    assert told["pipeline"] == [
        {"function": "udf_quarters", "version": 1},
        {"crop": {}},
        {"function": "udf_bright", "version": 1},
    ]
    assert [each["current_version"] for each in told["stages"]] == [1, 1]
    assert (told["task"], told["slo_ms"], told["goal_split"]) == ("pipeline", 1000.0, "none")
    assert told["models"] == ["quadrants", "brightness"]
    assert list(told["inputs"]) == ["image_path", "image"]
    assert told["ready"]
    assert [output["name"] for output in metadata["outputs"]] == ["label", "confidence", "scores"]


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (["udf_quarters"], "2 to 8 functions, and 1 are named"),
        (
            ["udf_quarters", "udf_bright"],
            r"stage 2 \(udf_bright\) follows udf_quarters, which finds boxes; put",
        ),
        (["udf_bright", CROP, "udf_bright"], "no boxes to crop; .* before the crop, such as udf_quarters"),
        (["udf_quarters", CROP, "udf_text"], r"takes text, and a crop gives pictures.*such as udf_bright"),
        (["udf_bright", "udf_text"], "which answers value, and no text"),
        (["udf_write", "udf_bright"], "udf_write answers a text; .* such as udf_text"),
        (
            ["udf_quarters", CROP, "udf_nothing"],
            "stage 3: there is no function or model 'udf_nothing'.*udf_b",
        ),
        (
            ["udf_tones", CROP, "udf_bright"],
            "is a pipeline itself; name its stages: udf_quarters, udf_bright",
        ),
        (["udf_new", "udf_text"], "stage 1 is udf_new itself"),
        ([CROP, "udf_bright"], "stage 1 crops; one crop stands between"),
        (["udf_quarters", CROP, CROP, "udf_bright"], "stage 3 crops; one crop stands between"),
        (["udf_quarters", {"crop": {"edge": 1}}, "udf_bright"], "'crop' has no field 'edge'"),
        (
            ["udf_quarters", {"crop": {"margin": 7}}, "udf_bright"],
            "'margin' of 'crop' must be a number from 0",
        ),
        (
            ["udf_quarters", {"crop": {"labels": ["cat"]}}, "udf_bright"],
            "finds no 'cat'.*it finds upper left",
        ),
        (["udf_quarters", {"crop": 3}, "udf_bright"], "stage 2 must be"),
        (["udf_write", {"function": "udf_text", "version": 9}], "version 9 of udf_text is not served"),
        (["udf_write", 3], "stage 2 must be"),
        ("udf_write", "'pipeline' must be a list of stages"),
    ],
)
def test_stages_that_do_not_fit_are_refused_with_what_would(
    server: InferenceServer, stages: Any, reason: str
) -> None:
    with server.client() as client, pytest.raises(MlUdfError, match=reason):
        client.put("/v1/functions/udf_new", {"pipeline": stages})


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"models": ["text_hash"]}, "a pipeline has no 'models', which is its stages' own to say"),
        ({"slo_ms": 0}, "'slo_ms' must be a number"),
        ({"goal_split": "by_age"}, "'goal_split' must be one of none, even, nexus"),
        ({"answer_cache": 1}, "'answer_cache' must be true or false"),
    ],
)
def test_what_is_a_stages_own_is_not_a_pipelines(
    server: InferenceServer, field: dict[str, Any], reason: str
) -> None:
    body = {"pipeline": ["udf_write", "udf_text"], **field}
    with server.client() as client, pytest.raises(BadOption, match=reason):
        client.put("/v1/functions/udf_new", body)


def test_labels_are_given_to_stages(server: InferenceServer) -> None:
    body = {"function": "udf_marked", "inputs": ["a"], "labels": ["x"]}
    with server.client() as client, pytest.raises(BadOption, match="give its stages: udf_write, udf_text"):
        client.post("/v1/feedback", body)


def test_a_pipeline_keeps_the_stages_that_it_was_deployed_with(
    server: InferenceServer, open_folder: Path
) -> None:
    server.deploy(brightness_model(open_folder / "more", "dim", times=10.0), "udf_dim")
    with server.client() as client:
        client.put("/v1/functions/udf_pinned", {"pipeline": ["udf_quarters", CROP, "udf_dim"]})
        for _ in range(3):  # version 1 is served under its own name no more
            client.put("/v1/functions/udf_dim", {"models": ["brightness"]})
        told = client.get("/v1/functions/udf_pinned")["stages"][1]
        assert (told["version"], told["current_version"]) == (1, 4)
        with closing(sqlite3.connect(server.home / "registry.db")) as registry, registry:
            registry.execute(
                "INSERT INTO retrainings (function, every_s, budget, outcome, next_at) "
                "VALUES ('udf_dim', 86400, '', '', '2099-01-01')"
            )
        with pytest.raises(BadOption, match="udf_dim is a stage of udf_pinned; delete or deploy that first"):
            client.delete("/v1/functions/udf_dim")
        (schedule,) = client.get("/v1/retrainings")["retrainings"]
        assert schedule["function"] == "udf_dim", "what is refused has changed nothing"
    ((first, _),) = objects(server, "udf_pinned", "quarters.png")
    assert first["answer"]["value"] == 10.0
    server.stop()
    server.start()
    ((first, _),) = objects(server, "udf_pinned", "quarters.png")
    assert first["answer"]["value"] == 10.0
    with server.client() as client:
        client.put("/v1/functions/udf_pinned", {"pipeline": ["udf_quarters", CROP, "udf_dim"]})
        ((first, _),) = objects(server, "udf_pinned", "quarters.png")
        assert first["answer"]["value"] == 100.0
        client.delete("/v1/functions/udf_pinned")
        client.delete("/v1/functions/udf_dim")
        assert client.get("/v1/retrainings")["retrainings"] == []


def test_what_is_cut_out_may_be_narrowed(server: InferenceServer) -> None:
    crop = {"crop": {"labels": list(QUADRANTS[:2]), "min_score": 0.1, "most": 1, "margin": 1.0}}
    with server.client() as client:
        client.put("/v1/functions/udf_upper", {"pipeline": ["udf_quarters", crop, "udf_bright"]})
    ((only,),) = objects(server, "udf_upper", "quarters.png")
    assert (only["label"], only["box"]) == ("upper left", [0, 0, 32, 16])
    # The box grew by its size: all of the picture, a quarter red and a quarter white.
    assert only["answer"]["value"] == pytest.approx(100 / 3, abs=1.0)


def test_sql_gets_a_list_of_what_is_in_a_picture(
    engine_name: str, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    engine = make_engine(engine_name, server.url, request, functions=PIPELINES)
    try:
        rows = "(VALUES (1, 'quarters.png'), (2, NULL), (3, 'dark.png')) t(i, p)"
        found = [row[0] for row in engine.query(f"SELECT to_json(udf_tones(p)) FROM {rows} ORDER BY i")]
        first, nothing, empty = (json.loads(each) if isinstance(each, str) else each for each in found)
        assert [each["answer"]["value"] > 50 for each in first] == [True, False]
        assert nothing is None
        assert empty == []
    finally:
        engine.close()


def test_a_home_folder_answers_as_its_server(
    server: InferenceServer, pictures: Path, request: pytest.FixtureRequest
) -> None:
    sql = """SELECT p, to_json(udf_tones(p)), udf_marked(p), to_json(udf_seen(p))
             FROM (VALUES ('quarters.png'), (NULL), ('dark.png')) t(p)"""
    found = []
    for endpoint in (server.url, f"local:{server.home}?media_root={pictures}"):
        engine = make_engine("duckdb", endpoint, request, functions=PIPELINES)
        try:
            found.append(engine.query(sql))
            with pytest.raises(SqlError, match=r"stage 1 \(udf_quarters\): there is no file missing.png"):
                engine.query("SELECT udf_tones('missing.png')")
        finally:
            engine.close()
    assert found[0] == found[1]


def test_pieces_that_do_not_fit_into_memory_together_are_answered_some_after_the_others(
    server: InferenceServer, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_worker.pipeline.crops.MOST_BYTES", 1)  # of a worker in this process
    paths = ["quarters.png", "missing.png", "dark.png", "text.png", "quarters.png"]
    (told,) = objects(server, "udf_tones", "quarters.png")
    with closing(Client(f"local:{server.home}?media_root={pictures}")) as client:
        found = client.predict("udf_tones", paths, Options(on_error="null"))
    values = [None if text is None else json.loads(text) for text in found.values]
    assert values == [told, None, [], None, told]
    assert [error is None for error in found.errors] == [True, False, True, False, True]


def test_sql_makes_a_pipeline(
    engine_name: str, server: InferenceServer, request: pytest.FixtureRequest
) -> None:
    with server.client() as client, contextlib.suppress(UnknownFunction):
        client.delete("/v1/functions/udf_made")
    engine = make_engine(engine_name, server.url, request, functions=())
    try:
        stages = '["udf_quarters", {"crop": {"most": 1}}, "udf_bright"]'
        made = f"SELECT ml_udf.create_pipeline('udf_made', '{stages}', slo_ms => 900, goal_split => 'even')"
        ((version,),) = engine.query(made)
        assert engine.query("SELECT json_array_length(to_json(udf_made('quarters.png')))") == [(1,)]
        with pytest.raises(SqlError, match="2 to 8 functions, and 1 are named"):
            engine.query("""SELECT ml_udf.create_pipeline('udf_bad', '["udf_bright"]')""")
        with pytest.raises(SqlError, match=r"'stages' is not JSON|invalid input syntax for type json"):
            engine.query("SELECT ml_udf.create_pipeline('udf_bad', 'udf_bright')")
        with pytest.raises(SqlError, match="'stages' must be a list"):
            engine.query("SELECT ml_udf.create_pipeline('udf_bad', '{}')")
    finally:
        engine.close()
    with server.client() as client:
        told = client.get("/v1/functions/udf_made")
    assert (told["version"], told["slo_ms"], told["goal_split"]) == (version, 900.0, "even")


def test_the_command_line_makes_a_pipeline(server: InferenceServer) -> None:
    stages = ["udf_quarters", "crop:0.5", "udf_bright/1"]
    made = CliRunner().invoke(app, ["pipeline", "udf_line", *stages, "-e", server.url])
    assert (made.exit_code, made.output.split()) == (
        0,
        ["function", "udf_line,", "version", "1:", "udf_quarters/1", "→", "crop", "→", "udf_bright/1"],
    )
    refused = CliRunner().invoke(app, ["pipeline", "udf_line", "a", "crop:b", "c", "-e", server.url])
    assert refused.exit_code != 0
    assert "the margin of 'crop:b' is no number" in refused.output


def test_pages_show_a_pipeline_and_what_it_found(server: InferenceServer, pictures: Path) -> None:
    with httpx.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=60) as browser:
        for path in ("/", "/functions", "/functions/udf_tones", "/functions/udf_marked", "/sql"):
            assert browser.get(path).status_code == 200, path
        page = browser.get("/functions/udf_tones").text
        for told in ("udf_quarters", "udf_bright", "crop"):
            assert told in page
        csrf = re.search('<meta name="csrf" content="([^"]*)">', page)
        assert csrf is not None
        tried = browser.post(
            "/functions/udf_tones/try",
            data={"csrf": csrf[1]},
            files={"file": ("quarters.png", (pictures / "quarters.png").read_bytes(), "image/png")},
            headers={"Sec-Fetch-Site": "same-origin"},
        )
    assert tried.status_code == 200, tried.text
    assert ">100" in tried.text or "100," in tried.text


@pytest.mark.security
def test_who_asks_a_pipeline_needs_not_see_its_stages(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home") as guarded:
        with guarded.client() as client:
            root = TokenCalls(client).create("root", ["admin"])["secret"]
        with closing(Client(guarded.url, token=root)) as client:
            ann, ben = (
                TokenCalls(client).create(name, ["infer", "deploy"])["secret"] for name in ("ann", "ben")
            )
            client.post("/register", {"directory": str(hashing_model(tmp_path, "words"))})
            client.post("/register", {"directory": str(generation_model(tmp_path, "secret_writer"))})
            visibility = "/v1/models/{}/visibility"
            client.put(visibility.format("words"), {"visibility": "public"})
            client.put(visibility.format("secret_writer"), {"owner": "ann", "visibility": "private"})
        with closing(Client(guarded.url, token=ann)) as client:
            client.put("/v1/functions/udf_hidden", {"models": ["secret_writer"]})
            client.put("/v1/functions/udf_hidden/visibility", {"visibility": "private"})
            client.put("/v1/functions/udf_open", {"pipeline": ["udf_hidden", "words"]})
            client.put("/v1/functions/udf_open/visibility", {"shared_with": ["ben"]})
        with closing(Client(guarded.url, token=ben)) as client:
            assert client.predict("udf_open", ["a"]).values[0] in CLASSES
            told = json.dumps(client.get("/v1/functions/udf_open"))
            assert "udf_hidden" not in told
            assert "secret_writer" not in told
            with pytest.raises(InputInvalid, match=r"stage 1 \(function 1\): the text .* is not UTF-8"):
                client.predict("udf_open", [b"\xff"], input_name="text")
            with pytest.raises(
                UnknownFunction, match="stage 1: there is no function or model 'udf_hidden' h"
            ):
                client.put("/v1/functions/udf_bens", {"pipeline": ["udf_hidden", "words"]})
