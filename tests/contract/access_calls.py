"""How each route of the server is called, and what of its answer depends on who owns the thing asked for.

A call is made so that whoever may make it changes nothing that another cell of the matrix needs: what is
asked for is wrong in some other way, or is made for that call alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.contract.oip_wire import infer_body

__all__ = ["CALLS", "FUNCTION", "Call", "Kind"]

Kind = Literal["function", "model", "dataset", "job", "upload"]

FUNCTION = "zqpublic_f"  # everybody's
_NAME = "{thing}"
_INFER = infer_body("x", outputs=("label", "answered_by"))


@dataclass(frozen=True)
class Call:
    """One route.

    kinds: of what it is about; none = nothing that has an owner. changes: whether that must be the caller's
    own. passes: what whoever may is answered; none = anything that is no refusal. hidden: what is answered
    where the thing is not seen. fresh: it is made for this call alone. body, form, query: "{thing}" stands
    for the name. path: values of the path's other parts.
    """

    kinds: tuple[Kind, ...] = ()
    changes: bool = False
    passes: tuple[int, ...] = ()
    hidden: int = 404
    fresh: bool = False
    body: Any = None
    form: Mapping[str, str] | None = None
    query: str = ""
    path: Mapping[str, str] = field(default_factory=dict)


_SEEN = Call(("function", "model"))
_OF_VERSION = Call(("function", "model"), path={"version": "1"}, passes=(200, 410, 503))
_NOTHING = Call()
_ELSEWHERE = Call(passes=(501,), path={"rest": "x", "_name": "x"})
_BAD_CHOICE = {"function": "zqnew", "select": "no such"}
_SHARE = {"visibility": "nobody knows"}

CALLS: dict[tuple[str, str], Call] = {
    ("POST", "/v2/models/{name}/infer"): Call(("function", "model"), body=_INFER),
    ("POST", "/v2/models/{name}/versions/{version}/infer"): Call(
        ("function", "model"), body=_INFER, path={"version": "1"}, passes=(200, 410)
    ),
    ("GET", "/v2/health/live"): _NOTHING,
    ("GET", "/v2/health/ready"): Call(passes=(200, 503)),
    ("GET", "/metrics"): _NOTHING,
    ("GET", "/docs"): _NOTHING,
    ("GET", "/docs/start.js"): _NOTHING,
    ("GET", "/docs/{file}"): Call(path={"file": "favicon.png"}),
    ("GET", "/openapi.json"): _NOTHING,
    ("GET", "/v2"): _NOTHING,
    ("GET", "/v2/"): _NOTHING,
    ("GET", "/v2/models/stats"): _NOTHING,
    ("GET", "/v2/models/{name}"): _SEEN,
    ("GET", "/v2/models/{name}/versions/{version}"): _OF_VERSION,
    ("GET", "/v2/models/{name}/ready"): Call(("function", "model"), passes=(200, 503)),
    ("GET", "/v2/models/{name}/versions/{version}/ready"): _OF_VERSION,
    ("GET", "/v2/models/{name}/config"): _SEEN,
    ("GET", "/v2/models/{name}/versions/{version}/config"): _OF_VERSION,
    ("GET", "/v2/models/{name}/stats"): _SEEN,
    ("GET", "/v2/models/{name}/versions/{version}/stats"): _OF_VERSION,
    ("POST", "/classify"): Call(("function",), query=f"function={_NAME}", body=b"no image", passes=(400,)),
    ("POST", "/v2/repository/index"): Call(body={}),
    ("POST", "/v2/repository/models/{name}/load"): Call(("function", "model"), changes=True, body={}),
    ("POST", "/v2/repository/models/{name}/unload"): Call(("function",), changes=True, fresh=True, body={}),
    **{
        (method, path): _ELSEWHERE
        for method in ("GET", "POST")
        for path in (
            "/v2/systemsharedmemory/{rest:path}",
            "/v2/cudasharedmemory/{rest:path}",
            "/v2/trace/{rest:path}",
            "/v2/models/{_name}/trace/setting",
            "/v2/logging",
        )
    },
    ("POST", "/register"): Call(body={}, passes=(400,)),
    ("GET", "/v1/models"): _NOTHING,
    ("PUT", "/v1/models/{name}/visibility"): Call(("model",), changes=True, body=_SHARE, passes=(400,)),
    ("GET", "/v1/variants"): _NOTHING,
    ("POST", "/v1/models/{name}/variants"): Call(("model",), changes=True, body={}, passes=(400,)),
    ("GET", "/v1/front"): _NOTHING,
    ("GET", "/v1/workers"): _NOTHING,
    # There are as many as may be, and no fewer than must be.
    ("POST", "/v1/workers"): Call(body={}, passes=(400,)),
    ("POST", "/v1/workers/{name}/drain"): Call(body={}, path={"name": "w0"}, passes=(400,)),
    ("GET", "/v1/servers"): _NOTHING,
    ("POST", "/v1/nodes/{node}/drain"): Call(body={}, path={"node": "n0"}, passes=(400,)),
    ("DELETE", "/v1/nodes/{node}/drain"): Call(path={"node": "n0"}, passes=(400,)),
    ("GET", "/v1/capacity"): _NOTHING,
    ("GET", "/v1/capacity/decisions"): _NOTHING,
    ("GET", "/v1/residency"): _NOTHING,
    ("GET", "/v1/functions"): _NOTHING,
    ("GET", "/v1/deployments"): _NOTHING,
    ("GET", "/v1/decisions"): _NOTHING,
    ("GET", "/v1/functions/{name}"): _SEEN,
    # A name that another has taken cannot be as one that is free: it is said to be taken.
    ("PUT", "/v1/functions/{name}"): Call(("function",), changes=True, body={}, passes=(400,), hidden=403),
    ("DELETE", "/v1/functions/{name}"): Call(("function",), changes=True, fresh=True),
    ("PUT", "/v1/functions/{name}/visibility"): Call(("function",), changes=True, body=_SHARE, passes=(400,)),
    ("POST", "/v1/functions/{name}/rollback"): Call(("function",), changes=True),
    ("POST", "/v1/functions/{name}/retrain"): Call(("function",), changes=True, body={}, passes=(400,)),
    ("DELETE", "/v1/functions/{name}/retrain"): Call(("function",), changes=True, passes=(404,)),
    ("GET", "/v1/retrainings"): _NOTHING,
    ("GET", "/v1/drift"): _NOTHING,
    ("POST", "/v1/feedback"): Call(("function",), body={"function": _NAME, "inputs": [], "labels": []}),
    ("GET", "/v1/datasets"): _NOTHING,
    ("POST", "/v1/datasets"): Call(body={}, passes=(400,)),
    ("GET", "/v1/datasets/{name}"): Call(("dataset",)),
    ("POST", "/v1/datasets/{name}/refresh"): Call(("dataset",), changes=True, body={}, passes=(400,)),
    ("PUT", "/v1/datasets/{name}/visibility"): Call(("dataset",), changes=True, body=_SHARE, passes=(400,)),
    ("POST", "/v1/datasets/{name}/answers"): Call(("dataset",), body={"function": FUNCTION}),
    ("POST", "/v1/datasets/uploads"): Call(body={}, passes=(400,)),
    ("PUT", "/v1/datasets/uploads/{upload}/{part}"): Call(
        ("upload",), fresh=True, body={}, path={"part": "0"}, passes=(400,)
    ),
    ("POST", "/v1/datasets/uploads/{upload}/finish"): Call(("upload",), fresh=True, body={}, passes=(400,)),
    # What is not there is forgotten already.
    ("DELETE", "/v1/datasets/uploads/{upload}"): Call(("upload",), fresh=True, hidden=200),
    ("GET", "/v1/sources"): _NOTHING,
    ("GET", "/v1/jobs"): _NOTHING,
    ("POST", "/v1/jobs"): Call(("dataset",), body={"dataset": _NAME, "models": ["no such"]}, passes=(400,)),
    ("GET", "/v1/jobs/{job}"): Call(("job",)),
    ("GET", "/v1/jobs/{job}/events"): Call(("job",)),
    ("POST", "/v1/jobs/{job}/cancel"): Call(("job",), changes=True, body={}),
    ("POST", "/v1/jobs/{job}/pause"): Call(("job",), changes=True, body={}, passes=(400,)),
    ("POST", "/v1/jobs/{job}/resume"): Call(("job",), changes=True, body={}, passes=(400,)),
    ("POST", "/v1/jobs/{job}/extend"): Call(("job",), changes=True, body={"budget": "much"}, passes=(400,)),
    ("POST", "/v1/jobs/{job}/deploy"): Call(("job",), body=_BAD_CHOICE, passes=(400,)),
    ("GET", "/v1/trials"): Call(("job",), query=f"job={_NAME}"),
    ("GET", "/v1/bulk-jobs"): _NOTHING,
    ("GET", "/v1/bulk-jobs/{job}"): Call(path={"job": "none"}, passes=(404,)),
    ("POST", "/v1/bulk-jobs/{job}"): Call(path={"job": "none"}, body={"action": "pause"}, passes=(404,)),
    ("GET", "/v1/tokens"): _NOTHING,
    ("GET", "/v1/audit"): _NOTHING,
    ("POST", "/v1/tokens"): Call(body={}, passes=(400,)),
    ("DELETE", "/v1/tokens/{name}"): Call(path={"name": "nobody"}, passes=(404,)),
    ("POST", "/v1/login-links"): Call(body={}),
    ("GET", "/assets/{digest}/{name}"): Call(path={"digest": "x", "name": "x"}, passes=(404,)),
    ("GET", "/favicon.ico"): _NOTHING,
    ("GET", "/"): _NOTHING,
    ("GET", "/live"): _NOTHING,
    ("GET", "/live/overview"): _NOTHING,
    ("GET", "/models"): _NOTHING,
    ("GET", "/live/models"): _NOTHING,
    ("GET", "/models/{name}"): Call(("model",)),
    ("GET", "/functions"): _NOTHING,
    ("GET", "/functions/{name}"): _SEEN,
    ("POST", "/functions/{name}/try"): Call(("function", "model"), form={"text": "x"}),
    ("POST", "/functions/{name}/rollback"): Call(("function",), changes=True, form={}, passes=(303,)),
    ("POST", "/functions/{name}/share"): Call(("function",), changes=True, form=_SHARE, passes=(400,)),
    ("POST", "/models/{name}/share"): Call(("model",), changes=True, form=_SHARE, passes=(400,)),
    ("GET", "/sql"): _NOTHING,
    ("GET", "/training"): _NOTHING,
    ("GET", "/live/training"): _NOTHING,
    ("GET", "/jobs/{job}"): Call(("job",)),
    ("GET", "/live/jobs/{job}"): Call(("job",)),
    ("POST", "/jobs/{job}/pause"): Call(("job",), changes=True, form={}, passes=(400,)),
    ("POST", "/jobs/{job}/resume"): Call(("job",), changes=True, form={}, passes=(400,)),
    ("POST", "/jobs/{job}/cancel"): Call(("job",), changes=True, form={}, passes=(303,)),
    ("POST", "/jobs/{job}/extend"): Call(("job",), changes=True, form={"budget": "much"}, passes=(400,)),
    ("POST", "/jobs/{job}/deploy"): Call(("job",), form=_BAD_CHOICE, passes=(400,)),
    ("GET", "/datasets/{name}"): Call(("dataset",)),
    ("POST", "/datasets/{name}/refresh"): Call(("dataset",), changes=True, form={}, passes=(400,)),
    ("POST", "/datasets/{name}/train"): Call(("dataset",), form={"budget": "much"}, passes=(400,)),
    ("POST", "/datasets/{name}/share"): Call(("dataset",), changes=True, form=_SHARE, passes=(400,)),
    # Of texts there are no pictures.
    ("GET", "/datasets/{name}/pictures/{snapshot}/{row}"): Call(
        ("dataset",), path={"snapshot": "x", "row": "0"}, passes=(404,)
    ),
    ("GET", "/datasets/{name}/confusion"): Call(("dataset",), query=f"function={FUNCTION}"),
    ("POST", "/datasets/{name}/confusion"): Call(
        ("dataset",), form={"function": FUNCTION}, passes=(303, 503)
    ),
    ("GET", "/live/datasets/{name}/confusion/{function}"): Call(("dataset",), path={"function": FUNCTION}),
    ("GET", "/login"): _NOTHING,
    ("POST", "/login"): Call(form={"token": "none"}, passes=(200, 401, 403)),
    ("POST", "/logout"): Call(form={}, passes=(303,)),
    ("GET", "/who"): _NOTHING,
    ("POST", "/who/tokens"): Call(form={}, passes=(400,)),
    ("POST", "/who/tokens/{name}/revoke"): Call(form={}, path={"name": "nobody"}, passes=(404,)),
}
