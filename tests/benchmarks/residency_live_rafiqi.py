"""Rafiqi's five models on a simulated device of a running server, beside the simulator, in a closed loop.

Part of `make bench-residency-live`; the order in which models are asked for is that of bench-residency. Each
run has a server that was just started, so that neither side knows anything of the rows before; the simulator
begins with the models that the server holds then, and has the l̂ and the load times that the server measured
in that very run. It lacks what HTTP and the clients take.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from server.scheduling.arbitration import MostInTime
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.simulator import (
    ClosedLoop,
    FunctionLoad,
    SimulatedDevice,
    Workload,
    simulate,
)
from tests.benchmarks import residency_rafiqi as rafiqi
from tests.benchmarks.figures import wide
from tests.benchmarks.load_generator import Replay, in_turn
from tests.benchmarks.report import say
from tests.benchmarks.residency_live_server import (
    LoadTimes,
    add_models,
    infer_request,
    l_hat_of,
    load_times,
    loads_total,
    resident,
    wait_for_quiet,
    warm_up,
)
from tests.inference_server import ANEW, InferenceServer, inference_server

__all__ = ["five_models", "link_of"]

_NAMES = tuple(f"m{number}" for number in range(rafiqi.MODELS))
WEIGHT_BYTES = 9_000_000
_PLACE_BYTES = 9_050_000  # a model takes a little more than its weights
_MAX_BATCH = 16
_SIZES = (1, 2, 4, 8, 16)
_NO_GOAL_S = 3600.0
_WITHIN = 0.1  # simulated and live
_NO_SWAPS = "no swaps"


@dataclass(frozen=True)
class _Case:
    """Places of the device, its policy, which models are asked for, and by how many clients."""

    places: int
    placement: str
    access: str
    clients: int

    @property
    def name(self) -> str:
        return _NO_SWAPS if self.places == rafiqi.MODELS else self.placement


@dataclass(frozen=True)
class _Outcome:
    """Rows per second and loads, simulated and live; load: the machine's, over the last minute."""

    rows: int
    simulated_rows_per_s: float
    live_rows_per_s: float
    simulated_loads: int
    live_loads: int
    lost: int
    times: LoadTimes
    l_hat_ms: dict[int, float]
    load: float

    @property
    def ratio(self) -> float:
        return self.live_rows_per_s / self.simulated_rows_per_s


def link_of(slower: float) -> str:
    """The rate of a link over which a model takes 90 ms, or so many times as long."""
    return f"{WEIGHT_BYTES / (rafiqi.SWAP_S * slower) / 1e9:.4f}GB/s"


def five_models(
    folder: Path, placements: Sequence[str], clients: Sequence[int], seconds: float, slower: float
) -> list[dict[str, Any]]:
    """Every case, `seconds` each; everything takes `slower` times as long as in the paper."""
    cases = [_Case(rafiqi.MODELS, "lru", "uniform", count) for count in clients]
    cases += [
        _Case(rafiqi.PLACES, placement, access, count)
        for placement in placements
        for access in rafiqi.ACCESS
        for count in clients
    ]
    for places in (rafiqi.MODELS, rafiqi.PLACES):
        _prepare(_home(folder, places), places, slower)
    outcomes = {case: _run(folder, case, seconds, slower) for case in cases}
    _print(outcomes, clients, slower)
    return [{**asdict(case), **asdict(one), "ratio": one.ratio} for case, one in outcomes.items()]


def _home(folder: Path, places: int) -> Path:
    return folder / f"places-{places}"


def _flags(places: int, placement: str, slower: float) -> list[str]:
    return [
        "--workers=1",
        f"--device=sim:{places * _PLACE_BYTES / 1e6:g}MB,{link_of(slower)}",
        f"--placement={placement}",
        f"--default-slo-ms={1000 * _NO_GOAL_S:.0f}",
        f"--default-max-batch={_MAX_BATCH}",
    ]


