"""What SQL says of an evaluation, as the verbs of this package have it: one way for every engine.

The second argument of the verbs is a query, or the name of a dataset: a plain name is the latter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_udf.errors import BadOption
from ml_udf.evaluation.sources import Asker, DatasetRows, LabelledRow, QueryRows, Source
from ml_udf.evaluation.verbs import confusion_rows, evaluation_rows, importance_rows
from ml_udf.training import TrainingCalls

__all__ = ["COLUMNS", "names_dataset", "result_rows"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

# verb → the columns of its result, with DuckDB's types; PostgreSQL's stand in the extension's script.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "evaluate": {"metric": "VARCHAR", "value": "DOUBLE", "baseline": "DOUBLE", "rows": "BIGINT"},
    "confusion_matrix": {"actual": "VARCHAR", "predicted": "VARCHAR", "rows": "BIGINT"},
    "importance": {"feature": "VARCHAR", "importance": "DOUBLE", "spread": "DOUBLE", "metric": "VARCHAR"},
    "learning_curve": {
        "model": "VARCHAR",
        "trial": "BIGINT",
        "epoch": "BIGINT",
        "score": "DOUBLE",
        "metric": "VARCHAR",
    },
}


def names_dataset(data: str) -> bool:
    """Whether it is a dataset's name, and no query."""
    return _NAME.fullmatch(data.strip()) is not None


def result_rows(
    verb: str,
    given: Mapping[str, Any],
    calls: TrainingCalls,
    asker: Callable[[str], Asker],
    read: Callable[[str], Iterable[Sequence[LabelledRow]]],
) -> list[dict[str, Any]]:
    """The rows of `ml_udf.VERB(given)`.

    asker: of a function by its name · read: begins a query, page by page

    Raises `BadOption`, `UnknownColumn`, and the errors of the client.
    """
    if verb == "learning_curve":
        return _curve(calls, given.get("job"))
    source = _source(given, calls, asker, read)
    if verb == "evaluate":
        return evaluation_rows(source)
    if verb == "confusion_matrix":
        return confusion_rows(source)
    return importance_rows(source, repeats=_whole(given, "repeats"), seed=_whole(given, "seed"))


def _source(
    given: Mapping[str, Any],
    calls: TrainingCalls,
    asker: Callable[[str], Asker],
    read: Callable[[str], Iterable[Sequence[LabelledRow]]],
) -> Source:
    function, data = _text(given, "function"), _text(given, "data")
    target, column = given.get("target"), given.get("input")
    if names_dataset(data):
        if target is not None or column is not None:
            raise BadOption(
                f"{data!r} is a dataset, which has its own target and input",
                hint="leave them out, or give a query: 'SELECT …'",
            )
        return DatasetRows(calls, asker(function).info(), data.strip())
    if target is None:
        raise BadOption("target is missing: the query's column of what is right", hint="target => 'label'")
    return QueryRows(asker(function), lambda: read(data), target, column)


def _curve(calls: TrainingCalls, job: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # of SQL
    if isinstance(job, bool) or not isinstance(job, int):
        raise BadOption("'job' must be a whole number", hint="SELECT id FROM ml_udf.jobs")
    return [
        {
            "model": trial["model"],
            "trial": trial["trial"],
            "epoch": epoch,
            "score": score,
            "metric": trial.get("metric"),
        }
        for trial in calls.trials(job)
        for epoch, score in enumerate(trial.get("scores") or (), 1)
    ]


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadOption(f"{name!r} is missing", hint=f"{name} => '…'")
    return value


def _whole(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadOption(f"{name!r} must be a whole number", hint=f"{name} => 5")
    return value
