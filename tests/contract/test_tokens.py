"""Tokens on real servers: restarts, open connections and streams, several servers, and nothing that leaks."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ml_udf import sdk
from ml_udf.client import Client
from server.access.token import digest_of
from tests.contract.oip_wire import infer_body
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model
from tests.waiting import wait_until

pytestmark = pytest.mark.security

INFER = "/v2/models/udf_text/infer"


class Site:
    """A server with an admin's token."""

    def __init__(self, server: InferenceServer) -> None:
        self.server = server
        self.secrets: list[str] = []
        self.admin = self.make("root", token="", scopes=["admin"])

    def ask(self, method: str, path: str, token: str | None = None, body: object = None) -> httpx.Response:
        sent = self.admin if token is None else token
        headers = {"Authorization": f"Bearer {sent}"} if sent else {}
        return httpx.request(method, self.server.url + path, headers=headers, json=body, timeout=60)

    def make(self, name: str, token: str | None = None, **form: Any) -> str:
        reply = self.ask("POST", "/v1/tokens", token, {"name": name, **form})
        assert reply.status_code == 201, reply.text
        self.secrets.append(reply.json()["secret"])
        return self.secrets[-1]

    def revoke(self, name: str) -> None:
        assert self.ask("DELETE", f"/v1/tokens/{name}").status_code == 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = tmp_path_factory.mktemp("tokens")
    with inference_server(made / "home", forked=False) as server:
        server.deploy(hashing_model(made, "text_hash"), "udf_text")
        yield Site(server)


def test_a_revoked_token_is_refused_on_the_connection_that_it_is_being_sent_on(site: Site) -> None:
    secret = site.make("app", scopes=["infer"])
    with closing(http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=60)) as connection:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

        def status() -> int:
            connection.request("POST", INFER, json.dumps(infer_body("a", "b")).encode(), headers)
            response = connection.getresponse()
            response.read()
            return response.status

        assert [status(), status()] == [200, 200]
        site.revoke("app")
        assert connection.sock is not None
        assert status() == 401


def test_a_stream_ends_when_its_token_is_revoked(site: Site) -> None:
    secret = site.make("watcher", scopes=["read"])
    ended = threading.Event()
    began = threading.Event()

    def watch() -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.stream("GET", site.server.url + "/live", headers=headers, timeout=60) as reply:
            assert reply.status_code == 200
            for _ in reply.iter_raw():
                began.set()
        ended.set()

    thread = threading.Thread(target=watch)
    thread.start()
    assert began.wait(60)
    site.revoke("watcher")
    thread.join(60)
    assert ended.is_set()


def test_tokens_outlive_the_server_and_count_on_every_server_of_the_registry(
    site: Site, tmp_path: Path
) -> None:
    secret = site.make("kept", scopes=["read"])
    site.server.stop()
    site.server.start()
    assert site.ask("GET", "/v1/functions", secret).status_code == 200
    flags = [f"--database-url=sqlite:///{site.server.home / 'registry.db'}"]
    with inference_server(tmp_path / "second", flags=flags) as second:

        def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.get(second.url + "/v1/functions", headers=headers, timeout=60).status_code

        assert status(secret) == 200
        assert httpx.get(second.url + "/v1/functions", timeout=60).status_code == 401
        later = site.make("later", scopes=["read"])
        wait_until(lambda: status(later) == 200, 60)
        site.revoke("kept")
        wait_until(lambda: status(secret) == 401, 60)


def test_scopes_are_kept_apart(site: Site) -> None:
    infer = site.make("only-infer", scopes=["infer"])
    read = site.make("only-read", scopes=["read"])
    asked = [("GET", "/v1/jobs"), ("GET", "/v1/tokens"), ("POST", INFER)]
    found = {
        name: [site.ask(method, path, token, infer_body("a")).status_code for method, path in asked]
        for name, token in (("infer", infer), ("read", read), ("admin", site.admin))
    }
    assert found == {"infer": [403, 403, 200], "read": [200, 403, 403], "admin": [200, 200, 200]}
    with closing(Client(site.server.url, token=read)) as client:
        assert [each["name"] for each in client.listed("functions")] == ["udf_text"]


def test_a_secret_is_nowhere_but_with_whom_it_was_given_to(site: Site) -> None:
    secret = site.make("secret", scopes=["admin"])
    for method, path in (("GET", "/v1/tokens"), ("GET", "/metrics"), ("GET", "/"), ("GET", "/nothing")):
        reply = site.ask(method, path, secret)
        assert not any(each in reply.text + str(reply.headers) for each in site.secrets)
    site.ask("GET", "/v1/tokens", secret + "x")
    site.ask("POST", "/v1/tokens", secret, {"name": secret[:40] + " ", "scopes": ["infer"]})
    time.sleep(1.5)
    site.server.stop()
    texts = {path: path.read_bytes() for path in site.server.home.rglob("*") if path.is_file()}
    site.server.start()
    for pid in (site.server.pid, *site.server.worker_pids()):
        for name in ("cmdline", "environ"):
            texts[Path(f"/proc/{pid}/{name}")] = Path(f"/proc/{pid}/{name}").read_bytes()
    assert any(path.name == "registry.db" for path in texts)
    found = [path for path, text in texts.items() for each in site.secrets if each.encode() in text]
    assert found == []
    assert any(digest_of(secret.encode()).encode() in text for text in texts.values())
    assert os.stat(site.server.home / "registry.db").st_mode & 0o077 == 0


