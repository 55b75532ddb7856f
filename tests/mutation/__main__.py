"""`make mutation`: a seeded sample of mutants of each core module, each against the unit tests that run it.

    python -m tests.mutation [--sample 12] [--seed 1] [--jobs 2] [--modules server.scheduling.core …]

A mutant that makes no difference that any test could see is listed in `equivalent.json` with the reason and
does not count. Ends with 1 if fewer than `--least` of the others are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.reach import Reach
from tests.mutation.running import Case, Outcome, outcomes

MODULES = (
    "server.serving.dispatcher",
    "server.serving.in_flight",
    "server.placement.residency",
    "server.ensemble.combine",
    "server.ensemble.select",
    "server.scheduling.lanes",
    "server.scheduling.core",
    "server.scheduling.policies.goodput",
    "server.scheduling.latency_model",
    "server.scheduling.arbitration",
    "server.scheduling.admission",
    "server.scheduling.filling",
    "server.scheduling.row_queue",
    "server.scheduling.routing",
    "server.scheduling.worker_state",
    "server.training.studies.costudy",
    "server.training.studies.branch",
    "server.training.datasets.split",
    "gpu_worker.pipeline.batch",
    "gpu_worker.pipeline.intake",
    "gpu_worker.model_cache",
    "ml_udf.client.client",
    "ml_udf.client.column",
    "ml_udf.client.exchange",
    "ml_udf.client.request_pool",
    "ml_udf.client.memo",
    "ml_udf.client.retry",
)
_SLOW_S = 4.0  # a test that takes longer is not one of the fast ones
_MOST_S = 25.0  # of tests for one mutant, the fastest first
EQUIVALENT = Path(__file__).with_name("equivalent.json")


def main() -> int:
    """Run it, print the table and the survivors."""
    asked = _arguments()
    os.environ.update(
        OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HYPOTHESIS_STORAGE_DIRECTORY=tempfile.mkdtemp()
    )
    modules = {name: Path(*name.split(".")).with_suffix(".py") for name in asked.modules}
    reach = _reach(list(modules.values()), asked.tests, asked.reach)
    equivalent: dict[str, dict[str, str]] = json.loads(EQUIVALENT.read_text())
    cases: list[Case] = []
    for name, file in modules.items():
        mutants = mutants_of(file.read_text())
        for gone in equivalent.get(name, {}).keys() - {mutant.name for mutant in mutants}:
            print(f"listed as equivalent, but there is no such mutant: {name}: {gone}", flush=True)
        mutants = [mutant for mutant in mutants if mutant.name not in equivalent.get(name, {})]
        chosen = random.Random(f"{asked.seed}:{name}").sample(mutants, min(asked.sample, len(mutants)))
        cases += [_case(name, mutant, reach.tests.get(str(file), {}), reach.seconds) for mutant in chosen]
    print(f"{len(cases)} mutants of {len(modules)} modules, seed {asked.seed}", flush=True)
    return _report(cases, outcomes(cases, asked.jobs), asked.least, asked.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, default=12, help="mutants a module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--modules", nargs="*", default=MODULES)
    parser.add_argument("--tests", type=Path, default=Path("tests/unit"), help="the tests that may kill them")
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    parser.add_argument(
        "--reach", type=Path, help="keep there which test runs which line; read if it is there"
    )
    parser.add_argument("--json", type=Path, default=Path("bench-results/mutation.json"))
    return parser.parse_args()


def _reach(files: list[Path], folder: Path, kept: Path | None) -> Reach:
    if kept is not None and kept.exists():
        return Reach.load(kept)
    path = kept or Path(tempfile.mkdtemp()) / "reach.json"
    command = [sys.executable, "-m", "tests.mutation.reach", *map(str, (path, folder, *files))]
    subprocess.run(command, check=True)
    return Reach.load(path)


def _case(name: str, mutant: Mutant, by_line: dict[int, list[str]], seconds: dict[str, float]) -> Case:
    lines = by_line if mutant.at_import else mutant.lines
    found = {test for line in lines for test in by_line.get(line, []) if seconds[test] <= _SLOW_S}
    tests: list[str] = []
    total_s = 0.0
    for test in sorted(found, key=lambda test: (seconds[test], test)):
        if total_s > _MOST_S:
            break
        tests.append(test)
        total_s += seconds[test]
    return Case(name, mutant, tuple(tests), total_s)


def _report(cases: list[Case], found: list[Outcome], least: float, json_file: Path) -> int:
    survivors = [case for case, outcome in zip(cases, found, strict=True) if outcome == "survived"]
    for name in dict.fromkeys(case.module for case in cases):
        of = [outcome for case, outcome in zip(cases, found, strict=True) if case.module == name]
        print(f"{name:36} {sum(o != 'survived' for o in of):3} of {len(of)}")
    for case in survivors:
        why = "" if case.tests else "   (no fast test runs it)"
        print(f"survived: {case.module}: {case.mutant.lines[0]}: {case.mutant.name}{why}")
    killed = 1 - len(survivors) / max(1, len(cases))
    print(f"killed {killed:.1%} of {len(cases)}")
    json_file.parent.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    told = {
        "commit": commit.stdout.strip(),
        "killed": killed,
        "mutants": len(cases),
        "survivors": [{"module": case.module, "mutant": case.mutant.name} for case in survivors],
    }
    json_file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return int(killed < least)


if __name__ == "__main__":
    sys.exit(main())
