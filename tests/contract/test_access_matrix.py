"""Who sees what: every route of a real server, every scope, on what is one's own, shared, foreign, public.

What is expected follows from the rule table and from who owns what. That the rule table has every route, and
no other, `tests/unit/server/test_access.py` holds against the server's own list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Literal, get_args
from urllib.parse import urlencode, urlsplit

import httpx
import pytest

from server.access.caller import SCOPES, Scope, implied
from server.access.rules import RULES, Rule
from tests.contract.access_calls import CALLS, Call, Kind
from tests.contract.oip_wire import infer_body
from tests.inference_server import inference_server
from tests.models import hashing_model

pytestmark = pytest.mark.security

Relation = Literal["own", "shared", "foreign", "public"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
OTHERS = "ann"  # whose everything else is
ADMIN = "a-token-for-the-tests-0123456789"
NEVER = "zqmissing"  # as long as "zqforeign"


@dataclass(frozen=True)
class Answer:
    """What came, of a stream its first message."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Site:
    """A server full of things; `jobs`: numbers by name; tokens by the scope that they have, and others."""

    url: str
    tokens: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def ask(
        self,
        method: str,
        path: str,
        token: str = ADMIN,
        body: Any = None,  # JSON, or bytes
        form: Any = None,  # of texts
    ) -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        content = None
        if form is not None:
            content = urlencode(form).encode() or b"x="
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        elif body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        with self.client.stream(method, path, headers=headers, content=content) as reply:
            text = ""
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                for line in reply.iter_lines():
                    text += line
                    if line.startswith("data:"):
                        break
            else:
                text = reply.read().decode("utf-8", "replace")
            return Answer(reply.status_code, dict(reply.headers), text)

    def told(self, method: str, path: str, body: Any = None, token: str = ADMIN) -> Any:  # JSON
        answer = self.ask(method, path, token, body)
        assert answer.status < 300, (method, path, answer.text)
        return json.loads(answer.text)

    def name(self, kind: Kind, relation: str) -> str:
        """What a thing of a kind is called in a path; relation: or the token whose own it is, or `NEVER`."""
        name = relation if relation == NEVER else f"zq{relation}"
        if kind == "job":
            return self.jobs.get(f"{name}_d", "999999")
        return f"{name}_{kind[0]}"

    def give(self, kind: Kind, name: str, owner: str, relation: str) -> None:
        shared: dict[str, Any] = {"visibility": "shared", "shared_with": list(SCOPES)}
        form = {"shared": shared, "public": {"visibility": "public"}}.get(relation, {"visibility": "private"})
        self.told("PUT", f"/v1/{kind}s/{name}/visibility", {**form, "owner": owner})

    def fresh(self, kind: Kind, owner: str, relation: str) -> str:
        """A thing that one call alone is about."""
        self.made += 1
        if kind == "upload":
            form = {"name": f"zqup{self.made}", "query": "-", "target": "label", "key": "id"}
            form |= {"task": "text-classification", "input": "text"}
            token = self.tokens[owner if owner in self.tokens else OTHERS]
            begun = self.ask("POST", "/v1/datasets/uploads", token, form)
            if begun.status == 403:  # its owner may not train: nobody gets so far
                begun = self.ask("POST", "/v1/datasets/uploads", ADMIN, form)
            return str(json.loads(begun.text)["upload"])
        name = f"zqfresh{self.made}_f"
        self.told("PUT", f"/v1/functions/{name}", {"models": ["zqpublic_m"]})
        self.give("function", name, owner, relation)
        return name


def owner_of(relation: str, scope: str) -> str:
    return scope if relation == "own" else OTHERS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "token").write_text(ADMIN)
    # Training that has begun to begin is not waited for.
    flags = [f"--token-file={folder / 'token'}", "--drain-s=0.5"]
    with inference_server(folder / "home", flags=flags) as server:
        made = Site(server.url)
        with closing(made.client):
            furnish(made, folder)
            yield made


