"""The answers to a page's inputs, whatever happens to the server meanwhile.

A fault is one of three kinds. What is *passing* (no server, a broken connection, a full queue, no answer in
time) is waited for. What is *the input's* settles its rows. What is *the server's own* may be either: a row
can kill the worker that decodes it, and its neighbours with it. So such rows are asked again by halves, until
those at fault stand alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from ml_udf.client import CallStats, Client
from ml_udf.client.bulk_job import BulkJob
from ml_udf.client.column import Value
from ml_udf.client.memo import Memo
from ml_udf.client.statement import Binding, Outcome
from ml_udf.client.transport import Abort
from ml_udf.config import Options
from ml_udf.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    MlUdfError,
    Overloaded,
    ServerFault,
    ServerUnreachable,
)
from ml_udf.scoring.pages import Page
from ml_udf.scoring.texts import unheld

__all__ = ["PASSING", "Asking"]

PASSING = (ServerUnreachable, ConnectionLost, Overloaded, DeadlineExceeded)
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
SICK_AFTER = 16  # requests in a row that fail whole: then the server is suspected


class Asking:
    """Asks one version of a function, from several threads; equal inputs of a run are sent about once."""

    def __init__(
        self,
        client: Client,
        binding: Binding,
        version: str,
        options: Options,
        *,
        patience_s: float,
        keeps_faults: bool = True,
        job: BulkJob | None = None,
        column: str | None = None,
    ) -> None:
        """keeps_faults: whether an input that met its own fault is not sent a second time. job: what it all
        is a part of, as the server lists it. column: the type of PostgreSQL's that takes the answers
        """
        self.job = job
        self.version = version
        self._client = client if job is None else client.of_job(job)
        self._binding = binding
        self._options = replace(options, on_error="null")
        self._patience_s = patience_s
        self._keeps_faults = keeps_faults
        self._column = column
        self._memo = Memo()  # by the inputs' hashes; in bytes, since an answer may be a long vector
        self._proof: tuple[str, Value] | None = None  # a row that was answered
        self.stats = CallStats()
        self._idle = threading.Condition()  # its lock guards the memo too
        self._under_way = 0

    def answers(self, page: Page, abort: Abort) -> list[Outcome]:
        """One answer per row: a value, or the input's own fault.

        Raises what no row is to blame for: a passing fault that outlasted the patience, a version that is
        gone, a wrong option. Raises `Cancelled` once `abort` is set.
        """
        with self._idle:
            self._under_way += 1
            known: dict[Hashable, Outcome] = {
                key: answer for key in page.hashes if (answer := self._memo.get(key)) is not None
            }
        try:
            unknown = {k: v for k, v in zip(page.hashes, page.values, strict=True) if k not in known}
            settled = self._settled(unknown, abort) if unknown else {}
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()
        fresh: dict[Hashable, Outcome] = dict(settled.items())
        with self._idle:
            self.stats.rows += len(page)
            self._memo.learn(
                {key: found for key, found in fresh.items() if self._keeps_faults or found.error is None}
            )
        known.update(fresh)
        return [known[key] for key in page.hashes]

    def wait_idle(self, timeout_s: float) -> None:
        """Until no thread is asking any more: after an abort, so that the server learns of it."""
        with self._idle:
            self._idle.wait_for(lambda: not self._under_way, timeout_s)

    def _settled(self, rows: Mapping[str, Value], abort: Abort) -> dict[str, Outcome]:
        answers = self._asked(rows, self._options, abort)
        suspects = {key: rows[key] for key, answer in answers.items() if _suspicious(answer)}
        if suspects:
            answers.update(self._halved(suspects, abort))
        return answers

    def _halved(self, suspects: Mapping[str, Value], abort: Abort) -> dict[str, Outcome]:
        """The suspects' answers; those at fault even alone keep their fault.

        Level by level, so that rows which can be answered soon are. No row is blamed unless the server
        answers another one at that time: else its fault is raised.
        """
        settled: dict[str, Outcome] = {}
        alone: list[str] = []
        failures = 0  # requests in a row of which no row was answered
        heaps = deque([list(suspects)])
        while heaps:
            heap = heaps.popleft()
            answers = self._together(heap, suspects, abort)
            failed = [key for key in heap if _suspicious(answers[key])]
            failures = 0 if len(failed) < len(heap) else failures + 1
            if failures == SICK_AFTER:
                self._see_it_well(answers[failed[0]], abort)
                failures = 0
            settled.update(answers)
            middle = len(failed) // 2
            if len(heap) > 1:
                heaps.extend(half for half in (failed[:middle], failed[middle:]) if half)
            else:
                alone += failed
        if alone:
            self._see_it_well(settled[alone[0]], abort)
            for key in alone:  # once more: the server may have been ill when they were asked
                settled.update(self._together([key], suspects, abort))
        return settled

    def _together(self, keys: Sequence[str], rows: Mapping[str, Value], abort: Abort) -> dict[str, Outcome]:
        """The answers of rows that are sent as one request."""
        one_request = replace(self._options, batch_rows=len(keys), max_in_flight=1)
        return self._asked({key: rows[key] for key in keys}, one_request, abort)

    def _see_it_well(self, failed: Outcome, abort: Abort) -> None:
        """Raise the fault of `failed`, unless a row that was answered before is answered now."""
        proof = self._proof
        if proof is not None:
            key, value = proof
            if not _suspicious(self._together([key], {key: value}, abort)[key]):
                return
        if failed.error is not None:
            raise failed.error

    def _count(self, call: CallStats) -> None:
        with self._idle:
            self.stats.add_asking(call)

    def _asked(self, rows: Mapping[str, Value], options: Options, abort: Abort) -> dict[str, Outcome]:
        """The rows' answers, passing faults waited for. Raises one that outlasts the patience."""

        def check() -> None:
            if abort:
                raise Cancelled("the run has ended")

        answers: dict[str, Outcome] = {}
        pause_s, give_up_s = FIRST_PAUSE_S, time.monotonic() + self._patience_s
        waiting = dict(rows)
        while True:
            check()
            found = self._client.predict(
                self._binding.function,
                list(waiting.values()),
                options,
                version=self.version or None,
                input_name=self._binding.input_name,
                output_name=self._binding.output_name,
                on_wait=check,
            )
            self._count(found.stats)
            passing: MlUdfError | None = None
            again: dict[str, Value] = {}
            for key, value, confidence, error in zip(
                waiting, found.values, found.confidences, found.errors, strict=True
            ):
                if isinstance(error, PASSING):
                    passing = passing or error
                    again[key] = waiting[key]
                    continue
                if error is None:
                    self._proof = (key, waiting[key])
                    error = None if self._column is None else unheld(value, self._column)
                answers[key] = Outcome(value, confidence) if error is None else Outcome(error=error)
            if passing is None:
                return answers
            if len(again) < len(waiting):  # it moves: the patience begins anew
                pause_s, give_up_s = FIRST_PAUSE_S, time.monotonic() + self._patience_s
            if time.monotonic() + pause_s >= give_up_s:
                raise passing
            abort.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            waiting = again


def _suspicious(answer: Outcome) -> bool:
    return isinstance(answer.error, ServerFault)
