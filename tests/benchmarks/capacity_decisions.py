"""What a decision about capacity costs, by the number of functions.

python -m tests.benchmarks.capacity_decisions [--functions 21 100 500] [--policies forecast …]

Figure 12 of INFaaS in kind with more functions: the architectures again and again under other names, rows
by Zipf's law, half as many workers as functions. Told are the milliseconds of processor time that the policy
took each time it was asked, twice a second.
"""

from __future__ import annotations

import argparse
import itertools

from numpy.random import default_rng
from rich.table import Table

from server.capacity.policies.by_name import policy_named
from server.capacity.policy import Copy, Variant
from tests.benchmarks.capacity_fleet import FleetSimulation, Scene
from tests.benchmarks.capacity_loads import ARCHITECTURES, DEVICES, arrivals, trace, variants_of, workers_of
from tests.benchmarks.figures import wide

_ROWS_PER_S = 400.0
_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--functions", nargs="+", type=int, default=[21, 100, 500])
    parser.add_argument("--policies", nargs="+", default=["forecast"])
    flags = parser.parse_args()
    table = Table("policy", "functions", "median, ms", "p99", "most", title="decisions")
    for policy, functions in itertools.product(flags.policies, flags.functions):
        times = FleetSimulation(scene_of(functions), policy_named(policy)).run().decide_ms
        ordered = sorted(times)
        shown = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1.0)]
        table.add_row(policy, str(functions), *(f"{one:.2f}" for one in shown))
    wide.print(table)


def scene_of(functions: int, seed: int = 1) -> Scene:
    """So many, the popular ones on GPUs at first and the others on a CPU each."""
    rng = default_rng(seed)
    architectures = itertools.islice(itertools.cycle(ARCHITECTURES), functions)
    variants: dict[str, list[Variant]] = {
        f"{name}-{number}": variants_of(name, f"{name}-{number}") for number, name in enumerate(architectures)
    }
    weights = [1 / rank for rank in range(1, functions + 1)]
    rates = trace(rng, _SECONDS, _ROWS_PER_S / 40, _ROWS_PER_S * 2, _ROWS_PER_S * _SECONDS)
    cpus = gpus = max(1, functions // 4)
    copies = [
        Copy(all_[0].name, f"cpu-{number % cpus}")
        if number >= functions // 5
        else Copy(all_[1].name, f"cuda-{number % gpus}")
        for number, all_ in enumerate(variants.values())
    ]
    return Scene(
        functions={name: 3 * all_[0].batch_s(1) for name, all_ in variants.items()},
        variants={one.name: one for all_ in variants.values() for one in all_},
        devices=DEVICES,
        workers=workers_of(cpus, gpus),
        copies=copies,
        arrivals={
            name: arrivals(rates * weight / sum(weights), rng)
            for name, weight in zip(variants, weights, strict=True)
        },
        until_s=float(_SECONDS),
    )


if __name__ == "__main__":
    main()
