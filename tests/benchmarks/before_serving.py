"""Two commits' servers beside each other: the same rows, at the same rates, a few seconds apart.

Both run all the time, with the same model, and are asked in turn; who is first changes with each round. So
what else the machine does falls on both, and a server that stands more is not measured under more load.

    alone    a caller so rare that none meets another: the median
    half     Poisson arrivals at a rate that both stand: median and 99th percentile
    burst    five times that for 2 s, rows with a deadline: how many are in time
    most     far more rows than either stands: how many are answered a second
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

from server.scheduling.simulation.arrivals import poisson
from tests.benchmarks.load_generator import Replay
from tests.benchmarks.serving import environments, load
from tests.benchmarks.serving.cases import CASES, Case, photos
from tests.benchmarks.serving.contenders import CONTENDERS, OURS
from tests.benchmarks.serving.load import Load
from tests.benchmarks.serving.servers.model import WORKERS
from tests.inference_server import inference_server

__all__ = ["beside"]

_HALF_RATES = {"no-op": 2_500.0, "light": 800.0, "heavy": 150.0}  # rows/s
_HALF_S, _BURST_S, _MOST_S = 3.0, 2.0, 1.0
_BURST, _MOST = 5.0, 6.0  # times the half rate
_ALONE_ROWS, _ALONE_GAP_S = 60, 0.02
_PATIENCE_S = 20.0
_SETTLES_S = 0.3


def beside(here: Path, base: Path, rounds: int) -> Mapping[str, list[tuple[float, float]]]:
    """Figure → (here, base) of each round; of times the inverse, so that more is better everywhere."""
    found: dict[str, list[tuple[float, float]]] = {}
    for case in CASES:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-before-")))
            model = case.model(work / "models")
            loads = [
                _started(stack, work / name, tree, case, model) for name, tree in (("h", here), ("b", base))
            ]
            for number in range(rounds + 1):
                turns = (0, 1) if number % 2 else (1, 0)
                measured = {turn: _round(*loads[turn], case, number) for turn in turns}
                if number:  # the first one warms both up
                    for name, value in measured[0].items():
                        found.setdefault(f"serving {case.name}: {name}", []).append(
                            (value, measured[1][name])
                        )
    return found


def _started(stack: ExitStack, home: Path, tree: Path, case: Case, model: Path) -> tuple[Load, Load]:
    """Requests without and with a deadline, to a server of that tree."""
    server = stack.enter_context(inference_server(home, flags=[f"--workers={WORKERS}"], tree=tree))
    server.deploy(model, "photo", slo_ms=case.slo_ms, max_batch=32)
    ours = next(one for one in CONTENDERS if one.name == OURS)
    assert ours.urgent is not None
    program, pictures = load.build(environments.ROOT), photos()
    deadline_ms = int(case.slo_ms)
    return (
        Load(program, home, server.port, [ours.request(photo) for photo in pictures]),
        Load(program, home, server.port, [ours.urgent(photo, deadline_ms) for photo in pictures]),
    )


def _round(plain: Load, urgent: Load, case: Case, number: int) -> dict[str, float]:
    rate = _HALF_RATES[case.name]
    alone = plain.replay([_ALONE_GAP_S * each for each in range(_ALONE_ROWS)], _PATIENCE_S)
    half = plain.replay(poisson(Random(number), rate, _HALF_S), _PATIENCE_S)
    time.sleep(_SETTLES_S)
    burst = urgent.replay(poisson(Random(100 + number), _BURST * rate, _BURST_S), _PATIENCE_S)
    time.sleep(_SETTLES_S)
    most = plain.replay(poisson(Random(200 + number), _MOST * rate, _MOST_S), _PATIENCE_S)
    time.sleep(_SETTLES_S)
    return {
        "rows/s under too many": _answered_per_s(most),
        "in time in the burst/s": burst.good(case.slo_s) / _BURST_S,
        "1/p50 at the same rate": 1 / half.quantile_s(0.5),
        "1/p99 at the same rate": 1 / half.quantile_s(0.99),
        "1/median of a lone caller": 1 / alone.quantile_s(0.5),
    }


def _answered_per_s(replay: Replay) -> float:
    ends_s = [one.at_s + one.latency_s for one in replay.outcomes if one.status == 200]
    return len(ends_s) / max(ends_s)
