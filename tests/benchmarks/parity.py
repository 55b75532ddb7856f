"""`make bench-parity`: parity models (ParM) beside hedged resends and beside whichever member has answered.

One part is real: networks of the food log's photos and their parity models, made as `ml-udf variants` makes
them, and how often an answer that is rebuilt is right, by each encoder. The other is a queue model
(`parity_serving`) with the server's own groups: as many workers for each way, of which one is ten times as
slow, at loads of what all could do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.benchmarks.figures import give_way, spread, wide
from tests.benchmarks.parity_models import both_right, photos, rebuilt, right, trained
from tests.benchmarks.parity_serving import Fleet, Outcome, hedged, members, parity, plain
from tests.benchmarks.report import say, write_json

KS = (2, 3, 4)
RECIPES = (*(f"parity-{k}" for k in KS), *(f"parity-{k}-sum" for k in KS))
ARCHITECTURES = ("resnet", "small_cnn")
LOADS = (0.05, 0.3, 0.5, 0.7)
WORKERS = 60  # a multiple of k + 1 for each k, and of two
SERVICE_S = 0.02
AFTER = 1.5  # service times, until a question is begun again, reconstructed, or answered by one member
_FIRST_SEED = 2_000


def main() -> None:
    flags = _parser().parse_args()
    give_way()
    quality = of_models(
        flags.images, flags.epochs, 1 if flags.quick else flags.model_seeds, flags.models or ARCHITECTURES
    )
    _print_quality(quality)
    tails = [
        _tail(load, 2 if flags.quick else flags.seeds, 3_000 if flags.quick else flags.questions)
        for load in LOADS
    ]
    _print_tails(tails, quality)
    write_json("parity", {"quality": quality, "tails": tails, "workers": WORKERS, "service_s": SERVICE_S})


# ── how often a reconstructed answer is right ────────────────────────────────────────────────────────


def of_models(images: int, epochs: int, seeds: int, architectures: Sequence[str]) -> list[dict[str, Any]]:
    """By seed, percent of unseen photos."""
    found = []
    for seed in range(_FIRST_SEED, _FIRST_SEED + seeds):
        with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
            seen = photos(Path(folder), images, seed)
            networks = {name: trained(name, seen, epochs, seed) for name in architectures}
            one: dict[str, Any] = {"together": 100 * both_right(list(networks.values()), seen)}
            for name, network in networks.items():
                one[name] = {"alone": 100 * right(network, seen)}
                for recipe in RECIPES:
                    place = Path(folder) / name
                    place.mkdir(exist_ok=True)
                    one[name][recipe] = 100 * rebuilt(network, name, seen, recipe, place)
                    say(f"seed {seed}, {name}, {recipe}: {one[name][recipe]:.1f} of {one[name]['alone']:.1f}")
        found.append(one)
    return found


def _print_quality(quality: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "model", "its own answer", *RECIPES, title="% right of photos that nobody has seen, rebuilt"
    )
    for name in [each for each in ARCHITECTURES if each in quality[0]]:
        own = _of(quality, name, "alone")
        table.add_row(name, spread(own), *(spread(_of(quality, name, recipe)) for recipe in RECIPES))
    table.add_row("both together", spread([one["together"] for one in quality]), *("" for _ in RECIPES))
    wide.print(table)


def _of(quality: Sequence[dict[str, Any]], name: str, what: str) -> list[float]:
    return [one[name][what] for one in quality]


# ── tails ────────────────────────────────────────────────────────────────────────────────────────────


def _ways() -> dict[str, Callable[[Fleet], Outcome]]:
    after_s = AFTER * SERVICE_S
    ways: dict[str, Callable[[Fleet], Outcome]] = {
        "one model": plain,
        "hedged": lambda fleet: hedged(fleet, after_s),
    }
    for k in KS:
        ways[f"parity {k}"] = lambda fleet, k=k: parity(fleet, k, after_s)  # type: ignore[misc]
    ways["two models, late one left out"] = lambda fleet: members(fleet, after_s)
    return ways


def _tail(load: float, seeds: int, questions: int) -> dict[str, Any]:
    found: dict[str, Any] = {"load": load}
    for name, way in _ways().items():
        outcomes = [
            way(Fleet(WORKERS, SERVICE_S, load * WORKERS / SERVICE_S, questions, _FIRST_SEED + number))
            for number in range(seeds)
        ]
        found[name] = {
            "p50_ms": [each.percentile_ms(0.5) for each in outcomes],
            "p99_ms": [each.percentile_ms(0.99) for each in outcomes],
            "p999_ms": [each.percentile_ms(0.999) for each in outcomes],
            "degraded": [100 * each.degraded_share for each in outcomes],
        }
        say(f"load {load:.0%}, {name}: p99.9 {statistics.mean(found[name]['p999_ms']):.0f} ms")
    return found


def _print_tails(tails: Sequence[dict[str, Any]], quality: Sequence[dict[str, Any]]) -> None:
    for tail in tails:
        table = Table(
            "way",
            "p50, ms",
            "p99",
            "p99.9",
            "answers of less, %",
            f"% right in all, {ARCHITECTURES[0]}",
            title=f"{WORKERS} workers, one ten times as slow, at {tail['load']:.0%} of what they can do",
        )
        for name in _ways():
            one = tail[name]
            times = [spread(one[each]) for each in ("p50_ms", "p99_ms", "p999_ms")]
            degraded = statistics.mean(one["degraded"])
            table.add_row(name, *times, spread(one["degraded"], 2), f"{_right(name, degraded, quality):.2f}")
        wide.print(table)


def _right(way: str, degraded: float, quality: Sequence[dict[str, Any]]) -> float:
    """Of all answers, those of less included."""
    whole = less = statistics.mean(_of(quality, ARCHITECTURES[0], "alone"))
    if way.startswith("parity"):
        less = statistics.mean(_of(quality, ARCHITECTURES[0], way.replace(" ", "-")))
    elif way.startswith("two"):
        whole = statistics.mean(one["together"] for one in quality)
        less = statistics.mean(
            statistics.mean(_of(quality, name, "alone")) for name in ARCHITECTURES if name in quality[0]
        )
    return whole + degraded / 100 * (less - whole)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds and questions: does it run?")
    parser.add_argument("--seeds", type=int, default=10, help="of the queue model")
    parser.add_argument("--questions", type=int, default=30_000)
    parser.add_argument("--model-seeds", type=int, default=3)
    parser.add_argument(
        "--models", nargs="*", choices=ARCHITECTURES, help="fewer of them; the first is told of"
    )
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument(
        "--epochs", type=int, default=20, help="of each network; its parity models have forty"
    )
    return parser


if __name__ == "__main__":
    main()
