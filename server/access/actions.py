"""What the audit trail calls each change, by its route. Pure. A change that has no name here is called by its
method and path.
"""

from __future__ import annotations

from server.access.rules import CHANGING, match_of

__all__ = ["ACTIONS", "ALWAYS", "BY_SERVER_ALONE", "FOLDED", "action_of"]

BY_SERVER_ALONE = frozenset(("refit function",))  # what no route does

FOLDED = frozenset(("give feedback",))  # what programs do all the time
# Done even while the trail cannot be kept, and told later: who looks what is wrong, and shuts somebody out.
ALWAYS = FOLDED | {"log in", "log out", "make login link", "revoke token"}

_UNTOLD = ""
ACTIONS: dict[tuple[str, str], str] = {
    ("POST", "/register"): "register model",
    ("POST", "/v2/repository/models/{name}/load"): "load model",
    ("POST", "/v2/repository/models/{name}/unload"): "unload model",
    ("PUT", "/v1/functions/{name}"): "deploy function",
    ("DELETE", "/v1/functions/{name}"): "delete function",
    ("POST", "/v1/functions/{name}/rollback"): "roll back function",
    ("POST", "/functions/{name}/rollback"): "roll back function",
    ("POST", "/v1/workers"): "add worker",
    ("POST", "/v1/workers/{name}/drain"): "drain worker",
    ("POST", "/v1/nodes/{node}/drain"): "drain node",
    ("DELETE", "/v1/nodes/{node}/drain"): "undrain node",
    ("POST", "/v1/functions/{name}/retrain"): "retrain function",
    ("DELETE", "/v1/functions/{name}/retrain"): "stop retraining",
    ("PUT", "/v1/models/{name}/visibility"): "share model",
    ("POST", "/v1/models/{name}/variants"): "make variants",
    ("PUT", "/v1/functions/{name}/visibility"): "share function",
    ("PUT", "/v1/datasets/{name}/visibility"): "share dataset",
    ("POST", "/models/{name}/share"): "share model",
    ("POST", "/functions/{name}/share"): "share function",
    ("POST", "/datasets/{name}/share"): "share dataset",
    ("POST", "/v1/feedback"): "give feedback",
    ("POST", "/v1/datasets"): "create dataset",
    ("POST", "/v1/datasets/{name}/refresh"): "refresh dataset",
    ("POST", "/datasets/{name}/refresh"): "refresh dataset",
    ("POST", "/v1/datasets/{name}/answers"): _UNTOLD,  # it looks
    ("POST", "/datasets/{name}/confusion"): _UNTOLD,
    ("POST", "/v1/datasets/uploads"): _UNTOLD,  # what comes of it is told
    ("PUT", "/v1/datasets/uploads/{upload}/{part}"): _UNTOLD,
    ("DELETE", "/v1/datasets/uploads/{upload}"): _UNTOLD,
    ("POST", "/v1/datasets/uploads/{upload}/finish"): "create dataset",
    ("POST", "/v1/jobs"): "train",
    ("POST", "/datasets/{name}/train"): "train",
    **{
        ("POST", f"{root}/{{job}}/{verb}"): f"{verb} job"
        for root in ("/v1/jobs", "/jobs")
        for verb in ("cancel", "pause", "resume", "extend", "deploy")
    },
    ("POST", "/v1/bulk-jobs/{job}"): "steer bulk job",
    ("POST", "/v1/tokens"): "create token",
    ("POST", "/who/tokens"): "create token",
    ("DELETE", "/v1/tokens/{name}"): "revoke token",
    ("POST", "/who/tokens/{name}/revoke"): "revoke token",
    ("POST", "/v1/login-links"): "make login link",
    ("POST", "/login"): "log in",
    ("POST", "/logout"): "log out",
}


def action_of(method: str, path: str) -> tuple[str, str] | None:
    """What a request does to what, in words; None where it changes nothing that is told."""
    if method in ("GET", "HEAD"):
        return None
    route, rule, names = match_of(method, path)
    action = ACTIONS.get((method, route))
    if action is None and rule.scope in CHANGING and route:
        action = f"{method} {route}"
    return (action, " ".join(names)) if action else None
