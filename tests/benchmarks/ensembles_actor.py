"""The actors of `make bench-ensembles`: Rafiki's learned policy, a network a setting, trained when simulated.

Trained on splits 2 and 3, never on those that are reported; of their rows for fitting only the
accuracy of each subset counts (the paper's a(M[v])). Loads are drawn between those of the cells, and arrivals
are Poisson, the sine, or bursts. Kept among the results, and trained anew when what trains it has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

from server.ensemble import actor
from server.ensemble.actor import ActorNetwork
from server.ensemble.policies import actor_critic
from server.scheduling.simulation import actor_training, perceptron
from server.scheduling.simulation.actor_training import Lesson, train_actor
from tests.benchmarks.ensembles_cases import MAX_BATCH, SETTINGS, B, Cell, arrivals_of, prepared
from tests.benchmarks.report import RESULTS

TRAINING = (2, 3)
LOADS = {"A": (0.3, 1.7), "C": (0.5, 5.0), "D": (0.4, 1.7), "E": (0.4, 1.7)}
GOALS = 12  # that a lesson lasts, about
ARRIVALS = ("Poisson", "Poisson", "sine", "bursts")
_CODE = (actor, actor_critic, actor_training, perceptron)


@cache
def actor_of(name: str) -> ActorNetwork:
    """The network of a setting; trained when it is first asked for."""
    path = Path(RESULTS) / "ensembles" / f"actor-{name}-{_digest()}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trained(name).to_json()))
    return ActorNetwork.from_json(json.loads(path.read_text()))


def trained(
    name: str, updates: int = 50, seed: int = 0, heard: Callable[[int, float], None] = lambda at, regret: None
) -> ActorNetwork:
    """A network for a setting."""
    return train_actor(lambda random: lesson_of(name, random), updates=updates, seed=seed, heard=heard)


def lesson_of(name: str, random: Random, splits: Sequence[int] = TRAINING) -> Lesson:
    """A load of that setting, as the cells have them."""
    case = prepared(name, random.choice(splits))
    cell = Cell(name, random.uniform(*LOADS[name]), random.choice(ARRIVALS))
    rate = cell.load * case.capacity
    rows = max(400, round(GOALS * SETTINGS[name].slo_s * rate))
    arrivals_s = arrivals_of(cell, rate, rows, random.randrange(1 << 30))
    return Lesson(case.ensemble, arrivals_s, SETTINGS[name].slo_s, MAX_BATCH, B)


def _digest() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for module in _CODE:
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    """Train one and show how it goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=SETTINGS, default="A")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    os.nice(10)
    began_s = time.perf_counter()

    def heard(update: int, regret: float) -> None:
        print(f"{time.perf_counter() - began_s:6.0f} s  update {update}: regret {regret:.4f}", flush=True)

    network = trained(flags.setting, flags.updates, flags.seed, heard)
    if flags.out:
        flags.out.write_text(json.dumps(network.to_json()))


if __name__ == "__main__":
    main()
