"""What held-out rows say of a variant, and whether it is offered. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.catalog.variants import HeldOutAccuracy
from server.training.promotion.champion import interval
from server.training.variants.candidates import Candidate

__all__ = ["UNREAD", "accuracy_of", "refusal"]

UNREAD = -1  # as `gpu_worker.wire.messages.VariantMade` has it


def accuracy_of(
    right: Sequence[int],
    agreed: int,
    groups: NDArray[np.int64] | None = None,
    *,
    dataset: str = "",
    snapshot: str = "",
    split: str = "",
) -> HeldOutAccuracy | None:
    """Of rows 1 or 0, −1 for one that could not be read; None where none could.

    groups: [rows], of equal numbers they are one observation; None = each is its own.
    """
    told = np.asarray(right, np.int64)
    read = told != UNREAD
    if not read.any():
        return None
    hits = told[read].astype(np.bool_)
    low, high = interval(hits, None if groups is None else groups[read])
    rows = int(read.sum())
    return HeldOutAccuracy(
        round(float(hits.mean()), 6),
        rows,
        round(low, 6),
        round(high, 6),
        round(agreed / rows, 6),
        dataset,
        snapshot,
        split,
    )


def refusal(
    candidate: Candidate,
    found: HeldOutAccuracy | None,
    original: HeldOutAccuracy | None,
    max_accuracy_loss: float,
) -> str:
    """Why a variant is not offered; "" where it is. What a parity model rebuilds may be right less often."""
    if candidate.is_parity:
        return "" if found is not None else "none of its model's held-out rows are here to judge it by"
    if found is None or original is None:
        if not candidate.is_lossy:
            return ""
        return (
            "how often it is right is not known: none of its model's held-out rows are here; name a dataset "
            "with labelled rows"
        )
    loss = original.accuracy - found.accuracy
    if loss <= max_accuracy_loss + 1e-9:
        return ""
    return (
        f"it is right on {found.accuracy:.4f} of {found.rows} held-out rows ({found.low:.4f} to "
        f"{found.high:.4f}) and its original on {original.accuracy:.4f}: it loses {loss:.4f}, and may lose "
        f"{max_accuracy_loss:g}"
    )
