"""Functions and models come, change, go, and are there again after a restart."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.contract.oip_wire import Reply, call, infer_body
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, hashing_model, image_model

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """A server with the models text_hash and other_hash; its home held `found`, and one that is broken."""
    folder = tmp_path_factory.mktemp("house")
    hashing_model(folder / "home" / "models", "found")
    (folder / "home" / "models" / "junk" / "1").mkdir(parents=True)
    (folder / "home" / "models" / "junk" / "1" / "model.json").write_text("{")
    with inference_server(folder / "home", flags=[ANEW, "--default-slo-ms=100"]) as running:
        for name in ("text_hash", "other_hash"):
            running.deploy(hashing_model(folder, name))
        yield running


@pytest.fixture
def house(server: InferenceServer) -> Iterator[InferenceServer]:
    """The server, without a function before and after each test."""
    yield server
    for function in functions(server):
        assert call(server.port, "DELETE", f"/v1/functions/{function}").status == 200


@pytest.fixture
def f() -> str:
    """The name of a function that no other test has: its versions and its counts begin here."""
    return f"f{next(_NUMBERS)}"


def put(server: InferenceServer, name: str, **body: Any) -> Reply:
    return call(server.port, "PUT", f"/v1/functions/{name}", {"models": ["text_hash"], **body})


def infer(server: InferenceServer, name: str, *rows: str, version: str = "", **fields: Any) -> Reply:
    path = f"/v2/models/{name}{f'/versions/{version}' if version else ''}/infer"
    return call(server.port, "POST", path, infer_body(*rows, **fields))


def functions(server: InferenceServer) -> list[str]:
    """The names of the functions deployed."""
    return [each["name"] for each in call(server.port, "GET", "/v1/functions").json()["functions"]]


def test_every_deployment_is_a_version_and_the_last_two_answer(house: InferenceServer, f: str) -> None:
    for version in (1, 2, 3):
        reply = put(house, f, slo_ms=100.0 + version)
        assert (reply.status, reply.json()["version"]) == (200, version)
    assert call(house.port, "GET", f"/v2/models/{f}").json()["versions"] == ["2", "3"]
    assert infer(house, f, "x").json()["model_version"] == "3"
    assert infer(house, f, "x", version="2").json()["model_version"] == "2"
    gone = infer(house, f, "x", version="1")
    assert (gone.status, gone.error) == (
        410,
        f"version_gone: version 1 of {f} is not served; served now: 2, 3",
    )


def test_a_deployment_is_published_for_the_local_endpoint_and_taken_away(
    house: InferenceServer, f: str
) -> None:
    put(house, f, models=["text_hash", "other_hash"], slo_ms=50, default="none", min_confidence=0.2)
    published = house.home / "functions" / f"{f}.json"
    assert json.loads(published.read_text()) == {
        "format": 1,
        "name": f,
        "version": 1,
        "task": "text-classification",
        "input": {"name": "text", "form": "text"},
        "thresholds": {},
        "combine": "majority_vote",
        "fitted": None,
        "fit": None,
        "members": [
            {"model": "text_hash", "version": 1, "accuracy": 0.5},
            {"model": "other_hash", "version": 1, "accuracy": 0.5},
        ],
        "slo_ms": 50.0,
        "min_confidence": 0.2,
        "default": "none",
        "media_roots": None,
        "features": 0,
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
            {"name": "confidence", "datatype": "FP32", "shape": [-1]},
            {"name": "scores", "datatype": "FP32", "shape": [-1, 4]},
        ],
    }
    assert call(house.port, "DELETE", f"/v1/functions/{f}").status == 200
    assert not published.exists()
    assert infer(house, f, "x").status == 404
    assert call(house.port, "GET", f"/v1/functions/{f}").status == 404


def test_an_ensemble_names_its_members_and_agrees(house: InferenceServer, f: str) -> None:
    put(house, f, models=["text_hash", "other_hash"])
    reply = infer(house, f, "x", "y", outputs=("label", "confidence", "answered_by")).json()
    assert reply["outputs"][1]["data"] == [1.0, 1.0]
    assert reply["outputs"][2]["data"] == ["text_hash,other_hash"] * 2
    for rule in ("mean", "log_pool"):
        put(house, f, models=["text_hash", "other_hash"], combine=rule)
        assert infer(house, f, "x", "y", outputs=("label",)).json()["outputs"][0] == reply["outputs"][0]


def test_a_deployment_that_cannot_be_loaded_changes_nothing(
    house: InferenceServer, f: str, tmp_path: Path
) -> None:
    put(house, f)
    broken = hashing_model(tmp_path, "broken", delay_ms=-1)
    assert call(house.port, "POST", "/register", {"directory": str(broken)}).status == 200
    refused = put(house, f, models=["broken"])
    assert (refused.status, "cannot be loaded" in refused.error) == (400, True)
    assert infer(house, f, "x").json()["model_version"] == "1"
    assert put(house, f).json()["version"] == 2


def test_everything_is_there_again_after_a_restart(house: InferenceServer, f: str) -> None:
    for _ in range(3):
        put(house, f)
    before = infer(house, f, "a", "b", outputs=("label",)).json()
    house.stop()
    (house.home / "functions" / f"{f}.json").unlink()
    (house.home / "functions" / "stray.json").write_text("{}")
    house.start()
    assert call(house.port, "GET", f"/v2/models/{f}").json()["versions"] == ["2", "3"]
    assert infer(house, f, "a", "b", outputs=("label",)).json() == before
    left = sorted(path.name for path in (house.home / "functions").iterdir())
    assert left == [f"{f}.json", "stray.json.set-aside"]
    assert put(house, f).json()["version"] == 4


def test_models_that_lie_in_the_home_folder_are_served_without_being_registered(
    house: InferenceServer,
) -> None:
    names = [model["name"] for model in call(house.port, "GET", "/v1/models").json()["models"]]
    assert "found" in names
    assert "junk" not in names
    assert infer(house, "found", "x").status == 200
    assert "junk" in house.log


def test_an_unloaded_function_answers_nothing_until_it_is_loaded(house: InferenceServer, f: str) -> None:
    put(house, f)

    def state() -> dict[str, str]:
        entries = call(house.port, "POST", "/v2/repository/index").json()
        return {entry["name"]: entry["state"] for entry in entries}

    assert call(house.port, "POST", f"/v2/repository/models/{f}/unload").status == 200
    assert state()[f] == "UNAVAILABLE"
    assert call(house.port, "GET", f"/v2/models/{f}/ready").status == 404
    refused = infer(house, f, "x")
    assert (refused.status, "was unloaded" in refused.error) == (404, True)
    assert call(house.port, "POST", f"/v2/repository/models/{f}/load").status == 200
    assert call(house.port, "GET", f"/v2/models/{f}/ready").status == 200
    assert infer(house, f, "x").status == 200
    assert state()[f] == "READY"


def test_a_model_that_is_not_resident_is_loaded_when_rows_come(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home", flags=[ANEW, "--resident-models=1"]) as server:
        for name in ("first", "second"):
            server.deploy(hashing_model(tmp_path, name), f"f_{name}")
        for name in ("f_first", "f_second", "f_first"):
            assert infer(server, name, "x").status == 200
            (worker,) = call(server.port, "GET", "/v1/workers").json()["workers"]
            assert worker["resident"] == [f"{name[2:]}/1"]


def multipart(**parts: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    body = b""
    for name, (filename, content) in parts.items():
        disposition = f'form-data; name="{name}"; filename="{filename}"'
        body += f"--cut\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return body + b"--cut--\r\n", {"Content-Type": "multipart/form-data; boundary=cut"}


def test_an_uploaded_model_is_stored_checked_and_answers(house: InferenceServer, tmp_path: Path) -> None:
    made = image_model(tmp_path, "uploaded")
    manifest = json.loads((made / "model.json").read_text())
    weights = (made / "model.safetensors").read_bytes()
    del manifest["version"]
    damaged, headers = multipart(
        manifest=("model.json", json.dumps({**manifest, "sha256": "0" * 64}).encode()),
        weights=("model.safetensors", weights),
    )
    refused = call(house.port, "POST", "/register", damaged, headers)
    assert (refused.status, "SHA-256" in refused.error) == (400, True)
    endless, headers = multipart(manifest=("model.json", b'{"format": 1, "name": "uploaded", "note": 1e400}'))
    refused = call(house.port, "POST", "/register", endless, headers)
    assert (refused.status, "cannot be kept" in refused.error) == (400, True)
    body, headers = multipart(
        manifest=("model.json", json.dumps(manifest).encode()), weights=("model.safetensors", weights)
    )
    registered = call(house.port, "POST", "/register", body, headers).json()
    assert (registered["name"], registered["version"]) == ("uploaded", 1)
    assert registered["sha256"] == hashlib.sha256(weights).hexdigest()
    assert call(house.port, "POST", "/register", body, headers).json()["version"] == 2
    assert (house.home / "models/uploaded/1/model.safetensors").read_bytes() == weights
    photo = io.BytesIO()
    Image.effect_noise((80, 60), 40).convert("RGB").save(photo, "JPEG")
    answer = call(house.port, "POST", "/classify?function=uploaded&k=3", photo.getvalue()).json()
    assert (answer["function"], answer["version"], len(answer["predictions"])) == ("uploaded", 2, 3)
    scores = [prediction["score"] for prediction in answer["predictions"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["predictions"][0]["label"] == answer["label"]
    upload, headers = multipart(file=("dish.jpg", photo.getvalue()))
    again = call(house.port, "POST", "/classify?function=uploaded&k=3", upload, headers).json()
    assert again["predictions"] == answer["predictions"]


def test_a_model_of_several_files_is_uploaded_whole(house: InferenceServer, tmp_path: Path) -> None:
    made = image_model(tmp_path, "several")
    weights = (made / "model.safetensors").read_bytes()
    manifest = json.loads((made / "model.json").read_text())
    manifest |= {"files": [{"name": "model.safetensors"}, {"name": "notes.json", "role": "notes"}]}
    del manifest["version"]
    told = {
        "manifest": ("model.json", json.dumps(manifest).encode()),
        "weights": ("model.safetensors", weights),
    }
    missing = call(house.port, "POST", "/register", *multipart(**told))
    assert (missing.status, "'notes.json' and none came" in missing.error) == (400, True)
    body, headers = multipart(**told, files=("notes.json", b"{}"))
    registered = call(house.port, "POST", "/register?classes=true", body, headers).json()
    assert [file["name"] for file in registered["files"]] == ["model.safetensors", "notes.json"]
    assert (Path(registered["directory"]) / "notes.json").read_bytes() == b"{}"
    assert (registered["class_count"], registered["classes"]) == (len(CLASSES), list(CLASSES))
    assert "classes" not in call(house.port, "POST", "/register", body, headers).json()


def test_the_lists_say_what_there_is(house: InferenceServer, f: str) -> None:
    put(house, f)
    (function,) = call(house.port, "GET", "/v1/functions").json()["functions"]
    assert (function["name"], function["versions"], function["class_count"]) == (f, [1], len(CLASSES))
    assert "classes" not in function
    (function,) = call(house.port, "GET", "/v1/functions?classes=true").json()["functions"]
    assert function["classes"] == list(CLASSES)
    assert (function["slo_ms"], function["ready"]) == (100.0, True)
    deadline_s = time.monotonic() + 20
    resident_on: dict[str, list[str]] = {}
    while resident_on != {"text_hash": ["w0"], "other_hash": ["w0"]}:  # a registered model is loaded soon
        assert time.monotonic() < deadline_s, resident_on
        models = call(house.port, "GET", "/v1/models").json()["models"]
        listed = {model["name"]: model["resident_on"] for model in models}
        resident_on = {name: listed[name] for name in ("text_hash", "other_hash")}
    (worker,) = call(house.port, "GET", "/v1/workers").json()["workers"]
    assert (worker["state"], worker["restarts"], worker["device"]) == ("up", 0, "cpu")


def test_it_is_said_where_models_are_and_why_they_came(house: InferenceServer, f: str) -> None:
    put(house, f)
    infer(house, f, "a")
    told = call(house.port, "GET", "/v1/residency").json()
    (worker,) = told["workers"]
    held = [model for model in told["residency"] if model["model"] == "text_hash/1"]
    moves = [event for event in told["residency_events"] if event["model"] == "text_hash/1"]
    load, *before = [event for event in moves if event["event"] == "load"]  # other tests unload it
    assert (worker["worker"], worker["models"]) == ("w0", len(told["residency"]))
    assert worker["used_bytes"] == sum(model["size_bytes"] for model in told["residency"]) > 0
    assert worker["link_busy_s"] > 0
    assert worker["link_bytes_per_s"] > 0
    assert worker["node"] is None, "of one machine"
    assert [(model["tier"], model["loads"]) for model in held] == [("device", 1 + len(before))]
    assert held[0]["since"] <= held[0]["last_used"]
    assert (load["outcome"], load["error"]) == ("done", None)
    assert load["reason"] in ("there was room", "wanted")
    assert told["resident_hits"] >= 1
    assert told["hit_rate"] is not None


def test_the_metrics_count_what_happened(house: InferenceServer, f: str) -> None:
    put(house, f)
    infer(house, f, "a", "b", "c")
    infer(house, f, "a", version="9")
    text = call(house.port, "GET", "/metrics").body.decode()
    for line in (
        f'ml_udf_rows_total{{function="{f}",version="1"}} 3.0',
        f'ml_udf_batches_total{{function="{f}",version="1"}} 1.0',
        f'ml_udf_requests_total{{code="ok",function="{f}",version="1"}} 1.0',
        f'ml_udf_batch_rows_bucket{{function="{f}",le="4.0",version="1"}} 1.0',
        f'ml_udf_latency_seconds_count{{function="{f}",version="1"}} 1.0',
        f'ml_udf_queue_rows{{function="{f}",version="1"}} 0.0',
        f'ml_udf_answer_members_bucket{{function="{f}",le="1.0",version="1"}} 3.0',
        f'ml_udf_goal_rows_total{{function="{f}",version="1"}} 0.0',
        f'ml_udf_late_members_total{{function="{f}",version="1"}} 0.0',
        f'ml_udf_expected_accuracy{{function="{f}",version="1"}} 0.5',
        f'ml_udf_device_seconds_a_row{{function="{f}",version="1"}}',
        f'ml_udf_resident_hits_total{{function="{f}",version="1"}} 3.0',
        f'ml_udf_resident_misses_total{{function="{f}",version="1"}} 0.0',
        'ml_udf_resident_models{worker="w0"}',
        'ml_udf_resident_bytes{worker="w0"}',
        'ml_udf_resident_host_bytes{worker="w0"}',
        'ml_udf_loads_total{reason="',
        "ml_udf_load_seconds_count",
        'ml_udf_link_busy_seconds_total{worker="w0"}',
        'ml_udf_link_bytes_per_second{worker="w0"}',
        'ml_udf_worker_up{worker="w0"} 1.0',
        "\nml_udf_connections ",
        "\nml_udf_held_body_bytes 0.0",
        'ml_udf_worker_restarts_total{worker="w0"} 0.0',
    ):
        assert line in text


def test_the_registry_may_live_in_postgresql(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cluster = request.getfixturevalue("cluster")
    cluster.sql("CREATE DATABASE oip_lifecycle")
    url = cluster.dsn("oip_lifecycle", tcp=True)
    (tmp_path / "url").write_text(url)
    (tmp_path / "url").chmod(0o600)
    with inference_server(tmp_path / "home", flags=[f"--database-url-file={tmp_path / 'url'}"]) as server:
        server.deploy(hashing_model(tmp_path, "text_hash"), "f")
        assert not (server.home / "registry.db").exists()
        server.stop()
        server.start()
        deadline_s = time.monotonic() + 30
        while (reply := infer(server, "f", "x")).status != 200:
            assert time.monotonic() < deadline_s, reply
        assert cluster.password not in server.log
    cluster.sql("DROP DATABASE oip_lifecycle WITH (FORCE)")
