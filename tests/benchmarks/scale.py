"""`make bench-scale`: 1 to 64 devices on 1 to 16 nodes, training by 1 to 16 workers, the front's limit.

Serving: batches that a real worker took (`scale_record.py`) in the simulator, which asks the very scheduler
and placement that serve. Every node has four devices and a link; the first is the server's own machine. A
scan says how many rows a device answers a second; interactive rows at 90 % of that, of four functions with a
goal, how many are in time. What the core itself takes is measured on the way, and added to what a row costs
the server's thread (`make bench-front`): that says how many rows a second one server can pass on.

FLAGS: --quick; --parts serving,links,front,training
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from rich.table import Table

from server.scheduling.core import Scheduler
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulatedNode,
    SimulationResult,
    Workload,
    simulate,
)
from server.training.studies.messages import StudyPolicy
from tests.benchmarks import front_cost
from tests.benchmarks.figures import wide
from tests.benchmarks.report import say, write_json
from tests.benchmarks.scale_record import RECORDED
from tests.benchmarks.scale_training import replay

DEVICES = (1, 2, 4, 8, 16, 32, 64)
PER_NODE = 4
SLO_S = 0.5
MAX_BATCH = 64
FUNCTIONS = 4
REQUEST_ROWS = 8
LOAD = 0.9  # of what the scan's rate says
WAY_S = 0.0002  # there, and as long back
GIGABIT = 125e6  # bytes a second
POLICIES: tuple[StudyPolicy, ...] = ("study", "costudy", "asha", "branch")
WORKERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Recorded:
    """What batches took: the median by size, linear between; sigma: of ln(took / median)."""

    sizes: tuple[int, ...]
    median_s: tuple[float, ...]
    sigma: float

    def __call__(self, rows: int) -> float:
        at = min(max(1, bisect_left(self.sizes, rows)), len(self.sizes) - 1)
        low, high = self.sizes[at - 1], self.sizes[at]
        low_s, high_s = self.median_s[at - 1], self.median_s[at]
        return max(1e-6, low_s + (high_s - low_s) * (rows - low) / (high - low))

    @classmethod
    def of(cls, took_s: Mapping[str, Sequence[float]]) -> Recorded:
        medians = {int(size): statistics.median(each) for size, each in took_s.items()}
        apart = [
            math.log(one / medians[int(size)])
            for size, each in took_s.items()
            for one in sorted(each)[: math.ceil(0.9 * len(each))]  # without what else the machine did
        ]
        return cls(tuple(medians), tuple(medians.values()), statistics.pstdev(apart))


@dataclass
class Spent:
    """CPU seconds of the scheduler, and how often it was asked."""

    seconds: float = 0.0
    asked: int = 0


@contextmanager
def measured() -> Iterator[Spent]:
    """What the scheduler takes meanwhile."""
    spent = Spent()

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_ns = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                spent.seconds += (time.thread_time_ns() - began_ns) / 1e9
                spent.asked += 1

        return timed

    kept = {name: getattr(Scheduler, name) for name in ("submit", "next_action", "finished")}
    for name, method in kept.items():
        setattr(Scheduler, name, wrap(method))
    try:
        yield spent
    finally:
        for name, method in kept.items():
            setattr(Scheduler, name, method)


@dataclass
class Cell:
    """One number of devices. The scan's rows a second; of interactive rows those in time; the core's time."""

    devices: int
    nodes: int
    rows_per_s: float
    goodput: float
    p99_ms: float
    core_us_a_row: float
    call_us: float


def machines(
    devices: int, network_bytes_per_s: float, **fields: Any
) -> tuple[tuple[SimulatedDevice, ...], tuple[SimulatedNode, ...]]:
    """So many devices, four to a node, the first node the server's own; and the nodes."""
    nodes = tuple(
        SimulatedNode(
            f"n{number}",
            rows_bytes_per_s=network_bytes_per_s if number else math.inf,
            models_bytes_per_s=network_bytes_per_s if number else 2e9,
            way_s=WAY_S if number else 0.0,
            is_far=number > 0,
        )
        for number in range(math.ceil(devices / PER_NODE))
    )
    each = tuple(
        SimulatedDevice(
            f"d{number}", in_flight_limit=2, kind="recorded", node=f"n{number // PER_NODE}", **fields
        )
        for number in range(devices)
    )
    return each, nodes


