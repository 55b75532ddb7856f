"""`/v1/workers`: the processes that own devices; by hand one more, or one less."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from server.errors import BadOption
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.callers import CallerOf, tell
from server.services import SeenOf, ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["workers"])

_REASON_CHARACTERS = 200


@router.get("/v1/workers")
async def list_workers(services: ServicesOf, seen: SeenOf) -> Response:
    """Every worker, what it runs on and what it holds."""
    whole = seen.is_whole()
    keys = {model.key for model in seen.models()}
    resident = {
        worker: [key for key in held if whole or key in keys] for worker, held in services.resident().items()
    }
    workers: list[dict[str, Any]] = []
    for state in (*services.workforce.states(), *services.remote.states()):
        info = state.info if state.state in ("up", "leaving", "moving") else None
        workers.append(
            {
                "name": state.name,
                "state": state.state,
                "node": state.node,  # of a cluster; "" for this machine
                "pid": state.pid,
                "restarts": state.restarts,
                "device": info.device if info else None,
                "device_name": info.device_name if info else None,
                "capacity_bytes": info.capacity_bytes if info else None,
                "resident": resident.get(state.name, []),
                # Of a life that is over; the one that it is in has had none.
                "last_error": state.last_error if whole else "",  # it may name what was on it
                "last_error_at": _at(state.last_error_at),
            }
        )
    bounds = services.workforce.bounds
    return json_reply({"workers": workers, "least": bounds.least, "most": bounds.most})


@router.post("/v1/workers", status_code=202)
async def add_worker(services: ServicesOf, caller: CallerOf, request: Request) -> Response:
    """One more worker joins: `{"reason": "…"}`. Answered as that begins: `GET /v1/workers` shows it."""
    change = services.workforce.join(await _reason(request), caller.token)
    tell(request, change.worker)
    return json_reply({"name": change.worker, "state": "joining"}, status=202)


@router.post("/v1/workers/{name}/drain", status_code=202)
async def drain_worker(services: ServicesOf, caller: CallerOf, name: str, request: Request) -> Response:
    """A worker finishes what it has, and ends: `{"reason": "…"}`. Answered as it begins."""
    change = services.workforce.leave(name, await _reason(request), caller.token)
    tell(request, change.worker)
    return json_reply({"name": change.worker, "state": "leaving"}, status=202)


@router.post("/v1/nodes/{node}/drain", status_code=202)
async def drain_node(services: ServicesOf, caller: CallerOf, node: str, request: Request) -> Response:
    """A node's workers move to others, and it gets no more: `{"reason": "…"}`. Answered as it begins."""
    names = services.workforce.drain(node, await _reason(request), caller.token)
    tell(request, node)
    return json_reply({"node": node, "workers": names}, status=202)


@router.delete("/v1/nodes/{node}/drain")
async def undrain_node(services: ServicesOf, node: str, request: Request) -> Response:
    """The node gets workers again, as they are started."""
    services.workforce.undrain(node)
    tell(request, node)
    return json_reply({"node": node})


async def _reason(request: Request) -> str:
    reason = (await json_object(request, may_be_empty=True)).get("reason", "asked for")
    if not isinstance(reason, str) or len(reason) > _REASON_CHARACTERS:
        raise BadOption(f"'reason' must be a text of at most {_REASON_CHARACTERS} characters")
    return reason


def _at(unix_s: float | None) -> str | None:
    """A time in ISO 8601."""
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
