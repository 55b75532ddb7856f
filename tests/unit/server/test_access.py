"""Who may ask what, on every route that the server has, by the head of a request alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest
from starlette.routing import Match, Route

from server.access.caller import Caller, Shares, implied
from server.access.rules import CHANGING, RULES, rule_of
from server.app import App, create_app
from server.http.application import Admitted, Refused
from server.http.gateway import Gateway
from server.http.request_head import parse_head
from server.routes.infer import InferRoute, is_infer
from server.settings import Settings

pytestmark = pytest.mark.security

TOKEN = "a-token-for-the-tests-0123456789"
ASK = "another-token-that-may-only-ask"
INFER = [("POST", "/v2/models/{name}/infer"), ("POST", "/v2/models/{name}/versions/{version}/infer")]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    return create_app(Settings(home=tmp_path_factory.mktemp("open")))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> App:
    return create_app(Settings(home=tmp_path_factory.mktemp("guarded")), TOKEN, ASK)


def framework_routes(routes: Iterable[object]) -> Iterator[Route]:
    """Every route of the framework's, in the order in which it asks them."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from framework_routes(included.routes)
        else:
            assert isinstance(route, Route), f"a route of another kind, which has no rule: {route}"
            yield route


def routes_of(app: App) -> Iterator[tuple[str, str]]:
    """Every method and path of the framework's routes, and the infer route's before it."""
    yield from INFER
    for route in framework_routes(app.api.routes):
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                yield method, route.path


def sample(path: str) -> str:
    return re.sub(r"{[^}]*}", "x1", path)


class Rows:
    """Stands for the infer route, which answers nothing here."""

    takes = staticmethod(is_infer)


def gateway_of(app: App) -> Gateway:
    return app.gateway(cast(InferRoute, Rows()), {})


def ask(
    gateway: Gateway, method: str, path: str, body_bytes: int = 0, /, **headers: str
) -> Admitted | Refused:
    """What is decided on a request; `host` is loopback's unless said otherwise."""
    lines = {"host": "127.0.0.1:8080", **headers}
    if body_bytes:
        lines["content-length"] = str(body_bytes)
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return gateway.admit(parse_head(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")), "127.0.0.1")


def status(verdict: Admitted | Refused) -> int:
    return verdict.status if isinstance(verdict, Refused) else 200


def test_every_route_has_a_rule_and_every_rule_a_route(app: App) -> None:
    assert set(routes_of(app)) == set(RULES)


@pytest.mark.parametrize(("method", "path"), RULES)
def test_the_rule_of_a_path_is_that_of_the_route_that_answers_it(app: App, method: str, path: str) -> None:
    assert rule_of(method, sample(path)) == RULES[method, path]
    if (method, path) not in INFER:
        scope = {"type": "http", "method": method, "path": sample(path), "headers": []}
        matching = (r for r in framework_routes(app.api.routes) if r.matches(scope)[0] == Match.FULL)
        assert RULES[method, next(matching).path] == RULES[method, path]


@pytest.mark.parametrize(("method", "path"), RULES)
def test_without_a_token_the_server_is_this_machines_alone(app: App, method: str, path: str) -> None:
    where = sample(path)
    assert status(ask(gateway_of(app), method, where)) == 200
    assert status(ask(gateway_of(app), method, where, host="evil.example:8080")) == 403
    assert status(ask(gateway_of(app), method, where, origin="http://127.evil.example")) == 403
    here = {"host": "localhost:8080", "origin": "http://localhost:8080"}
    assert status(ask(gateway_of(app), method, where, **here)) == 200
    another_port = {"host": "localhost:8080", "origin": "http://localhost:3000"}
    assert status(ask(gateway_of(app), method, where, **another_port)) == (200 if method == "GET" else 403)


@pytest.mark.parametrize(("method", "path"), RULES)
def test_with_a_token_each_route_asks_for_the_one_that_its_rule_says(
    guarded: App, method: str, path: str
) -> None:
    rule, where, gateway = RULES[method, path], sample(path), gateway_of(guarded)
    scope = rule.scope
    for sent in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": f"Basic {TOKEN}"}):
        unknown = 200 if scope == "open" and not rule.is_page else 401
        if rule.is_page and not sent.get("authorization", "").startswith("Bearer"):
            # A browser is sent to log in; what changes something comes from a page of ours.
            unknown = 403 if method != "GET" else 200 if scope == "open" else 401
            there = 303 if unknown == 401 else unknown
            assert status(ask(gateway, method, where, accept="text/html", **sent)) == there
        assert status(ask(gateway, method, where, **sent)) == unknown
    may_ask = status(ask(gateway, method, where, authorization=f"Bearer {ASK}"))
    assert may_ask == (403 if scope in CHANGING else 200)
    assert status(ask(gateway, method, where, authorization=f"bearer {TOKEN}", host="any.example")) == 200


@pytest.mark.parametrize(("method", "path"), [key for key in RULES if RULES[key].scope in CHANGING])
def test_the_token_that_may_ask_changes_nothing_and_sees_no_dataset(method: str, path: str) -> None:
    shown = (
        "/v1/datasets",
        "/v1/sources",
        "/v1/tokens",
        "/v1/audit",
        "/v1/capacity/decisions",
        "/datasets",
    )
    assert method != "GET" or path.removeprefix("/live").startswith(shown)


@pytest.mark.parametrize(("method", "path"), [key for key in RULES if key[0] != "GET"])
@pytest.mark.parametrize(
    "content", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_a_body_that_changes_something_says_what_it_is(
    app: App, method: str, path: str, content: str
) -> None:
    rule = RULES[method, path]
    given = {"content_type": content} if content else {}
    is_free = rule.scope not in CHANGING and not rule.is_page
    expected = 200 if is_free or content.partition(";")[0] in rule.content else 415
    assert status(ask(gateway_of(app), method, sample(path), 10, **given)) == expected
    assert (
        status(ask(gateway_of(app), method, sample(path), transfer_encoding="chunked", **given)) == expected
    )
    right = next(one for one in sorted(rule.content) if one)
    assert (
        status(ask(gateway_of(app), method, sample(path), 10, content_type=f"{right}; charset=utf-8")) == 200
    )


def test_only_tritons_own_routes_may_leave_the_content_type_out() -> None:
    bare = {path for (_, path), rule in RULES.items() if "" in rule.content}
    assert all(path.startswith("/v2/") for path in bare)
    uploads = [
        path
        for (_, path), rule in RULES.items()
        if "multipart/form-data" in rule.content and not rule.is_page
    ]
    assert uploads == ["/register"]


@pytest.mark.parametrize("path", ["/nothing", "/v2/models/a/b/c/d", "/v1/functions/../../register", "/v1"])
def test_what_has_no_rule_is_for_the_full_token_alone(guarded: App, path: str) -> None:
    for method in ("GET", "POST", "PATCH", "DELETE"):
        assert status(ask(gateway_of(guarded), method, path, authorization=f"Bearer {ASK}")) == 403


def test_a_path_is_judged_as_the_framework_reads_it(guarded: App) -> None:
    sent = {"authorization": f"Bearer {ASK}"}
    assert status(ask(gateway_of(guarded), "GET", "/v1/%64atasets", **sent)) == 403
    assert status(ask(gateway_of(guarded), "GET", "/v1/%66unctions", **sent)) == 200
    assert status(ask(gateway_of(guarded), "POST", "/v2/models/a%2Fb/infer", **sent)) == 403


def test_no_path_and_no_query_holds_a_nul(guarded: App) -> None:
    sent = {"authorization": f"Bearer {TOKEN}"}
    for target in ("/v1/datasets/a%00b", "/%00", "/v1/audit?token=%00", "/v2/models/%00/infer"):
        assert status(ask(gateway_of(guarded), "GET", target, **sent)) == 400
        assert status(ask(gateway_of(guarded), "GET", target)) == 401
    assert status(ask(gateway_of(guarded), "GET", "/v1/audit?token=%2500", **sent)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.1.nip.io:8080",
        "localhost.evil.example",
        "localhost:8080@evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1:x",
        "127.0.0.1/evil",
        "[::1",
        "[::1].evil.example",
        "[::1]evil.example:8080",
        "127.0.0.1 evil.example",
        "localhost:99999",
        "0.0.0.0",
        "192.168.1.1",
        "",
    ],
)
def test_a_name_that_is_made_to_point_to_loopback_is_refused(app: App, host: str) -> None:
    assert status(ask(gateway_of(app), "GET", "/v2", host=host)) == 403
    if host:
        assert status(ask(gateway_of(app), "GET", "/v2", origin=f"http://{host}")) == 403


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "localhost",
        "//localhost",
        "file://localhost",
        "http://localhost/",
        "http://[::1].evil.example",
        "chrome-extension://localhost",
        "http://evil.example\\@localhost",
        "http://localhost http://evil.example",
    ],
)
def test_an_origin_that_is_no_web_page_of_this_machine_is_refused(app: App, origin: str) -> None:
    assert status(ask(gateway_of(app), "GET", "/v2", origin=origin)) == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.8.8.8", "[::1]:8080"])
