"""From labelled rows to SQL functions: the first three statements of an SQL file, asked on one engine.

Owns what is to be trained, and a note of what earlier runs have: a job on the same rows by the same
statement is found again, whether it has ended or not. Trains nothing itself: the inference server does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.foodlog.engines import Engine
from examples.foodlog.queries import Query, read_queries
from examples.foodlog.report import print_asked

__all__ = [
    "CALORIES_FILE",
    "SIMILAR_FILE",
    "TRAINING_FILE",
    "TRAYS_FILE",
    "Notes",
    "Study",
    "TrainingFailed",
    "begin",
    "deploy",
    "deploy_features",
    "filled",
    "freeze",
]

TRAINING_FILE = Path(__file__).with_name("training.sql")
CALORIES_FILE = Path(__file__).with_name("calories.sql")
SIMILAR_FILE = Path(__file__).with_name("similar.sql")
TRAYS_FILE = Path(__file__).with_name("trays.sql")
_VALUE = re.compile(r"(?<!:):(\w+)")
Value = str | int | tuple[str, ...]
Told = dict[str, Any]  # what the training service says of a deployed function

_JOBS = "SELECT id, state, reason FROM ml_udf.jobs WHERE dataset = :dataset"


class TrainingFailed(Exception):
    """A job ended without a model; the text says why."""


@dataclass(frozen=True, slots=True)
class Study:
    """Models that learn from one dataset, and the budget that they share.

    functions: SQL function → what of the job answers it: `ensemble`, `best`, or one of the models.
    file: begins with the three statements that freeze, train and deploy.
    """

    dataset: str
    models: tuple[str, ...]
    budget: str
    functions: Mapping[str, str]
    file: Path = TRAINING_FILE


class Notes:
    """What was begun and deployed, as JSON in a file: {"jobs": {dataset: …}, "functions": {name: …}}."""

    def __init__(self, file: Path) -> None:
        self._file = file
        known = json.loads(file.read_text()) if file.is_file() else {}
        self._known: dict[str, dict[str, dict[str, Any]]] = {"jobs": {}, "functions": {}} | known

    def job(self, dataset: str) -> dict[str, Any]:
        """What was begun last for a dataset: `job`, and the `snapshot` and `statement` that it came of."""
        return self._known["jobs"].get(dataset, {})

    def function(self, name: str) -> dict[str, Any]:
        """What was said when a function was deployed last, and of which `job`."""
        return self._known["functions"].get(name, {})

    def write(self, kind: str, name: str, note: dict[str, Any]) -> None:
        """Keep a note; the file is replaced as a whole."""
        self._known[kind][name] = note
        coming = self._file.with_suffix(".coming")
        coming.write_text(json.dumps(self._known, indent=1))
        os.replace(coming, self._file)


def freeze(engine: Engine, study: Study, console: Console) -> str:
    """Make the study's dataset of the lessons as they are now; its snapshot."""
    statement, *_ = read_queries(study.file)
    ((snapshot,),) = _say(engine, statement, console, dataset=study.dataset)
    console.print(f"→ {snapshot}\n", highlight=False)
    return str(snapshot)


def begin(engine: Engine, study: Study, snapshot: str, notes: Notes, console: Console) -> int:
    """The number of the job that does the study on a snapshot: begun now, or by an earlier run.

    What still trains on other rows, or by another statement, is cancelled.
    """
    _, train, *_ = read_queries(study.file)
    values: dict[str, Value] = {
        "dataset": study.dataset,
        "models": study.models,
        "budget": study.budget,
    }
    wanted = {"snapshot": snapshot, "statement": filled(train.sql, **values)}
    noted = notes.job(study.dataset)
    kept = None
    for job, state, _reason in engine.ask(filled(_JOBS, dataset=study.dataset))[1]:
        if noted == wanted | {"job": job} and state in ("running", "done"):
            kept = job
            console.print(f"Job {job} has {'done' if state == 'done' else 'begun'} that in an earlier run.\n")
        elif state == "running":
            engine.ask(f"SELECT ml_udf.cancel({job})")
    if kept is not None:
        return int(kept)
    ((begun,),) = _say(engine, train, console, **values)
    console.print(f"→ {begun}\n", highlight=False)
    notes.write("jobs", study.dataset, wanted | {"job": begun})
    return int(begun)


def deploy(engine: Engine, study: Study, job: int, notes: Notes, console: Console) -> dict[str, Told]:
    """Make the study's functions answer with what its job has found; for each, what the service said of it.

    Functions of the same job from an earlier run stay as they are. Raises `TrainingFailed`.
    """
    for number, state, reason in engine.ask(filled(_JOBS, dataset=study.dataset))[1]:
        if number == job and state != "done":
            raise TrainingFailed(f"job {job} on {study.dataset} is {state}: {reason}")
    served = {name for (name,) in engine.ask("SELECT name FROM ml_udf.functions")[1]}
    _, _, statement, *_ = read_queries(study.file)
    for function, choose in study.functions.items():
        if function not in served or notes.function(function).get("job") != job:
            _deploy(engine, statement, notes, console, function=function, job=job, choose=choose)
    return {function: notes.function(function) for function in study.functions}


def deploy_features(engine: Engine, function: str, job: int, notes: Notes, console: Console) -> None:
    """Make `function` answer what the job's best model sees in a photo, unless an earlier run has."""
    if notes.function(function).get("job") != job:
        statement, *_ = read_queries(SIMILAR_FILE)
        _deploy(engine, statement, notes, console, function=function, job=job)


def _deploy(engine: Engine, statement: Query, notes: Notes, console: Console, **values: Value) -> None:
    ((told,),) = _say(engine, statement, console, **values)
    told = json.loads(told) if isinstance(told, str) else told
    console.print(f"→ {', '.join(told['models'])}\n", highlight=False)
    notes.write("functions", str(values["function"]), {**told, "job": values["job"]})


def filled(sql: str, **values: Value) -> str:
    """The statement with an SQL literal in the place of each `:name`. Raises KeyError."""
    return _VALUE.sub(lambda found: _literal(values[found[1]]), sql)


def _say(engine: Engine, query: Query, console: Console, **values: Value) -> list[tuple[Any, ...]]:
    sql = filled(query.sql, **values)
    print_asked(console, engine.name, query.title, sql)
    return engine.ask(sql)[1]


def _literal(value: Value) -> str:
    if isinstance(value, tuple):
        return f"ARRAY[{', '.join(map(_literal, value))}]"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
