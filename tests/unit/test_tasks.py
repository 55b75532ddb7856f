"""A task is one object: nobody else asks what it is by its name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.tasks import TASKS, Task, task_named
from server.catalog.functions import INPUT_NAMES
from server.ensemble.combine import needs_of
from server.training.recipes import RECIPES

ROOT = Path(__file__).parents[2]
PACKAGES = ("gpu_worker", "ml_udf", "server", "examples", "migrations")


def comparisons_of_tasks(source: str) -> Iterator[int]:
    """Lines that hold the name of a task, or a constant, against something called a task."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(_is_task(side) for side in sides) and any(_is_fixed(side) for side in sides):
                yield node.lineno
        elif isinstance(node, ast.Match) and _is_task(node.subject):
            yield node.lineno


def _is_task(node: ast.expr) -> bool:
    """Whether it is called `task` or `…_task`, or is the `name` of what is."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return _is_task(node.value)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "task" or name.endswith("_task")


def _is_fixed(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_is_fixed, node.elts))
    if isinstance(node, ast.Attribute):
        return _is_fixed(node.value)
    named = isinstance(node, ast.Name) and node.id.isupper()
    return (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "") or named


@pytest.mark.parametrize("package", PACKAGES)
def test_no_code_asks_what_a_task_is_by_its_name(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / package).rglob("*.py")
        if path.parts[-2] != "tasks"
        for line in comparisons_of_tasks(path.read_text())
    ]
    assert found == [], "give the task an attribute that says it"


@pytest.mark.parametrize(
    "line",
    [
        "if task == 'image-classification': pass",
        "x = 1 if self._spec.task != TABLES else 2",
        "y = model.task in ('a', 'b')",
        "z = IMAGES.name == function.task.name",
        "match task:\n    case 'a': pass",
    ],
)
def test_the_look_for_such_code_finds_it(line: str) -> None:
    assert list(comparisons_of_tasks(line))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_is_whole(task: Task) -> None:
    assert task_named(task.name) is task
    assert set(task.forms) <= set(INPUT_NAMES)
    names = [spec.name for spec in task.columns]
    assert len(set(names)) == len(names)
    assert task.value.name in task.default_outputs
    assert task.confidence is None or task.confidence in task.default_outputs
    assert set(task.models_of) <= set(TASKS)
    for rule in task.rules:
        assert set(needs_of(rule, 2, value=task.value.name)) <= set(names)
    sizes = {"classes": 3, "features": 5}
    for spec in task.columns:
        column = spec.empty(2, sizes)
        assert (column.rows, column.shape) == (2, spec.shape(sizes))


def test_what_can_be_trained_is_a_task() -> None:
    assert set(RECIPES) <= set(TASKS)


def test_the_tasks_cost_a_client_nothing() -> None:
    """`local:` reads them in a database's main thread, before numpy is there."""
    code = "import gpu_worker.tasks, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
