"""The pages as a browser without scripts gets them, from a real server."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from PIL import Image

from ml_udf.client import Options
from server.access.rules import RULES
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, text_model
from tests.task_models import (
    boxes_model,
    brightness_model,
    colours_model,
    eyes_model,
    generation_model,
    price_model,
)
from tests.waiting import wait_until

HTML = {"Accept": "text/html,application/xhtml+xml"}
SAME = {"Sec-Fetch-Site": "same-origin"}
PATHS = ("", "functions", "functions/udf_text", "functions/udf_boxes", "sql", "models", "who")
FIRST_PAGE_BYTES = 150_000
LINKS = re.compile(r'(?:href|src|action)="([^"]*)"')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    folder = tmp_path_factory.mktemp("pages")
    made = folder / "made"
    with inference_server(folder / "home", media_roots=[folder]) as running:
        running.deploy(hashing_model(made, "text_hash"), "udf_text")
        running.deploy(boxes_model(made), "udf_boxes")
        running.deploy(brightness_model(made), "udf_brightness")
        running.deploy(colours_model(made), "udf_colours")
        running.deploy(eyes_model(made), "udf_eyes")
        running.deploy(price_model(made), "udf_price")
        running.deploy(generation_model(made), "udf_writer")
        for seed in (1, 2, 3):
            running.deploy(text_model(made, f"mind_{seed}", seed=seed))
        for members in (["mind_1", "mind_2"], ["mind_1", "mind_2", "mind_3"]):
            with running.client() as client:
                client.put("/v1/functions/udf_minds", {"models": members})
        yield running


@pytest.fixture
def browser(server: InferenceServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url + "/", headers=HTML, timeout=60) as client:
        yield client


def photo() -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((64, 48)).convert("RGB").save(out, "PNG")
    return out.getvalue()


def csrf_of(client: httpx.Client, path: str) -> str:
    found = re.search('<meta name="csrf" content="([^"]*)">', client.get(path).text)
    assert found is not None
    return found[1]


def tried(client: httpx.Client, function: str, form: dict[str, Any], *, part: bool = True) -> httpx.Response:
    data = {name: value for name, value in form.items() if name != "file"}
    data["csrf"] = csrf_of(client, f"functions/{function}")
    files = {"file": ("photo.png", form["file"], "image/png")} if "file" in form else None
    headers = {**SAME, **({"X-Part": "1"} if part else {})}
    return client.post(f"functions/{function}/try", data=data, files=files, headers=headers)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_says_what_a_browser_may_do_with_it(browser: httpx.Client, path: str) -> None:
    reply = browser.get(path)
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["referrer-policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", reply.text)


@pytest.mark.parametrize("path", PATHS)
def test_every_link_is_relative_and_leads_somewhere(browser: httpx.Client, path: str) -> None:
    reply = browser.get(path)
    links = {link.partition("#")[0] for link in LINKS.findall(reply.text)} - {""}
    assert links
    for link in links:
        assert not link.startswith("/")
        assert "//" not in link
    known = [route for (method, route), _ in RULES.items() if method == "POST"]
    for link in links:
        target = urljoin(str(reply.url), link)
        if any(target.endswith(route.rpartition("/")[2]) for route in known if "/" in route[1:]):
            continue  # where a form goes
        assert browser.get(target).status_code in (200, 303), target


@pytest.mark.parametrize("path", PATHS)
def test_a_first_visit_is_small(browser: httpx.Client, path: str) -> None:
    reply = browser.get(path)
    size = len(reply.content)
    assets = {link for link in LINKS.findall(reply.text) if "/assets/" in link}
    scripts: set[str] = set()
    for link in assets:
        asset = browser.get(urljoin(str(reply.url), link))
        size += len(asset.content)
        scripts |= set(re.findall(r'from "\./([a-z_]+\.js)"', asset.text))
    base = next(link for link in assets if link.endswith("pages.css")).rpartition("/")[0]
    seen: set[str] = set()
    while scripts - seen:
        name = (scripts - seen).pop()
        seen.add(name)
        asset = browser.get(urljoin(str(reply.url), f"{base}/{name}"))
        assert asset.status_code == 200
        size += len(asset.content)
        scripts |= set(re.findall(r'from "\./([a-z_]+\.js)"', asset.text))
    assert size < FIRST_PAGE_BYTES


def test_assets_are_kept_for_good_under_a_name_that_changes_with_them(browser: httpx.Client) -> None:
    link = next(link for link in LINKS.findall(browser.get("").text) if link.endswith("pages.css"))
    asset = browser.get(link)
    assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert asset.headers["content-type"].startswith("text/css")
    digest = link.split("/")[-2]
    assert browser.get(link.replace(digest, "0" * 12)).status_code == 404
    for name in ("nothing.css", "..%2f..%2frenderer.py", "%2e%2e/renderer.py"):
        assert browser.get(f"assets/{digest}/{name}").status_code == 404


def test_what_is_not_there_is_a_page_that_says_so(browser: httpx.Client) -> None:
    reply = browser.get("functions/nothing")
    assert reply.status_code == 404
    assert "there is no function or model" in reply.text
    assert "default-src" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("function", "form", "said"),
    [
        ("udf_text", {"text": "a great laksa"}, "answered by text_hash"),
        ("udf_minds", {"text": "a great laksa"}, "What each member says"),
        ("udf_boxes", {"file": photo()}, 'viewBox="0 0 64 48"'),
        ("udf_brightness", {"file": photo()}, "answered by brightness"),
        ("udf_colours", {"file": photo()}, 'class="scores"'),
        ("udf_eyes", {"file": photo()}, "norm"),
        ("udf_price", {"column-0": "100", "column-1": "7.5"}, "207.5"),
        ("udf_writer", {"text": "x"}, "answered by writer"),
    ],
)
def test_every_task_can_be_tried(
    browser: httpx.Client, function: str, form: dict[str, Any], said: str
) -> None:
    reply = tried(browser, function, form)
    assert reply.status_code == 200
    assert said in reply.text
    assert "<html" not in reply.text
    whole = tried(browser, function, form, part=False)
    assert whole.status_code == 200
    assert said in whole.text
    assert "</html>" in whole.text


def test_without_a_script_the_page_shows_the_photo_that_was_tried(browser: httpx.Client) -> None:
    assert "data:image/png;base64," in tried(browser, "udf_boxes", {"file": photo()}, part=False).text
    assert "data:image/png;base64," not in tried(browser, "udf_boxes", {"file": photo()}).text


@pytest.mark.parametrize(
    ("function", "form", "status", "said"),
    [
        ("udf_boxes", {"file": b"no photo at all"}, 200, "input_undecodable"),
        ("udf_boxes", {}, 400, "no photo came"),
        ("udf_text", {"text": ""}, 400, "no text came"),
        ("udf_price", {"column-0": "heavy"}, 400, "is a number"),
    ],
)
def test_what_cannot_be_asked_says_what_to_do(
    browser: httpx.Client, function: str, form: dict[str, Any], status: int, said: str
) -> None:
    reply = tried(browser, function, form)
    assert (reply.status_code, said in reply.text) == (status, True)
    assert 'role="alert"' in reply.text


def test_a_try_changes_nothing_that_is_counted_as_what_people_ask(
    browser: httpx.Client, server: InferenceServer
) -> None:
    tried(browser, "udf_text", {"text": "only a try"})
    with server.client() as client:
        assert client.get("/v1/drift")["drift"] == []


def test_a_functions_page_shows_how_many_of_its_rows_were_kept_answers(
    browser: httpx.Client, server: InferenceServer
) -> None:
    with server.client() as client:
        for _ in range(2):
            client.predict("udf_minds", ["asked twice"], Options(row_class="interactive"))
    page = browser.get("functions/udf_minds").text
    assert "Kept answers" in page
    assert "<dt>answered before</dt><dd>1 row (" in page
    assert "Kept answers" not in browser.get("functions/udf_writer").text


def test_names_and_texts_are_said_as_text(browser: httpx.Client) -> None:
    hostile = '<script>alert("x")</script>'
    reply = tried(browser, "udf_text", {"text": hostile}, part=False)
    assert hostile not in reply.text
    assert "&lt;script&gt;" in reply.text
    assert hostile not in browser.get("functions/" + "%3Cscript%3Ealert(%22x%22)%3C%2Fscript%3E").text


def test_a_function_is_rolled_back_by_a_form(browser: httpx.Client, server: InferenceServer) -> None:
    path = "functions/udf_minds"
    assert "Roll back to what version 1 was" in browser.get(path).text
    reply = browser.post(f"{path}/rollback", data={"csrf": csrf_of(browser, path)}, headers=SAME)
    assert reply.status_code == 303
    after = browser.get(urljoin(str(reply.url), reply.headers["location"]))
    assert "version 3" in after.text
    with server.client() as client:
        assert client.get("/v1/functions/udf_minds")["models"] == ["mind_1", "mind_2"]


class Stream:
    """What a page's stream says, read in a thread of its own."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.parts: list[dict[str, str]] = []
        self.status = 0
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, headers or {}), daemon=True)
        self._thread.start()

    def _read(self, url: str, headers: dict[str, str]) -> None:
        try:
            with httpx.stream("GET", url, headers=headers, timeout=60) as reply:
                self.status = reply.status_code
                for line in reply.iter_lines():
                    if line.startswith("data: "):
                        self.parts.append(json.loads(line[6:]))
        except httpx.HTTPError:
            pass
        finally:
            self.ended.set()


