"""Labels for rows: who among a function's members was right, kept, and learned from.

    give → labels checked → all members asked, as bulk → kept and learned (one transaction) → answered by
    give_by_id → labels checked → what members said, in the id ↗

Each member answers every labelled row, so that what is learned does not depend on who was asked. Rows wait
for idle places. Many rows go in parts, a transaction each, so that what members say of them is bounded; they
answer the next part while one is kept. What
a selection policy observes, anybody's code, runs before the transaction, by what is known then; if that has
changed when it begins, it runs again. Knows neither HTTP nor tables.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.protocol import RowError
from server.catalog.functions import Form, Function
from server.ensemble.combine import Vote, combine
from server.ensemble.feedback import Feedback, learned, learned_in, learned_numbers
from server.ensemble.learning import taught, taught_by
from server.ensemble.log_pool import at_temperatures
from server.ensemble.selection import SelectionPolicy
from server.ensemble.threshold import NO_CONFIDENT_ANSWER
from server.errors import BadOption, Overloaded
from server.http.body import Receive
from server.observability.metrics import Metrics
from server.serving.call_service import CallService
from server.serving.calls import Call, Reply
from server.serving.learned_state import LearnedState, context_of, feedback_of, refits_of
from server.serving.prediction_ids import (
    PredictionId,
    PredictionIds,
    UnknownPrediction,
    input_digest,
    told_of,
)
from server.store.feedback import FeedbackRepository, LabelledRow, Learn, Learned

__all__ = ["FeedbackService", "Given"]

log = logging.getLogger("ml_udf.server.feedback")

_UNKNOWN_LABEL = "unknown_label"
_UNKNOWN_PREDICTION = "unknown_prediction"
_SHOWN_CLASSES = 10
_SHOWN = 100  # characters of a label
_TRIES = 5
_NUMBERS_AT_ONCE = 4 << 20  # of what members said
_ROWS_A_PART = 1024  # of a transaction: members answer the next ones meanwhile


@dataclass(frozen=True, slots=True)
class Given:
    """What became of the rows of one request. outcomes: of each row; None for NULL and for one at fault.

    `counted`: the input's first label · `changed`: it had another one · `repeated`: it had this one
    """

    function: Function
    outcomes: Sequence[str | None]
    errors: Mapping[int, RowError]


@dataclass(frozen=True, slots=True)
class _Labelled:
    """Rows that have a label. of_input: digest → the rows of that input, in order."""

    of_input: Mapping[str, Sequence[int]]
    errors: dict[int, RowError]


class FeedbackService:
    """Of a function one transaction at a time; requests wait for the members' answers side by side."""

    def __init__(
        self,
        repository: FeedbackRepository,
        learned_state: LearnedState,
        calls: CallService,
        metrics: Metrics,
        ids: PredictionIds | None = None,
    ) -> None:
        self._ids = ids or PredictionIds(b"")
        self._repository = repository
        self._learned_state = learned_state
        self._calls = calls
        self._metrics = metrics
        # Of each function: a policy of one function's own that hangs keeps nobody else's labels waiting.
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def give(
        self,
        function: Function,
        form: Form,
        rows: Sequence[bytes | RowError | None],
        labels: Sequence[str | None],
        receive: Receive,
        caller: str = "",
        context: str = "",
        media_roots: tuple[str, ...] | None = None,
    ) -> Given:
        """Keep the label of each row and learn from it. A row or a label that is None counts nothing.

        rows: as the function takes them in that form; an error for one that cannot be read. receive: as in
        `CallService.ask`. context: in which they are given, as `Contexts.digest` writes it. media_roots: as
        those of a `Call`. Raises `BadOption` for a function without classes, `VersionGone` for one that was
        deployed anew meanwhile, and what `CallService.ask` raises: of many rows the first ones may have been
        kept then, and are `repeated` when they are given again.
        """
        _check(function)
        if function.answers_numbers:
            labels = _numbers(labels)
        labelled = await asyncio.to_thread(_labelled, function, form, rows, labels, context)
        outcomes, new = await self._new(function, labelled, labels)
        most = min(_ROWS_A_PART, _rows_at_once(function))
        parts = [new[first : first + most] for first in range(0, len(new), most)]

        def ask(part: Sequence[tuple[str, int]]) -> asyncio.Task[_Said]:
            inputs = [rows[place] for _, place in part]
            return asyncio.create_task(self._asked(function, form, inputs, receive, caller, media_roots))

        asking = ask(parts[0]) if parts else None
        for number, part in enumerate(parts):
            assert asking is not None, "each part is asked while the one before is kept"
            said = await asking
            asking = ask(parts[number + 1]) if number + 1 < len(parts) else None
            try:
                await self._keep_part(function, part, said, labelled, labels, outcomes, context)
            except BaseException:
                if asking is not None:
                    asking.cancel()
                raise
        return self._counted(Given(function, outcomes, labelled.errors))

    async def give_by_id(
        self, function: Function, predictions: Sequence[object], labels: Sequence[str | None]
    ) -> Given:
        """As `give`, of rows that were answered, by the ids of these answers; None counts nothing.

        Nobody is asked: what the members said is in the ids, and in which context. Where only some members
        answered, only what these said teaches. What is no id of the function's present deployment is an error
        of its row. Many are taken in parts, one after the other: an id is short, and what it says is a number
        for each class and member.
        """
        _check(function)
        if function.answers_numbers:
            labels = _numbers(labels)
        most = _rows_at_once(function)
        outcomes: list[str | None] = []
        errors: dict[int, RowError] = {}
        for first in range(0, len(predictions), most):
            end = first + most
            given = await self._by_ids(function, predictions[first:end], labels[first:end])
            outcomes += given.outcomes
            for place, error in given.errors.items():
                errors[first + place] = replace(error, index=first + place)
        return self._counted(Given(function, outcomes, errors))

    async def _by_ids(
        self, function: Function, predictions: Sequence[object], labels: Sequence[str | None]
    ) -> Given:
        told, labelled = await asyncio.to_thread(_told, self._ids, function, predictions, labels)
        outcomes, new = await self._new(function, labelled, labels)
        alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for _, place in new:
            alike.setdefault((told[place].context, told[place].members), []).append(place)
        for (context, members), places in alike.items():
            pairs = [(told[place].digest, str(labels[place])) for place in places]
            said = np.stack([told[place].scores for place in places], axis=1)
            answered = list[bool]()
            if function.answers_numbers:
                own = np.array([told[place].answer for place in places], np.float64)[None, :, None]
                said = np.concatenate([own, said])
            else:
                said = said.astype(np.float32)
                answered = [_label(function, told[place]) == labels[place] for place in places]
            by = None if len(members) == len(function.members) else members
            kept = await self._taught(function, pairs, said, answered, context, by)
            for place, what in zip(places, kept, strict=True):
                outcomes[place] = what
        return Given(function, outcomes, labelled.errors)

    async def _new(
        self, function: Function, labelled: _Labelled, labels: Sequence[str | None]
    ) -> tuple[list[str | None], list[tuple[str, int]]]:
        """Outcomes as if nothing were new; and the last row of each input whose label is: digest, row."""
        last = {digest: places[-1] for digest, places in labelled.of_input.items()}
        outcomes: list[str | None] = [None] * len(labels)
        for places in labelled.of_input.values():
            for place in places:
                outcomes[place] = "repeated"
        known = await asyncio.to_thread(self._repository.labels, function.name, function.version, list(last))
        return outcomes, [(each, place) for each, place in last.items() if known.get(each) != labels[place]]

    def _counted(self, given: Given) -> Given:
        name = given.function.name
        for outcome in filter(None, given.outcomes):
            self._metrics.feedback[name, outcome] += 1
        if given.errors:
            self._metrics.feedback[name, "refused"] += len(given.errors)
        return given

    async def _asked(
        self,
        function: Function,
        form: Form,
        rows: list[Any],
        receive: Receive,
        caller: str,
        media_roots: tuple[str, ...] | None,
    ) -> _Said:
        """What each member says of the rows. Raises `Overloaded` where not all have answered them."""
        call = Call.of_all_members(function, form, rows, caller=caller, media_roots=media_roots)
        reply = await self._calls.ask(call, receive, time.monotonic())
        width, kind = (1, np.float64) if function.answers_numbers else (len(function.classes), np.float32)
        scores: NDArray[np.floating[Any]] = np.zeros((len(function.members), len(rows), width), kind)
        for first, answer in reply.told:
            told = told_of(function, answer)
            if not all(by_all or row in reply.errors for row, by_all in enumerate(told.by_all, first)):
                raise Overloaded(f"not all members of {function.name} have answered; try again", 1.0)
            scores[:, first : first + told.scores.shape[1]] = told.scores
        return _Said(scores, reply)

    async def _keep_part(
        self,
        function: Function,
        part: Sequence[tuple[str, int]],
        said: _Said,
        labelled: _Labelled,
        labels: Sequence[str | None],
        outcomes: list[str | None],
        context: str,
    ) -> None:
        """Keep these rows, (digest, place among the labels); what became of each is in `outcomes` then."""
        fine: list[int] = []  # numbers among these rows
        for number, (digest, _) in enumerate(part):
            fault = said.reply.errors.get(number)
            # That no answer is sure enough is no fault of the row.
            if fault is None or fault.code == NO_CONFIDENT_ANSWER:
                fine.append(number)
                continue
            for place in labelled.of_input[digest]:
                labelled.errors[place] = RowError(place, fault.code, fault.message)
                outcomes[place] = None
        if not fine:
            return
        told = [(part[number][0], str(labels[part[number][1]])) for number in fine]
        scores, answered = said.scores, list[bool]()
        if function.answers_numbers:
            own = np.array(said.reply.columns["value"].values, np.float64)[None, :, None]
            scores = np.concatenate([own, scores])
        elif not function.learns:
            answered = _answered(function, said, fine, told)
        kept = await self._taught(function, told, scores[:, fine], answered, context)
        for number, what in zip(fine, kept, strict=True):
            outcomes[part[number][1]] = what

    async def _taught(
        self,
        function: Function,
        labelled: Sequence[tuple[str, str]],
        probabilities: NDArray[np.floating[Any]],
        right: Sequence[bool],
        context: str,
        by: tuple[int, ...] | None = None,
    ) -> Sequence[str]:
        """Keep labels of inputs, (digest, label), and learn from them; what became of each.

        probabilities: what each member said, [members, rows, classes], uncalibrated; of numbers the values
        of the function and of each member, [1 + members, rows, 1]. right: whether the function's answers
        were, where it learns nothing, or only some members answered: `by`, their places; None for all.
        """
        rows = [
            LabelledRow(
                digest,
                label,
                # To be refitted on: by what all said, and not of a function that learns nothing.
                np.ascontiguousarray(probabilities[:, number]).tobytes()
                if function.learns and by is None
                else b"",
            )
            for number, (digest, label) in enumerate(labelled)
        ]
        truth: Sequence[Any]
        if function.answers_numbers:
            truth = [float(label) for _, label in labelled]
        else:
            place_of = {label: place for place, label in enumerate(function.classes)}
            truth = [place_of[label] for _, label in labelled]
        answered = None if function.learns and by is None else right
        keep = self._repository.keep
        policy = await self._learned_state.learner(function)
        async with self._one_at_a_time.setdefault(function.name, asyncio.Lock()):
            for _ in range(_TRIES):
                served = self._learned_state.served(function)
                observed = None
                if policy is not None:
                    observed = await self._observed(
                        served, policy, labelled, probabilities, truth, context, by
                    )
                learn = _learn(served, probabilities, truth, answered, observed, context, by)
                try:
                    outcomes, learned = await asyncio.to_thread(
                        keep, function.name, function.version, rows, learn, context
                    )
                except _LearnedElsewhere:
                    await self._learned_state.follow(served)
                    continue
                self._learned_state.take(served, learned.deployment)
                if learned.context is not None:
                    self._learned_state.take_context(served, context, learned.context)
                return outcomes
        raise Overloaded(
            f"other servers teach {function.name} so fast that this one cannot; try again", retry_after_s=1.0
        )

    async def _observed(
        self,
        function: Function,
        policy: SelectionPolicy,
        labelled: Sequence[tuple[str, str]],
        probabilities: NDArray[np.floating[Any]],
        truth: Sequence[int],
        context: str,
        by: tuple[int, ...] | None,
    ) -> _Observed:
        """What the function's selection policy learns of the rows among these that teach, as it seems now.

        In a thread that holds no lock of the registry: the policy may be anybody's code.
        """
        digests = [digest for digest, _ in labelled]
        known = await asyncio.to_thread(self._repository.labels, function.name, function.version, digests)
        teaching = tuple(
            place for place, (digest, label) in enumerate(labelled) if known.get(digest) != label
        )
        before = function.feedback or feedback_of(function, None)
        told = at_temperatures(probabilities[:, list(teaching)], _temperatures(function))
        labels = [truth[place] for place in teaching]
        state = await asyncio.to_thread(_selection, function, policy, before, told, labels, context, by)
        return _Observed(before, teaching, state)


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    """What members said of rows: [members, rows, classes], uncalibrated; and the function's reply."""

    scores: NDArray[np.floating[Any]]
    reply: Reply


