"""`/v1/capacity`: what was done about capacity, when and why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Response

from server.capacity.policy import action_to_json
from server.capacity.timeline import Done
from server.http.replies import json_reply
from server.routes.lists import list_reply, told_each
from server.services import SeenOf, ServicesOf, ViewOf

__all__ = ["router"]

router = APIRouter(tags=["workers"])


@router.get("/v1/capacity")
async def capacity(services: ServicesOf, view: ViewOf, seen: SeenOf) -> Response:
    """How many workers there may be, what is under way, and the last actions, the newest first."""
    workforce = services.workforce
    change = workforce.change
    is_whole = seen.is_whole()
    return json_reply(
        {
            "least": workforce.bounds.least,
            "most": workforce.bounds.most,
            "policy": services.autoscaler and services.autoscaler.policy,
            "under_way": change and {"action": change.action, "worker": change.worker},
            "capacity": [
                _told(done, is_whole=is_whole)
                for done in services.timeline.last()
                if not done.model or view.sees_key(done.model)
            ],
        }
    )


@router.get("/v1/capacity/decisions")
async def decisions(services: ServicesOf) -> Response:
    """What the policy saw and answered, oldest first: `[{fleet, actions, begun}]`, to be replayed."""
    autoscaler = services.autoscaler
    decided = await told_each(
        () if autoscaler is None else autoscaler.decided,
        lambda one: {
            "fleet": one.fleet.to_json(),
            "actions": [action_to_json(action) for action in one.actions],
            "begun": one.is_done,
        },
    )
    return await list_reply({"policy": autoscaler and autoscaler.policy, "decisions": decided})


def _told(done: Done, *, is_whole: bool) -> dict[str, Any]:
    at = datetime.fromtimestamp(done.at_unix_s, UTC).isoformat(timespec="milliseconds")
    return {
        "at": at,
        "action": done.action,
        "worker": done.worker,
        "model": done.model or None,
        # These may name what the caller does not see.
        "reason": done.reason if is_whole else None,
        "decided_by": done.by if is_whole else None,
        "outcome": done.outcome,
        "took_s": round(done.took_s, 6),
        "error": (done.error or None) if is_whole else None,
    }
