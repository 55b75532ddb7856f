"""`/v1/variants`: the ways to run each model, and what was measured of them."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from server.catalog.functions import ModelVersion
from server.catalog.variants import ORIGINAL, Variant, base_of
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.callers import tell
from server.services import SeenOf, ServicesOf, ViewOf
from server.serving.lost_files import lost_file
from server.training.variants.candidates import wishes_from
from server.training.variants.orders import Order

__all__ = ["router", "told_variant"]

router = APIRouter(tags=["models"])


@router.get("/v1/variants")
async def list_variants(services: ServicesOf, view: ViewOf, seen: SeenOf, model: str = "") -> Response:
    """Every variant of the models that the caller sees, refused ones too, and what is under way.

    model: of that alone.
    """
    if model:
        seen.model(model)
    served = {each.key: each for each in seen.models() if model in ("", base_of(each.name))}
    keys = {(each.name, each.version) for each in served.values()}
    known = [each for each in services.variants.all() if (each.model, each.version) in keys]
    held_out = {each.held_out.dataset for each in known if each.held_out is not None}
    named = {dataset for dataset in held_out if view.sees("dataset", dataset)}

    def told() -> list[dict[str, Any]]:
        return [told_variant(each, served.get(each.key), named) for each in known]

    orders = services.variant_orders
    return json_reply(
        {
            "variants": await asyncio.to_thread(told),
            "under_way": [_told_order(each) for each in orders.orders() if each.model.key in served],
            "failed": [_told_order(each) for each in orders.ended if each.model.key in served],
        }
    )


@router.post("/v1/models/{name}/variants")
async def make_variants(
    services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request
) -> Response:
    """Have variants of a model made and measured: `{"only": ["int8"], "max_accuracy_loss": 0.01}`.

    They are made one after the other, behind the rows that wait; GET /v1/variants says how it goes.
    """
    wishes = wishes_from(await json_object(request))
    orders = await services.variant_orders.order(name, wishes, seen, view)
    tell(request, name)
    return json_reply({"ordered": [_told_order(each) for each in orders]}, status=202)


def _told_order(order: Order) -> dict[str, Any]:
    return {
        "model": order.model.name,
        "version": order.model.version,
        "variant": order.candidate.name,
        "state": "failed" if order.failed else order.state,
        "reason": order.failed or None,
        "by_itself": order.by_itself,
        "ordered_at": _at(order.since),
    }


def told_variant(variant: Variant, served: ModelVersion | None, named: Container[str]) -> dict[str, Any]:
    """A variant for who asks. Blocking.

    served: as which model version; None where it is none. named: the datasets that they see.
    """
    held_out = variant.held_out
    lost = None if served is None else lost_file(served)
    return {
        "model": variant.model,
        "version": variant.version,
        "variant": variant.name,
        "key": variant.key if not variant.refused and served is not None and lost is None else None,
        "is_original": variant.name == ORIGINAL,
        "runtime": variant.runtime,
        "precision": variant.precision,
        "threads": variant.threads,
        "bytes": variant.nbytes,
        "resident_bytes": variant.resident_bytes or None,
        "load_s": variant.load_s or None,
        "profile": [
            {"device": device, "rows": rows, "s": took_s}
            for device, points in sorted(variant.profile_s.items())
            for rows, took_s in sorted(points.items())
        ],
        "accuracy": held_out and held_out.accuracy,
        "accuracy_low": held_out and held_out.low,
        "accuracy_high": held_out and held_out.high,
        "accuracy_rows": held_out and held_out.rows,
        "agreement": held_out and held_out.agreement,
        "dataset": held_out and (held_out.dataset if held_out.dataset in named else ""),
        "split": held_out and held_out.split,
        "refused": variant.refused or None,
        "gone": lost and f"{lost.path} is gone; {lost.remedy}",
        "files": [file.to_json() for file in variant.files],
        "measured_at": _at(variant.measured_at),
    }


def _at(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