def test_the_names_of_loopback_are_taken(app: App, host: str) -> None:
    assert status(ask(gateway_of(app), "GET", "/v2", host=host, origin=f"http://{host}")) == 200


def test_a_name_may_be_allowed(tmp_path: Path) -> None:
    named = create_app(Settings(home=tmp_path, allowed_host=("Photos.Example",)))
    assert status(ask(gateway_of(named), "GET", "/v2", host="photos.example:8080")) == 200
    assert status(ask(gateway_of(named), "GET", "/v2", host="other.example")) == 403


def test_a_body_over_the_limit_is_refused_by_its_head(app: App) -> None:
    for method, path, limit in (
        ("POST", "/v2/models/f/infer", Settings().max_body_bytes),
        ("PUT", "/v1/functions/f", Settings().max_body_bytes),
        ("POST", "/register", Settings().max_model_bytes),
    ):
        given = {"content_type": "application/json"}
        assert status(ask(gateway_of(app), method, path, limit, **given)) == 200
        assert status(ask(gateway_of(app), method, path, limit + 1, **given)) == 413


def test_a_caller_is_what_its_token_says(tmp_path: Path) -> None:
    asking = create_app(Settings(home=tmp_path, ask_class="bulk", ask_priority=3), TOKEN, ASK)
    admitted = ask(gateway_of(asking), "POST", "/v2/models/f/infer", authorization=f"Bearer {ASK}")
    assert isinstance(admitted, Admitted)
    scopes, shares = implied(("infer", "read")), Shares(row_class="bulk", priority=3)
    assert admitted.caller == Caller("ask", "127.0.0.1", scopes, shares=shares)
    assert len({Caller("ask", "a").key, Caller("admin", "a").key, Caller("ask", "b").key}) == 3
    assert Caller("named", "a", is_shared=False).key == Caller("named", "b", is_shared=False).key