def _prepare(home: Path, places: int, slower: float) -> None:
    """A home whose models have run, so that their l̂ is known."""
    fixed_ms = 1000 * slower * rafiqi.LATENCY.fixed_s
    row_ms = 1000 * slower * rafiqi.LATENCY.per_row_s
    add_models(home, _NAMES, delay_ms=fixed_ms, row_delay_ms=row_ms, weight_bytes=WEIGHT_BYTES)
    with inference_server(home, flags=[ANEW, *_flags(places, "lru", slower)]) as server:
        warm_up(server, _NAMES, _SIZES)


def _run(folder: Path, case: _Case, seconds: float, slower: float) -> _Outcome:
    home = _home(folder, case.places)
    order = rafiqi.order(case.access, int(seconds * 2000))
    with inference_server(home, flags=[ANEW, *_flags(case.places, case.placement, slower)]) as server:
        wait_for_quiet(server, case.places)
        held, before = resident(server), loads_total(server)
        live = asyncio.run(in_turn(server.url, case.clients, seconds, _requests(server, order)))
        load = os.getloadavg()[0]
        loads, times = loads_total(server) - before, load_times(server)
        server.stop()  # which writes l̂
        l_hat = {name: l_hat_of(home, name) for name in _NAMES}
    rows = len(live.outcomes)
    simulated = simulate(_workload(case, held, l_hat, times.swap_s, order[:rows]))
    return _Outcome(
        rows=rows,
        simulated_rows_per_s=rows / simulated.duration_s,
        live_rows_per_s=rows / _duration_s(live),
        simulated_loads=simulated.swaps,
        live_loads=loads,
        lost=sum(one.status != 200 for one in live.outcomes),
        times=times,
        l_hat_ms={size: round(1000 * l_hat[_NAMES[0]].typical_s(size), 2) for size in _SIZES},
        load=load,
    )


def _requests(server: InferenceServer, order: Sequence[int]) -> Callable[[int], bytes]:
    return lambda number: infer_request(server, _NAMES[order[number]], f"row {number}")


def _duration_s(live: Replay) -> float:
    return max(one.at_s + one.latency_s for one in live.outcomes)


def _workload(
    case: _Case, held: Sequence[str], l_hat: dict[str, LatencyModel], swap_s: float, order: Sequence[int]
) -> Workload:
    functions = tuple(
        FunctionLoad(
            name=name,
            arrivals_s=(),
            slo_s=_NO_GOAL_S,
            max_batch=_MAX_BATCH,
            latency_s=l_hat[name].typical_s,
            predicted_s=l_hat[name],
            refuses=False,
        )
        for name in _NAMES
    )
    return Workload(
        functions,
        (SimulatedDevice("w0", case.places, in_flight_limit=2, resident=tuple(held)),),
        swap_s=swap_s,
        arbitration=MostInTime(),
        placement=case.placement,
        closed_loop=ClosedLoop(case.clients, [_NAMES[model] for model in order]),
    )


def _print(outcomes: dict[_Case, _Outcome], clients: Sequence[int], slower: float) -> None:
    columns = [f"{count} clients" for count in clients]
    title = f"5 models in 4 places, {slower:g} times as slow: rows/s simulated · live, ratio; loads"
    table = Table("", "", *columns, title=title)
    ratios = []
    for (name, access), line in itertools.groupby(
        outcomes.items(), key=lambda item: (item[0].name, item[0].access)
    ):
        cells = []
        for _, one in line:
            ratios.append(one.ratio)
            cells.append(
                f"{one.simulated_rows_per_s:.1f} · {one.live_rows_per_s:.1f}, {one.ratio:.3f}; "
                f"{one.simulated_loads} · {one.live_loads}"
            )
        table.add_row(name, access, *cells)
    wide.print(table)
    close = sum(abs(ratio - 1) <= _WITHIN for ratio in ratios)
    say(
        f"simulated and live are within {_WITHIN:.0%} in {close} of {len(ratios)} cases; "
        f"live / simulated from {min(ratios):.3f} to {max(ratios):.3f}; "
        f"{sum(one.lost for one in outcomes.values())} rows without an answer"
    )
