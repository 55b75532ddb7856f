"""A page stays open while its server is killed and comes back: it says so, and goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ml_udf.client import Client
from tests.browser.watch import Watch
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

FUNCTION = "udf_text"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InferenceServer]:
    with inference_server(tmp_path / "home") as running:
        running.deploy(hashing_model(tmp_path, "text_hash"), FUNCTION)
        yield running


def ask(server: InferenceServer, *texts: str) -> None:
    client: Client
    with server.client() as client:
        client.predict(FUNCTION, list(texts))


def test_a_page_outlives_its_server(look_at: Callable[..., Watch], server: InferenceServer) -> None:
    watch = look_at()
    page = watch.page
    page.goto(server.url)
    state = page.locator("#link-state")
    expect(state).to_have_text("live")
    rows = page.locator("#functions tbody tr", has_text=FUNCTION)
    expect(rows).to_have_count(1)

    watch.allow("/live.*", 0)  # nobody is there
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    expect(state).to_contain_text("connection lost")
    expect(rows).to_have_count(1)  # what was known stays

    server.start()
    expect(state).to_contain_text("the server was started again")
    ask(server, *(f"text {number}" for number in range(50)))
    expect(page.locator("#functions tbody tr", has_text=FUNCTION)).to_contain_text("ready")
    expect(page.locator("#now")).not_to_contain_text("rows / s 0 ")


def test_a_page_is_told_that_the_server_stops(look_at: Callable[..., Watch], server: InferenceServer) -> None:
    watch = look_at()
    watch.page.goto(server.url)
    expect(watch.page.locator("#link-state")).to_have_text("live")
    watch.allow("/live.*", 0)
    watch.allow("/live.*", 503)
    server.stop()  # within its time: an open page holds nothing up
    expect(watch.page.locator("#link-state")).to_contain_text("connection lost")
