"""`/v1/deployments`, `/v1/decisions`: which versions of functions are served, what became of their rows, and
which models were chosen for those of functions by wish.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Response

from server.access.masking import masked, masked_text
from server.catalog.functions import Function
from server.observability.stats import FunctionStats
from server.routes.lists import list_reply
from server.services import SeenOf, ServicesOf
from server.serving.wishes import Decided

__all__ = ["router"]

router = APIRouter(tags=["functions"])


@router.get("/v1/deployments")
async def list_deployments(services: ServicesOf, seen: SeenOf) -> Response:
    """Every served version of every function, with counts since the server started."""
    told = []
    for served in seen.functions():
        for function in served:
            hidden = seen.hidden_members(function)
            told.append(
                {
                    **_deployment(function, services.metrics.of(function)),
                    "is_current": function is served[-1],
                    "models": [masked_text(member.name, hidden) for member in function.members],
                }
            )
    return await list_reply({"deployments": told})


@router.get("/v1/decisions")
async def list_decisions(services: ServicesOf, seen: SeenOf, function: str = "") -> Response:
    """What was decided last for each goal of each function by wish. function: of that alone."""
    if function:
        seen.check_function(function)
    told = []
    for served in seen.functions():
        if function in ("", served[-1].name):
            hidden = seen.hidden_members(served[-1])
            told += [masked(_decision(one), hidden) for one in services.wishes.decided(served[-1])]
    return await list_reply({"decisions": told})


def _decision(one: Decided) -> dict[str, Any]:
    return {**one.told(), "since": datetime.fromtimestamp(one.since, UTC).isoformat()}


def _deployment(function: Function, stats: FunctionStats) -> dict[str, Any]:
    kept = stats.cache
    asked = datetime.fromtimestamp(stats.last_ms / 1000, UTC).isoformat() if stats.last_ms else None
    return {
        "function": function.name,
        "version": str(function.version),
        "rows": stats.rows,
        "cached_rows": kept.hits,
        "coalesced_rows": kept.coalesced,
        "computed_rows": stats.rows - kept.hits - kept.coalesced,
        "proxy_rows": stats.proxy_rows,
        "cache_entries": kept.entries,
        "cache_bytes": kept.nbytes,
        "cache_evictions": kept.evictions,
        "last_asked": asked,
    }
