"""What a resident function's callers notice while other models are swapped beside it, on a running server.

Part of `make bench-residency-live`. Rows of one function come at random times, the same in two phases: alone,
and while one client asks for five other models in sequence, whom three places are left, so that the link is
hardly ever idle. The passes of those take no time: what is measured is what loads and evictions cost.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from server.scheduling.simulation.arrivals import poisson
from tests.benchmarks.figures import wide
from tests.benchmarks.load_generator import in_turn, replay
from tests.benchmarks.report import say
from tests.benchmarks.residency_live_rafiqi import WEIGHT_BYTES, link_of
from tests.benchmarks.residency_live_server import (
    add_models,
    evictions_logged,
    infer_request,
    loads_total,
    wait_for_quiet,
    warm_up,
)
from tests.inference_server import ANEW, InferenceServer, inference_server

__all__ = ["beside_swaps"]

_STEADY = "steady"
_OTHERS = tuple(f"m{number}" for number in range(5))
_PLACES = 4
_ROWS_PER_S = 20.0
_DELAY_MS, _ROW_DELAY_MS = 8.0, 2.0
_GOAL = 1.2  # times the p99 alone
_GOAL_MS = 2000


@dataclass(frozen=True)
class _Phase:
    """Latencies of the resident function's rows that were answered, seconds; loads of others meanwhile."""

    swaps: bool
    latencies_s: tuple[float, ...]
    lost: int
    loads: int
    loads_per_minute: float
    evicted: int
    lag_s: float

    def quantile_ms(self, share: float) -> float:
        return _quantile_ms(self.latencies_s, share)


def beside_swaps(folder: Path, rounds: int, seconds: float, slower: float) -> dict[str, Any]:
    """`rounds` of both phases, `seconds` each, which comes first in turn."""
    add_models(folder, [_STEADY], delay_ms=_DELAY_MS, row_delay_ms=_ROW_DELAY_MS, weight_bytes=WEIGHT_BYTES)
    add_models(folder, _OTHERS, weight_bytes=WEIGHT_BYTES)
    flags = [
        "--workers=1",
        f"--device=sim:{_PLACES * WEIGHT_BYTES * 1.005 / 1e6:g}MB,{link_of(slower)}",
        "--placement=value",
        f"--default-slo-ms={_GOAL_MS}",
        "--default-max-batch=16",
    ]
    pairs: list[tuple[_Phase, _Phase]] = []
    with inference_server(folder, flags=[ANEW, *flags]) as server:
        warm_up(server, [*_OTHERS, _STEADY], (1, 4))
        for number in range(rounds):
            times_s = poisson(Random(f"beside {number}"), _ROWS_PER_S, seconds)
            found: dict[bool, _Phase] = {}
            for swaps in (False, True) if number % 2 == 0 else (True, False):
                wait_for_quiet(server)
                found[swaps] = asyncio.run(_phase(server, times_s, swaps, seconds))
            pairs.append((found[False], found[True]))
    return _reported(pairs)


async def _phase(server: InferenceServer, times_s: Sequence[float], swaps: bool, seconds: float) -> _Phase:
    before = loads_total(server), evictions_logged(server, _STEADY)
    rows = replay(server.url, times_s, lambda number: infer_request(server, _STEADY, f"row {number}"))
    if swaps:
        steady, _ = await asyncio.gather(
            rows,
            in_turn(
                server.url,
                1,
                seconds,
                lambda number: infer_request(server, _OTHERS[number % len(_OTHERS)], f"other {number}"),
            ),
        )
    else:
        steady = await rows
    loads = loads_total(server) - before[0]
    return _Phase(
        swaps=swaps,
        latencies_s=tuple(one.latency_s for one in steady.outcomes if one.status == 200),
        lost=sum(one.status != 200 for one in steady.outcomes),
        loads=loads,
        loads_per_minute=60 * loads / seconds,
        evicted=evictions_logged(server, _STEADY) - before[1],
        lag_s=steady.lag_s,
    )


def _reported(pairs: Sequence[tuple[_Phase, _Phase]]) -> dict[str, Any]:
    columns = ("rows", "p50 ms alone · swaps", "p99 ms alone · swaps", "loads/min", "it left", "lag ms")
    title = f"a resident function, {_ROWS_PER_S:g} rows/s of {_DELAY_MS + _ROW_DELAY_MS:g} ms, beside swaps"
    table = Table("round", *columns, title=title)
    alone_s, swapped_s = (
        [latency_s for pair in pairs for latency_s in pair[swaps].latencies_s] for swaps in (False, True)
    )
    for number, (alone, swapped) in enumerate(pairs):
        table.add_row(
            str(number + 1),
            f"{len(alone.latencies_s):,}",
            *(_compared(alone.latencies_s, swapped.latencies_s, share) for share in (0.5, 0.99)),
            f"{alone.loads_per_minute:.0f} · {swapped.loads_per_minute:.0f}",
            f"{alone.evicted} · {swapped.evicted}",
            f"{1000 * alone.lag_s:.0f} · {1000 * swapped.lag_s:.0f}",
        )
    table.add_section()
    whole = [_compared(alone_s, swapped_s, share) for share in (0.5, 0.99)]
    table.add_row("all", f"{len(alone_s):,}", *whole, "", "", "")
    wide.print(table)
    ratio = {share: _quantile_ms(swapped_s, share) / _quantile_ms(alone_s, share) for share in (0.5, 0.99)}
    by_round = [swapped.quantile_ms(0.99) / alone.quantile_ms(0.99) for alone, swapped in pairs]
    lost = sum(phase.lost for pair in pairs for phase in pair)
    say(
        f"p99 beside swaps / alone: {ratio[0.99]:.2f} of all rows, "
        f"by round {statistics.median(by_round):.2f} "
        f"({min(by_round):.2f} to {max(by_round):.2f}); goal {_GOAL}; rows without an answer: {lost}"
    )
    return {
        "rows_per_s": _ROWS_PER_S,
        "p50_ratio": ratio[0.5],
        "p99_ratio": ratio[0.99],
        "p99_ratio_by_round": by_round,
        "p50_ms": [_quantile_ms(one, 0.5) for one in (alone_s, swapped_s)],
        "p99_ms": [_quantile_ms(one, 0.99) for one in (alone_s, swapped_s)],
        "rows_without_an_answer": lost,
        "load": os.getloadavg()[0],
        "phases": [
            {
                **{key: value for key, value in asdict(phase).items() if key != "latencies_s"},
                "p50_ms": phase.quantile_ms(0.5),
                "p99_ms": phase.quantile_ms(0.99),
            }
            for pair in pairs
            for phase in pair
        ],
    }


def _compared(alone_s: Sequence[float], swapped_s: Sequence[float], share: float) -> str:
    alone_ms, swapped_ms = _quantile_ms(alone_s, share), _quantile_ms(swapped_s, share)
    return f"{alone_ms:.1f} · {swapped_ms:.1f}, {swapped_ms / alone_ms:.2f}"


def _quantile_ms(latencies_s: Sequence[float], share: float) -> float:
    ordered = sorted(latencies_s)
    return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan
