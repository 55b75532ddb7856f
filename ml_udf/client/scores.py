"""The probabilities of a function's classes: by name, of one class, of the most probable. Knows no engine."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from ml_udf.client.column import Value
from ml_udf.client.function_info import SCORES
from ml_udf.client.statement import Binding, Statement
from ml_udf.errors import BadOption, UnknownLabel, WrongType

__all__ = ["Scores", "asking_scores", "check_k", "read_scores", "score_of", "scores_of", "top_of"]

Scores: TypeAlias = dict[str, float]  # class → probability
Read = TypeVar("Read")

_SHOWN_CLASSES = 12


def asking_scores(function: str) -> Binding:
    """What a statement asks of a function for its classes' probabilities."""
    return Binding(function, output_name=SCORES)


def read_scores(
    statement: Statement,
    values: Sequence[Value],
    read: Callable[[Scores, int], Read],
    on_wait: Callable[[], None] | None = None,
) -> list[Read | None]:
    """What `read` makes of each row's scores and its number; None for NULL. Faults as in `Statement.values`.

    statement: one that `asking_scores`. Raises `BadOption` of a function that answers with no probabilities.
    """

    @functools.cache
    def classes() -> Sequence[str]:
        return statement.info(on_wait).classes

    def fit(row: int, probabilities: Any) -> Read:  # noqa: ANN401  # of the wire's types
        return read(scores_of(classes(), probabilities), row)

    return statement.values(values, on_wait, fit)


def scores_of(classes: Sequence[str], probabilities: Sequence[float] | float) -> Scores:
    """Class → probability, in the order of the classes.

    Raises `BadOption` where there are more of either, `WrongType` for a probability that is no number: every
    comparison by order would take it for the largest.
    """
    if isinstance(probabilities, int | float):  # of one class alone
        probabilities = [probabilities]
    if len(classes) != len(probabilities):
        raise BadOption(
            f"the server answered {len(probabilities)} probabilities for {len(classes)} classes",
            hint="a function with scores names its classes, and answers one for each",
        )
    for name, probability in zip(classes, probabilities, strict=True):
        if not math.isfinite(probability):
            raise WrongType(
                f"the server answered {probability} as the probability of class {name!r}",
                hint="the model behind it gives what is no number for this input",
            )
    return dict(zip(classes, probabilities, strict=True))


def score_of(scores: Scores, wanted: str) -> float:
    """The probability of one class. Raises `UnknownLabel` where there is no such class."""
    found = scores.get(wanted)
    if found is None:
        raise UnknownLabel(f"there is no class {wanted!r}", hint=_classes_near(wanted, tuple(scores)))
    return found


@functools.lru_cache(maxsize=16)  # of a thousand classes it takes milliseconds, and every row may ask for it
def _classes_near(wanted: str, classes: tuple[str, ...]) -> str:
    """Which classes may have been meant: those whose names are nearest, then the others in their order."""
    by_folded = {name.casefold(): name for name in reversed(classes)}
    near = difflib.get_close_matches(wanted.casefold(), by_folded, _SHOWN_CLASSES)
    ordered = list(dict.fromkeys([by_folded[name] for name in near] + list(classes)))
    shown = ", ".join(ordered[:_SHOWN_CLASSES]) + (", …" if len(classes) > _SHOWN_CLASSES else "")
    return f"its classes{', the nearest by name first' if near else ''}: {shown}"


def top_of(scores: Scores, k: int) -> list[tuple[str, float]]:
    """The k most probable classes, or all where there are fewer; of equal ones the first. k: by `check_k`."""
    return sorted(scores.items(), key=lambda each: -each[1])[:k]


def check_k(k: int) -> int:
    """How many classes are asked for. Raises `BadOption` for less than one."""
    if k < 1:
        raise BadOption(f"k = {k}: at least one class has to be asked for", hint="such as top_k(…, 3)")
    return k
