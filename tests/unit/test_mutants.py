"""The tool that seeds faults seeds each kind of them, and leaves texts, logs and assertions alone."""

from __future__ import annotations

import json
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
