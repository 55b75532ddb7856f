"""The REST interface's own page: whole without any other host, under the pages' policy, below a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.browser.accessibility import barriers
from tests.browser.prefix_proxy import below_a_prefix
from tests.browser.watch import LOOKS, Look, Watch, picture
from tests.inference_server import InferenceServer, inference_server

LIVE = "#operations-health-live_v2_health_live_get"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    with inference_server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_the_rest_interface_is_shown_without_any_other_host(
    look_at: Callable[..., Watch], server: InferenceServer, look: Look
) -> None:
    watch = look_at(look)
    watch.page.goto(f"{server.url}/docs")
    watch.page.wait_for_selector(LIVE)
    assert all(url.startswith(server.url) for url in watch.requested)
    assert len(watch.requested) >= 5
    assert barriers(watch.page, outside=("#swagger-ui",)) == []  # which is not ours to mend
    dark = watch.page.evaluate("document.documentElement.classList.contains('dark-mode')")
    assert dark == (look.theme == "dark")
    picture(watch.page, "docs", look)


def test_it_asks_the_server_below_a_prefix(look_at: Callable[..., Watch], server: InferenceServer) -> None:
    watch = look_at()
    with below_a_prefix(server.port) as url:
        watch.page.goto(f"{url}/docs")
        watch.page.click(f"{LIVE} .opblock-summary-control")
        watch.page.click(f"{LIVE} .try-out__btn")
        with watch.page.expect_response(f"{url}/v2/health/live") as reply:
            watch.page.click(f"{LIVE} .execute")
        assert reply.value.status == 200
        assert all(asked.startswith(url) for asked in watch.requested)


def test_without_scripts_it_leads_to_the_description(
    look_at: Callable[..., Watch], server: InferenceServer
) -> None:
    watch = look_at(scripts=False)
    watch.page.goto(f"{server.url}/docs")
    assert watch.page.get_attribute("main a", "href") == "openapi.json"


@pytest.mark.security
def test_its_files_are_those_alone_and_are_what_they_say(server: InferenceServer) -> None:
    for path in ("docs", "docs/start.js", "docs/swagger-ui.css", "docs/favicon.png"):
        reply = httpx.get(f"{server.url}/{path}")
        assert reply.status_code == 200
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "script-src 'self';" in reply.headers["content-security-policy"]
    for path in ("docs/__init__.py", "docs/..%2f__init__.py", "docs/redoc.standalone.js", "docs/"):
        assert httpx.get(f"{server.url}/{path}").status_code == 404
