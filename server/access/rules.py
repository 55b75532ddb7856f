"""Who may ask what: tokens, the hosts and pages of a server without one, and a rule for every route.

    open   everybody: whether the server lives
    ask    either token: rows, lists, statistics
    all    the full token: whatever changes something, or shows what is trained on

A route without a rule is for the full token alone. Decided from a request's head, before any of its body is
kept. Pure.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from starlette.routing import compile_path

from server.errors import Forbidden, Unauthorized, WrongContentType
from server.settings import is_loopback

__all__ = ["NOBODY", "RULES", "Access", "Caller", "RequestHead", "Rule", "Scope", "rule_of"]

Scope = Literal["open", "ask", "all"]

_JSON = frozenset(("application/json",))
# `tritonclient` sends JSON without a content type.
_TRITON = frozenset(("application/json", ""))
_MULTIPART = frozenset(("application/json", "multipart/form-data"))
_ROWS = frozenset(("application/vnd.apache.arrow.stream", "application/octet-stream", "application/json"))


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use a route, and the content types of a body that changes something ("" = none named)."""

    scope: Scope
    content: frozenset[str] = _JSON


_NO_RULE = Rule("all")

RULES: dict[tuple[str, str], Rule] = {
    # First: a path is compared with one after the other, and most are these.
    ("POST", "/v2/models/{name}/infer"): Rule("ask"),
    ("POST", "/v2/models/{name}/versions/{version}/infer"): Rule("ask"),
    ("GET", "/v2/health/live"): Rule("open"),
    ("GET", "/v2/health/ready"): Rule("open"),
    ("GET", "/metrics"): Rule("ask"),
    ("GET", "/docs"): Rule("ask"),
    ("GET", "/docs/start.js"): Rule("ask"),
    ("GET", "/docs/{file}"): Rule("ask"),
    ("GET", "/openapi.json"): Rule("ask"),
    ("GET", "/v2"): Rule("ask"),
    ("GET", "/v2/"): Rule("ask"),
    ("GET", "/v2/models/stats"): Rule("ask"),
    ("GET", "/v2/models/{name}"): Rule("ask"),
    ("GET", "/v2/models/{name}/versions/{version}"): Rule("ask"),
    ("GET", "/v2/models/{name}/ready"): Rule("ask"),
    ("GET", "/v2/models/{name}/versions/{version}/ready"): Rule("ask"),
    ("GET", "/v2/models/{name}/config"): Rule("ask"),
    ("GET", "/v2/models/{name}/versions/{version}/config"): Rule("ask"),
    ("GET", "/v2/models/{name}/stats"): Rule("ask"),
    ("GET", "/v2/models/{name}/versions/{version}/stats"): Rule("ask"),
    ("POST", "/classify"): Rule("ask"),
    ("POST", "/v2/repository/index"): Rule("ask"),
    ("POST", "/v2/repository/models/{name}/load"): Rule("all", _TRITON),
    ("POST", "/v2/repository/models/{name}/unload"): Rule("all", _TRITON),
    **{
        (method, path): Rule("ask" if method == "GET" else "all", _TRITON)
        for method in ("GET", "POST")
        for path in (
            "/v2/systemsharedmemory/{rest:path}",
            "/v2/cudasharedmemory/{rest:path}",
            "/v2/trace/{rest:path}",
            "/v2/models/{_name}/trace/setting",
            "/v2/logging",
        )
    },
    ("POST", "/register"): Rule("all", _MULTIPART),
    ("GET", "/v1/models"): Rule("ask"),
    ("GET", "/v1/workers"): Rule("ask"),
    ("GET", "/v1/residency"): Rule("ask"),
    ("GET", "/v1/functions"): Rule("ask"),
    ("GET", "/v1/functions/{name}"): Rule("ask"),
    ("PUT", "/v1/functions/{name}"): Rule("all"),
    ("DELETE", "/v1/functions/{name}"): Rule("all"),
    ("POST", "/v1/functions/{name}/rollback"): Rule("all"),
    ("POST", "/v1/functions/{name}/retrain"): Rule("all"),
    ("DELETE", "/v1/functions/{name}/retrain"): Rule("all"),
    ("GET", "/v1/retrainings"): Rule("ask"),
    ("GET", "/v1/drift"): Rule("ask"),
    # A label changes what everybody is answered.
    ("POST", "/v1/feedback"): Rule("all"),
    # Datasets show queries and the classes of rows: they are for those who may train.
    ("GET", "/v1/datasets"): Rule("all"),
    ("POST", "/v1/datasets"): Rule("all"),
    ("GET", "/v1/datasets/{name}"): Rule("all"),
    ("POST", "/v1/datasets/{name}/refresh"): Rule("all"),
    ("POST", "/v1/datasets/{name}/answers"): Rule("all"),
    ("POST", "/v1/datasets/uploads"): Rule("all"),
    ("PUT", "/v1/datasets/uploads/{upload}/{part}"): Rule("all", _ROWS),
    ("POST", "/v1/datasets/uploads/{upload}/finish"): Rule("all"),
    ("DELETE", "/v1/datasets/uploads/{upload}"): Rule("all"),
    ("GET", "/v1/sources"): Rule("all"),
    ("GET", "/v1/jobs"): Rule("ask"),
    ("POST", "/v1/jobs"): Rule("all"),
    ("GET", "/v1/jobs/{job}"): Rule("ask"),
    ("GET", "/v1/jobs/{job}/events"): Rule("ask"),
    ("POST", "/v1/jobs/{job}/cancel"): Rule("all"),
    ("POST", "/v1/jobs/{job}/pause"): Rule("all"),
    ("POST", "/v1/jobs/{job}/resume"): Rule("all"),
    ("POST", "/v1/jobs/{job}/extend"): Rule("all"),
    ("POST", "/v1/jobs/{job}/deploy"): Rule("all"),
    ("GET", "/v1/trials"): Rule("ask"),
}

