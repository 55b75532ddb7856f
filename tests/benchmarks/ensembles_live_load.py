"""Load steps of 0.3, 1.5 and 0.3 of the best member's capacity: a running server beside the simulator.

One server, one worker with one compute thread; the generator and the server have the other core. `value`,
`gear` and `all` answer the same rows at the same times, in turn. The simulator is given these arrivals and
photos, what the members answer to them, and l̂ as this run has taught it by the end of each trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from ml_udf.cli.chart import line_chart
from ml_udf.client import Client
from server.ensemble.evidence import fit_evidence
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, EnsembleMember, line_through
from server.ensemble.subset_answers import answers_of, by_fit
from server.scheduling.latency_model import LatencyModel
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.ensembles import EnsembleLoad, MemberOutcomes, simulate_ensemble
from tests.benchmarks.ensembles_live_food import FUNCTION, FoodEnsemble
from tests.benchmarks.ensembles_live_rows import (
    Asking,
    Row,
    Summary,
    binned,
    live_rows,
    simulated_rows,
    summary,
)
from tests.benchmarks.load_generator import closed_loop, replay
from tests.benchmarks.report import RESULTS, say
from tests.inference_server import ANEW, InferenceServer, inference_server

__all__ = ["MAX_BATCH", "POLICIES", "Steps", "ask_by", "capacities", "goal_ms", "load_steps"]

POLICIES = ("value", "gear", "all")
LOADS = (0.3, 1.5, 0.3)
MAX_BATCH = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
WAY_S = 0.02  # there and back, on a machine that the generator shares: a row answered at its goal is in time
_CONNECTIONS = 96
_GOAL_BATCHES = 2.5  # full batches of the best member that fit into the goal
_LOADED_S = 240.0
_PLANNED_S = 20.0
_ALIKE = 0.1  # simulated and live differ by no more


@dataclass(frozen=True)
class Steps:
    """How long: each step, each measurement of a capacity; and how often all is measured."""

    step_s: float
    capacity_s: float
    rounds: int
    bins: int = 8  # of a step

    @property
    def edges_s(self) -> list[float]:
        """Of the bins."""
        width_s = self.step_s / self.bins
        return [number * width_s for number in range(len(LOADS) * self.bins + 1)]

    @property
    def steps_s(self) -> list[float]:
        """Of the steps."""
        return [number * self.step_s for number in range(len(LOADS) + 1)]

    def arrivals(self, capacity: float, seed: int) -> list[float]:
        """Poisson within each step."""
        random = Random(f"{seed} arrivals")
        return [
            number * self.step_s + at_s
            for number, load in enumerate(LOADS)
            for at_s in poisson(random, load * capacity, self.step_s)
        ]


@dataclass
class Measured:
    """Of one policy, all rounds: rows as they came and as they were simulated."""

    live: list[Row] = field(default_factory=list)
    simulated: list[Row] = field(default_factory=list)


def load_steps(food: FoodEnsemble, steps: Steps) -> dict[str, Any]:
    """Measure, simulate, print, draw; what is kept as JSON."""
    measured = {policy: Measured() for policy in POLICIES}
    with food.home() as home:
        flags = ["--workers=1", "--threads=1"]
        with inference_server(home, media_roots=[food.media_root], flags=[ANEW, *flags]) as server:
            found = capacities(server, food, steps.capacity_s)
            capacity = found[food.fit.members[food.best]]
            slo_ms = goal_ms(capacity)
            say(f"the goal is {slo_ms} ms; in time: within {slo_ms + 1000 * WAY_S:g} ms")
            lag_s = 0.0
            then: dict[tuple[str, int], _Learned] = {}  # l̂ as it was after each trace
            for number in range(steps.rounds):
                turn = POLICIES[number % len(POLICIES) :] + POLICIES[: number % len(POLICIES)]
                for policy in turn:
                    rows, late_s = _live(server, food, steps, capacity, slo_ms, policy, number)
                    measured[policy].live += rows
                    lag_s = max(lag_s, late_s)
                    _say(policy, number, summary(rows, slo_ms / 1000 + WAY_S))
                    with contextlib.suppress(OSError, ValueError):  # not written yet, or just now
                        then[policy, number] = _Learned.read(home, food, found)
            last = (policy, number)
        learned = then[last] = _Learned.read(home, food, found)
    for number in range(steps.rounds):
        arrivals_s = steps.arrivals(capacity, number)
        for policy in POLICIES:
            known = then.get((policy, number), learned)
            measured[policy].simulated += _simulated(food, known, arrivals_s, slo_ms, policy, number)
    within_s = slo_ms / 1000 + WAY_S
    told = _report(measured, steps, within_s)
    _draw(measured, steps, within_s, capacity)
    return {
        "capacities_rows_per_s": found,
        "slo_ms": slo_ms,
        "way_ms": 1000 * WAY_S,
        "loads": LOADS,
        "step_s": steps.step_s,
        "rounds": steps.rounds,
        "generator_lag_ms": 1000 * lag_s,
        "latency_ms": {name: [1000 * each.typical_s(rows) for rows in SIZES] for name, each in learned.each},
        "jitter": learned.jitter,
        "together": learned.together,
        "policies": told,
        "over_time": _over_time(measured, steps, within_s),
    }


def goal_ms(capacity: float) -> int:
    """The function's goal by the best member's rows per second."""
    return max(100, 10 * round(100 * _GOAL_BATCHES * MAX_BATCH / capacity))


def capacities(server: InferenceServer, food: FoodEnsemble, seconds: float) -> dict[str, float]:
    """Rows per second of each member alone, and of the function, which asks all; so l̂ is learned."""
    random, found = Random(3), dict[str, float]()
    photos = [random.choice(food.photos) for _ in range(4096)]
    input_name = ask_by(server, food, "all", 10_000)
    for name in (*food.fit.members, FUNCTION):
        requests = Asking(server.url, name, input_name).requests(photos)
        asyncio.run(closed_loop(server.url, 3, seconds / 4, requests))  # small batches too
        asyncio.run(closed_loop(server.url, _CONNECTIONS // 4, seconds / 4, requests))
        found[name] = asyncio.run(closed_loop(server.url, _CONNECTIONS, seconds, requests))
        say(f"{name}: {found[name]:,.0f} rows/s")
    return found


def ask_by(server: InferenceServer, food: FoodEnsemble, policy: str, slo_ms: int) -> str:
    """Deploy the function with that policy and wait for its plans; the name of its input.

    Raises TimeoutError if there is no plan.
    """
    known = server.log.count(_FITTED)
    with contextlib.closing(Client(server.url)) as client:
        body: dict[str, Any] = {"models": list(food.models), "combine": "log_pool", "select": policy}
        body |= {"slo_ms": slo_ms, "max_batch": MAX_BATCH}
        put = client.put(f"/v1/functions/{FUNCTION}", body, timeout_s=_LOADED_S)
    end_s = time.monotonic() + _PLANNED_S
    while policy not in ("all", "best") and server.log.count(_FITTED) == known:
        if time.monotonic() > end_s:
            raise TimeoutError(f"no plan of {policy} within {_PLANNED_S:g} s")
        time.sleep(0.05)
    return str(put["input"]["name"])


_FITTED = f"plans fitted function={FUNCTION}"


def _live(
    server: InferenceServer,
    food: FoodEnsemble,
    steps: Steps,
    capacity: float,
    slo_ms: int,
    policy: str,
    number: int,
) -> tuple[list[Row], float]:
    """The rows of one trace, and how late the generator was."""
    within_s = slo_ms / 1000 + WAY_S
    asking = Asking(server.url, FUNCTION, ask_by(server, food, policy, slo_ms), timeout_s=within_s)
    arrivals_s = steps.arrivals(capacity, number)
    picks = _picks(food, arrivals_s, number)
    requests = asking.requests([food.photos[pick] for pick in picks])
    found = asyncio.run(replay(server.url, arrivals_s, requests, keeps_answers=True))
    return live_rows(found.outcomes, [food.labels[pick] for pick in picks]), found.lag_s


def _picks(food: FoodEnsemble, arrivals_s: Sequence[float], seed: int) -> list[int]:
    """The photo of each row: those that the simulator draws by the same seed."""
    draws = Random(f"{seed} rows")
    return [draws.randrange(len(food.photos)) for _ in arrivals_s]


# ── simulated ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Learned:
    """l̂ of each member as the run left it.

    jitter: standard deviation of ln(what a batch took / l(b)) · together: what all take in one batch, which
    decodes each photo once, beside the sum of what each takes
    """

    each: tuple[tuple[str, LatencyModel], ...]
    jitter: float
    together: float

    @classmethod
    def read(cls, home: Path, food: FoodEnsemble, rates: Mapping[str, float]) -> _Learned:
        """rates: rows per second of each member alone, and of the function, which asked them all."""
        models, deviations = [], list[float]()
        for name in food.models:
            state = json.loads((home / "latencies" / f"{name}.json").read_text())
            (kind,) = (kind for kind in state["kinds"] if kind.endswith("|path"))
            latency = LatencyModel.from_json(state["kinds"][kind])
            models.append((name, latency))
            recent = state["kinds"][kind]["recent"]
            deviations += [math.log(took_s / latency.typical_s(rows)) for rows, took_s in recent]
        apart_s = sum(1 / rates[name] for name in food.fit.members)
        return cls(tuple(models), statistics.pstdev(deviations), min(1.0, 1 / rates[FUNCTION] / apart_s))


def _simulated(
    food: FoodEnsemble,
    learned: _Learned,
    arrivals_s: Sequence[float],
    slo_ms: int,
    policy: str,
    seed: int,
) -> list[Row]:
    outcomes = _outcomes(food)
    latencies = [latency for _, latency in learned.each]
    evidence = food.fit.evidence
    assert evidence is not None, "the function was deployed with what plans are made of"
    if policy == "all":
        return _simulated_together(food, learned, outcomes, arrivals_s, slo_ms, seed)
    members = tuple(_member(*each) for each in zip(food.models, food.accuracies, latencies, strict=True))
    ensemble = Ensemble(members, evidence, by_fit(food.fit))
    load = EnsembleLoad(
        arrivals_s,
        slo_ms / 1000,
        [latency.typical_s for latency in latencies],
        outcomes,
        max_batch=MAX_BATCH,
        batch_sizes=SIZES,
        predicted=latencies,
        jitter=learned.jitter,
        seed=seed,
    )
    return simulated_rows(simulate_ensemble(load, ensemble, selection_policy(policy, ensemble)))


def _simulated_together(
    food: FoodEnsemble,
    learned: _Learned,
    outcomes: MemberOutcomes,
    arrivals_s: Sequence[float],
    slo_ms: int,
    seed: int,
) -> list[Row]:
    """All members in one batch: as one member that takes what they take together."""
    everyone = (1 << len(learned.each)) - 1
    alone = MemberOutcomes({1: outcomes.confidence[everyone]}, {1: outcomes.correct[everyone]})
    evidence = fit_evidence(1, alone.confidence, alone.correct)

    def together_s(rows: int) -> float:
        return learned.together * sum(latency.typical_s(rows) for _, latency in learned.each)

    member = EnsembleMember("all", sum(alone.correct[1]) / alone.rows, *line_through(together_s, MAX_BATCH))
    ensemble = Ensemble((member,), evidence)
    load = EnsembleLoad(
        arrivals_s,
        slo_ms / 1000,
        [together_s],
        alone,
        max_batch=MAX_BATCH,
        batch_sizes=SIZES,
        jitter=learned.jitter,
        seed=seed,
    )
    result = simulate_ensemble(load, ensemble, selection_policy("all", ensemble))
    return simulated_rows(result, len(learned.each))


def _outcomes(food: FoodEnsemble) -> MemberOutcomes:
    told = answers_of(food.fit, food.scores, food.truth)
    return MemberOutcomes(
        {subset: each.tolist() for subset, each in told.confidence.items()},
        {subset: each.tolist() for subset, each in told.correct.items()},
    )


def _member(name: str, accuracy: float, latency: LatencyModel) -> EnsembleMember:
    return EnsembleMember(name, accuracy, *line_through(latency, MAX_BATCH))


# ── told ───────────────────────────────────────────────────────────────────────────────────────────────


def _say(policy: str, number: int, found: Summary) -> None:
    say(
        f"round {number + 1}, {policy}: {found.rows:,} rows, {100 * found.goodput:.1f} % right and in time"
        f" ({100 * found.in_time:.1f} in time), accuracy {100 * found.accuracy:.1f} %,"
        f" {found.members:.2f} members"
    )


def _report(measured: Mapping[str, Measured], steps: Steps, within_s: float) -> dict[str, Any]:
    told: dict[str, Any] = {}
    line = "{:<26}{:>16}{:>10}{:>10}{:>12}{:>12}{:>12}{:>12}"
    heads = ("live / simulated", "G", "apart", "in time", "accuracy", "members", "refused")
    say("\n" + line.format("", *heads, "strictly"))
    spans_s = list(pairwise(steps.steps_s))
    parts = [("whole", 0.0, steps.steps_s[-1])]
    parts += [
        (f"step {number + 1} at {load:g}", first_s, end_s)
        for number, (load, (first_s, end_s)) in enumerate(zip(LOADS, spans_s, strict=True))
    ]
    for policy, found in measured.items():
        told[policy] = {}
        for name, first_s, end_s in parts:
            live, simulated = (
                summary([row for row in rows if first_s <= row.at_s < end_s], within_s)
                for rows in (found.live, found.simulated)
            )
            strict = summary(
                [row for row in found.live if first_s <= row.at_s < end_s], within_s - WAY_S
            ).goodput
            apart = live.goodput / simulated.goodput - 1 if simulated.goodput else math.inf
            told[policy][name] = {
                "live": live.to_json(),
                "simulated": simulated.to_json(),
                "apart": apart,
                "live_goodput_without_the_way": strict,
            }
            say(
                line.format(
                    f"{policy}, {name}",
                    f"{100 * live.goodput:.1f} / {100 * simulated.goodput:.1f}",
                    f"{100 * apart:+.1f} %",
                    f"{100 * live.in_time:.0f} / {100 * simulated.in_time:.0f}",
                    f"{100 * live.accuracy:.1f} / {100 * simulated.accuracy:.1f}",
                    f"{live.members:.2f} / {simulated.members:.2f}",
                    f"{100 * live.refused:.1f} / {100 * simulated.refused:.1f}",
                    f"{100 * strict:.1f}",
                )
            )
    for policy, by_part in told.items():
        furthest = max((abs(each["apart"]), name) for name, each in by_part.items())
        whole = abs(by_part["whole"]["apart"])
        verdict = "met" if whole <= _ALIKE else "MISSED"
        say(
            f"{policy}: live and simulated are {100 * whole:.1f} % apart, at most {100 * furthest[0]:.1f} % "
            f"({furthest[1]}); goal 10 %: {verdict}"
        )
    return told


_LINES = {
    "goodput": "% of the rows that are right and in time",
    "accuracy": "% of the answers that are right",
    "members": "members that an answer rests on",
}


def _over_time(measured: Mapping[str, Measured], steps: Steps, within_s: float) -> dict[str, Any]:
    told: dict[str, Any] = {"edges_s": steps.edges_s}
    for policy, found in measured.items():
        for how, rows in (("live", found.live), ("simulated", found.simulated)):
            each = [summary(part, within_s) for part in binned(rows, steps.edges_s)]
            for what in _LINES:
                values = [getattr(one, what) for one in each]
                told[f"{policy}, {how}, {what}"] = [None if v != v else round(v, 4) for v in values]
    return told


def _draw(measured: Mapping[str, Measured], steps: Steps, within_s: float, capacity: float) -> None:
    """One SVG for each line over time: dashed what is simulated of `value`, then what was live."""
    middles_s = [(first_s + end_s) / 2 for first_s, end_s in pairwise(steps.edges_s)]
    loads = ", ".join(f"{load:g}" for load in LOADS)
    told = _over_time(measured, steps, within_s)
    for what, label in _LINES.items():
        scale = 1 if what == "members" else 100
        names = {"value, simulated": "value, simulated", **{p: f"{p}, live" for p in measured}}
        series = {
            name: [scale * (value or 0.0) for value in told[f"{key}, {what}"]] for name, key in names.items()
        }
        svg = line_chart(
            title=f"Load {loads} of the best member alone ({capacity:,.0f} rows/s)",
            x_label="seconds",
            y_label=label,
            x=middles_s,
            series=series,
        )
        path = RESULTS / f"ensembles-live-{what}.svg"
        path.write_text(svg)
        say(f"drawn: {path}")
