"""`/v1/residency`: which models are where, what moves over the workers' links, and what has moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Response

from server.observability.moves import Move, seen_moves
from server.placement.places import Place, seen_places
from server.routes.lists import list_reply
from server.services import SeenOf, Services, ServicesOf, ViewOf

__all__ = ["router"]

router = APIRouter(tags=["models"])


@router.get("/v1/residency")
async def residency(services: ServicesOf, view: ViewOf, seen: SeenOf) -> Response:
    """Every live worker with its link, every model on a device or in a host's memory, the last moves."""

    places = seen_places(services.residency.places(), view.sees_key)
    moves = seen_moves(services.metrics.moves.last(), view.sees_key)
    hits = misses = 0
    for (function, _), stats in services.metrics.items():
        if not seen.sees(function):
            continue
        hits += stats.resident_rows
        misses += stats.absent_rows
    return await list_reply(
        {
            "workers": [_worker(place) for place in places],
            "residency": [
                *(row for place in places for row in _models(place)),
                *_elsewhere(services, view.sees_key),
            ],
            "residency_events": [_event(move) for move in moves],
            "resident_hits": hits,
            "resident_misses": misses,
            "hit_rate": round(hits / (hits + misses), 6) if hits + misses else None,
        }
    )


def _worker(place: Place) -> dict[str, Any]:
    moving = place.moving
    return {
        "worker": place.worker,
        "device": place.device,
        "node": place.node or None,
        "capacity_bytes": place.capacity_bytes,
        "max_models": place.max_models,
        "models": len(place.held),
        "used_bytes": place.used_bytes,
        "host_models": len(place.host),
        "host_bytes": sum(place.host.values()),
        "checked_at": _at(place.word_unix_s),
        "link_busy_s": round(place.link_busy_s, 3),
        "link_use": round(place.link_use, 4),
        "link_bytes_per_s": place.link_bytes_per_s and round(place.link_bytes_per_s),
        "moving": moving
        and {
            "loading": moving.loading or None,
            "evicting": list(moving.evicting),
            "since": _at(moving.since_unix_s),
            "ends": _at(moving.ends_unix_s),
            "reason": moving.reason,
        },
    }


def _models(place: Place) -> Iterable[dict[str, Any]]:
    """By worker and tier; of what lies in the host's memory the worker's word is all that is known."""
    for held in place.held:
        yield {
            "worker": place.worker,
            "device": place.device,
            "tier": "device",
            "model": held.model,
            "size_bytes": held.size_bytes,
            "since": _at(held.since_unix_s),
            "last_used": _at(held.last_used_unix_s),
            "rows_per_s": round(held.rows_per_s, 3),
            "loads": held.loads,
        }
    for model, size_bytes in sorted(place.host.items()):
        yield {
            "worker": place.worker,
            "device": place.device,
            "tier": "host",
            "model": model,
            "size_bytes": size_bytes,
            "since": None,
            "last_used": None,
            "rows_per_s": None,
            "loads": None,
        }


def _elsewhere(services: Services, sees: Callable[[str], bool]) -> Iterable[dict[str, Any]]:
    """Models behind other servers that can be asked: they take nothing of any device."""
    last_used = services.residency.last_used()
    for worker, models in services.remote.resident().items():
        for model in filter(sees, models):
            yield {
                "worker": worker,
                "device": "remote",
                "tier": "remote",
                "model": model,
                "size_bytes": 0,
                "since": None,
                "last_used": _at(last_used.get(model)),
                "rows_per_s": round(services.residency.rows_per_s(model), 3),
                "loads": None,
            }


def _event(move: Move) -> dict[str, Any]:
    return {
        "at": _at(move.at_unix_s),
        "worker": move.worker,
        "model": move.model,
        "event": move.kind,
        "reason": move.why,
        "outcome": move.outcome,
        "took_s": round(move.took_s, 6),
        "error": move.error or None,
    }


def _at(unix_s: float | None) -> str | None:
    """A time in ISO 8601."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