def told(recorded: Recorded) -> LatencyModel:
    """l̂ as a server has it after it has measured a model, which every batch then teaches."""
    return LatencyModel(dict(zip(recorded.sizes, recorded.median_s, strict=True)))


def scan(recorded: Recorded, devices: int, row_bytes: int, link: float, seconds: float) -> SimulationResult:
    rows = round(devices * seconds * MAX_BATCH / recorded(MAX_BATCH))
    one = FunctionLoad(
        "scan", (), SLO_S, MAX_BATCH, recorded, told(recorded), bulk_rows=rows, row_bytes=row_bytes
    )
    each, nodes = machines(devices, link)
    return simulate(Workload((one,), each, jitter=recorded.sigma, nodes=nodes))


def interactive(
    recorded: Recorded, devices: int, row_bytes: int, link: float, rate: float, seconds: float
) -> SimulationResult:
    """Rows of four functions, in requests of eight."""
    each, nodes = machines(devices, link)
    loads = tuple(
        FunctionLoad(
            f"f{number}",
            poisson(Random(f"scale {devices} {number}"), rate / FUNCTIONS / REQUEST_ROWS, seconds),
            SLO_S,
            MAX_BATCH,
            recorded,
            told(recorded),
            rows_per_request=REQUEST_ROWS,
            row_bytes=row_bytes,
        )
        for number in range(FUNCTIONS)
    )
    return simulate(Workload(loads, each, jitter=recorded.sigma, nodes=nodes))


def cell(
    recorded: Recorded, devices: int, row_bytes: int, link: float, one_rate: float | None, quick: bool
) -> Cell:
    seconds = 4.0 if quick else 10.0
    scanned = scan(recorded, devices, row_bytes, link, seconds).total
    rows_per_s = scanned.bulk_answered / scanned.bulk_done_s
    rate = LOAD * (one_rate or rows_per_s) * devices
    with measured() as spent:
        answered = interactive(recorded, devices, row_bytes, link, rate, 2.0 if quick else 5.0).total
    return Cell(
        devices,
        math.ceil(devices / PER_NODE),
        rows_per_s,
        answered.goodput,
        1e3 * answered.quantile_s(0.99),
        1e6 * spent.seconds / max(1, answered.offered),
        1e6 * spent.seconds / max(1, spent.asked),
    )


def serving(recorded: Recorded, row_bytes: int, link: float, title: str, quick: bool) -> list[dict[str, Any]]:
    table = Table(
        *("devices", "nodes", "rows/s", "a device's, of one's", "in time at 90 %", "p99, ms"),
        *("core, µs a row", "a call, µs"),
        title=title,
    )
    found: list[Cell] = []
    for devices in DEVICES:
        one = found[0].rows_per_s if found else None
        found.append(cell(recorded, devices, row_bytes, link, one, quick))
        it = found[-1]
        table.add_row(
            *(str(it.devices), str(it.nodes), f"{it.rows_per_s:,.0f}"),
            f"{it.rows_per_s / it.devices / found[0].rows_per_s:.3f}",
            *(f"{it.goodput:.1%}", f"{it.p99_ms:.0f}", f"{it.core_us_a_row:.1f}", f"{it.call_us:.1f}"),
        )
    wide.print(table)
    return [vars(it) for it in found]


def front(cells: Sequence[Mapping[str, Any]], row_bytes: int, quick: bool) -> dict[str, Any]:
    """Rows a second that one server's thread can pass on, and several; by the CPU time of a row."""
    rounds = [front_cost.measured(row_bytes / 1024, 1920 if quick else 6400)["all"] for _ in range(3)]
    row_us = statistics.median(rounds)
    one, core_us = cells[0]["rows_per_s"], {it["devices"]: it["core_us_a_row"] for it in cells}
    table = Table(
        *("devices", "their rows/s", "one front", "of them", "fronts for all"),
        title=f"the front: {row_us:.0f} CPU µs for a row asked by itself "
        f"({min(rounds):.0f} to {max(rounds):.0f}), sockets not counted",
    )
    found = []
    for devices, core in core_us.items():
        limit = 1e6 / (row_us + max(0.0, core - core_us[1]))
        asked = one * devices
        found.append({"devices": devices, "devices_rows_per_s": asked, "front_rows_per_s": limit})
        table.add_row(
            *(str(devices), f"{asked:,.0f}", f"{limit:,.0f}"),
            *(f"{min(1.0, limit / asked):.2f}", str(math.ceil(asked / limit))),
        )
    wide.print(table)
    return {"cpu_us_a_row": rounds, "devices": found}


