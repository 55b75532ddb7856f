"""`make bench-ensembles-live`: the food log's ensemble on a running server, on two cores.

    load     0.3, 1.5 and 0.3 of the best member's capacity: value, gear and all, beside the simulator
    faults   a member's worker slowed, killed, its weights spoilt; labels; and what an operator would read

The first run draws the photos and trains the members (--quick: fewer). A part that fails says so, and the
other is measured all the same.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.benchmarks.ensembles_live_faults import Spans, faults
from tests.benchmarks.ensembles_live_food import FoodEnsemble, food_ensemble, introduction
from tests.benchmarks.ensembles_live_load import Steps, load_steps
from tests.benchmarks.report import say, write_json


def main() -> int:
    """Measure; the exit status is 1 where a part failed."""
    flags = _parser().parse_args()
    steps = Steps(3.0, 1.0, 1) if flags.quick else Steps(12.0, 4.0, 2)
    spans = Spans(3.0, 0.7) if flags.quick else Spans(8.0, 3.0)
    began_s = time.perf_counter()
    food = food_ensemble()
    say(introduction(food))
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "load": lambda: load_steps(food, steps),
        "faults": lambda: faults(food, spans),
    }
    result: dict[str, Any] = {}
    failed = False
    for name in flags.parts:
        say(f"\n── {name}")
        part_s = time.perf_counter()
        try:
            result[name] = parts[name]()
        except Exception as error:
            failed = True
            result[name] = {"failed": repr(error)}
            say(f"{name} failed")
            say(traceback.format_exc())
        say(f"{name}: {time.perf_counter() - part_s:.0f} s")
    took_s = time.perf_counter() - began_s
    result |= {"quick": flags.quick, "took_s": round(took_s, 1), "members": _members(food)}
    write_json("ensembles_live", result)
    say(f"all of it: {took_s:.0f} s")
    return int(failed)


def _members(food: FoodEnsemble) -> dict[str, Any]:
    return {
        "names": list(food.fit.members),
        "fitted_rows": food.fit.rows,
        "held_out_photos": len(food.photos),
        "accuracy_alone": food.alone(),
        "disagree": food.disagree(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter, of fewer photos: a minute and a half")
    parser.add_argument("--parts", nargs="+", choices=("load", "faults"), default=["load", "faults"])
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
