"""Rows that were asked before, over a running server: no worker is asked, and nothing old is told."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from tests.contract.oip_wire import call, infer_body, metric
from tests.engines import Engine, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, image_model, label_of
from tests.waiting import wait_until

PHOTOS = 40
_TICK_S = 0.15  # a file that changed within the last tenth of a second has no stamp yet


@pytest.fixture(scope="module")
def photos(open_folder: Path) -> Path:
    folder = open_folder / "answer-cache-photos"
    folder.mkdir()
    for number in range(PHOTOS):
        Image.effect_noise((40, 30), 5 + 5 * number).convert("RGB").save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("answer-cache")
    with inference_server(folder / "home", media_roots=[photos]) as running:
        running.deploy(hashing_model(folder, "text_hash"), "udf_text")
        running.deploy(image_model(folder, "photo_net"), "udf_photo")
        running.deploy(hashing_model(folder, "slow_hash", delay_ms=1500), "udf_slow")
        with running.client() as client:
            client.put("/v1/functions/udf_features", {"models": ["photo_net"], "task": "image-embedding"})
        yield running


@pytest.fixture
def engine(engine_name: str, house: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, house.url, request)
    yield made
    made.close()


@pytest.fixture
def fresh(house: InferenceServer) -> str:
    """A function of the test's own, which nobody has asked yet: a version is asked by one test."""
    return redeployed(house, "udf_photo", "photo_net")


def redeployed(house: InferenceServer, function: str, model: str, **options: object) -> str:
    with house.client() as client:
        client.put(f"/v1/functions/{function}", {"models": [model], **options})
    return function


def count(house: InferenceServer, function: str, what: str = "misses") -> float:
    """Of the version that answers now: rows that the cache had, or that were computed."""
    with house.client() as client:
        version = client.describe(function).version
    return metric(house.port, f"ml_udf_cache_{what}_total", function=function, version=str(version))


def asked(engine: Engine, photos: Path) -> list[tuple[object, ...]]:
    paths = ", ".join(f"({number}, '{photos / f'{number}.png'}')" for number in range(PHOTOS))
    query = f"SELECT i, udf_photo(p) FROM (VALUES {paths}) AS v(i, p)"
    return sorted(engine.query(query))


@pytest.mark.parametrize("engine_name", ["duckdb", "postgres"])
def test_a_query_asked_again_sends_no_row_to_a_worker(
    engine_name: str, house: InferenceServer, photos: Path, fresh: str, request: pytest.FixtureRequest
) -> None:
    answers = []
    for again in range(3):
        engine = make_engine(engine_name, house.url, request)  # a session of its own: no memo of the client's
        answers.append(asked(engine, photos))
        engine.close()
        assert count(house, fresh) == PHOTOS
        assert count(house, fresh, "hits") == again * PHOTOS
    assert answers[0] == answers[1] == answers[2]
    version = {"function": fresh, "version": str(described(house, fresh))}
    assert metric(house.port, "ml_udf_rows_total", **version) == 3 * PHOTOS


@pytest.mark.parametrize("how", ["written over", "moved over", "same size, same time of writing"])
def test_of_a_photo_that_is_replaced_exactly_its_row_is_computed_again(
    how: str, house: InferenceServer, photos: Path, fresh: str, request: pytest.FixtureRequest
) -> None:
    engine = make_engine("duckdb", house.url, request)
    changed, other = photos / "3.png", photos / f"{PHOTOS - 1}.png"
    kept = changed.read_bytes()
    time.sleep(_TICK_S)
    before = asked(engine, photos)
    told = changed.stat()
    if how == "written over":
        shutil.copyfile(other, changed)
    elif how == "moved over":
        shutil.copyfile(other, photos / "new")
        (photos / "new").rename(changed)
    else:
        changed.write_bytes(bytes(len(kept)))
        os.utime(changed, ns=(told.st_atime_ns, told.st_mtime_ns))
        assert changed.stat().st_mtime_ns == told.st_mtime_ns
    time.sleep(_TICK_S)
    try:
        engine.set("on_error", "null")
        after = asked(engine, photos)
        assert count(house, fresh) == PHOTOS + 1
        assert [one[0] for one, two in zip(before, after, strict=True) if one != two] in ([], [3])
        assert after[3][1] == (None if how.startswith("same") else after[PHOTOS - 1][1])
    finally:
        changed.write_bytes(kept)
        engine.close()