def several_fronts(recorded: Recorded, row_bytes: int, one_rate: float, quick: bool) -> list[dict[str, Any]]:
    """64 devices behind one server, or shared out among several, each with its own rows and workers."""
    table = Table("servers", "devices each", "in time at 90 %", "p99, ms", title="64 devices")
    found = []
    for servers in (1, 2, 4, 8):
        devices = 64 // servers
        rate = LOAD * one_rate * devices
        total = interactive(recorded, devices, row_bytes, 10 * GIGABIT, rate, 2.0 if quick else 5.0).total
        p99_ms = 1e3 * total.quantile_s(0.99)
        found.append(
            {"servers": servers, "devices_each": devices, "goodput": total.goodput, "p99_ms": p99_ms}
        )
        table.add_row(str(servers), str(devices), f"{total.goodput:.1%}", f"{p99_ms:.0f}")
    wide.print(table)
    return found


def training(trials: Sequence[Mapping[str, Any]], quick: bool) -> list[dict[str, Any]]:
    table = Table(
        *(
            "policy",
            "workers",
            "wall, s",
            "times one worker",
            "of the FIFO bound",
            "the same by CPU time",
            "master, ms a message",
        ),
        title="training: recorded trials through the real master and its journal",
    )
    found = []
    for policy in POLICIES:
        for workers in WORKERS:
            epochs = 96 if quick else 192
            done = replay(policy, trials, workers, epochs=epochs)
            lean = replay(policy, trials, workers, epochs=epochs, clock=time.thread_time)
            speed = sum(done.parts_s) / done.wall_s
            message_ms = 1e3 * done.master_s / done.messages
            found.append(
                {
                    "policy": policy,
                    "workers": workers,
                    "wall_s": done.wall_s,
                    "epochs": done.epochs,
                    "speed_up": speed,
                    "of_fifo": done.of_bound,
                    "of_fifo_by_cpu_time": lean.of_bound,
                    "master_ms_a_message": message_ms,
                }
            )
            table.add_row(
                *(policy, str(workers), f"{done.wall_s:.1f}", f"{speed:.2f}"),
                *(f"{done.of_bound:.3f}", f"{lean.of_bound:.3f}", f"{message_ms:.2f}"),
            )
    wide.print(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", default="serving,links,front,training")
    flags = parser.parse_args()
    parts = flags.parts.split(",")
    content = json.loads(RECORDED.read_text())
    recorded, row_bytes = Recorded.of(content["took_s"]), content["row_bytes"]
    say(f"recorded {content['at']}: {content['batches']}, {row_bytes:,} bytes, sigma {recorded.sigma:.3f}")
    found: dict[str, Any] = {"recorded": content["at"]}
    if {"serving", "front"}.intersection(parts):
        found["serving"] = serving(recorded, row_bytes, 10 * GIGABIT, "10 Gbit/s to each node", flags.quick)
    if "links" in parts:
        slow = 0.5 * row_bytes * PER_NODE * MAX_BATCH / recorded(MAX_BATCH)
        title = f"{8e-6 * slow:.0f} Mbit/s to each node: half of what its devices could take"
        found["slow_links"] = serving(recorded, row_bytes, slow, title, flags.quick)
    if "front" in parts:
        cells = found["serving"]
        found["front"] = front(cells, row_bytes, flags.quick)
        found["several"] = several_fronts(recorded, row_bytes, cells[0]["rows_per_s"], flags.quick)
    if "training" in parts:
        found["training"] = training(content["trials"], flags.quick)
    write_json("scale", found)


if __name__ == "__main__":
    main()