def test_a_page_that_stays_open_hears_of_rows_that_are_asked(
    browser: httpx.Client, server: InferenceServer
) -> None:
    stream = Stream(f"{server.url}/live/overview")
    wait_until(lambda: bool(stream.parts))
    assert {"state", "now", "functions", "errors", "workers", "history"} <= stream.parts[0].keys()
    shown = browser.get("").text
    assert all(f'id="{part}"' in shown for part in stream.parts[0])
    before = len(stream.parts)
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}]}
    assert httpx.post(f"{server.url}/v2/models/udf_text/infer", json=body).status_code == 200
    wait_until(lambda: any("now" in part for part in stream.parts[before:]))
    assert all("csrf" not in html for part in stream.parts for html in part.values())


def test_streams_end_when_the_server_stops_and_history_is_there_when_it_is_back(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with inference_server(tmp_path / "home") as server:
        server.deploy(hashing_model(made, "text_hash"), "udf_text")
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
        for _ in range(5):
            httpx.post(f"{server.url}/v2/models/udf_text/infer", json=body)
        first = httpx.get(f"{server.url}/live").json()["run"]
        stream = Stream(f"{server.url}/live/overview")
        wait_until(lambda: bool(stream.parts))
        server.stop()
        assert stream.ended.wait(30)
        server.start()
        assert httpx.get(f"{server.url}/live").json()["run"] != first
        shown = httpx.get(f"{server.url}/", headers=HTML).text
        assert "Nothing yet" not in shown
        with closing(sqlite3.connect(server.home / "registry.db")) as registry:
            kept = registry.execute("SELECT stretch FROM history WHERE ring = 'hour'").fetchall()
        rows = sum(json.loads(text)["functions"].get("udf_text", {}).get("rows", 0) for (text,) in kept)
        assert rows == 5


def test_who_may_not_deploy_sees_no_button_and_is_refused(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home") as server:
        for seed in (1, 2):
            server.deploy(text_model(tmp_path / "made", f"mind_{seed}", seed=seed))
        for members in (["mind_1"], ["mind_1", "mind_2"]):
            with server.client() as client:
                client.put("/v1/functions/udf_minds", {"models": members})
        admin = httpx.post(f"{server.url}/v1/tokens", json={"name": "root", "scopes": ["admin"]}).json()[
            "secret"
        ]
        headers = {"Authorization": f"Bearer {admin}"}
        made = {"name": "reader", "scopes": ["infer", "read"]}
        secret = httpx.post(f"{server.url}/v1/tokens", json=made, headers=headers).json()["secret"]
        with httpx.Client(base_url=server.url, headers=HTML, timeout=60) as client:
            assert client.post("/login", data={"token": secret}, headers=SAME).status_code == 303
            page = client.get("/functions/udf_minds").text
            assert "Roll back" not in page
            assert "Try it" in page
            csrf = csrf_of(client, "/functions/udf_minds")
            refused = client.post("/functions/udf_minds/rollback", data={"csrf": csrf}, headers=SAME)
            assert refused.status_code == 403
            asked = client.post(
                "/functions/udf_minds/try", data={"csrf": csrf, "text": "x"}, headers={**SAME, "X-Part": "1"}
            )
            assert asked.status_code == 200
            # A stream ends when its token is revoked.
            stream = Stream(f"{server.url}/live/overview", {"Cookie": cookie_of(client)})
            wait_until(lambda: bool(stream.parts))
            assert httpx.delete(f"{server.url}/v1/tokens/reader", headers=headers).status_code == 200
            assert stream.ended.wait(30)
            assert client.get("/live/overview").status_code in (303, 401)


def cookie_of(client: httpx.Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def test_a_server_says_where_its_pages_are(server: InferenceServer) -> None:
    assert f"pages: {server.url}/\n" in server.log


def test_pages_are_made_while_rows_are_answered(browser: httpx.Client, server: InferenceServer) -> None:
    """Rendering runs beside the event loop: health checks come in between."""
    answered: list[int] = []

    def visit() -> None:
        with httpx.Client(base_url=server.url, headers=HTML, timeout=60) as client:
            answered.extend(client.get("/functions/udf_minds").status_code for _ in range(20))

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    checks = 0
    while any(thread.is_alive() for thread in threads):
        assert browser.get("v2/health/live").status_code == 200
        checks += 1
    for thread in threads:
        thread.join()
    assert answered == [200] * 80
    assert checks > 10


def test_who_does_not_own_a_function_rolls_nothing_back(tmp_path: Path) -> None:
    with inference_server(tmp_path / "home") as server:
        with server.client() as client:
            for seed in (1, 2):
                client.post("/register", {"directory": str(text_model(tmp_path, f"mind_{seed}", seed=seed))})
        admin = httpx.post(f"{server.url}/v1/tokens", json={"name": "root", "scopes": ["admin"]})
        headers = {"Authorization": f"Bearer {admin.json()['secret']}"}
        secrets = {}
        for name in ("owner", "other"):
            made = {"name": name, "scopes": ["infer", "deploy"]}
            secrets[name] = httpx.post(f"{server.url}/v1/tokens", json=made, headers=headers).json()["secret"]
        own = {"Authorization": f"Bearer {secrets['owner']}"}
        for models in (["mind_1"], ["mind_2"]):
            put = httpx.put(
                f"{server.url}/v1/functions/udf_own", json={"models": models}, headers=own, timeout=60
            )
            assert put.status_code == 200, put.text
        shared = {"visibility": "public"}
        httpx.put(f"{server.url}/v1/functions/udf_own/visibility", json=shared, headers=own)
        with httpx.Client(base_url=server.url, headers=HTML, timeout=60) as client:
            assert client.post("/login", data={"token": secrets["other"]}, headers=SAME).status_code == 303
            page = client.get("/functions/udf_own")
            refused = client.post(
                "/functions/udf_own/rollback", data={"csrf": csrf_of(client, "/who")}, headers=SAME
            )
            assert "Roll back" not in page.text
            assert refused.status_code in (403, 404)
        now = httpx.get(f"{server.url}/v1/functions/udf_own", headers=own).json()
        assert (now["version"], now["models"]) == (2, ["mind_2"])
