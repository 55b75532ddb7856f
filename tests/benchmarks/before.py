"""`make bench-before BASE=<commit>`: this tree beside another commit, round by round in one run.

Each round runs bench-sql and bench-ensemble in both trees, the one that begins in turn; then both trees'
servers run at once and are asked in turn (`before_serving`). A figure is the ratio of this tree to the other,
paired by round, so that the machine's mood falls on both alike. A benchmark that the other commit does not
have yet runs there as it is here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.benchmarks.before_serving import beside
from tests.benchmarks.report import RESULTS, Series, console, ratio, write_json

_BENCHMARKS = Path("tests/benchmarks")
_ENDS_S = 60.0


def main() -> None:
    """Run the rounds; after each, print what is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="the other commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serving-rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20_000, help="of bench-sql and bench-ensemble")
    parser.add_argument("--only", default="sql,ensemble,serving")
    flags = parser.parse_args()
    here = Path.cwd()
    found: dict[str, tuple[Series, Series]] = {}
    wanted = flags.only.split(",")
    with _tree_of(flags.base) as base:
        for number in range(flags.rounds if {"sql", "ensemble"} & set(wanted) else 0):
            trees = [here, base] if number % 2 == 0 else [base, here]
            measured = {tree: _measured(tree, wanted, flags.rows) for tree in trees}
            for name, value in measured[here].items():
                if name not in measured[base]:
                    continue
                ours, before = found.setdefault(name, (Series(name, 0), Series("before", 0)))
                ours.rows_per_s.append(value)
                before.rows_per_s.append(measured[base][name])
            _print(found, flags.base)
        if "serving" in wanted:
            for name, pairs in beside(here, base, flags.serving_rounds).items():
                ours, before = found[name] = (Series(name, 0), Series("before", 0))
                ours.rows_per_s, before.rows_per_s = [each for each, _ in pairs], [each for _, each in pairs]
            _print(found, flags.base)
    write_json(
        "before",
        {
            "base": flags.base,
            "figures": {
                name: {"here": ours.rows_per_s, "before": before.rows_per_s, "ratio": ratio(ours, before)}
                for name, (ours, before) in found.items()
            },
        },
    )


@contextmanager
def _tree_of(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ml_udf-before-") as folder:
        Path(folder).chmod(0o755)  # the database's user reads the package there
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            ensemble = _BENCHMARKS / "ensemble.py"
            if not (tree / ensemble).exists():
                shutil.copy(ensemble, tree / ensemble)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)


def _measured(tree: Path, wanted: list[str], rows: int) -> dict[str, float]:
    """One round in one tree: rows/s, and the inverse of times, so that more is better everywhere."""
    figures: dict[str, float] = {}
    for benchmark in ("sql", "ensemble"):
        if benchmark in wanted:
            told = _run(tree, benchmark, f"--rows={rows}", "--rounds=1")
            for name, series in told["series"].items():
                figures[f"{benchmark}: {name}"] = series["rows_per_s"][0]
    return figures


def _run(tree: Path, benchmark: str, *flags: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", f"tests.benchmarks.{benchmark}", *flags]
    with subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:  # Ctrl-C is the child's too: it ends the servers that it started
            child.wait(_ENDS_S)
            raise
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status} in {tree}")
    told: dict[str, Any] = json.loads((tree / RESULTS / f"{benchmark}.json").read_text())
    return told


def _print(found: dict[str, tuple[Series, Series]], base: str) -> None:
    table = Table("", "here (median)", f"{base} (median)", "here / before, by round")
    for name, (ours, before) in found.items():
        middle, low, high = ratio(ours, before)
        table.add_row(
            name, f"{ours.median:,.1f}", f"{before.median:,.1f}", f"{middle:.2f} ({low:.2f} to {high:.2f})"
        )
    console.print(table)


if __name__ == "__main__":
    main()
