"""Two servers on one registry and one home: one trains; where it is killed the other goes on, rows too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_udf.client import Client, Options
from tests.e2e.test_training_recovery import assert_whole, begin, calling, is_over, push, wait_until
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of
from tests.training_data import draw_photos
from tests.waiting import wait_until as wait


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, photos: Path
) -> Iterator[tuple[InferenceServer, InferenceServer]]:
    """The first was there before; both have one worker."""
    folder = tmp_path_factory.mktemp("servers")
    labelled = draw_photos(photos, 200)
    home = folder / "first"
    with inference_server(home, media_roots=[photos]) as first:
        first.deploy(hashing_model(folder, "text_hash"), "udf_text")
        with calling(first) as calls:
            push(calls, labelled)
        with inference_server(folder / "second", media_roots=[photos], flags=[f"--home={home}"]) as second:
            yield first, second


def states(server: InferenceServer) -> dict[bool, str]:
    """By whether it is the server that says so, the state of each server."""
    with server.client() as client:
        told = client.get("/v1/servers")
    return {each["name"] == told["here"]: each["state"] for each in told["servers"]}


def serves(server: InferenceServer, function: str) -> bool:
    with server.client() as client:
        return function in [each["name"] for each in client.get("/v1/functions")["functions"]]


def leads(server: InferenceServer) -> bool:
    return states(server).get(True) == "leading"


def test_one_trains_each_takes_orders_and_where_one_is_killed_the_other_ends_the_job(
    servers: tuple[InferenceServer, InferenceServer],
) -> None:
    first, second = servers
    assert leads(first)
    assert not leads(second)
    first.deploy(hashing_model(first.home, "later_hash"), "udf_later")
    wait(lambda: serves(second, "udf_later"))
    with second.client() as client:
        assert client.predict("udf_later", ["a"], Options()).values == [label_of("a")]
        client.delete("/v1/functions/udf_later")
    wait(lambda: not serves(first, "udf_later"))
    with calling(second) as at_second:
        # Ordered at the one that does not train.
        job = begin(at_second, budget=4, policy="branch")
        wait_until(at_second, job, lambda found: found["epochs_used"] >= 1)
        with asking(f"{first.url},{second.url}") as answered:
            wait(lambda: len(answered) >= 20)
            os.kill(first.pid, signal.SIGKILL)
            wait(lambda: leads(second))
            before = len(answered)
            wait(lambda: len(answered) >= before + 20)
        assert wait_until(at_second, job, is_over)["state"] == "done"
        assert_whole(at_second, job, 4)


@contextlib.contextmanager
def asking(endpoints: str) -> Iterator[list[int]]:
    """Statements, one after the other, through all that happens; each must be answered whole."""
    answered: list[int] = []
    faults: list[BaseException] = []
    over = threading.Event()
    options = Options(batch_rows=8, answer_cache="off")

    def ask() -> None:
        try:
            with contextlib.closing(Client(endpoints)) as client:
                while not over.is_set():
                    rows = [f"{len(answered)} {number}" for number in range(64)]
                    found = client.predict("udf_text", rows, options)
                    assert found.values == [label_of(row) for row in rows]
                    answered.append(len(rows))
        except BaseException as error:
            faults.append(error)
            raise

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answered
    finally:
        over.set()
        thread.join()
    assert faults == []
