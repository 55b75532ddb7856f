"""What a model's card says of the ways to run it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.catalog.variants import ORIGINAL, HeldOutAccuracy, Variant, variant_model

__all__ = ["VariantLine", "variant_lines"]

_SIZES = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class VariantLine:
    """page: of the model that it is; "" where it is none of its own · how: runtime, precision, threads ·
    batches: of 1, 4, 16 and 64 rows, (ms, times as fast as the original), None where unmeasured
    """

    name: str
    page: str
    how: str
    nbytes: int
    held_out: HeldOutAccuracy | None
    batches: tuple[tuple[float, float | None] | None, ...]
    refused: str


def variant_lines(variants: Sequence[Variant]) -> tuple[VariantLine, ...]:
    """Those of one model version, the original first. On the kind of device that it was measured on first."""
    original = next((each for each in variants if each.name == ORIGINAL), None)
    return tuple(_line(each, original) for each in variants)


def _line(variant: Variant, original: Variant | None) -> VariantLine:
    how = [variant.runtime]
    if variant.precision != "float32":
        how.append(variant.precision)
    if variant.threads > 1:
        how.append(f"{variant.threads} threads")
    own = variant.name == ORIGINAL or not variant.is_offered
    device = next(iter(sorted(variant.profile_s)), "")
    return VariantLine(
        variant.name,
        "" if own else variant_model(variant.model, variant.name),
        ", ".join(how),
        variant.nbytes,
        variant.held_out,
        tuple(_batch(variant, original, device, rows) for rows in _SIZES),
        variant.refused,
    )


def _batch(
    variant: Variant, original: Variant | None, device: str, rows: int
) -> tuple[float, float | None] | None:
    took_s = variant.profile_s.get(device, {}).get(rows)
    if not took_s:
        return None
    before_s = None if original is None else original.profile_s.get(device, {}).get(rows)
    is_compared = before_s is not None and variant.name != ORIGINAL
    return took_s * 1000, before_s / took_s if is_compared and before_s else None
