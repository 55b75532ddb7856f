"""`make bench-serving`: the same models, machine, photos and load for every server, in one run.

For each model, round by round, each server in turn: it is started, checked (its answers must be the model's),
warmed up, and then
    rate     the highest at which 99 % of all rows are answered within the goal, by an open loop
    half     p50 and p99 at half of that rate; and of a single caller
    burst    five times that half, for 2 s: rows in time, late, refused, lost
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.report import console, write_json
from tests.benchmarks.serving import environments, load
from tests.benchmarks.serving.cases import CASES, Case, photos
from tests.benchmarks.serving.contenders import CONTENDERS, FRONTS, Contender
from tests.benchmarks.serving.measure import Effort, Measured, measure
from tests.benchmarks.serving.quiet import await_quiet
from tests.benchmarks.serving.report import print_case, verdicts
from tests.benchmarks.serving.running import DoesNotRun, ask, running

_QUICK = Effort(probe_s=1.0, half_s=1.5, tolerance=0.2)


class Comparison:
    """Photos, models and what has been measured so far."""

    def __init__(self, work: Path, cases: Sequence[Case], effort: Effort) -> None:
        self.measured: dict[str, dict[str, list[Measured]]] = {case.name: {} for case in cases}
        self.failed: dict[str, str] = {}
        self.idle_before: list[float] = []  # the machine's idle share before each round of each server
        self.pythons: dict[str, Path] = {}
        self._work = work
        self._effort = effort
        self._photos = photos()
        self._models = {case.name: case.model(work / "models") for case in cases}
        self._program = load.build(environments.ROOT)
        self._answers: dict[str, list[str]] = {}

    def install(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Those that can be had; the others are named, with the reason."""
        there = []
        for one in contenders:
            try:
                if one.name not in FRONTS:
                    self.pythons[one.name] = environments.python_of(one.name, one.packages, one.interpreter)
                there.append(one)
            except environments.NotInstalled as exc:
                self.failed[one.name] = f"cannot be installed: {exc}"
                console.print(f"{one.name} {self.failed[one.name]}")
        return there

    def run(self, contender: Contender, case: Case) -> None:
        """One round of one server with one model."""
        before = self.measured[case.name].setdefault(contender.name, [])
        known_rate = before[-1].rate if before else case.first_rate
        idle = await_quiet()
        self.idle_before.append(idle)
        began_s = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(dir=self._work, prefix=contender.name) as name:
                before.append(self._measured(contender, case, Path(name), known_rate))
        except (DoesNotRun, OSError) as exc:
            self.failed[f"{contender.name}, {case.name}"] = str(exc)[:500]
            print(f"{contender.name} with {case.name}: {exc}")
        if not before:
            del self.measured[case.name][contender.name]
            return
        one = before[-1]
        print(
            f"{case.name:6} {contender.name:9} {one.rate:8,.0f} rows/s, p99 at half {one.p99_ms:6.1f} ms, "
            f"burst {one.burst.in_time:.0%} in time ({time.monotonic() - began_s:.0f} s, "
            f"the machine was {idle:.0%} idle before)",
            flush=True,
        )

    def _measured(self, contender: Contender, case: Case, folder: Path, known_rate: float) -> Measured:
        python = self.pythons.get(contender.name, Path())
        model = self._models[case.name]
        with running(contender, python, case, model, folder, self._photos) as port:
            self._check(contender, case, port)
            plain = [contender.request(photo) for photo in self._photos]
            urgent = plain
            if contender.urgent is not None:
                urgent = [contender.urgent(photo, int(case.slo_ms)) for photo in self._photos]
            return measure(
                load.Load(self._program, folder, port, plain),
                load.Load(self._program, folder, port, urgent),
                lambda: ask(contender, port, self._photos[0]),
                case,
                self._effort,
                known_rate,
            )

    def _check(self, contender: Contender, case: Case, port: int) -> None:
        """Every server answers as the first did: photos are asked one by one, so batches are alike."""
        try:
            answers = [ask(contender, port, photo) for photo in self._photos]
        except (ValueError, http.client.HTTPException) as exc:
            raise DoesNotRun(f"its answers cannot be read: {exc!r}") from exc
        expected = self._answers.setdefault(case.name, answers)
        wrong = sum(a != b for a, b in zip(answers, expected, strict=True))
        if wrong:
            raise DoesNotRun(f"{wrong} of {len(answers)} answers are not the others'")


def main() -> None:
    flags = _parser().parse_args()
    cases = [case for case in CASES if case.name in flags.cases.split(",")]
    wanted = [one for one in CONTENDERS if one.name in flags.only.split(";")]
    effort = _QUICK if flags.quick else Effort()
    with tempfile.TemporaryDirectory(prefix="ml_udf-serving-") as folder:
        comparison = Comparison(Path(folder), cases, effort)
        there = comparison.install(wanted)
        for case in cases:
            for _ in range(flags.rounds):
                for contender in there:
                    comparison.run(contender, case)
            print_case(case, comparison.measured[case.name])
            write_json("serving", _record(comparison, cases))  # what was measured is not lost with the rest
    for name, reason in comparison.failed.items():
        console.print(f"not measured: {name}: {reason}")


def _record(comparison: Comparison, cases: Sequence[Case]) -> dict[str, Any]:
    return {
        "packages": {one.name: one.packages for one in CONTENDERS},
        "cases": {
            case.name: {
                "slo_ms": case.slo_ms,
                "measured": {
                    name: [one.record() for one in rounds]
                    for name, rounds in comparison.measured[case.name].items()
                },
                "verdicts": verdicts(case, comparison.measured[case.name]),
            }
            for case in cases
        },
        "not_measured": comparison.failed,
        "least_idle_before": min(comparison.idle_before, default=1.0),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter probes, a coarser search")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--only", default=";".join(one.name for one in CONTENDERS), help="servers, by name: 'ours;mosec'"
    )
    parser.add_argument("--cases", default=",".join(case.name for case in CASES), help="models, by name")
    return parser


if __name__ == "__main__":
    main()
