"""A rule for every route: which scope it asks for, and what its body may be. Pure.

    open   everybody: whether the server lives
    use    `infer` or `read`: what the SQL side asks of a function before it sends rows
    …      the scope of that name (`server.access.caller`)

A route without a rule is for admins alone, and a test fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from starlette.routing import compile_path

from server.access.caller import Caller, Scope

__all__ = ["CHANGING", "NO_PAGE", "RULES", "Asked", "Rule", "match_of", "rule_of"]

Asked = Scope | Literal["open", "use"]

CHANGING = frozenset(("train", "deploy", "admin"))  # scopes of routes whose bodies say what they are

_JSON = frozenset(("application/json",))
# `tritonclient` sends JSON without a content type.
_TRITON = frozenset(("application/json", ""))
_MULTIPART = frozenset(("application/json", "multipart/form-data"))
_ROWS = frozenset(("application/vnd.apache.arrow.stream", "application/octet-stream", "application/json"))
_FORM = frozenset(("application/x-www-form-urlencoded", "multipart/form-data", "application/json"))


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use a route, and the content types of a body that changes something ("" = none named).

    is_page: it is for browsers: these are known by their session's cookie, and asked to log in
    """

    scope: Asked
    content: frozenset[str] = _JSON
    is_page: bool = False

    def admits(self, caller: Caller) -> bool:
        """Whether a caller's scopes are enough."""
        if self.scope == "open":
            return True
        if self.scope == "use":
            return caller.may("infer") or caller.may("read")
        return caller.may(self.scope)


def _page(scope: Asked) -> Rule:
    return Rule(scope, _FORM, is_page=True)


_NO_RULE = Rule("admin")
NO_PAGE = _page("admin")  # what a browser asks for that has no rule

