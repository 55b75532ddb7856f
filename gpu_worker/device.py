"""Which device this worker owns, what it is called, how much it holds, how many threads suit it.

torch is imported only once something needs it: a worker that serves no torch model starts in a tenth of
the time.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from gpu_worker.errors import BadRequest
from gpu_worker.wire.devices import REMOTE, Simulated, check_device, may_have_cuda, parse_simulated

__all__ = ["Device", "find_device", "free_for_models", "host_share_bytes", "usable_cores"]

_SHARE_OF_MEMORY = 0.5  # of the host's: the rest is for activations, inputs and everybody else
_NO_BOUND_BYTES = 1 << 60  # what is behind another server takes no memory here
_REMOTE_THREADS = 256  # they wait: one for each batch under way
_RESERVE = 0.1  # of a CUDA device's memory, of what is free: for activations, inputs and libraries
_RESERVE_LEAST_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """name: "cpu", "cuda:N", "sim:…" or "remote"; description: the vendor's name; capacity_bytes: what
    models may fill.

    simulated: what it is, of a simulated one. precision: "auto" or "float32"; graphs: whether passes are
    recorded; of CUDA alone.
    """

    name: str
    description: str
    capacity_bytes: int
    threads: int
    simulated: Simulated | None = None
    precision: str = "auto"
    graphs: bool = True

    @property
    def is_cuda(self) -> bool:
        """Whether it is a CUDA device."""
        return self.name.startswith("cuda")

    @property
    def is_remote(self) -> bool:
        """Whether its models are behind other servers."""
        return self.name == REMOTE

    @property
    def has_memory(self) -> bool:
        """Whether its memory is its own: weights move there from the host's."""
        return self.is_cuda or self.simulated is not None

    @property
    def computes_on(self) -> str:
        """The device that runs the passes, by torch's name."""
        return self.name if self.is_cuda else "cpu"


def find_device(wanted: str, *, threads: int = 0, resident_bytes: int = 0, sharing: int = 1) -> Device:
    """The device that `wanted` ("auto", "cpu", "cuda:N", "sim:…") names.

    Raises `BadRequest` when it is not there, or is no device.

    `threads` and `resident_bytes` override, when positive, what the machine suggests. sharing: workers that
    have its memory together; a simulated device is each one's own.
    """
    if wanted == REMOTE:
        return Device(REMOTE, "other servers", _NO_BOUND_BYTES, _REMOTE_THREADS)
    try:
        check_device(wanted)
    except ValueError as exc:
        raise BadRequest(str(exc)) from exc
    threads = threads if threads > 0 else usable_cores()
    name = _first_device() if wanted == "auto" else wanted
    if name.startswith("sim:"):
        return _simulated(name, threads, resident_bytes)
    if name == "cpu":
        description, capacity_bytes = _processor_name(), int(_SHARE_OF_MEMORY * _memory_bytes()) // sharing
    else:
        name, description, capacity_bytes = _cuda(name, sharing)
    return Device(name, description, resident_bytes or capacity_bytes, threads)


def free_for_models(free_bytes: int, total_bytes: int, sharing: int = 1) -> int:
    """What models of one worker of `sharing` may fill of a CUDA device; what is not free, others have.

    A worker that starts late finds less free, as the others hold their models already.
    """
    reserve_bytes = max(_RESERVE_LEAST_BYTES, int(_RESERVE * total_bytes))
    return max(0, min(free_bytes - reserve_bytes, (total_bytes - reserve_bytes) // sharing))


def _simulated(name: str, threads: int, resident_bytes: int) -> Device:
    simulated = parse_simulated(name)
    capacity_bytes = simulated.memory_bytes
    if resident_bytes:
        capacity_bytes = min(capacity_bytes, resident_bytes)
    fixed = f" and {simulated.fixed_s * 1e3:g} ms a load" if simulated.fixed_s else ""
    description = (
        f"simulated, {simulated.memory_bytes} bytes at {simulated.bytes_per_s / 1e9:g} GB/s{fixed}, "
        f"on {_processor_name()}"
    )
    return Device(name, description, capacity_bytes, threads, simulated)


def host_share_bytes() -> int:
    """What models may fill of the host's memory, beside a device with its own, where nobody said."""
    return _memory_bytes() // 4


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_device() -> str:
    if not may_have_cuda():
        return "cpu"
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _cuda(name: str, sharing: int) -> tuple[str, str, int]:
    import torch

    if not torch.cuda.is_available():
        raise BadRequest(f"the device {name!r} was asked for, and torch {torch.__version__} finds no CUDA")
    index = int(name.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise BadRequest(f"the device {name!r} was asked for, of {torch.cuda.device_count()} CUDA devices")
    # Asked, and not assumed: the context of this process has its part by now, and so have others.
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    capacity_bytes = free_for_models(free_bytes, total_bytes, sharing)
    if not capacity_bytes:
        raise BadRequest(
            f"the device cuda:{index} has {free_bytes} bytes free of {total_bytes}: too few for any model; "
            "end what else uses it, or name another device"
        )
    return f"cuda:{index}", torch.cuda.get_device_name(index), capacity_bytes


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
