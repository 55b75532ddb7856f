"""A forward pass on a device whose memory may be short, and which may fail for good. Knows no runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpu_worker.errors import DeviceLost, NoRoom
from gpu_worker.networks.failures import failure_of
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, check

__all__ = ["in_parts_that_fit"]


def in_parts_that_fit(
    run: Callable[[Inputs], Floats],
    rows: Inputs,
    is_cancelled: IsCancelled,
    device: object,
    make_room: Callable[[], object] = lambda: None,
) -> Floats:
    """`run(rows)`; where the device's memory is short once more after `make_room()`, then in halves.

    Raises `Cancelled`; `DeviceLost` where the device is of no further use; `NoRoom`, with `wanted_bytes`,
    where not even a single row fits.
    """
    check(is_cancelled)
    for is_last in (False, True):
        try:
            return run(rows)
        except Exception as exc:  # the runtimes' exceptions have no common base
            failure = failure_of(exc)
            if failure == "lost":
                raise DeviceLost(f"{device} failed: {exc}") from exc
            if failure != "memory":
                raise
            if is_last and len(rows) < 2:
                raise NoRoom(
                    f"{device} has no memory left for a single row, beside the models that are resident: "
                    f"lower --resident-bytes, or keep others off the device ({exc})",
                    wanted_bytes=1,
                ) from exc
        if is_last:
            break
        make_room()
    # Other models may have grown since this one was measured: smaller batches still fit.
    half = len(rows) // 2
    parts = (rows[:half], rows[half:])
    return np.concatenate([in_parts_that_fit(run, part, is_cancelled, device, make_room) for part in parts])
