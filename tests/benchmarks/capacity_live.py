"""`make bench-capacity-live`: a running server whose workers follow the load, beside the simulator.

A load of 10, 400 and 10 rows/s, a third of the time each, of Poisson arrivals, on `--workers 1:2`, once for
each capacity policy named, and for one worker and two that stay. The model takes 5 ms a batch and 3 ms a row,
by the clock: a device of exactly known speed. One cannot serve 400 rows/s within the goal, two can.
With --variants it is a network of photos that computes (vgg, trained here for a moment) with its int8 beside
it: of a function that names the float32 one, of one by wish for which both are accurate enough, and of one
that chooses row by row; who answered in each step is told as well.
Told are the share of rows within the goal, also outside the first 10 s of each step; what time of workers it
took; the timeline; whether the same policy decides the same again on the recorded fleets; and what it does in
the simulator on the same arrivals.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table

from server.capacity.policies.by_name import policy_named
from server.capacity.policy import Fleet, State, action_to_json, checked
from tests.benchmarks.capacity_fleet import FleetSimulation, Scene
from tests.benchmarks.load_generator import Replay, replay, request_bytes
from tests.benchmarks.report import console, say, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model
from tests.waiting import wait_until

RATES = (10.0, 400.0, 10.0)
GOAL_S = 0.5  # what functions have that name none
SETTLES_S = 10.0  # of each step, that are told apart
MODEL: dict[str, Any] = {"delay_ms": 5, "row_delay_ms": 3}
LARGEST = 16
SEED = 20
TIMES = 3  # that each batch size runs before the load, so that l̂ is known


def arrivals_of(step_s: float) -> list[float]:
    """Seconds from the start, ascending."""
    dice, found = random.Random(SEED), []
    for number, rate in enumerate(RATES):
        at_s = number * step_s
        while (at_s := at_s + dice.expovariate(rate)) < (number + 1) * step_s:
            found.append(at_s)
    return found


class Service(Protocol):
    """What is served. flags: of its server beside those of every case."""

    flags: Sequence[str]

    def deploy(self, server: InferenceServer) -> None:
        """Have it served, and its l̂ known, before the load comes."""
        ...

    def request(self, server: InferenceServer, number: int) -> bytes:
        """Of the row of that number, whole."""
        ...


# What it is called, --workers, --capacity-policy, and what is served.
Case = tuple[str, str, str, Service]


class Clocked:
    """A model of exactly known speed."""

    flags: Sequence[str] = ()

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def deploy(self, server: InferenceServer) -> None:
        folder = server.home / "made"
        model = hashing_model(folder, "text_hash", **MODEL)
        server.deploy(model, "udf_text", slo_ms=GOAL_S * 1e3, max_batch=LARGEST)
        _warm_up(server, self._workers)

    def request(self, server: InferenceServer, number: int) -> bytes:
        body = json.dumps(_body([f"row {number}"])).encode()
        return request_bytes(server.url, "/v2/models/udf_text/infer", body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute and a half for each, not five")
    parser.add_argument("--policies", default="forecast,infaas")
    parser.add_argument("--no-fixed", action="store_true", help="without one worker and two that stay")
    parser.add_argument(
        "--variants", action="store_true", help="of a network that computes, in float32 and int8"
    )
    options = parser.parse_args()
    step_s = 30.0 if options.quick else 100.0
    arrivals_s = arrivals_of(step_s)
    policies = options.policies.split(",")
    with tempfile.TemporaryDirectory() as folder:
        cases = _of_variants(Path(folder), policies) if options.variants else _of_clock(policies)
        if not (options.variants or options.no_fixed):
            fixed = [("one worker", "1", "static", Clocked(1)), ("two workers", "2", "static", Clocked(2))]
            cases = [*fixed, *cases]
        results = [run(*case, arrivals_s=arrivals_s, step_s=step_s) for case in cases]
    show(results)
    name = "capacity_live_variants" if options.variants else "capacity_live"
    write_json(name, {"step_s": step_s, "goal_s": GOAL_S, "rates": RATES, "cases": results})


def _of_clock(policies: Sequence[str]) -> Sequence[Case]:
    return [(name, "1:2", name, Clocked(1)) for name in policies]


def _of_variants(folder: Path, policies: Sequence[str]) -> Sequence[Case]:
    from tests.benchmarks.capacity_live_variants import services_of  # it needs torch

    served = services_of(folder)
    return [
        (f"{title}, {name}", "1:2", name, service) for title, service in served.items() for name in policies
    ]


def run(
    title: str,
    workers: str,
    policy: str,
    service: Service,
    *,
    arrivals_s: Sequence[float],
    step_s: float,
) -> dict[str, Any]:
    """One server under the whole load."""
    say(f"{title}: {len(arrivals_s):,} rows in {3 * step_s:g} s")
    with tempfile.TemporaryDirectory() as folder:
        flags = [ANEW, f"--workers={workers}", f"--capacity-policy={policy}", *service.flags]
        with inference_server(Path(folder) / "home", flags=flags) as server:
            service.deploy(server)
            before = len(_decisions(server))
            replayed = asyncio.run(
                replay(
                    server.url,
                    arrivals_s,
                    lambda number: service.request(server, number),
                    keeps_answers=True,
                )
            )
            decisions = _decisions(server)
            with server.client() as client:
                timeline = client.get("/v1/capacity")["capacity"]
    told = {**_shares(replayed, step_s), "answered_by": _answered_by(replayed, step_s)}
    if not decisions:
        return {"case": title, **told, "worker_s": int(workers) * 3 * step_s, "timeline": []}
    during = [Fleet.from_json(one["fleet"]) for one in decisions[before:]]
    return {
        "case": title,
        **told,
        "worker_s": _worker_s(during),
        "timeline": _timeline(timeline),
        "decisions": len(decisions),
        "decided_the_same_again": _decided_again(policy, decisions),
        "simulated": _simulated(policy, during, arrivals_s, 3 * step_s, timeline),
    }


def _warm_up(server: InferenceServer, workers: int) -> None:
    with server.client() as client:
        wait_until(
            lambda: (
                sum("text_hash/1" in one["resident"] for one in client.get("/v1/workers")["workers"])
                >= workers
            )
        )
        for rows in (1, 4, LARGEST) * TIMES:
            client.post("/v2/models/udf_text/infer", _body([f"{rows} {row}" for row in range(rows)]))


def _answered_by(replayed: Replay, step_s: float) -> list[dict[str, int]]:
    """Of each step, how many rows who answered, where the answers say it."""
    found: list[Counter[str]] = [Counter() for _ in RATES]
    for one in replayed.outcomes:
        outputs = json.loads(one.body).get("outputs", []) if one.status == 200 else []
        said = [output["data"][0] for output in outputs if output["name"] == "answered_by"]
        found[min(len(RATES) - 1, int(one.at_s // step_s))].update(said)
    return [dict(each) for each in found]


def _body(texts: Sequence[str]) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}]}


def _decisions(server: InferenceServer) -> list[dict[str, Any]]:
    with server.client() as client:
        found: list[dict[str, Any]] = client.get("/v1/capacity/decisions")["decisions"]
        return found


def _shares(replayed: Replay, step_s: float) -> dict[str, Any]:
    """Of rows answered within the goal."""
    rows = replayed.outcomes
    good = [one.status == 200 and one.latency_s <= GOAL_S for one in rows]
    settled = [ok for ok, one in zip(good, rows, strict=True) if one.at_s % step_s >= SETTLES_S]
    return {
        "rows": len(rows),
        "in_goal": sum(good) / len(good),
        "in_goal_settled": sum(settled) / len(settled),
        "refused": replayed.refused(),
        "lost": replayed.lost(),
        "p99_ms": replayed.quantile_s(0.99) * 1e3,
        "generator_late_ms": replayed.lag_s * 1e3,
    }


def _worker_s(fleets: Sequence[Fleet]) -> float:
    """Seconds of workers, joining and leaving ones too."""
    pairs = itertools.pairwise(fleets)
    return sum(len(one.workers) * (other.now_s - one.now_s) for one, other in pairs)


def _timeline(done: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("at", "action", "worker", "model", "reason", "outcome", "took_s", "error")
    return [{name: one[name] for name in names} for one in reversed(done)]


def _decided_again(policy: str, decisions: Sequence[dict[str, Any]]) -> bool:
    """Whether a fresh policy answers every recorded fleet as the server's did."""
    again = policy_named(policy)
    remembered: State = {}
    for one in decisions:
        fleet = Fleet.from_json(one["fleet"])
        decision = again.decide(fleet, remembered)
        remembered = decision.state
        actions, _ = checked(fleet, decision.actions)
        if [action_to_json(action) for action in actions] != one["actions"]:
            return False
    return True


