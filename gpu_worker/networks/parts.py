"""A forward pass on a device whose memory may be short, and which may fail for good."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gpu_worker.errors import DeviceLost
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, check

__all__ = ["in_parts_that_fit"]


def in_parts_that_fit(
    run: Callable[[Inputs], Floats], rows: Inputs, is_cancelled: IsCancelled, device: object
) -> Floats:
    """`run(rows)`, in halves where the device's memory is short, down to single rows.

    Raises `Cancelled`, `DeviceLost`, and torch's OutOfMemoryError for a single row.
    """
    check(is_cancelled)
    try:
        return run(rows)
    except torch.OutOfMemoryError:
        if len(rows) < 2:
            raise
    except torch.AcceleratorError as exc:
        # An illegal access or a failed assertion on the device poisons the whole CUDA context.
        raise DeviceLost(f"{device} failed: {exc}") from exc
    # Other models may have grown since this one was measured: smaller batches still fit.
    torch.cuda.empty_cache()
    half = len(rows) // 2
    return np.concatenate(
        [in_parts_that_fit(run, part, is_cancelled, device) for part in (rows[:half], rows[half:])]
    )