def furnish(site: Site, folder: Path) -> None:
    """Of each kind one thing of each token's own, one of somebody's that is shared, private, and public."""
    site.tokens["admin"] = ADMIN
    for scope in SCOPES[:-1]:
        site.tokens[scope] = site.told("POST", "/v1/tokens", {"name": scope, "scopes": [scope]})["secret"]
    everything = {"name": OTHERS, "scopes": ["infer", "train", "deploy"]}
    site.tokens[OTHERS] = site.told("POST", "/v1/tokens", everything)["secret"]
    site.tokens["revoked"] = site.told("POST", "/v1/tokens", {"name": "gone", "scopes": ["admin"]})["secret"]
    site.told("DELETE", "/v1/tokens/gone")
    things: list[tuple[str, str, str]] = [(f"zq{scope}", scope, "own") for scope in SCOPES]
    things += [(f"zq{relation}", OTHERS, relation) for relation in ("shared", "foreign", "public")]
    for name, _, _ in things:
        model = hashing_model(folder, f"{name}_m")
        site.told("POST", "/register", {"directory": str(model)})
    for name, owner, relation in things:
        # A function that everybody sees has a member that not everybody sees.
        for models in (
            ["zqpublic_m"],
            ["zqpublic_m", "zqforeign_m"] if relation == "public" else ["zqpublic_m"],
        ):
            site.told("PUT", f"/v1/functions/{name}_f", {"models": models, "select": "all"})
        dataset(site, f"{name}_d")
        asked = {"dataset": f"{name}_d", "budget": "2 trials", "models": ["fasttext"]}
        site.jobs[f"{name}_d"] = str(site.told("POST", "/v1/jobs", asked)["id"])
        for kind in ("function", "model", "dataset"):
            site.give(kind, f"{name}_{kind[0]}", owner, relation)
        site.told("POST", f"/v2/models/{name}_f/infer", infer_body("x"))
    # All at once: each waits for a process that trains to stop, which is slow to start on a busy machine.
    with ThreadPoolExecutor(len(site.jobs)) as beside:
        list(beside.map(lambda job: site.told("POST", f"/v1/jobs/{job}/cancel"), site.jobs.values()))


def dataset(site: Site, name: str, token: str = ADMIN) -> None:
    form = {"name": name, "query": f"of {name}", "target": "label", "key": "id", "input": "text"}
    form["task"] = "text-classification"
    upload = site.told("POST", "/v1/datasets/uploads", form, token)["upload"]
    numbers = list(range(60))
    part = [
        {"name": "id", "type": "int64", "values": numbers},
        {"name": "text", "type": "string", "values": [f"{name} says {number}" for number in numbers]},
        {"name": "label", "type": "string", "values": ["ab"[number % 2] for number in numbers]},
    ]
    site.told("PUT", f"/v1/datasets/uploads/{upload}/0", {"columns": part}, token)
    site.told("POST", f"/v1/datasets/uploads/{upload}/finish", None, token)


def call(site: Site, route: tuple[str, str], asked: Call, thing: str, token: str) -> Answer:
    """One route, about a thing. Its name stands where the path has it, or the query, or the body."""
    method, path = route
    values = {**asked.path}
    for part in re.findall(r"{(\w+)(?::path)?}", path):
        path = re.sub(rf"{{{part}(?::path)?}}", values.get(part, thing), path, count=1)
    query = asked.query.replace("{thing}", thing)
    body, form = asked.body, asked.form
    if isinstance(body, dict):
        body = {key: thing if value == "{thing}" else value for key, value in body.items()}
    return site.ask(method, path + (f"?{query}" if query else ""), token, body, form)


def admits(rule: Rule, scope: Scope) -> bool:
    """Whether a token with this scope gets past the door."""
    held = implied((scope,))
    return bool(held & {"infer", "read"}) if rule.scope == "use" else rule.scope in held


def expected(rule: Rule, scope: Scope, asked: Call, relation: str) -> tuple[int, ...]:
    """The statuses that may come; none = anything that is no refusal."""
    if rule.scope == "open":
        return asked.passes
    if not admits(rule, scope):
        return (403,)
    if asked.kinds and scope != "admin":
        if relation == "foreign":
            return (asked.hidden,)
        if asked.changes and relation in ("shared", "public"):
            return (403,)
    return asked.passes


def hidden_names(scope: str) -> list[str]:
    """The beginnings of the names that a token with this scope is not to read anywhere."""
    if scope == "admin":
        return []
    return ["zqforeign_", *(f"zq{other}_" for other in SCOPES if other != scope)]


def test_every_route_is_in_the_matrix() -> None:
    assert set(CALLS) == set(RULES)


@pytest.mark.parametrize("route", CALLS, ids=lambda route: " ".join(route))
def test_a_route_answers_by_its_scope_and_by_whose_the_thing_is(site: Site, route: tuple[str, str]) -> None:
    asked = CALLS[route]
    cells = [
        (kind, relation, scope)
        for kind in asked.kinds or ("function",)
        for relation in (RELATIONS if asked.kinds else ("own",))
        if kind != "upload" or relation in ("own", "foreign")
        for scope in SCOPES
    ]
    # A page's stream says something at its next tick: all of a route's are waited for together.
    with ThreadPoolExecutor(len(cells) if route[1].startswith("/live/") else 1) as beside:
        told = list(beside.map(lambda cell: wrong_in(site, route, *cell), cells))
    assert [each for each in told if each] == []


