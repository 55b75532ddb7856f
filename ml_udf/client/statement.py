"""One SQL statement's use of one function: a version pinned, answers remembered, faults counted.

Engines call a function many times within a statement: a vector of 2,048 rows, a batch of the plan node, or
a single row. `Statement` makes these one: the version is asked once, a value is computed once while the
memo holds it, a dead server is found dead once, and the rows that became NULL are counted for the one
warning. Knows no engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import is_
from typing import Any

from ml_udf.client import CallStats, Client
from ml_udf.client.column import Value
from ml_udf.client.exchange import ROW_FAULTS
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.memo import Memo, Outcome, memo_key, memo_keys, outcomes_of
from ml_udf.client.pending_call import PendingCall
from ml_udf.client.prediction import Prediction, short
from ml_udf.client.request_pool import WAIT_SLICE_S
from ml_udf.config import Options
from ml_udf.errors import MlUdfError, ServerUnreachable

__all__ = ["Binding", "Outcome", "Statement"]

_MAX_NULLED = 100_000  # so many inputs are counted exactly


@dataclass(frozen=True, slots=True)
class Binding:
    """Which function of which server an SQL function stands for.

    `input_name` and `output_name` are needed only where a server that is not ours has several. `detail`:
    whether it is also asked how each row was answered.
    """

    function: str
    input_name: str | None = None
    output_name: str | None = None
    detail: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A call that was begun with: its keys, and in which row each is."""

    rows: dict[Hashable, int]
    pending: PendingCall
    within: int


_NULL = Outcome()


