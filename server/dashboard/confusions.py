"""What functions answer to the test rows of snapshots, asked once for each version and kept.

    begin → the rows in parts, in the bulk class → Judged rows → counts for a page, rows behind a cell

Owns the asking and what is kept of it: numbers of rows, truths and answers, no inputs. Knows no page.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from server.access.view import View
from server.catalog.functions import Function
from server.catalog.jobs import Snapshot
from server.errors import BadOption, Overloaded, ServiceError
from server.services import Services
from server.supervision import Tasks
from server.training.datasets.asking import answers_to, check_fits
from server.training.datasets.contents import held_out_rows
from server.training.recipes import recipe_for

__all__ = ["MOST_ROWS", "Confusions", "Judged", "Judgement", "is_judged", "of_numbers"]

MOST_ROWS = 5_000  # of one snapshot, evenly over its test rows
_PART = 250  # rows asked at a time
_KEPT = 16
_AT_ONCE = 2

_Key: TypeAlias = tuple[str, int, str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """One test row. answer: None for a row at fault, or one that got no answer. off: of a number, how far it
    lies above the truth; None of classes.
    """

    number: int
    truth: str
    answer: str | None
    confidence: float | None
    off: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether the answer is the truth."""
        return self.answer == self.truth if self.off is None else self.off == 0.0


@dataclass(slots=True)
class Judgement:
    """What one version of a function answers to one snapshot, as far as it has got.

    wanted: rows that are asked; test_rows: those that there are. error: why it stopped; "" = it did not.
    """

    function: str
    version: int
    snapshot: str
    wanted: int = 0
    test_rows: int = 0
    rows: list[Judged] = field(default_factory=list)
    is_over: bool = False
    error: str = ""

    def so_far(self) -> Judgement:
        """A copy that stays as it is while the asking goes on."""
        return replace(self, rows=list(self.rows))

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """(truth, answer) → rows; those without an answer are left out."""
        return Counter((row.truth, row.answer) for row in self.rows if row.answer is not None)

    @property
    def unanswered(self) -> int:
        """Rows at fault."""
        return sum(row.answer is None for row in self.rows)

    @property
    def sureness(self) -> Sequence[tuple[float, bool]]:
        """(confidence, whether it was right) of every answer that says how sure it is."""
        return [
            (row.confidence, row.is_right)
            for row in self.rows
            if row.answer is not None and row.confidence is not None
        ]

    @property
    def offs(self) -> Sequence[float]:
        """How far every answer lies from the truth, where answers are numbers."""
        return [row.off for row in self.rows if row.off is not None]

    def behind(self, truth: str | None, answer: str | None) -> list[Judged]:
        """The rows of a cell, the surest first; None = whatever, but wrong ones alone. Of numbers, those that
        lie farthest off first.
        """
        found = [
            row
            for row in self.rows
            if row.answer is not None
            and truth in (None, row.truth)
            and answer in (None, row.answer)
            and (not row.is_right or truth is not None is not answer)
        ]
        return sorted(found, key=lambda row: (-abs(row.off or 0.0), -(row.confidence or 0.0)))


class Confusions:
    """Of one server. On the event loop."""

    def __init__(self, tasks: Tasks | None = None) -> None:
        self._tasks = tasks or Tasks()
        self._known: OrderedDict[_Key, Judgement] = OrderedDict()
        self._under_way = 0

    def get(self, function: Function, snapshot: Snapshot, view: View) -> Judgement | None:
        """What was asked already, or so far, by somebody whose paths reach as far. It changes no more:
        whoever looks at it reads a file meanwhile.
        """
        known = self._known.get(_key_of(function, snapshot, view))
        return None if known is None else known.so_far()

    def begin(self, services: Services, function: Function, snapshot: Snapshot, view: View) -> Judgement:
        """Ask, unless that was done; what failed is asked anew. Raises `BadOption`, `Overloaded`."""
        check_fits(function, snapshot)
        if not is_judged(function, snapshot):
            raise BadOption(f"the answers of {function.name} are no classes and no numbers of this dataset's")
        key = _key_of(function, snapshot, view)
        known = self._known.get(key)
        if known is not None and not known.error:
            return known
        if self._under_way >= _AT_ONCE:
            raise Overloaded(f"{_AT_ONCE} functions are being asked already; try again in a moment", 5.0)
        judgement = self._known[key] = Judgement(function.name, function.version, snapshot.id)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self._under_way += 1
        work = functools.partial(self._ask, services, function, snapshot, view, judgement)
        self._tasks.once("confusion", work(), f"answers of {function.key} to {snapshot.dataset}")
        return judgement

    async def close(self) -> None:
        """Ask no more."""
        await self._tasks.close()

    async def _ask(
        self, services: Services, function: Function, snapshot: Snapshot, view: View, judgement: Judgement
    ) -> None:
        try:
            file = services.datasets.file_of(snapshot)
            rows, judgement.test_rows = await asyncio.to_thread(held_out_rows, file, MOST_ROWS)
            judgement.wanted = len(rows)
            label = function.task.value.name
            names = {column.name for column in function.outputs}
            columns = [label, *(["confidence"] if "confidence" in names else [])]
            for first in range(0, len(rows), _PART):
                part = rows[first : first + _PART]
                inputs = [text for _, text, _ in part]
                told = await answers_to(
                    services.calls,
                    function,
                    snapshot,
                    inputs,
                    columns,
                    view.caller.key,
                    _stays,
                    view.media_roots,
                )
                sure = told.get("confidence", [None] * len(part))
                judge = _judged_number if of_numbers(function) else _judged_class
                judgement.rows += [
                    judge(number, truth, answer, _finite(confidence))
                    for (number, _, truth), answer, confidence in zip(part, told[label], sure, strict=True)
                ]
        except (ServiceError, OSError) as error:
            judgement.error = str(error) or type(error).__name__
        finally:
            judgement.is_over = True
            self._under_way -= 1


def of_numbers(function: Function) -> bool:
    """Whether a function answers with numbers, which lie more or less far off."""
    return function.task.reads == "values"


def is_judged(function: Function, snapshot: Snapshot) -> bool:
    """Whether a function's answers to a snapshot's rows are right or wrong, or lie so far off."""
    recipe = recipe_for(snapshot.spec["task"])
    if of_numbers(function):
        return function.task.name == recipe.name
    return function.task.picks_one and recipe.has_classes


def _judged_class(number: int, truth: str, answer: str | None, confidence: float | None) -> Judged:
    return Judged(number, truth, answer, confidence)


def _judged_number(number: int, truth: str, answer: float | None, confidence: float | None) -> Judged:
    told = _finite(answer)
    if told is None:
        return Judged(number, truth, None, confidence)
    return Judged(number, truth, f"{told:.6g}", confidence, told - float(truth))


def _key_of(function: Function, snapshot: Snapshot, view: View) -> _Key:
    return function.name, function.version, snapshot.id, view.media_roots


async def _stays() -> dict[str, object]:
    """Nobody hangs up: what is asked is for whoever looks next."""
    await asyncio.Event().wait()
    return {}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
