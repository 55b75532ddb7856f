"""`/v1/bulk-jobs`: what asks for bulk rows, and who lists, pauses, caps and cancels it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from server.errors import BadOption
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.callers import CallerOf, tell
from server.scheduling.bulk_jobs import BulkControl
from server.services import ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["bulk jobs"])

_MOST_ROWS_PER_S = 1e9
_ACTIONS: dict[str, Callable[[BulkControl], BulkControl]] = {
    "pause": lambda control: replace(control, paused=True),
    "resume": lambda control: replace(control, paused=False),
    "cancel": lambda control: replace(control, cancelled=True),
}


@router.get("/v1/bulk-jobs")
async def list_bulk_jobs(services: ServicesOf, caller: CallerOf) -> Response:
    """The caller's bulk jobs, to admins all; those that asked for nothing in the last minute are over."""
    return json_reply({"bulk_jobs": services.bulk.listed(caller)})


@router.get("/v1/bulk-jobs/{job}")
async def show_bulk_job(services: ServicesOf, caller: CallerOf, job: str) -> Response:
    """One job. `wait_s`: how long nothing of it goes on, 0 where something may, null while nobody knows."""
    return json_reply(services.bulk.shown(caller, job))


@router.post("/v1/bulk-jobs/{job}")
async def steer_bulk_job(services: ServicesOf, caller: CallerOf, job: str, request: Request) -> Response:
    """`{"action": "pause"}`, `resume` or `cancel`; or `{"max_rows_per_s": 100}`, null for no cap."""
    change, words = _change(await json_object(request))
    told = await services.bulk.steer(caller, job, change)
    tell(request, f"{job} {words}")
    return json_reply(told)


def _change(form: dict[str, Any]) -> tuple[Callable[[BulkControl], BulkControl], str]:
    """What a body asks for, and in words. Raises `BadOption`."""
    action = form.get("action")
    if form.keys() == {"action"} and isinstance(action, str) and action in _ACTIONS:
        return _ACTIONS[action], action
    if form.keys() == {"max_rows_per_s"}:
        cap = form["max_rows_per_s"]
        if cap is None:
            return lambda control: replace(control, max_rows_per_s=0.0), "no cap"
        if not isinstance(cap, bool) and isinstance(cap, int | float) and 0 < cap <= _MOST_ROWS_PER_S:
            return lambda control: replace(control, max_rows_per_s=float(cap)), f"{cap:g} rows/s"
        raise BadOption("'max_rows_per_s' must be a number of rows above 0, or null for no cap")
    raise BadOption('say one of {"action": "pause"}, "resume", "cancel", or {"max_rows_per_s": 100}')