def _simulated(
    policy: str,
    fleets: Sequence[Fleet],
    arrivals_s: Sequence[float],
    until_s: float,
    timeline: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The same arrivals in the simulator, with l̂ as the server has learned it, and joins as it saw them."""
    first, last = fleets[0], fleets[-1]
    joins_s = [one["took_s"] for one in timeline if (one["action"], one["outcome"]) == ("worker_up", "done")]
    join_s = joins_s[0] if joins_s else next(iter(first.devices.values())).join_s
    devices = {name: dataclasses.replace(kind, join_s=join_s) for name, kind in first.devices.items()}
    asked = max(last.functions, key=lambda one: one.arrived)
    mine = {name: one for name, one in last.variants.items() if one.function == asked.name}
    scene = Scene(
        functions={asked.name: asked.goal_s},
        variants=mine,
        devices=devices,
        workers=tuple(dataclasses.replace(one, state="ready", since_s=0.0) for one in first.workers.values()),
        copies=tuple(one for one in first.copies if one.variant in mine),
        arrivals={asked.name: arrivals_s},
        until_s=until_s,
    )
    outcome = FleetSimulation(scene, policy_named(policy)).run()
    changes = [(at_s, one) for at_s, one in outcome.actions if one["kind"].startswith("worker_")]
    return {
        "in_goal": 1 - outcome.late_share,
        "worker_s": sum(outcome.worker_s.values()),
        "workers": [{"at_s": round(at_s, 1), "action": one["kind"]} for at_s, one in changes],
    }


def show(results: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "", "in goal", "settled", "refused", "p99 ms", "workers' s", "same again", "simulated", title="live"
    )
    for one in results:
        simulated = one.get("simulated")
        table.add_row(
            one["case"],
            f"{one['in_goal']:.2%}",
            f"{one['in_goal_settled']:.2%}",
            f"{one['refused']:,}",
            f"{one['p99_ms']:.0f}",
            f"{one['worker_s']:.0f}",
            "" if simulated is None else str(one["decided_the_same_again"]),
            "" if simulated is None else f"{simulated['in_goal']:.2%}, {simulated['worker_s']:.0f} s",
        )
    console.print(table)
    for one in results:
        for event in one["timeline"]:
            said = f"{event['action']} {event['worker']} {event['model'] or ''}: {event['reason']}"
            came = f"{event['outcome']} in {event['took_s']:.1f} s {event['error'] or ''}"
            say(f"{one['case']}: {event['at'][11:23]} {said} → {came}")
        for rate, counts in zip(RATES, one["answered_by"], strict=True):
            if counts:
                who = ", ".join(f"{name} {rows:,}" for name, rows in sorted(counts.items()))
                say(f"{one['case']}: at {rate:g} rows/s answered by {who}")
        if "simulated" in one:
            say(f"{one['case']}, simulated: {one['simulated']['workers']}")


if __name__ == "__main__":
    main()
