"""`/v1/variants`: the ways to run each model, and what was measured of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Response

from server.catalog.variants import ORIGINAL, Variant
from server.http.replies import json_reply
from server.services import SeenOf, ServicesOf

__all__ = ["router", "told_variant"]

router = APIRouter(tags=["models"])


@router.get("/v1/variants")
def list_variants(services: ServicesOf, seen: SeenOf, model: str = "") -> Response:
    """Every variant of the models that the caller sees, refused ones too. model: of that alone."""
    if model:
        seen.model(model)
    keys = {(each.name, each.version) for each in seen.models()}
    known = [
        variant
        for variant in services.variants.all()
        if (variant.model, variant.version) in keys and model in ("", variant.model)
    ]
    served = {each.key for each in seen.models()}
    return json_reply({"variants": [told_variant(each, is_served=each.key in served) for each in known]})


def told_variant(variant: Variant, *, is_served: bool) -> dict[str, Any]:
    """A variant for who asks. is_served: whether its model version is known here."""
    held_out = variant.held_out
    return {
        "model": variant.model,
        "version": variant.version,
        "variant": variant.name,
        "key": variant.key if variant.is_offered and is_served else None,
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
        "held_out": None if held_out is None else held_out.to_json(),
        "refused": variant.refused or None,
        "files": [file.to_json() for file in variant.files],
        "measured_at": datetime.fromtimestamp(variant.measured_at, UTC).isoformat(timespec="seconds"),
    }