def test_after_a_deployment_and_after_a_rollback_every_row_is_computed_again(
    house: InferenceServer, photos: Path, fresh: str, request: pytest.FixtureRequest
) -> None:
    for change in (None, "deploy", "rollback"):
        if change == "deploy":
            redeployed(house, fresh, "photo_net")
        elif change == "rollback":
            with house.client() as client:
                client.post(f"/v1/functions/{fresh}/rollback", {})
        engine = make_engine("duckdb", house.url, request)
        asked(engine, photos)
        engine.close()
        assert count(house, fresh) == PHOTOS
        assert count(house, fresh, "hits") == 0


@pytest.mark.parametrize("engine_name", ["duckdb", "postgres"])
def test_a_session_may_have_every_row_computed_anew(engine: Engine, house: InferenceServer) -> None:
    redeployed(house, "udf_text", "text_hash")
    assert engine.query("SELECT udf_text('a')") == [(label_of("a"),)]
    asked_before = count(house, "udf_text") + count(house, "udf_text", "hits")
    engine.set("answer_cache", "off")
    assert engine.query("SELECT udf_text('b')") == [(label_of("b"),)]
    assert count(house, "udf_text") + count(house, "udf_text", "hits") == asked_before


def test_a_function_may_be_deployed_without_a_cache(house: InferenceServer) -> None:
    redeployed(house, "udf_text", "text_hash", answer_cache=False)
    for _ in range(2):
        assert call(house.port, "POST", "/v2/models/udf_text/infer", infer_body("a")).status == 200
    assert count(house, "udf_text") == count(house, "udf_text", "hits") == 0
    with house.client() as client:
        assert client.get("/v1/functions/udf_text")["answer_cache"] is False
        with pytest.raises(Exception, match="must be true or false"):
            client.put("/v1/functions/udf_text", {"models": ["text_hash"], "answer_cache": "yes"})
    redeployed(house, "udf_text", "text_hash")


def test_a_thousand_equal_rows_of_fifty_callers_at_once_are_computed_once(house: InferenceServer) -> None:
    redeployed(house, "udf_slow", "slow_hash")
    body = infer_body(*["the same"] * 20)
    with ThreadPoolExecutor(50) as threads:
        replies = list(
            threads.map(lambda _: call(house.port, "POST", "/v2/models/udf_slow/infer", body), range(50))
        )
    assert [reply.status for reply in replies] == [200] * 50
    outputs = {tuple(reply.json()["outputs"][0]["data"]) for reply in replies}
    assert outputs == {(label_of("the same"),) * 20}
    assert count(house, "udf_slow") == 1
    assert count(house, "udf_slow", "coalesced") + count(house, "udf_slow", "hits") == 999


def test_who_waits_for_a_caller_that_hangs_up_is_answered(house: InferenceServer) -> None:
    redeployed(house, "udf_slow", "slow_hash")
    path, body = "/v2/models/udf_slow/infer", json.dumps(infer_body("of two")).encode()
    leader = http.client.HTTPConnection("127.0.0.1", house.port)
    leader.request("POST", path, body, {"Content-Type": "application/json"})
    wait_until(lambda: count(house, "udf_slow") == 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call, house.port, "POST", path, infer_body("of two"))
        wait_until(lambda: count(house, "udf_slow", "coalesced") == 1)
        leader.close()
        assert waiting.result().json()["outputs"][0]["data"] == [label_of("of two")]


def test_a_killed_worker_costs_who_waits_no_answer(house: InferenceServer) -> None:
    redeployed(house, "udf_slow", "slow_hash")
    path = "/v2/models/udf_slow/infer"
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(call, house.port, "POST", path, infer_body("survives")) for _ in range(8)]
        wait_until(lambda: count(house, "udf_slow", "coalesced") == 7)
        house.kill_workers()
        for each in waiting:
            assert each.result().json()["outputs"][0]["data"] == [label_of("survives")]
    assert count(house, "udf_slow") == 1


def test_a_photo_below_no_folder_of_the_function_is_refused_though_its_answer_is_known(
    house: InferenceServer, photos: Path
) -> None:
    (photos / "team").mkdir(exist_ok=True)
    (photos / "team" / "link.png").symlink_to(photos / "5.png")
    redeployed(house, "udf_photo", "photo_net", media_roots=[str(photos / "team")])
    name = str(photos / "team" / "link.png")
    reply = call(house.port, "POST", "/v2/models/udf_photo/infer", infer_body(name, name="image_path"))
    assert reply.status == 400
    assert "outside the media roots" in reply.error
    (photos / "team" / "link.png").unlink()


def described(house: InferenceServer, function: str) -> str:
    with house.client() as client:
        return str(client.describe(function).version)