def wrong_in(
    site: Site, route: tuple[str, str], kind: Kind, relation: Relation, scope: Scope
) -> tuple[object, ...]:
    """What one cell answers that it should not; nothing where all is well."""
    asked = CALLS[route]
    if asked.fresh:
        thing = site.fresh(kind, owner_of(relation, scope), relation)
    else:
        thing = site.name(kind, scope if relation == "own" else relation)
    answer = call(site, route, asked, thing, site.tokens[scope])
    wanted = expected(RULES[route], scope, asked, relation)
    fits = answer.status in wanted if wanted else answer.status < 400
    leaked = [name for name in hidden_names(scope) if name in answer.text.replace(thing, "")]
    leaked += [name for name in hidden_names(scope) if name in str(answer.headers)]
    if kind == "upload":
        site.ask("DELETE", f"/v1/datasets/uploads/{thing}")
    if fits and not leaked:
        return ()
    return kind, relation, scope, answer.status, wanted, leaked, answer.text[:300]


@pytest.mark.parametrize("route", CALLS, ids=lambda route: " ".join(route))
def test_without_a_token_or_with_a_revoked_one_nothing_but_the_open_routes_answers(
    site: Site, route: tuple[str, str]
) -> None:
    asked, rule = CALLS[route], RULES[route]
    for relation in RELATIONS:
        kind = asked.kinds[0] if asked.kinds else "function"
        thing = "nothing" if kind == "upload" else site.name(kind, "read" if relation == "own" else relation)
        for token in ("", site.tokens["revoked"]):
            answer = call(site, route, asked, thing, token)
            if rule.scope == "open":  # a change comes from a page of the server's own, or not at all
                assert answer.status in (asked.passes or (200,)) or rule.is_page, answer
            elif rule.is_page and route[0] != "GET" and not token:
                assert answer.status in (401, 403), answer
            else:
                assert answer.status == 401, answer
            assert "zq" not in answer.text.replace(thing, ""), answer


@pytest.mark.parametrize(
    "route", [route for route, asked in CALLS.items() if asked.kinds], ids=lambda route: " ".join(route)
)
def test_what_is_hidden_is_answered_as_what_was_never_there(site: Site, route: tuple[str, str]) -> None:
    """The very same text, status and headers."""
    asked = CALLS[route]
    if asked.hidden != 404:
        return
    for kind in asked.kinds:
        if kind == "upload":
            continue
        foreign, never = site.name(kind, "foreign"), site.name(kind, NEVER)
        for scope in SCOPES:
            if scope == "admin" or not admits(RULES[route], scope):
                continue
            there = call(site, route, asked, foreign, site.tokens[scope])
            nowhere = call(site, route, asked, never, site.tokens[scope])
            assert _plain(there, foreign) == _plain(nowhere, never)


def _plain(answer: Answer, name: str) -> tuple[int, dict[str, str], str]:
    headers = {key: value for key, value in answer.headers.items() if key not in ("date", "content-length")}
    return answer.status, headers, answer.text.replace(name, "NAME")


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["function", "model", "dataset", "job"])
def test_how_long_an_answer_takes_does_not_tell_what_is_hidden(site: Site, kind: Kind) -> None:
    """Of names that are asked by turns: the hidden one's median lies as near to those of two names that never
    were as these lie to each other, give or take what medians of so many differ by.
    """
    paths = {"function": "/v1/functions/{}", "model": "/v2/models/{}"}
    path = {**paths, "dataset": "/v1/datasets/{}", "job": "/v1/jobs/{}"}[kind]
    names = [site.name(kind, "foreign"), site.name(kind, NEVER), "999998" if kind == "job" else "zqnowhere_x"]
    headers = {"Authorization": f"Bearer {site.tokens['train']}"}
    took: dict[str, list[float]] = {name: [] for name in names}
    # A client that does little itself: its own noise is in what is measured.
    with closing(HTTPConnection(urlsplit(site.url).netloc, timeout=120)) as client:
        for turn in range(600):
            for name in names[turn % 3 :] + names[: turn % 3]:
                began = perf_counter()
                client.request("GET", path.format(name), headers=headers)
                reply = client.getresponse()
                reply.read()
                took[name].append(perf_counter() - began)
                assert reply.status == 404
    hidden, never, nowhere = (median(took[name]) for name in names)
    noise_s = max(_noise_of_median(took[name]) for name in names)
    nearest_s = min(abs(hidden - never), abs(hidden - nowhere))
    assert nearest_s <= abs(never - nowhere) + 4 * noise_s


def _noise_of_median(times: list[float]) -> float:
    """Its standard error, by the middle half of the times: whatever the rest are."""
    first, _, third = quantiles(times, n=4)
    return float(0.93 * (third - first) / len(times) ** 0.5)
