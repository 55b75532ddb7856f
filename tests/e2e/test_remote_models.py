"""Models behind servers that really listen, as members of functions: in SQL on both engines, over HTTP."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ml_udf.client import Client
from ml_udf.errors import BadOption, MlUdfError
from tests.engines import DuckDb, Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of
from tests.remote_endpoint import (
    KEY,
    Endpoint,
    Handler,
    data_of,
    endpoint,
    oip_model,
    openai_model,
    vector_of,
)
from tests.waiting import wait_until

FUNCTIONS = ("udf_far", "udf_chat", "udf_both")
TYPED = ("udf_letters", "udf_vector", "udf_value")
TEXTS = ("a", "laksa", "weiß")


@pytest.fixture(scope="module")
def far() -> Iterator[Endpoint]:
    with endpoint(key=KEY) as running:
        running.answer = written
        yield running


def written(asked: dict[str, Any]) -> str | None:
    """What the chat model writes where more than a label is asked for."""
    schema = asked["response_format"]["json_schema"]["schema"]["properties"]
    letters = len(data_of(asked))
    if "letters" in schema:
        return json.dumps({"letters": letters})
    return json.dumps({"value": letters + 0.5}) if "value" in schema else None


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """Another server of ours, whose model is behind it."""
    folder = tmp_path_factory.mktemp("other")
    with inference_server(folder / "home") as running:
        running.deploy(hashing_model(folder, "theirs"))
        yield running


@pytest.fixture(scope="module")
def server(
    far: Endpoint, other: InferenceServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("remote")
    key_file = folder / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    allowed = [f"--allow-remote={far.url}={key_file}", f"--allow-remote={other.url}"]
    with inference_server(folder / "home", flags=allowed, forked=False) as running:
        running.deploy(oip_model(folder, far.url), "udf_far")
        running.deploy(openai_model(folder, far.url), "udf_chat")
        running.deploy(hashing_model(folder, "here"))
        client = Client(running.url)
        client.put("/v1/functions/udf_both", {"models": ["far", "here"], "combine": "mean"})
        client.close()
        client = Client(running.url)
        late = {"late_members": "leave_out", "slo_ms": 300}
        client.put("/v1/functions/udf_late", {"models": ["far", "here"], "combine": "mean", **late})
        client.close()
        running.deploy(oip_model(folder, other.url, "ours", of="theirs", output="scores"), "udf_ours")
        schema = {"type": "object", "properties": {"letters": {"type": "integer"}}, "required": ["letters"]}
        writes = {"task": "text-generation", "classes": [], "remote": {"schema": schema}}
        running.deploy(openai_model(folder, far.url, "writes", **writes), "udf_letters")
        embeds = {"task": "text-embedding", "classes": [], "features": {"width": 3}}
        running.deploy(openai_model(folder, far.url, "embeds", **embeds), "udf_vector")
        guesses = {"task": "text-regression", "classes": []}
        running.deploy(openai_model(folder, far.url, "guesses", **guesses), "udf_value")
        yield running


@pytest.fixture
def engine(engine_name: str, server: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, server.url, request, (*FUNCTIONS, *TYPED))
    yield made
    made.close()


@pytest.fixture
def stopped(far: Endpoint, server: InferenceServer) -> Iterator[Endpoint]:
    """The endpoint, hung up; it listens again afterwards, and its models are there."""
    far.stop()
    yield far
    if far.is_stopped:
        far.start()
    far.before = lambda _: False
    wait_until(lambda: infer(server, "udf_far", "a")["error"] == [""], 20)


def infer(server: InferenceServer, function: str, *texts: str, **parameters: Any) -> dict[str, list[Any]]:
    """Outputs by name, of an answer over the Open Inference Protocol."""
    outputs = [{"name": name} for name in ("label", "confidence", "answered_by", "error")]
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
    asked = {"inputs": [tensor], "outputs": outputs, "parameters": parameters}
    client = Client(server.url)
    try:
        told = client.post(f"/v2/models/{function}/infer", asked)
    finally:
        client.close()
    return {output["name"]: output["data"] for output in told["outputs"]}


def select(engine: Engine, function: str) -> list[tuple[Any, ...]]:
    values = ", ".join(f"('{text}')" for text in TEXTS)
    return engine.query(f"SELECT t, {function}(t) FROM (VALUES {values}) AS v(t) ORDER BY t")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_model_elsewhere_answers_in_sql_like_any_other(function: str, engine: Engine) -> None:
    assert select(engine, function) == [(text, label_of(text)) for text in sorted(TEXTS)]


def test_json_vectors_and_values_have_their_types_in_sql(engine: Engine) -> None:
    rows = engine.query(
        "SELECT t, udf_letters(t), udf_vector(t), udf_value(t) FROM (VALUES ('a'), ('laksa')) AS v(t)"
    )
    for text, letters, vector, value in rows:
        assert (json.loads(letters) if isinstance(letters, str) else letters) == {"letters": len(text)}
        assert list(vector) == vector_of(text)
        assert value == len(text) + 0.5


def test_beside_a_local_member_it_counts_and_both_are_named(server: InferenceServer) -> None:
    told = infer(server, "udf_both", "a")
    assert told["confidence"] == [pytest.approx(0.85)], "the mean of 0.7 there and 1.0 here"
    assert [sorted(each.split(",")) for each in told["answered_by"]] == [["far", "here"]]


def test_stopped_the_ensemble_answers_without_it_and_says_so(engine: Engine, stopped: Endpoint) -> None:
    assert select(engine, "udf_both") == [(text, label_of(text)) for text in sorted(TEXTS)]
    told = engine.query("SELECT (ml_udf.detail('udf_both', t)).answered_by FROM (VALUES ('a')) AS v(t)")
    assert told == [(["here"],)]


def test_stopped_and_alone_its_rows_say_which_endpoint_and_what_to_do(
    engine: Engine, stopped: Endpoint
) -> None:
    with pytest.raises(SqlError) as failed:
        select(engine, "udf_far")
    assert failed.value.sqlstate == "58030"
    assert f"{stopped.url}/v2/models/hash" in failed.value.text
    assert "is the server there running?" in failed.value.text
    told = engine.query("SELECT (ml_udf.try_predict('udf_far', t)).error FROM (VALUES ('a'), ('b')) AS v(t)")
    assert len(told) == 2
    assert all(stopped.url in error for (error,) in told)


def test_when_it_comes_back_it_answers_again(server: InferenceServer, stopped: Endpoint) -> None:
    assert infer(server, "udf_far", "a")["error"] != [""]
    stopped.start()
    wait_until(lambda: infer(server, "udf_far", "a")["error"] == [""], 20)
    wait_until(lambda: "far" in infer(server, "udf_both", "a")["answered_by"][0], 20)


def test_it_is_there_in_every_view_and_takes_no_memory(server: InferenceServer, far: Endpoint) -> None:
    client = Client(server.url)
    models = {model["name"]: model for model in client.get("/v1/models")["models"]}
    workers = {worker["name"]: worker for worker in client.get("/v1/workers")["workers"]}
    residency = client.get("/v1/residency")["residency"]
    client.close()
    assert models["far"]["resident"]
    assert models["far"]["endpoint"] == f"{far.url}/v2/models/hash"
    assert workers["remote0"]["device"] == "remote"
    assert "far/1" in workers["remote0"]["resident"]
    (place,) = (row for row in residency if row["model"] == "far/1")
    assert (place["tier"], place["device"], place["size_bytes"]) == ("remote", "remote", 0)


def test_the_key_stands_nowhere(server: InferenceServer, far: Endpoint) -> None:
    infer(server, "udf_chat", "a")
    client = Client(server.url)
    shown = json.dumps([client.get("/v1/models"), client.get("/v1/functions"), client.get("/v1/workers")])
    client.close()
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (server.pid, *server.worker_pids())]
    assert KEY not in shown
    assert KEY not in server.log
    assert all(KEY.encode() not in line for line in lines)


def test_a_killed_remote_worker_loses_no_row(server: InferenceServer, far: Endpoint) -> None:
    arrived, release = threading.Event(), threading.Event()

    def hold(_: Handler) -> bool:
        arrived.set()
        release.wait(10)
        return False

    far.before = hold
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(infer(server, "udf_far", *TEXTS)))
    asking.start()
    try:
        assert arrived.wait(10)
        before = remote_pid(server)
        os.kill(before, signal.SIGKILL)
        far.before = lambda _: False
    finally:
        release.set()
    asking.join(30)
    assert found[0]["label"] == [label_of(text) for text in TEXTS]
    assert found[0]["error"] == ["", "", ""]
    assert remote_pid(server) != before


def test_a_cancelled_statement_drops_its_request(
    engine: Engine, server: InferenceServer, far: Endpoint
) -> None:
    far.dropped.clear()
    far.before = lambda handler: handler.wait_for_hang_up()
    timer = engine.cancel_after(1.0)
    try:
        with pytest.raises(SqlError) as cancelled:
            select(engine, "udf_far")
        assert far.dropped.wait(5.0)
    finally:
        timer.join()
        far.before = lambda _: False
    assert cancelled.value.sqlstate in ("57014", "")  # DuckDB has its own words for it


def test_an_endpoint_that_hangs_holds_no_other_function_up(server: InferenceServer, far: Endpoint) -> None:
    release = threading.Event()

    def hold(handler: Handler) -> bool:
        if "chat" in handler.path:
            release.wait(10)
        return False

    far.before = hold
    slow = [threading.Thread(target=infer, args=(server, "udf_chat", *TEXTS)) for _ in range(6)]
    for thread in slow:
        thread.start()
    try:
        for _ in range(5):
            assert infer(server, "udf_far", "a", ml_udf_deadline_ms=5000)["error"] == [""]
            assert infer(server, "udf_both", "a", ml_udf_deadline_ms=5000)["error"] == [""]
        assert all(thread.is_alive() for thread in slow)
    finally:
        release.set()
        far.before = lambda _: False
        for thread in slow:
            thread.join(20)


def test_one_that_is_late_is_left_out_at_the_goal_where_the_function_says_so(
    server: InferenceServer, far: Endpoint
) -> None:
    release = threading.Event()
    far.before = lambda _: bool(release.wait(10)) and False
    try:
        assert infer(server, "udf_late", "a")["answered_by"] == ["here"]
    finally:
        release.set()
        far.before = lambda _: False


def test_a_model_of_another_server_of_ours_is_a_member_too(server: InferenceServer) -> None:
    told = infer(server, "udf_ours", "a", "b")
    assert told["label"] == [label_of("a"), label_of("b")]
    assert told["answered_by"] == ["ours", "ours"]


def test_a_row_that_it_answers_wrongly_is_answered_by_the_others(
    server: InferenceServer, far: Endpoint
) -> None:
    def spoil(handler: Handler) -> bool:
        if handler.of.requests[-1]["inputs"][0]["data"] != ["bad"]:
            return False
        handler.reply(b"not json")
        return True

    far.before = spoil
    try:
        told = infer(server, "udf_both", "bad")
        alone = infer(server, "udf_far", "bad")
    finally:
        far.before = lambda _: False
    assert (told["label"], told["answered_by"], told["error"]) == ([label_of("bad")], ["here"], [""])
    assert alone["error"][0].startswith("remote_invalid: ")
    assert "no JSON" in alone["error"][0]


def test_a_model_at_an_endpoint_that_is_not_allowed_is_refused_with_what_to_do(
    server: InferenceServer, tmp_path: Path
) -> None:
    client = Client(server.url)
    folder = oip_model(tmp_path, "http://127.0.0.1:9", "elsewhere")
    with pytest.raises(BadOption, match=r"--allow-remote http://127\.0\.0\.1:9"):
        client.post("/register", {"directory": str(folder)})
    assert "elsewhere" not in json.dumps(client.get("/v1/models"))
    client.close()


def test_nothing_is_sent_from_a_database_session_itself(server: InferenceServer, far: Endpoint) -> None:
    before = len(far.requests)
    session = DuckDb(f"local:{server.home}", ["udf_far"])
    try:
        with pytest.raises(SqlError, match="which a running ml_udf server asks") as refused:
            session.query("SELECT udf_far('a')")
    finally:
        session.close()
    assert refused.value.sqlstate == "22023"
    assert len(far.requests) == before


def test_a_function_is_not_deployed_while_its_endpoint_says_nothing(
    server: InferenceServer, far: Endpoint, tmp_path: Path
) -> None:
    client = Client(server.url)
    client.post("/register", {"directory": str(oip_model(tmp_path, far.url, "wrong", of="nothing"))})
    with pytest.raises(MlUdfError, match="has the inputs none"):
        client.put("/v1/functions/udf_wrong", {"models": ["wrong"]})
    client.close()


def remote_pid(server: InferenceServer) -> int:
    """Of its remote worker."""
    client = Client(server.url)
    try:
        workers = client.get("/v1/workers")["workers"]
    finally:
        client.close()
    return next(int(worker["pid"] or 0) for worker in workers if worker["name"] == "remote0")