RULES: dict[tuple[str, str], Rule] = {
    # First: a path is compared with one after the other, and most are these.
    ("POST", "/v2/models/{name}/infer"): Rule("infer"),
    ("POST", "/v2/models/{name}/versions/{version}/infer"): Rule("infer"),
    ("GET", "/v2/health/live"): Rule("open"),
    ("GET", "/v2/health/ready"): Rule("open"),
    ("GET", "/metrics"): Rule("read"),
    ("GET", "/docs"): _page("read"),
    ("GET", "/docs/start.js"): _page("read"),
    ("GET", "/docs/{file}"): _page("read"),
    ("GET", "/openapi.json"): _page("read"),
    ("GET", "/v2"): Rule("use"),
    ("GET", "/v2/"): Rule("use"),
    ("GET", "/v2/models/stats"): Rule("read"),
    ("GET", "/v2/models/{name}"): Rule("use"),
    ("GET", "/v2/models/{name}/versions/{version}"): Rule("use"),
    ("GET", "/v2/models/{name}/ready"): Rule("use"),
    ("GET", "/v2/models/{name}/versions/{version}/ready"): Rule("use"),
    ("GET", "/v2/models/{name}/config"): Rule("use"),
    ("GET", "/v2/models/{name}/versions/{version}/config"): Rule("use"),
    ("GET", "/v2/models/{name}/stats"): Rule("read"),
    ("GET", "/v2/models/{name}/versions/{version}/stats"): Rule("read"),
    ("POST", "/classify"): Rule("infer"),
    ("POST", "/v2/repository/index"): Rule("use"),
    ("POST", "/v2/repository/models/{name}/load"): Rule("deploy", _TRITON),
    ("POST", "/v2/repository/models/{name}/unload"): Rule("deploy", _TRITON),
    **{
        (method, path): Rule("read" if method == "GET" else "deploy", _TRITON)
        for method in ("GET", "POST")
        for path in (
            "/v2/systemsharedmemory/{rest:path}",
            "/v2/cudasharedmemory/{rest:path}",
            "/v2/trace/{rest:path}",
            "/v2/models/{_name}/trace/setting",
            "/v2/logging",
        )
    },
    ("POST", "/register"): Rule("deploy", _MULTIPART),
    ("GET", "/v1/models"): Rule("read"),
    ("PUT", "/v1/models/{name}/visibility"): Rule("deploy"),
    ("GET", "/v1/variants"): Rule("read"),
    ("POST", "/v1/models/{name}/variants"): Rule("deploy"),
    ("GET", "/v1/front"): Rule("read"),
    ("GET", "/v1/workers"): Rule("read"),
    ("POST", "/v1/workers"): Rule("admin"),
    ("POST", "/v1/workers/{name}/drain"): Rule("admin"),
    ("GET", "/v1/servers"): Rule("read"),
    ("POST", "/v1/nodes/{node}/drain"): Rule("admin"),
    ("DELETE", "/v1/nodes/{node}/drain"): Rule("admin"),
    ("GET", "/v1/capacity"): Rule("read"),
    ("GET", "/v1/capacity/decisions"): Rule("admin"),
    ("GET", "/v1/residency"): Rule("read"),
    ("GET", "/v1/deployments"): Rule("read"),
    ("GET", "/v1/decisions"): Rule("read"),
    ("GET", "/v1/functions"): Rule("use"),
    ("GET", "/v1/functions/{name}"): Rule("use"),
    ("PUT", "/v1/functions/{name}"): Rule("deploy"),
    ("DELETE", "/v1/functions/{name}"): Rule("deploy"),
    ("PUT", "/v1/functions/{name}/visibility"): Rule("deploy"),
    ("POST", "/v1/functions/{name}/rollback"): Rule("deploy"),
    ("POST", "/v1/functions/{name}/retrain"): Rule("deploy"),
    ("DELETE", "/v1/functions/{name}/retrain"): Rule("deploy"),
    ("GET", "/v1/retrainings"): Rule("read"),
    ("GET", "/v1/drift"): Rule("read"),
    # A label changes what everybody is answered.
    ("POST", "/v1/feedback"): Rule("train"),
    # Datasets show queries and the classes of rows: they are for those who may train.
    ("GET", "/v1/datasets"): Rule("train"),
    ("POST", "/v1/datasets"): Rule("train"),
    ("GET", "/v1/datasets/{name}"): Rule("train"),
    ("POST", "/v1/datasets/{name}/refresh"): Rule("train"),
    ("PUT", "/v1/datasets/{name}/visibility"): Rule("train"),
    ("POST", "/v1/datasets/{name}/answers"): Rule("train"),
    ("POST", "/v1/datasets/uploads"): Rule("train"),
    ("PUT", "/v1/datasets/uploads/{upload}/{part}"): Rule("train", _ROWS),
    ("POST", "/v1/datasets/uploads/{upload}/finish"): Rule("train"),
    ("DELETE", "/v1/datasets/uploads/{upload}"): Rule("train"),
    ("GET", "/v1/sources"): Rule("train"),
    ("GET", "/v1/jobs"): Rule("read"),
    ("POST", "/v1/jobs"): Rule("train"),
    ("GET", "/v1/jobs/{job}"): Rule("read"),
    ("GET", "/v1/jobs/{job}/events"): Rule("read"),
    ("POST", "/v1/jobs/{job}/cancel"): Rule("train"),
    ("POST", "/v1/jobs/{job}/pause"): Rule("train"),
    ("POST", "/v1/jobs/{job}/resume"): Rule("train"),
    ("POST", "/v1/jobs/{job}/extend"): Rule("train"),
    ("POST", "/v1/jobs/{job}/deploy"): Rule("deploy"),
    ("GET", "/v1/trials"): Rule("read"),
    # Whoever may ask for rows has bulk jobs of their own.
    ("GET", "/v1/bulk-jobs"): Rule("use"),
    ("GET", "/v1/bulk-jobs/{job}"): Rule("use"),
    ("POST", "/v1/bulk-jobs/{job}"): Rule("infer"),
    ("GET", "/v1/tokens"): Rule("admin"),
    ("POST", "/v1/tokens"): Rule("admin"),
    ("DELETE", "/v1/tokens/{name}"): Rule("admin"),
    ("POST", "/v1/login-links"): Rule("read"),
    ("GET", "/v1/audit"): Rule("admin"),
    # Pages, and what they are made of.
    ("GET", "/assets/{digest}/{name}"): Rule("open"),
    ("GET", "/favicon.ico"): Rule("open"),
    ("GET", "/"): _page("read"),
    ("GET", "/live"): _page("read"),
    ("GET", "/live/overview"): _page("read"),
    ("GET", "/models"): _page("read"),
    ("GET", "/live/models"): _page("read"),
    ("GET", "/models/{name}"): _page("read"),
    ("GET", "/functions"): _page("read"),
    ("GET", "/functions/{name}"): _page("read"),
    ("POST", "/functions/{name}/try"): _page("infer"),
    ("POST", "/functions/{name}/rollback"): _page("deploy"),
    ("POST", "/functions/{name}/share"): _page("deploy"),
    ("POST", "/models/{name}/share"): _page("deploy"),
    ("GET", "/sql"): _page("read"),
    ("GET", "/training"): _page("read"),
    ("GET", "/live/training"): _page("read"),
    ("GET", "/jobs/{job}"): _page("read"),
    ("GET", "/live/jobs/{job}"): _page("read"),
    ("POST", "/jobs/{job}/pause"): _page("train"),
    ("POST", "/jobs/{job}/resume"): _page("train"),
    ("POST", "/jobs/{job}/cancel"): _page("train"),
    ("POST", "/jobs/{job}/extend"): _page("train"),
    ("POST", "/jobs/{job}/deploy"): _page("deploy"),
    # They show rows.
    ("GET", "/datasets/{name}"): _page("train"),
    ("POST", "/datasets/{name}/refresh"): _page("train"),
    ("POST", "/datasets/{name}/train"): _page("train"),
    ("POST", "/datasets/{name}/share"): _page("train"),
    ("GET", "/datasets/{name}/pictures/{snapshot}/{row}"): _page("train"),
    ("GET", "/datasets/{name}/confusion"): _page("train"),
    ("POST", "/datasets/{name}/confusion"): _page("train"),
    ("GET", "/live/datasets/{name}/confusion/{function}"): _page("train"),
    ("GET", "/login"): _page("open"),
    ("POST", "/login"): _page("open"),
    ("POST", "/logout"): _page("open"),
    ("GET", "/who"): _page("read"),
    ("POST", "/who/tokens"): _page("admin"),
    ("POST", "/who/tokens/{name}/revoke"): _page("admin"),
}

_MATCHED: dict[str, list[tuple[re.Pattern[str], str, Rule]]] = {}
for (_method, _path), _rule in RULES.items():
    _MATCHED.setdefault(_method, []).append((compile_path(_path)[0], _path, _rule))


def rule_of(method: str, path: str) -> Rule:
    """The rule of the first route that a path, percent-decoded, is of."""
    for pattern, _, rule in _MATCHED.get("GET" if method == "HEAD" else method, ()):
        if pattern.match(path):
            return rule
    return NO_PAGE if method in ("GET", "HEAD") else _NO_RULE


def match_of(method: str, path: str) -> tuple[str, Rule, tuple[str, ...]]:
    """The route that a path is of, "" for none, its rule, and what the path says for the route's names."""
    for pattern, route, rule in _MATCHED.get(method, ()):
        if match := pattern.match(path):
            return route, rule, tuple(match.groups())
    return "", rule_of(method, path), ()
