"""From what a worker's members answered to what a function answers: combined, thresholded, defaulted.

The one rule for it. Pure; the server and `ml_udf.local` share it, so that a function answers the same with
and without a server. Knows the worker's form of an answer, and no wire of the function's callers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from gpu_worker.tasks import Task
from gpu_worker.wire.protocol import Answer, Column, MemberAnswer, RowError
from server.ensemble.combine import OwnRule, Vote, combine, combine_by, needs_of
from server.ensemble.evidence import subset_of
from server.ensemble.fit import Fit
from server.ensemble.proxy_rule import ProxyRule
from server.ensemble.threshold import NO_CONFIDENT_ANSWER, with_threshold
from server.record import record

__all__ = ["AnswerRule", "FunctionAnswer"]


@record
class FunctionAnswer:
    """The answers to `rows` rows, in their order.

    columns: by name, of so many rows each · errors: by row; such a row's other columns mean nothing
    answered_by: the members that answered all rows; where not all were asked of the same, `by_row` says it of
    each · defaulted: rows that got the function's default answer
    """

    rows: int
    columns: Mapping[str, Column]
    errors: Sequence[RowError]
    answered_by: str
    defaulted: frozenset[int] = frozenset()
    by_row: Sequence[str] = ()

    def answered(self, first: int, rows: int) -> Iterator[tuple[int, str]]:
        """Of rows [first, first + rows), in order: how many, and the members that answered all of these."""
        if not self.by_row:
            yield rows, self.answered_by
            return
        for members, alike in groupby(self.by_row[first : first + rows]):
            yield len(list(alike)), members


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """How a function answers.

    members: by their key on the worker, the name and the accuracy of each · combine: a rule of `combine`
    min_confidence: from 0 to 1; a row below it gets `default`, or an error where that is None
    fit: what was fitted of the members, for the rules that use it · thresholds: by class, from which score on
    it is answered, where rows may have several classes or none; () where the member's own suffice
    weights: of members by name, in their mean; 1 of those that it does not name
    proxy: of a member that may answer alone in place of all others; None where nobody does
    """

    function: str
    task: Task
    combine: str
    classes: Sequence[str]
    members: Mapping[str, tuple[str, float]]
    min_confidence: float = 0.0
    default: str | None = None
    fit: Fit | None = None
    thresholds: Sequence[float] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    proxy: ProxyRule | None = None

    def needs(self, members: int) -> tuple[str, ...]:
        """The columns that each of so many members must bring, beyond those that it answers by default."""
        needed = needs_of(
            self.combine,
            members,
            value=self.task.value.name,
            is_fitted=self.fit is not None,
            is_thresholded=bool(self.thresholds),
        )
        return needed if self.proxy is None else tuple(dict.fromkeys((*needed, "scores")))

    def in_context(self, shifts: tuple[float, ...]) -> AnswerRule:
        """How it answers in a context; shifts: as in `Fit.in_context`. Without a fit there are no weights."""
        return self if self.fit is None else replace(self, fit=self.fit.in_context(shifts))

    def answer(self, told: Answer, by: OwnRule | None = None) -> FunctionAnswer:
        """By the function's rule, or `by` another one that reads scores.

        Raises KeyError for a member or a column that is not known, ValueError as `combine` does.
        """
        votes = [self._vote(member) for member in told.members]
        if self.proxy is not None:
            votes = self.proxy.heard(votes)
        if self.proxy is not None and [vote.member for vote in votes] == [self.proxy.name]:
            columns = self.proxy.answer(votes[0], self.classes)
        elif by is None:
            columns = combine(
                self.combine,
                votes,
                self.classes,
                self.fit,
                value=self.task.value.name,
                thresholds=self.thresholds,
            )
        else:
            columns = combine_by(by, votes, self.classes, self.fit)
        rows, answered_by = votes[0].rows, ",".join(vote.member for vote in votes)
        if self.min_confidence <= 0.0:
            return FunctionAnswer(rows, columns, told.errors, answered_by)
        found = with_threshold(
            self.function,
            self.task,
            columns,
            {error.index for error in told.errors},
            min_confidence=self.min_confidence,
            default=self.default,
        )
        refused = [RowError(row, NO_CONFIDENT_ANSWER, why) for row, why in found.refusals.items()]
        errors = [*told.errors, *refused] if refused else told.errors
        return FunctionAnswer(rows, found.columns, errors, answered_by, found.defaulted)

    @property
    def _judged(self) -> Fit | None:
        """What is known of its members on held-out rows, if that is of its own rule."""
        return self.fit if self.fit is not None and self.combine == self.fit.rule else None

    def _vote(self, answer: MemberAnswer) -> Vote:
        name, accuracy = self.members[answer.model]
        columns = {column.name: column for column in answer.columns}
        return Vote(name, accuracy, columns, self.weights.get(name, 1.0))

    def expected_by_row(
        self,
        rows: int,
        columns: Mapping[str, Column],
        answered_by: Iterable[tuple[Sequence[int], str]],
        unknown: Iterable[int],
    ) -> list[float]:
        """By row, how often such an answer is right, or what it is worth; nan: not known, as of a vector.

        columns: of so many rows each · answered_by: rows, and the members that answered them, as
        `FunctionAnswer` names them · unknown: rows at fault, and those that got the default answer
        """
        expected = [math.nan] * rows
        if not self.task.picks_one and self._judged is None:
            return expected
        confidence = columns.get(self.task.confidence or "")
        sure: list[float] = [math.nan] * rows if confidence is None else list(confidence.values)
        for these, members in answered_by:
            told = self.expected_accuracies(members.split(","), [sure[row] for row in these])
            for row, each in zip(these, told, strict=True):
                expected[row] = each
        for row in unknown:
            expected[row] = math.nan
        return expected

    def expected_accuracies(self, members: Sequence[str], confidences: Sequence[float]) -> list[float]:
        """How often answers of these members are right that are as sure as each of these; nan: not known.

        Counted on held-out rows, where the rule is the one that was fitted: of the rows that the members
        answered as surely, else of all rows. Of one member alone, by no fit, it is that member's accuracy.
        Of answers that are no classes it is what the members' are worth together (worths.py).
        """
        fit = self._judged
        if fit is None or not set(members) <= set(fit.members):
            alone = dict(self.members.values()).get(members[0], 0.0) if len(members) == 1 else 0.0
            return [alone or math.nan] * len(confidences)  # 0: nobody has measured it
        places = fit.subset(members)
        evidence, subset = fit.evidence, subset_of(places)
        if evidence is not None and subset in evidence.edges:
            right: list[float] = evidence.right.tolist()
            return [right[evidence.state_of(subset, each)] for each in confidences]
        together = fit.of(places)
        return [math.nan if together is None else together.accuracy] * len(confidences)
