"""Callers share a running server by their tokens: who asks little waits for no other's rows, caps hold."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ml_udf.client import Client, Options
from ml_udf.errors import QuotaExceeded
from server.scheduling.policy import RowClass
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model

pytestmark = pytest.mark.security
INFER = "/v2/models/udf_fair/infer"
ADMIN = "the-administrators-secret"


class Shared:
    """A server with one worker, a model of 20 ms a batch and 1 ms a row, and tokens as they are asked for."""

    def __init__(self, server: InferenceServer) -> None:
        self.url = server.url

    def token(self, name: str, **shares: Any) -> str:
        form = {"name": name, "scopes": ["infer", "read", "train"], "shares": shares}
        made = self.ask(ADMIN, "/v1/tokens", form)
        assert made.status_code == 201, made.text
        return str(made.json()["secret"])

    def ask(self, token: str, path: str, form: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(self.url + path, headers=headers, json=form, timeout=120)

    def rows(self, token: str, count: int = 1, **parameters: Any) -> httpx.Response:
        data = [f"row {number}" for number in range(count)]
        tensor = {"name": "text", "shape": [count], "datatype": "BYTES", "data": data}
        return self.ask(token, INFER, {"parameters": parameters, "inputs": [tensor]})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = tmp_path_factory.mktemp("fairness")
    secret = made / "admin"
    secret.write_text(ADMIN + "\n")
    secret.chmod(0o600)
    flags = ["--workers=1", f"--token-file={secret}"]
    with inference_server(made / "home", flags=[ANEW, *flags], connect={"token": ADMIN}) as server:
        model = hashing_model(made, "fair", delay_ms=20.0, row_delay_ms=1.0)
        server.deploy(model, "udf_fair", slo_ms=250, max_batch=64)
        yield Shared(server)


@pytest.mark.parametrize("row_class", ["bulk", "interactive"])
def test_who_asks_for_a_row_waits_for_no_million_of_anothers(shared: Shared, row_class: RowClass) -> None:
    big, small = shared.token(f"big-{row_class}"), shared.token(f"small-{row_class}")
    scanning, over = threading.Event(), threading.Event()
    scanned_s: list[float] = []

    def scan(path: Path) -> None:
        client = Client(shared.url, token=big)
        options = Options(row_class=row_class, batch_rows=256, max_in_flight=8, timeout_ms=120_000)
        while not over.is_set():
            began_s = time.monotonic()
            client.predict("udf_fair", [f"{path} {row}" for row in range(2048)], options)
            scanned_s.append(time.monotonic() - began_s)
            scanning.set()
        client.close()

    thread = threading.Thread(target=scan, args=(Path(row_class),))
    thread.start()
    try:
        assert scanning.wait(120)
        took_s = []
        for _ in range(40):
            began_s = time.monotonic()
            reply = shared.rows(small, ml_udf_class=row_class)
            assert reply.status_code == 200, reply.text
            took_s.append(time.monotonic() - began_s)
            time.sleep(0.03)
    finally:
        over.set()
        thread.join(120)
    # In one queue a row would wait for the 2,048 before it, or until its goal is near.
    assert statistics.median(took_s) < statistics.median(scanned_s) / 6


def test_rows_a_second_beyond_the_tokens_are_told_when_to_come_back(shared: Shared) -> None:
    slow = shared.token("slow", rows_per_s=20)
    assert shared.rows(slow, 60).status_code == 200
    refused = shared.rows(slow)
    assert refused.status_code == 429
    assert refused.json()["error"].startswith("quota_exceeded: this token may ask for 20 rows/s")
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    other = shared.token("other")
    assert shared.rows(other, 60).status_code == 200
    client = Client(shared.url, token=slow)
    client.predict("udf_fair", ["waits its turn"] * 2, Options(timeout_ms=60_000))
    client.close()


def test_rows_that_wait_beyond_the_tokens_are_refused_and_other_tokens_are_not(shared: Shared) -> None:
    narrow, other = shared.token("narrow", queued_rows=300), shared.token("other-too")
    replies: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: replies.append(shared.rows(narrow, 200, ml_udf_class="bulk")))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    assert shared.rows(other, 200, ml_udf_class="bulk").status_code == 200
    for thread in threads:
        thread.join(120)
    found = sorted(reply.status_code for reply in replies)
    assert found[0] == 200
    assert found[-1] == 429
    assert set(found) == {200, 429}


def test_uploads_beyond_the_tokens_are_refused(shared: Shared) -> None:
    sender = shared.token("sender", uploads=1)
    form = {"name": "sent", "query": "SELECT 1", "target": "label", "key": "k", "input": "k"}
    assert shared.ask(sender, "/v1/datasets/uploads", form).status_code == 201
    refused = shared.ask(sender, "/v1/datasets/uploads", {**form, "name": "another"})
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "30"


def test_an_errors_word_is_the_clients_error(shared: Shared) -> None:
    tiny = shared.token("tiny", rows_per_s=1)
    assert shared.rows(tiny, 50).status_code == 200
    client = Client(shared.url, token=tiny)
    with pytest.raises(Exception, match="may ask for 1 rows/s") as caught:
        client.predict("udf_fair", ["too soon"], Options(timeout_ms=500))
    assert isinstance(caught.value.__cause__, QuotaExceeded)
    client.close()
