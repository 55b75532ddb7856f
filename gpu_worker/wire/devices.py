"""How a worker's device is named: `auto`, `cpu`, `cuda:N`, or `sim:BYTES,GB/s[,ms]`; what `auto` may find.

Standard library only: the server reads such names too, before it starts a worker by them.
"""

from __future__ import annotations

import glob
import math
import os
import re
from dataclasses import dataclass

__all__ = [
    "REMOTE",
    "SIMULATED_FORM",
    "Simulated",
    "check_device",
    "device_names",
    "may_have_cuda",
    "parse_simulated",
]

SIMULATED_FORM = "sim:BYTES,GB/s[,ms], such as sim:2GiB,2.5 or sim:800MB,2.5GB/s,1ms"

REMOTE = "remote"
"""The device of the worker that asks other servers; no operator names it."""

_OTHER = re.compile(r"auto|cpu|cuda(:\d+)?")
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{kind}": base**power
    for kind, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", 1)
}
_BYTES = re.compile(rf"{_NUMBER} ?([kmgt]?i?b?)", re.IGNORECASE)
_RATE = re.compile(rf"{_NUMBER} ?(?:([kmg]i?b)/s)?", re.IGNORECASE)
_MS = re.compile(rf"{_NUMBER} ?(?:ms)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A device that computes on the CPU and has memory of its own, at the end of a link.

    Moving n bytes there takes `fixed_s` + n / `bytes_per_s`.
    """

    memory_bytes: int
    bytes_per_s: float
    fixed_s: float = 0.0


def parse_simulated(name: str) -> Simulated:
    """What `sim:…` describes. Raises `ValueError`, which says what is wrong with it."""
    kind, _, rest = name.partition(":")
    parts = rest.split(",")
    if kind != "sim" or not 2 <= len(parts) <= 3:
        raise ValueError(f"{name!r} is no simulated device: write {SIMULATED_FORM}")
    memory = _matched(_BYTES, parts[0], name, "its memory", "2GiB or 800MB")
    unit = memory[2].lower()
    if unit not in _UNITS:
        raise _wrong(name, "its memory", parts[0], "2GiB or 800MB")
    rate = _matched(_RATE, parts[1], name, "the rate of its link", "2.5 or 2.5GB/s")
    fixed = _matched(_MS, parts[2], name, "the time of a load", "1 or 1ms") if len(parts) == 3 else None
    found = Simulated(
        int(float(memory[1]) * _UNITS[unit]),
        float(rate[1]) * _UNITS[(rate[2] or "gb").lower()],
        float(fixed[1]) / 1e3 if fixed else 0.0,
    )
    if found.memory_bytes < 1 or not 0.0 < found.bytes_per_s < math.inf:
        raise ValueError(f"{name!r} is no simulated device: its memory and its link's rate must be above 0")
    return found


def check_device(name: str) -> None:
    """Raises `ValueError`, which says how to write one, where a name is no device's at all."""
    if name.startswith("sim:"):
        parse_simulated(name)
    elif not _OTHER.fullmatch(name):
        raise ValueError(f"the device {name!r} is not known: use 'auto', 'cpu', 'cuda:N' or {SIMULATED_FORM}")


def device_names(listed: str) -> list[str]:
    """The devices of a comma-separated list; commas within `sim:…` stay. None listed: `auto`."""
    names: list[str] = []
    for part in map(str.strip, listed.split(",")):
        if part and names and names[-1].startswith("sim:") and part[0] in "0123456789.":
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names or ["auto"]


def may_have_cuda() -> bool:
    """Whether there is a GPU's driver: only then is it worth importing torch to ask for CUDA devices."""
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


def _matched(pattern: re.Pattern[str], text: str, name: str, what: str, example: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise _wrong(name, what, text, example)
    return found


def _wrong(name: str, what: str, text: str, example: str) -> ValueError:
    return ValueError(f"{name!r} is no simulated device: {what} is {text!r}; write {example}")
