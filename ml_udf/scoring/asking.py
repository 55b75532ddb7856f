"""The answers to a page's inputs, whatever happens to the server meanwhile.

A fault is one of three kinds. What is *passing* (no server, a broken connection, a full queue, no answer in
time) is waited for. What is *the input's* settles its rows. What is *the server's own* may be either: a row
can kill the worker that decodes it, and its neighbours with it. So such rows are asked again by halves, until
those at fault stand alone.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from ml_udf.client import Client
from ml_udf.column import Value
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
from ml_udf.statement import Answer, Binding
from ml_udf.transport import Abort

__all__ = ["Asking"]

PASSING = (ServerUnreachable, ConnectionLost, Overloaded, DeadlineExceeded)
MEMO_ENTRIES = 100_000
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
SICK_AFTER = 3  # rows at fault alone, with none answered in between: then it is the server that is at fault


class Asking:
    """Asks one version of a function, from several threads; equal inputs of a run are sent about once."""

    def __init__(
        self, client: Client, binding: Binding, version: str, options: Options, *, patience_s: float
    ) -> None:
        self.version = version
        self._client = client
        self._binding = binding
        self._options = replace(options, on_error="null")
        self._patience_s = patience_s
        self._memo: OrderedDict[str, Answer] = OrderedDict()
        self._idle = threading.Condition()  # its lock guards the memo too
        self._under_way = 0

    def answers(self, page: Page, abort: Abort) -> list[Answer]:
        """One answer per row: a value, or the input's own fault.

        Raises what no row is to blame for: a passing fault that outlasted the patience, a version that is
        gone, a wrong option. Raises `Cancelled` once `abort` is set.
        """
        with self._idle:
            self._under_way += 1
            known = {key: self._memo[key] for key in page.hashes if key in self._memo}
        try:
            unknown = {k: v for k, v in zip(page.hashes, page.values, strict=True) if k not in known}
            fresh = self._settled(unknown, abort) if unknown else {}
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()
        with self._idle:
            self._memo.update(fresh)
            while len(self._memo) > MEMO_ENTRIES:
                self._memo.popitem(last=False)
        known.update(fresh)
        return [known[key] for key in page.hashes]

    def wait_idle(self, timeout_s: float) -> None:
        """Until no thread is asking any more: after an abort, so that the server is told of it."""
        with self._idle:
            self._idle.wait_for(lambda: not self._under_way, timeout_s)

    def _settled(self, rows: Mapping[str, Value], abort: Abort) -> dict[str, Answer]:
        answers = self._asked(rows, self._options, abort)
        suspects = {key: rows[key] for key, answer in answers.items() if _suspicious(answer)}
        if suspects:
            answers.update(self._halved(suspects, abort))
        return answers

    def _halved(self, suspects: Mapping[str, Value], abort: Abort) -> dict[str, Answer]:
        """The suspects' answers; those at fault even alone keep their fault."""
        settled: dict[str, Answer] = {}
        guilty = 0
        heaps = [list(suspects)]
        while heaps:
            heap = heaps.pop()
            one_request = replace(self._options, batch_rows=len(heap), max_in_flight=1)
            answers = self._asked({key: suspects[key] for key in heap}, one_request, abort)
            failed = [key for key in heap if _suspicious(answers[key])]
            if len(failed) < len(heap):
                guilty = 0
            if len(heap) == 1 and failed:
                guilty += 1
                fault = answers[heap[0]].error
                if guilty >= SICK_AFTER and fault is not None:
                    raise fault
                failed = []
            settled.update((key, answers[key]) for key in heap if key not in failed)
            middle = len(failed) // 2
            heaps += [half for half in (failed[middle:], failed[:middle]) if half]
        return settled

    def _asked(self, rows: Mapping[str, Value], options: Options, abort: Abort) -> dict[str, Answer]:
        """The rows' answers, passing faults waited for. Raises one that outlasts the patience."""

        def check() -> None:
            if abort:
                raise Cancelled("the run has ended")

        answers: dict[str, Answer] = {}
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
            passing: MlUdfError | None = None
            again: dict[str, Value] = {}
            for key, value, confidence, error in zip(
                waiting, found.values, found.confidences, found.errors, strict=True
            ):
                if isinstance(error, PASSING):
                    passing = passing or error
                    again[key] = waiting[key]
                else:
                    answers[key] = Answer(value, confidence, error)
            if passing is None:
                return answers
            if len(again) < len(waiting):  # it moves: the patience begins anew
                pause_s, give_up_s = FIRST_PAUSE_S, time.monotonic() + self._patience_s
            if time.monotonic() + pause_s >= give_up_s:
                raise passing
            abort.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            waiting = again


def _suspicious(answer: Answer) -> bool:
    return isinstance(answer.error, ServerFault)
