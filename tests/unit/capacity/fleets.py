"""Small fleets to decide about: one function `f`, on CPUs and GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from server.capacity.policy import Copy, DeviceKind, Fleet, FunctionLoad, Variant, Worker

GB = 10**9
CPU = Variant("f/cpu", "f", "cpu", ((1, 0.1), (4, 0.4)), GB // 10, 2.0)
GPU_1 = Variant("f/gpu-1", "f", "cuda", ((1, 0.004),), GB, 6.0, 0.5)
GPU_8 = Variant("f/gpu-8", "f", "cuda", ((1, 0.004), (8, 0.01)), 12 * GB // 10, 6.0, 0.5)
VARIANTS = {one.name: one for one in (CPU, GPU_1, GPU_8)}
DEVICES = {
    "cpu": DeviceKind("cpu", 1, 3, join_s=3.0, price_per_gb_s=1.0),
    "cuda": DeviceKind("cuda", 0, 2, join_s=20.0, memory_bytes=16 * GB, price_per_gb_s=7.97),
}
WORKERS = {
    "cpu-0": Worker("cpu-0", "cpu"),
    "cpu-1": Worker("cpu-1", "cpu"),
    "gpu-0": Worker("gpu-0", "cuda", memory_bytes=16 * GB),
    "gpu-1": Worker("gpu-1", "cuda", memory_bytes=16 * GB),
}


def fleet(*copies: Copy, **changed: Any) -> Fleet:
    """At 100 s; f has a goal of 500 ms, and nothing has come yet."""
    whole = Fleet(100.0, (FunctionLoad("f", 0.5, 0),), VARIANTS, DEVICES, WORKERS, copies)
    return replace(whole, **changed)