class Statement:
    """The state of one (statement, function). Safe to call from the engine's several threads.

    deadline_s: when its time is over, on `time.monotonic()`'s clock; None = never. Each FETCH of a cursor has
    another one.
    """

    def __init__(
        self, client: Client, binding: Binding, options: Options, *, deadline_s: float | None = None
    ) -> None:
        self.binding = binding
        self.options = options
        self.version: str | None = None
        self.stats = CallStats()
        self._nulled: set[Hashable] = set()  # keys of the inputs whose rows were made NULL
        self._first_fault: MlUdfError | None = None
        self._reported = 0
        self._client = client
        self.deadline_s = deadline_s
        self._down: MlUdfError | None = None
        self._is_kept = False  # whether the server had answered all that was asked last before
        self._memo = Memo()
        self._claims: dict[Hashable, threading.Event] = {}  # what a thread is asking for; set when it is done
        self._begun: list[_Begun] = []
        self._lock = threading.Lock()
        self._pinning = threading.Lock()

    def values(
        self,
        values: Sequence[Value],
        on_wait: Callable[[], None] | None = None,
        fit: Callable[[int, Any], Any] | None = None,
        fits: Callable[[Sequence[Any]], bool] = lambda column: False,
    ) -> list[Any]:
        """One value per row. Raises the first fault, or makes its rows NULL and counts it (`on_error`).

        fit   (row, its answer) → the answer as the engine wants it; what it raises of `MlUdfError` is a fault
              of the row
        fits  whether a column of answers is as the engine wants it
        """
        raises = self.options.on_error == "error"
        answers = self.answers(values, on_wait, raise_faults=raises)
        if not any(answer.error for answer in answers):
            column = [answer.value for answer in answers]
            if fit is None or fits(column):
                return column
        found: list[Any] = []
        for row, (value, answer) in enumerate(zip(values, answers, strict=True)):
            fitted, fault = answer.value, answer.error
            if fit is not None and fitted is not None:
                try:
                    fitted = fit(row, fitted)
                except MlUdfError as misfit:
                    fitted, fault = None, misfit
                    if raises:
                        raise self._at_row(misfit, row, value) from None
            if fault is not None:
                self.made_null(value, fault)
            found.append(fitted)
        return found

    def info(self, on_wait: Callable[[], None] | None = None) -> FunctionInfo:
        """What the server says of the version that the statement asks; from memory once it has been asked."""
        return self._client.look_up(
            self.binding.function,
            version=self._pinned_version(on_wait),
            input_name=self.binding.input_name,
            output_name=self.binding.output_name,
            deadline_s=self.deadline_s,
            on_wait=on_wait,
        )

    def made_null(self, value: Value, fault: MlUdfError) -> None:
        """A row of this input is NULL because of that, and is to be warned of."""
        if len(self._nulled) < _MAX_NULLED:
            self._nulled.add(memo_key(value))
            self._first_fault = self._first_fault or fault

    def absorb(self, other: Statement) -> None:
        """Count the rows that another use of the same function made NULL as this one's."""
        self._nulled |= other._nulled
        self._first_fault = self._first_fault or other._first_fault

    def begin(
        self, values: Sequence[Value], on_wait: Callable[[], None] | None = None, *, within: int = 0
    ) -> bool:
        """Send the values that have no answer yet, without waiting: `values` and `answers` will.

        within: by which `forget` may know them again

        False where that cannot be done here; nothing is sent then. Raises what concerns the whole statement.
        """
        with self._lock:
            unknown = {
                key: value
                for key, value in zip(memo_keys(values), values, strict=True)
                if value is not None and key not in self._memo
            }
            for begun in self._begun:
                for key in unknown.keys() & begun.rows.keys():
                    del unknown[key]
        if not unknown or self._down is not None:
            return True
        try:
            pending = self._client.begin(
                self.binding.function,
                list(unknown.values()),
                replace(self._options_now(), on_error="null"),
                version=self._pinned_version(on_wait),
                input_name=self.binding.input_name,
                output_name=self.binding.output_name,
                deadline_s=self.deadline_s,
                on_wait=on_wait,
                detail=self.binding.detail,
            )
        except ROW_FAULTS:  # asking for the answers will meet it again, under on_error's rule
            return True
        if pending is None:
            return False
        with self._lock:
            self._begun.append(_Begun({key: row for row, key in enumerate(unknown)}, pending, within))
        return True

    def forget(self, since: int = 0) -> None:
        """Drop what was begun with and not answered: the server need not compute it.

        since: only what was begun `within` that, or a later one
        """
        with self._lock:
            begun = [each for each in self._begun if each.within >= since]
            self._begun = [each for each in self._begun if each.within < since]
        for each in begun:
            each.pending.drop()

    def fault_report(self) -> MlUdfError | None:
        """What one warning says of the rows that `values` made NULL; None where there is nothing new.

        The first fault, in whose message the inputs are counted. Inputs, not rows: an engine that batches
        asks once for all rows of equal input.
        """
        count, fault = len(self._nulled), self._first_fault
        if fault is None or count == self._reported:
            return None
        self._reported = count
        inputs = (
            "1 input" if count == 1 else f"{count:,} inputs" + (" or more" if count >= _MAX_NULLED else "")
        )
        return type(fault)(
            f"{self.binding.function}: {inputs} could not be answered and gave NULL; the first: "
            f"{fault.code}: {fault.message}",
            hint=fault.hint,
            detail=fault.detail,
        )

    def answers(
        self,
        values: Sequence[Value],
        on_wait: Callable[[], None] | None = None,
        *,
        raise_faults: bool = False,
    ) -> list[Outcome]:
        """One answer per row; faults are raised or reported in `Outcome.error`.

        Raises what concerns the whole statement (unknown function, bad option, cancel) in either case.
        """
        keys = memo_keys(values)
        answers = self._collected(keys, on_wait)
        unknown = {
            key: value
            for key, value in zip(keys, values, strict=True)
            if value is not None and key not in answers
        }
        while unknown:
            mine, others = self._claimed(unknown, answers)
            try:
                answers.update(self._ask(mine, on_wait, raise_faults))
            finally:
                self._released(mine)
            for claim in set(others.values()):
                while not claim.wait(WAIT_SLICE_S):
                    if on_wait is not None:
                        on_wait()
            # Where the other thread failed, or its answer is forgotten already, the next round asks here.
            unknown = {key: unknown[key] for key in others}
        self.stats.rows += len(values)
        self.stats.nulls += sum(map(is_, values, repeat(None)))
        found = [_NULL if value is None else answers[key] for key, value in zip(keys, values, strict=True)]
        if raise_faults:
            for row, answer in enumerate(found):
                if answer.error is not None:
                    raise self._at_row(answer.error, row, values[row]).with_traceback(None)
        return found

    def _at_row(self, error: MlUdfError, row: int, value: Value) -> MlUdfError:
        place = f"first at row {row + 1} of the call: {self.binding.function}({short(value)})"
        error.detail = error.detail or place
        return error

    def _claimed(
        self, unknown: Mapping[Hashable, Value], answers: dict[Hashable, Outcome]
    ) -> tuple[dict[Hashable, Value], dict[Hashable, threading.Event]]:
        """What this thread asks for now, and what others ask for; `answers` gets what is remembered."""
        mine: dict[Hashable, Value] = {}
        others: dict[Hashable, threading.Event] = {}
        claim = threading.Event()
        with self._lock:
            if not self._memo.has_any(unknown) and self._claims.keys().isdisjoint(unknown):
                self._claims.update(dict.fromkeys(unknown, claim))
                return dict(unknown), others
            for key, value in unknown.items():
                if (remembered := self._memo.get(key)) is not None:
                    answers[key] = remembered
                elif (under_way := self._claims.get(key)) is not None:
                    others[key] = under_way
                else:
                    mine[key] = value
                    self._claims[key] = claim
        return mine, others

    def _released(self, mine: Iterable[Hashable]) -> None:
        with self._lock:
            for claim in set(map(self._claims.pop, mine)):
                claim.set()

    def _ask(
        self, unknown: dict[Hashable, Value], on_wait: Callable[[], None] | None, raise_faults: bool
    ) -> dict[Hashable, Outcome]:
        if not unknown:
            return {}
        if self._down is not None:
            if raise_faults:
                raise self._down.with_traceback(None)  # it may have been raised before
            return self._all_failed(unknown, self._down)
        try:
            version = self._pinned_version(on_wait)
        except ROW_FAULTS as error:
            if raise_faults:
                raise
            return self._all_failed(unknown, error)
        prediction = self._client.predict(
            self.binding.function,
            list(unknown.values()),
            replace(self._options_now(), on_error="error" if raise_faults else "null"),
            version=version,
            input_name=self.binding.input_name,
            output_name=self.binding.output_name,
            deadline_s=self.deadline_s,
            on_wait=on_wait,
            detail=self.binding.detail,
        )
        return self._learnt(unknown, prediction)

    def _options_now(self) -> Options:
        return self.options.of_kept_rows() if self._is_kept else self.options

    def _learnt(self, keys: Iterable[Hashable], prediction: Prediction) -> dict[Hashable, Outcome]:
        told = (prediction.values, prediction.confidences, prediction.errors, prediction.details)
        fresh = dict(zip(keys, outcomes_of(*told), strict=True))
        with self._lock:
            self.stats.add_asking(prediction.stats)
            self._is_kept = 0 < prediction.stats.distinct <= prediction.stats.cached
            self._memo.learn(fresh)  # faults too: equal inputs of a statement have one answer
            if prediction.stats.failed_rows:
                self._note_down(fresh.values())
        return fresh

    def _collected(
        self, keys: Sequence[Hashable], on_wait: Callable[[], None] | None
    ) -> dict[Hashable, Outcome]:
        """The answers of what was begun with, as far as `keys` ask for it."""
        collected: dict[Hashable, Outcome] = {}
        for begun in list(self._begun):
            if not any(key in begun.rows for key in keys):
                continue
            with self._lock:
                if begun not in self._begun:
                    continue
                self._begun.remove(begun)
            prediction = begun.pending.wait(on_wait)
            collected.update(self._learnt(begun.rows, prediction))
        return collected

    def _pinned_version(self, on_wait: Callable[[], None] | None) -> str:
        # Asked once, under a lock of its own, by whichever of the engine's threads comes first.
        with self._pinning:
            if self.version is None:
                info = self._client.look_up(
                    self.binding.function,
                    input_name=self.binding.input_name,
                    output_name=self.binding.output_name,
                    deadline_s=self.deadline_s,
                    on_wait=on_wait,
                )
                self.version = info.version
            return self.version

    def _all_failed(self, unknown: dict[Hashable, Value], error: MlUdfError) -> dict[Hashable, Outcome]:
        failed = dict.fromkeys(unknown, Outcome(error=error))
        with self._lock:
            self._memo.learn(failed)
            self._note_down(failed.values())
        return failed

    def _note_down(self, answers: Iterable[Outcome]) -> None:
        for answer in answers:
            if isinstance(answer.error, ServerUnreachable):
                self._down = answer.error  # found dead once; the rest of the statement does not wait for it
