"""The tool that seeds faults seeds each kind of them, and leaves texts, logs and assertions alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.mutation.__main__ import EQUIVALENT, MODULES
from tests.mutation.mutants import mutants_of

SOURCE = '''"""A docstring."""

LIMIT = 3


def is_full(queue: list[int], limit: int = 2) -> bool:
    """Says whether."""
    log.info("asked %d", 7)
    assert limit > 0
    if not queue or len(queue) < limit:
        return False
    queue.sort()
    return min(queue[0] + 1, 9) >= limit
'''


def after() -> set[str]:
    return {mutant.after for mutant in mutants_of(SOURCE)}


def test_boundaries_operators_conditions_numbers_calls_and_values_are_changed():
    assert after() >= {
        "if not (not queue or len(queue) < limit):",
        "if (not queue and len(queue) < limit):",
        "if not queue or (len(queue) <= limit):",
        "return (True)",
        "pass",
        "return (max(queue[0] + 1, 9)) >= limit",
        "return min((queue[0] - 1), 9) >= limit",
        "return (min(queue[0] + 1, 9) > limit)",
        "return None",
    }


def test_texts_logs_assertions_signatures_and_named_figures_are_left_alone():
    changed = after()
    assert not any(
        "LIMIT" in line or "log.info" in line or "assert" in line or "def " in line for line in changed
    )


def test_a_mutant_is_the_source_with_its_one_change():
    for mutant in mutants_of(SOURCE):
        assert mutant.source != SOURCE
        assert len(mutant.source.splitlines()) == len(SOURCE.splitlines())


def test_a_mutant_has_the_same_name_when_lines_come_before_it():
    moved = SOURCE.replace("LIMIT", "MORE = None\n\nLIMIT")
    assert [mutant.name for mutant in mutants_of(moved)] == [mutant.name for mutant in mutants_of(SOURCE)]


def test_what_is_listed_as_equivalent_is_of_modules_that_are_mutated_and_says_why() -> None:
    listed = json.loads(EQUIVALENT.read_text())
    assert listed.keys() <= set(MODULES)
    assert all(reason for mutants in listed.values() for reason in mutants.values())
    assert all(Path(*module.split(".")).with_suffix(".py").exists() for module in MODULES)


SHELF = """
import functools


class Shelf:
    places: int = 2
    spare: int = 1

    def __init__(self) -> None:
        self.rows = []

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self.places

    def put(self, row: int) -> None:
        def keep() -> None:
            self.rows.append(row)

        keep()


@functools.cache
def half_of(number: int) -> float:
    return abs(number / 2 + 0)
"""
CHECKS = """
from pathlib import Path

from shelf import Shelf, half_of


def test_two_rows_fill_it():
    shelf = Shelf()
    shelf.put(1)
    assert not shelf.is_full
    shelf.put(2)
    assert shelf.is_full and shelf.spare


def test_half():
    assert half_of(4) == 2


def test_that_passes_once():
    half_of(6)
    Path("ran").touch(exist_ok=False)
"""


def test_mutants_that_a_test_notices_are_killed_and_equivalent_ones_survive(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_shelf.py").write_text(CHECKS)
    (tmp_path / "shelf.py").write_text(SHELF)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    asked = ["--modules=shelf", "--tests=checks", "--sample=99", "--least=0", "--json=told.json"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *asked],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert {each["mutant"] for each in told["survivors"]} == {
        "Shelf: spare: int = 1 → spare: int = (2)",
        "half_of: return abs(number / 2 + 0) → return abs((number / 2 - 0))",
    }
    assert told["mutants"] == len(mutants_of(SHELF))
    # What fails without a mutant as well kills none.
    assert "left out: checks/test_shelf.py::test_that_passes_once" in done.stderr
