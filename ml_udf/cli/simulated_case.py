"""A simulated case, from the words of the command line: arrivals, latencies and devices.

Pure but for the files that the words name; knows the simulator, not the terminal.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from server.scheduling.arbitration import papers_turns
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.arrivals import bursty, poisson, recorded, sine
from server.scheduling.simulation.simulator import FunctionLoad, SimulatedDevice, Workload

__all__ = ["ARRIVALS", "Case", "latency_profile", "recorded_arrivals", "sizes_of_batches", "sizes_of_models"]

ARRIVALS = ("poisson", "bursty", "sine")
_SINE_PERIOD = 500  # SLOs (Rafiki §7.2)


@dataclass(frozen=True)
class Case:
    """What is simulated with each policy and seed."""

    functions: int
    rate: float  # rows/s of one function, in the mean
    zipf: float  # the n-th function's share falls as 1/n^zipf
    arrivals: str
    trace_s: tuple[float, ...]  # for arrivals from a file
    profile_s: dict[int, float]
    l_hat: float
    slo_s: float
    batch_sizes: tuple[int, ...]
    devices: int
    places: int | None
    device_bytes: int  # 0 = no limit
    model_bytes: tuple[int, ...]  # of the functions in turn; () = not known, so of no size
    swap_s: float
    link_bytes_per_s: float
    placement: str
    jitter: float
    duration_s: float
    late: bool

    def load(self, policy: str, seed: int) -> Workload:
        """The simulation of one policy with one seed."""
        truth = LatencyModel(self.profile_s)
        functions = tuple(
            FunctionLoad(
                name=f"f{number}",
                arrivals_s=self.arrivals_of(seed, number),
                slo_s=self.slo_s,
                max_batch=self.batch_sizes[-1],
                latency_s=lambda rows: truth(rows),  # without the model's `observe`: the truth does not learn
                predicted_s=LatencyModel(
                    {rows: self.l_hat * took_s for rows, took_s in self.profile_s.items()}
                ),
                batch_sizes=self.batch_sizes,
                refuses=not self.late,
                size_bytes=self.model_bytes[number % len(self.model_bytes)] if self.model_bytes else 0,
                policy=policy,
            )
            for number in range(self.functions)
        )
        return Workload(
            functions=functions,
            devices=tuple(
                SimulatedDevice(
                    f"device-{number}",
                    self.places,
                    capacity_bytes=self.device_bytes,
                    link_bytes_per_s=self.link_bytes_per_s,
                )
                for number in range(self.devices)
            ),
            swap_s=self.swap_s,
            jitter=self.jitter,
            seed=seed,
            arbitration=papers_turns(policy),
            placement=self.placement,
        )

    def arrivals_of(self, seed: int, number: int) -> Sequence[float]:
        """When rows of function `number` arrive, seconds."""
        random = Random(f"{seed} {number}")
        rate = self.rate * self._popularity(number)
        if self.arrivals == "poisson":
            return poisson(random, rate, self.duration_s)
        if self.arrivals == "bursty":
            return bursty(random, rate, self.duration_s)
        if self.arrivals == "sine":
            return sine(random, rate, self.duration_s, _SINE_PERIOD * self.slo_s, self.slo_s / 5)
        return self.trace_s[number :: self.functions]

    def _popularity(self, number: int) -> float:
        """Of the mean function, so many times as many rows."""
        if not self.zipf:
            return 1.0
        shares = [math.pow(rank + 1, -self.zipf) for rank in range(self.functions)]
        return shares[number] * self.functions / sum(shares)


def recorded_arrivals(arrivals: str) -> tuple[float, ...]:
    """The times in the file of that name; none for arrivals that are drawn. Raises ValueError."""
    if arrivals in ARRIVALS:
        return ()
    try:
        return tuple(recorded(_lines(arrivals)))
    except ValueError as exc:
        raise ValueError(f"--arrivals is {', '.join(ARRIVALS)} or a file of times: {exc}") from exc


def latency_profile(text: str) -> dict[int, float]:
    """Rows → seconds, from `1:5.25,64:21` (ms), a JSON profile or a CSV of batches. Raises ValueError."""
    path = Path(text)
    if path.suffix == ".json":
        profile: dict[Any, Any] = json.loads("\n".join(_lines(text)))
        return {int(rows): float(took_s) for rows, took_s in profile.items()}
    if path.suffix == ".csv":
        took_s: dict[int, list[float]] = {}
        for row in csv.reader(_lines(text)):
            if row and row[0].strip().isdigit():
                took_s.setdefault(int(row[0]), []).append(float(row[1]))
        if not took_s:
            raise ValueError(f"{text} has no line of rows,seconds")
        return {rows: statistics.median(took) for rows, took in took_s.items()}
    try:
        points = [point.split(":") for point in text.split(",")]
        return {int(rows): float(ms) / 1000 for rows, ms in points}
    except ValueError:
        raise ValueError(f"not a latency: {text!r}; write rows:milliseconds, as 1:5.25,64:21") from None


def sizes_of_batches(text: str, max_batch: int) -> tuple[int, ...]:
    """The sizes written as `16,32,48,64`, or the powers of two up to `max_batch`. Raises ValueError."""
    if not text:
        return (*(1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch), max_batch)
    try:
        return tuple(sorted({int(size) for size in text.split(",")}))
    except ValueError:
        raise ValueError(f"not batch sizes: {text!r}; write them as 16,32,48,64") from None


def sizes_of_models(text: str) -> tuple[int, ...]:
    """Bytes of models, written as `50e6,240e6`. Raises ValueError."""
    with contextlib.suppress(ValueError, OverflowError):
        sizes = tuple(int(float(size)) for size in text.split(",") if size)
        if min(sizes, default=0) >= 0:
            return sizes
    raise ValueError(f"not sizes of models: {text!r}; write them in bytes, as 50e6,240e6")


def _lines(name: str) -> list[str]:
    try:
        return Path(name).read_text().splitlines()
    except OSError as exc:
        raise ValueError(f"{name} cannot be read: {exc.strerror}") from exc
