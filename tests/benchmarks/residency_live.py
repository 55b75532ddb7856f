"""`make bench-residency-live`: models that come and go on a running server with a simulated device.

    rafiqi   five models in four places, closed loop: throughput beside the simulator's (goal: within 10 %)
    beside   p99 of a resident function while others are swapped, against its p99 alone (goal: ≤ 1.2 times)
    many     1,000 models of which 20 fit: memory, waits, refusals, loads a minute

The device computes on the CPU and moves weights over a link of a known rate. It ends by itself after about a
quarter of an hour, with `--quick` after three minutes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.report import say, write_json
from tests.benchmarks.residency_live_beside import beside_swaps
from tests.benchmarks.residency_live_many import many_models_live
from tests.benchmarks.residency_live_rafiqi import five_models

_PARTS = ("rafiqi", "beside", "many")


def main() -> None:
    flags = _flags()
    began_s = time.perf_counter()
    result: dict[str, Any] = {"quick": flags.quick, "slower": flags.slower, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="ml_udf-residency-") as name:
        folder = Path(name)
        if "rafiqi" in flags.parts:
            result["rafiqi"] = five_models(
                folder / "rafiqi", flags.placements, flags.clients, flags.seconds, flags.slower
            )
        if "beside" in flags.parts:
            result["beside"] = beside_swaps(folder / "beside", flags.rounds, flags.phase_s, flags.slower)
        if "many" in flags.parts:
            result["many"] = many_models_live(folder / "many", 60 * flags.minutes)
    result["took_s"] = round(time.perf_counter() - began_s, 1)
    say(f"{result['took_s']:.0f} s")
    write_json("residency_live", result)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three minutes: short runs, fewer clients")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--placements", nargs="+", default=("value", "lru"), help="of the five models")
    parser.add_argument("--clients", nargs="+", type=int, help="(1 4 16; 1 16 if quick)")
    parser.add_argument("--seconds", type=float, help="of one closed loop (12; 3 if quick)")
    parser.add_argument(
        "--slower", type=float, default=2.0, help="times the paper's 22.5 ms a row and 90 ms a load"
    )
    parser.add_argument("--rounds", type=int, help="of the resident function's two phases (6; 2 if quick)")
    parser.add_argument("--phase-s", type=float, help="of each phase (15; 6 if quick)")
    parser.add_argument("--minutes", type=float, help="of the 1,000 models (5; 0.5 if quick)")
    flags = parser.parse_args()
    usual = {"clients": (1, 4, 16), "seconds": 12.0, "rounds": 6, "phase_s": 15.0, "minutes": 5.0}
    quick = {"clients": (1, 16), "seconds": 3.0, "rounds": 2, "phase_s": 6.0, "minutes": 0.5}
    for name, value in (quick if flags.quick else usual).items():
        if getattr(flags, name) is None:
            setattr(flags, name, value)
    return flags


if __name__ == "__main__":
    main()