@dataclass(frozen=True, slots=True)
class _Observed:
    """The state of a selection policy that has observed the `teaching` rows, by what was known `before`."""

    before: Feedback
    teaching: tuple[int, ...]
    state: dict[str, Any] | None

    def holds(self, now: Feedback, teaching: Sequence[int]) -> bool:
        """Whether it is these rows that teach, and what is known now is what was known then."""
        was = self.before
        known = (now.rows, now.taught, now.selection) == (was.rows, was.taught, was.selection)
        return known and tuple(teaching) == self.teaching


class _LearnedElsewhere(Exception):
    """What another server has learned meanwhile is not known here, and this would have to rest on it."""


def _rows_at_once(function: Function) -> int:
    """Of which what all members say is held at a time."""
    return max(1, _NUMBERS_AT_ONCE // (len(function.members) * max(1, len(function.classes))))


def _temperatures(function: Function) -> list[float]:
    """By which the members' answers are calibrated, in their order."""
    fit = function.rule.fit
    if fit is None:
        return [1.0] * len(function.members)
    return [fit.temperatures[fit.members.index(member.name)] for member in function.members]


def _learn(
    function: Function,
    probabilities: NDArray[np.floating[Any]],
    truth: Sequence[Any],
    answered: Sequence[bool] | None,
    observed: _Observed | None,
    name: str,
    by: tuple[int, ...] | None,
) -> Learn:
    """probabilities, truth, by: as in `_taught`. name: of the context; "" for none.

    observed: by the selection policy that learns; None where none does.
    """
    fit = (function.refit or function.fit) if function.learns else None
    refits = 0 if function.feedback is None else function.feedback.refits
    if fit is not None:
        probabilities = at_temperatures(probabilities, _temperatures(function))

    def learn(kept: Learned, teaching: Sequence[int], new: int) -> Learned:
        if refits_of(kept.deployment) != refits:
            raise _LearnedElsewhere
        try:
            before = feedback_of(function, kept.deployment)
            own = None if kept.context is None else context_of(function, kept.context)
        except ValueError as exc:
            log.error("feedback begun anew function=%s reason=%s", function.name, exc)
            before, own = feedback_of(function, None), None
        if observed is not None and not observed.holds(before, teaching):
            raise _LearnedElsewhere
        told = probabilities[:, list(teaching)], [truth[row] for row in teaching]
        if function.answers_numbers:
            return Learned(learned_numbers(before, told[0][:, :, 0], told[1], new=new, by=by).to_json())
        right = None if answered is None else [answered[row] for row in teaching]
        context = None
        if fit is None or not name:
            after = learned(before, fit, *told, right, new=new, by=by)
        else:
            after, context = learned_in(own, before, fit, *told, right, new=new, by=by)
        if observed is not None:
            after = replace(after, selection=observed.state)
        return Learned(after.to_json(), None if context is None else context.to_json())

    return learn


def _selection(
    function: Function,
    policy: SelectionPolicy,
    before: Feedback,
    probabilities: NDArray[np.floating[Any]],
    labels: Sequence[int],
    context: str,
    by: tuple[int, ...] | None,
) -> dict[str, Any] | None:
    """What these rows teach the function's selection policy; what cannot be kept is lost, and logged."""
    fit = function.rule.fit
    assert fit is not None
    assert fit.evidence is not None, "a policy is made from it"
    known = before.selection
    is_same = known is not None and known["policy"] == policy.name
    state = known["state"] if known is not None and is_same else policy.init()
    if by is None:
        state = taught(policy, state, fit.evidence, probabilities, labels, context=context, first=before.rows)
    else:
        state = taught_by(policy, state, by, probabilities, labels, context=context)
    try:
        json.dumps(state)
    except (TypeError, ValueError) as exc:
        log.error("a selection policy's state is no JSON function=%s reason=%s", function.name, exc)
        return None
    return {"policy": policy.name, "state": state}


def _check(function: Function) -> None:
    if function.bare:
        raise BadOption(f"{function.name} is a model; feedback is given on a function, which may learn of it")
    if function.pipeline is not None:
        stages = ", ".join(stage.name for stage in function.pipeline.stages)
        raise BadOption(
            f"{function.name} is a pipeline, which learns nothing itself; give its stages: {stages}"
        )
    if not function.answers_numbers and (not function.classes or function.task.column("scores") is None):
        raise BadOption(f"{function.name} answers {function.task.name}, which has no labels to give")


def _labelled(
    function: Function,
    form: Form,
    rows: Sequence[bytes | RowError | None],
    labels: Sequence[str | None],
    context: str,
) -> _Labelled:
    """Blocking: images are many bytes to digest."""
    classes = frozenset(function.classes)
    errors: dict[int, RowError] = {}
    of_input: dict[str, list[int]] = {}
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        if row is None or label is None:
            continue
        if isinstance(row, RowError):
            errors[place] = row
        elif (fault := _label_fault(function, classes, label)) is not None:
            errors[place] = RowError(place, _UNKNOWN_LABEL, fault)
        else:
            of_input.setdefault(input_digest(form, row, context), []).append(place)
    return _Labelled(of_input, errors)


def _told(
    ids: PredictionIds, function: Function, predictions: Sequence[object], labels: Sequence[str | None]
) -> tuple[dict[int, PredictionId], _Labelled]:
    """What the ids say, by row; and the rows that have a label. Blocking: they may be many."""
    told: dict[int, PredictionId] = {}
    of_input: dict[str, list[int]] = {}
    errors: dict[int, RowError] = {}
    classes = frozenset(function.classes)
    classes_of = None if function.answers_numbers else len(classes)
    for place, (text, label) in enumerate(zip(predictions, labels, strict=True)):
        if text is None or label is None:
            continue
        if (fault := _label_fault(function, classes, label)) is not None:
            errors[place] = RowError(place, _UNKNOWN_LABEL, fault)
            continue
        try:
            found = ids.read(function.name, function.version, classes_of, text, len(function.members))
        except UnknownPrediction as exc:
            errors[place] = RowError(place, _UNKNOWN_PREDICTION, str(exc))
            continue
        told[place] = found
        of_input.setdefault(found.digest, []).append(place)
    return told, _Labelled(of_input, errors)


def _numbers(labels: Sequence[str | None]) -> list[str | None]:
    """Each number in one way; what is none as it is."""
    return [None if label is None else _as_number(label) or label for label in labels]


def _label_fault(function: Function, classes: frozenset[str], label: str) -> str | None:
    """What is wrong with a label; None for nothing."""
    if function.answers_numbers:
        is_number = _as_number(label) is not None
        return None if is_number else f"{label[:_SHOWN]!r} is no number, and {function.name} answers numbers"
    return None if label in classes else _no_class(function, label)


def _label(function: Function, told: PredictionId) -> str | None:
    """The label that was answered: of one that was not sure enough the function's default one."""
    return function.label_at(None if told.answer is None else int(told.answer))


def _as_number(label: str) -> str | None:
    """A number, however it is written, in one way; None for what is none, and for one without an end."""
    try:
        number = float(label)
    except ValueError:
        return None
    return repr(number) if math.isfinite(number) and "_" not in label else None


def _no_class(function: Function, label: str) -> str:
    classes = function.classes
    more = f" and {len(classes) - _SHOWN_CLASSES} more" if len(classes) > _SHOWN_CLASSES else ""
    named = ", ".join(classes[:_SHOWN_CLASSES]) + more
    return f"{label[:_SHOWN]!r} is no class of {function.name}; there are {named}"


def _answered(
    function: Function, said: _Said, fine: Sequence[int], labelled: Sequence[tuple[str, str]]
) -> list[bool]:
    """Whether the members' answer is the label, where their rule has no weights to learn.

    By what they say themselves: an answer below the function's threshold would have become its default one.
    """
    classes, columns = function.classes, said.reply.columns
    votes = []
    for member, scores in zip(function.members, said.scores, strict=True):
        named = [classes[place] for place in scores.argmax(axis=1).tolist()]
        sure = scores.max(axis=1).astype("<f4").tobytes()
        own = {
            **columns,
            "label": replace(columns["label"], data=named),
            "confidence": replace(columns["confidence"], data=sure),
            "scores": replace(columns["scores"], data=scores.astype("<f4").tobytes()),
        }
        votes.append(Vote(member.name, member.accuracy, own))
    together = combine(function.combine, votes, classes)["label"].values
    return [together[number] == label for number, (_, label) in zip(fine, labelled, strict=True)]