def _run(
    site: Site, *arguments: str, token: str | None = None, folder: Path
) -> subprocess.CompletedProcess[str]:
    """`ml-udf …`, asked of the server with a token in a file."""
    file = folder / "token"
    file.write_text(site.admin if token is None else token)
    command = [sys.executable, "-m", "ml_udf.cli", *arguments, "--endpoint", site.server.url]
    command += ["--token-file", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_line_prints_a_secret_alone_and_once(site: Site, tmp_path: Path) -> None:
    asked = (
        "token",
        "create",
        "by-hand",
        "--scope",
        "infer,read",
        "--functions",
        "udf_text",
        "--expires",
        "90d",
    )
    made = _run(site, *asked, "--expires", "90d", "--rows-per-s", "100", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    secret = made.stdout.removesuffix("\n")
    assert secret.startswith("mludf_")
    assert not any(space in secret for space in " \n")
    assert secret not in made.stderr
    assert "shown this once" in made.stderr
    assert site.ask("POST", INFER, secret, infer_body("a")).status_code == 200
    listed = _run(site, "token", "list", folder=tmp_path)
    assert "by-hand" in listed.stdout
    assert secret not in listed.stdout
    link = _run(site, "login", token=secret, folder=tmp_path)
    assert httpx.get(link.stdout.strip(), timeout=60).status_code == 303
    assert httpx.get(link.stdout.strip(), timeout=60).status_code == 401
    assert _run(site, "token", "revoke", "by-hand", folder=tmp_path).returncode == 0
    assert site.ask("POST", INFER, secret, infer_body("a")).status_code == 401
    refused = _run(site, "token", "revoke", "by-hand", folder=tmp_path)
    assert refused.returncode == 1
    assert "there is no token 'by-hand'" in refused.stderr


def test_python_makes_and_revokes_tokens_too(site: Site) -> None:
    how: dict[str, Any] = {"endpoint": site.server.url, "token": site.admin}
    secret = sdk.create_token(
        "from-python", ["infer"], patterns={"functions": ["udf_*"]}, expires="1h", **how
    )
    assert site.ask("POST", INFER, secret, infer_body("a")).status_code == 200
    (told,) = [each for each in sdk.tokens(**how) if each["name"] == "from-python"]
    assert (told["functions"], told["created_by"]) == (["udf_*"], "root")
    sdk.revoke_token("from-python", **how)
    assert site.ask("POST", INFER, secret, infer_body("a")).status_code == 401


def test_a_service_without_a_terminal_logs_no_link(site: Site) -> None:
    site.server.stop()
    site.server.start()
    assert "ml-udf login makes a link" in site.server.log
    assert "login?link=" not in site.server.log


def test_a_person_at_a_terminal_gets_a_link_that_logs_in(site: Site) -> None:
    master, end = os.openpty()
    registry = f"--database-url=sqlite:///{site.server.home / 'registry.db'}"
    command = [
        sys.executable,
        "-m",
        "server",
        "--port=0",
        registry,
        f"--home={site.server.home.parent / 'tty'}",
    ]
    process = subprocess.Popen(command, stdout=end, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    os.close(end)
    try:
        text = ""
        while "within ten minutes" not in text:
            text += os.read(master, 4096).decode()
        found = re.search(r"pages: (http\S+)", text)
        assert found is not None
        assert httpx.get(found[1], timeout=60).status_code == 303
        assert httpx.get(found[1], timeout=60).status_code == 401
    finally:
        process.terminate()
        process.wait(60)
        os.close(master)


def test_the_audit_trail_tells_who_did_what_and_who_was_refused(site: Site) -> None:
    trainer = site.make("trainer", scopes=["train", "infer"])
    body = {"models": ["text_hash"]}
    assert site.ask("PUT", "/v1/functions/udf_audited", None, body).status_code == 200
    assert site.ask("PUT", "/v1/functions/udf_audited", trainer, body).status_code == 403
    bulk = site.make("bulk-only", scopes=["infer"], shares={"row_class": "bulk"})
    urgent = infer_body("a", ml_udf_class="interactive")
    assert site.ask("POST", INFER, bulk, urgent).status_code == 403
    before = site.ask("GET", "/v1/audit?limit=1").json()["audit"][0]["id"]
    for _ in range(20):
        assert site.ask("GET", "/v1/functions", "mludf_of-nobody").status_code == 401
    given = {"function": "udf_audited", "inputs": ["a"], "labels": ["b"]}
    assert site.ask("POST", "/v1/feedback", trainer, given).status_code in (200, 400)
    assert site.ask("DELETE", "/v1/functions/udf_audited").status_code == 200
    found = site.ask("GET", "/v1/audit").json()["audit"]
    told = {(each["token"], each["action"], each["what"], each["outcome"]) for each in found}
    assert ("root", "deploy function", "udf_audited", "done") in told
    assert ("root", "delete function", "udf_audited", "done") in told
    assert ("root", "create token", "trainer", "done") in told
    assert ("trainer", "PUT /v1/functions/{name}", "/v1/functions/udf_audited", "refused") in told
    assert ("bulk-only", "ask for rows", "udf_text", "refused") in told
    strangers = [each for each in found if each["token"] == "" and each["status"] == 401]
    # Twenty were refused here: the first is a line, the rest are a number by the minute.
    lines = [each for each in strangers if each["id"] > before and each["action"] == "GET /v1/functions"]
    assert len(lines) < 10
    assert site.ask("GET", "/v1/audit", trainer).status_code == 403
    of_one = site.ask("GET", "/v1/audit?token=trainer&outcome=refused").json()["audit"]
    assert {each["token"] for each in of_one} == {"trainer"}
    trail = (site.server.home / "audit" / "audit.jsonl").read_text()
    assert "udf_audited" in trail
    assert not any(secret in trail for secret in site.secrets)
