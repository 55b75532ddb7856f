"""`/v1/deployments`: which versions of functions are served, and what became of their rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Response

from server.access.masking import masked_text
from server.catalog.functions import Function
from server.http.replies import json_reply
from server.observability.stats import FunctionStats
from server.services import SeenOf, ServicesOf

__all__ = ["router"]

router = APIRouter(tags=["functions"])


@router.get("/v1/deployments")
def list_deployments(services: ServicesOf, seen: SeenOf) -> Response:
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
    return json_reply({"deployments": told})


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