# A host and perhaps a port, whole: what a general parser of URLs lets through behind `]` or before `@` is
# another host to somebody else.
_HOST_PORT = rb"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+))(?::([0-9]{0,5}))?"
_AUTHORITY = re.compile(_HOST_PORT)
_PAGE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://" + _HOST_PORT)

_MATCHED: dict[str, list[tuple[re.Pattern[str], Rule]]] = {}
for (_method, _path), _rule in RULES.items():
    _MATCHED.setdefault(_method, []).append((compile_path(_path)[0], _rule))


def rule_of(method: str, path: str) -> Rule:
    """The rule of the first route that a path, percent-decoded, is of."""
    for pattern, rule in _MATCHED.get("GET" if method == "HEAD" else method, ()):
        if pattern.match(path):
            return rule
    return _NO_RULE


@dataclass(frozen=True)
class Caller:
    """Who sent a request: which token, from which address; what their rows may claim at most.

    bulk_only: their rows are bulk, and may not say `interactive`
    most_urgent: the least `priority` that they may name (1 is the most urgent); 0 = none at all
    """

    token: Literal["", "ask", "all"] = ""
    address: str = ""
    bulk_only: bool = False
    most_urgent: int = 1

    @cached_property
    def key(self) -> str:
        """What tells callers apart who share something."""
        return f"{self.token}@{self.address}"


NOBODY = Caller()  # in particular: all that a caller may


class RequestHead(Protocol):
    """What is known of a request before its body: `server.http.request_head.Head`."""

    @property
    def method(self) -> str:
        """In capitals."""
        ...

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """By name in lower case."""
        ...

    @property
    def length(self) -> int | None:
        """Bytes of the body; None = it comes in chunks."""
        ...


class Access:
    """Decides on heads. `hosts` are names, beside those of loopback, by which a server without a token is
    known; `ask_class` and `ask_priority` bound what the token that may ask claims.
    """

    def __init__(
        self,
        token: str | None,
        ask_token: str | None = None,
        *,
        hosts: Collection[str] = (),
        ask_class: str = "interactive",
        ask_priority: int = 0,
    ) -> None:
        self._full = None if token is None else token.encode()
        self._ask = None if ask_token is None else ask_token.encode()
        self._hosts = frozenset(host.lower() for host in hosts)
        self._ask_class = ask_class
        self._ask_priority = ask_priority

    def check(self, head: RequestHead, path: str, address: str) -> Caller:
        """Who asks. Raises `Unauthorized`, `Forbidden`, `WrongContentType`."""
        rule = rule_of(head.method, path)
        caller = self._caller(head, rule, address)
        if rule.scope == "all" and head.method not in ("GET", "HEAD") and head.length != 0:
            _check_content(head, rule.content)
        return caller

    def _caller(self, head: RequestHead, rule: Rule, address: str) -> Caller:
        if self._full is None:
            self._check_page(head)
            return Caller("", address)
        if rule.scope == "open":
            return Caller("", address)
        scheme, _, sent = head.headers.get(b"authorization", b"").partition(b" ")
        sent = sent.strip() if scheme.lower() == b"bearer" else b""
        # Both are always compared, so that the time tells nothing of either.
        is_full = hmac.compare_digest(sent, self._full)
        may_ask = hmac.compare_digest(sent, self._ask or b"") and self._ask is not None
        if is_full:
            return Caller("all", address)
        if not may_ask:
            raise Unauthorized("this server wants a bearer token, and none or another was sent")
        if rule.scope == "all":
            raise Forbidden("the token that was sent may ask and read, and nothing else")
        return Caller("ask", address, self._ask_class == "bulk", self._ask_priority)

    def _check_page(self, head: RequestHead) -> None:
        """A browser lets any page post to loopback, and names the page's host; a name that is made to point
        to loopback for a while makes the page's own host of it. Programs send no Origin, and say loopback.
        """
        origin = head.headers.get(b"origin")
        if origin is not None and not self._is_own(_host_of(_PAGE, origin)):
            raise Forbidden("web pages of other hosts may not call a server without a token")
        host = head.headers.get(b"host")
        if host is not None and not self._is_own(_host_of(_AUTHORITY, host)):
            raise Forbidden(
                "a server without a token answers to the names of this machine alone; "
                "--allowed-host adds one, --token-file makes names not matter"
            )

    def _is_own(self, host: str | None) -> bool:
        return host is not None and (is_loopback(host) or host in self._hosts)


def _host_of(form: re.Pattern[bytes], text: bytes) -> str | None:
    """The host of an origin, or of `host:port`; None if it has another form, or the port is no port."""
    match = form.fullmatch(text)
    if match is None:
        return None
    address, name, port = match.groups()
    if port and not 0 < int(port) < 1 << 16:
        return None
    found: bytes = address or name
    return found.decode("ascii").lower()


def _check_content(head: RequestHead, content: Iterable[str]) -> None:
    given = head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if given not in content:
        wanted = " or ".join(sorted(one for one in content if one))
        raise WrongContentType(f"the body's content type must be {wanted}, not {given[:100] or 'left out'}")
