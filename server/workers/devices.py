"""Which device each worker gets, where nobody named one: every CUDA device, or the CPU.

Never imports torch: a process of its own, with the workers' variables, counts devices as the workers will.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from gpu_worker.wire.devices import may_have_cuda

__all__ = ["count_cuda_devices", "worker_devices"]

log = logging.getLogger("ml_udf.server.workers")

_PATIENCE_S = 120.0  # the first import of torch from a slow disk
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def worker_devices(workers: int, named: Sequence[str], cuda_devices: Callable[[], int]) -> tuple[str, ...]:
    """The device of each of so many workers, 0 = one worker a device. named: "auto" stands for all there are.

    Devices are taken in turn. cuda_devices: how many there are; asked only where that matters.
    """
    count = cuda_devices() if "auto" in named else 0
    all_there_are = [f"cuda:{number}" for number in range(count)] or ["auto"]
    devices: list[str] = []
    for name in named:
        devices += all_there_are if name == "auto" else [name]
    return tuple(devices[number % len(devices)] for number in range(workers or len(devices)))


def count_cuda_devices(environment: Mapping[str, str] | None = None) -> int:
    """How many a worker with these variables finds; 0, and a word in the log, where it cannot be said."""
    if not may_have_cuda():
        return 0
    try:
        counted = subprocess.run(
            [sys.executable, "-c", _COUNT],
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        return int(counted.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("CUDA devices not counted, one worker on the first that there is error=%r", error)
        return 0
