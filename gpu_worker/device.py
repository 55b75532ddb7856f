"""Which device this worker owns, what it is called, how much it holds, how many threads suit it.

torch is imported only once something needs it: a worker that serves no torch model starts in a tenth of
the time.
"""

from __future__ import annotations

import glob
import os
import platform
import re
from dataclasses import dataclass

from gpu_worker.errors import BadRequest

__all__ = ["Device", "find_device", "usable_cores"]

_SHARE_OF_MEMORY = {"cpu": 0.5, "cuda": 0.85}  # the rest is for activations, inputs and everybody else


@dataclass(frozen=True, slots=True)
class Device:
    """name: "cpu" or "cuda:N"; description: the vendor's name; capacity_bytes: what models may fill."""

    name: str
    description: str
    capacity_bytes: int
    threads: int

    @property
    def is_cuda(self) -> bool:
        """Whether it is a CUDA device."""
        return self.name.startswith("cuda")


def find_device(wanted: str, *, threads: int = 0, resident_bytes: int = 0) -> Device:
    """The device that `wanted` ("auto", "cpu", "cuda:N") names. Raises `BadRequest` when it is not there.

    `threads` and `resident_bytes` override, when positive, what the machine suggests.
    """
    threads = threads if threads > 0 else usable_cores()
    name = _first_device() if wanted == "auto" else wanted
    if name == "cpu":
        description, memory_bytes = _processor_name(), _memory_bytes()
    elif re.fullmatch(r"cuda(:\d+)?", name):
        name, description, memory_bytes = _cuda(name)
    else:
        raise BadRequest(f"the device {wanted!r} is not known: use 'auto', 'cpu' or 'cuda:N'")
    share = _SHARE_OF_MEMORY[name.partition(":")[0]]
    return Device(name, description, resident_bytes or int(memory_bytes * share), threads)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_device() -> str:
    if not (glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg")):
        return "cpu"
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _cuda(name: str) -> tuple[str, str, int]:
    import torch

    if not torch.cuda.is_available():
        raise BadRequest(f"the device {name!r} was asked for, and torch {torch.__version__} finds no CUDA")
    index = int(name.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise BadRequest(f"the device {name!r} was asked for, of {torch.cuda.device_count()} CUDA devices")
    properties = torch.cuda.get_device_properties(index)
    return f"cuda:{index}", properties.name, properties.total_memory


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
