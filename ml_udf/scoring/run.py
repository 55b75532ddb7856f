"""A run: pages read, asked and stored, three of them on the way at once.

The caller's thread reads; threads ask. While the server works on two pages, the next is read and the one
before is stored: on one page alone, a worker that runs a batch in each of its threads has work for half of
them. Passes are made until none meets a row that changed under it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ml_udf.client.request_pool import RequestPool
from ml_udf.client.statement import Outcome
from ml_udf.errors import MlUdfError
from ml_udf.scoring.asking import Asking
from ml_udf.scoring.layout import Layout
from ml_udf.scoring.pages import Page, Store, first_rows, next_rows
from ml_udf.scoring.request import ScoreRequest
from ml_udf.scoring.writing import writing_into

__all__ = ["ScoreProgress", "score"]

PAGES_IN_FLIGHT = 3
MAX_PASSES = 5
_END_WAIT_S = 1.0


@dataclass(slots=True)
class ScoreProgress:
    """How far a run is. `answered` and `failed` are stored; `missed` rows had changed and are due again."""

    due: int
    answered: int = 0
    failed: int = 0
    missed: int = 0
    first_fault: MlUdfError | None = None
    began_s: float = 0.0

    @property
    def stored(self) -> int:
        """Rows that are done."""
        return self.answered + self.failed

    @property
    def rows_per_s(self) -> float:
        """Over the whole run."""
        return self.stored / max(1e-6, time.monotonic() - self.began_s)


def score(
    store: Store,
    asking: Asking,
    layout: Layout,
    request: ScoreRequest,
    *,
    on_wait: Callable[[], None] | None = None,
    on_progress: Callable[[ScoreProgress], None] = lambda _: None,
) -> ScoreProgress:
    """Score every row that is due.

    on_wait      called in this thread at least every 50 ms; what it raises ends the run
    on_progress  called in this thread before the first page and after each transaction

    Everything stored is committed, whatever happens. With `on_error='error'` a faulty row raises its error,
    after the good rows of its page, and of the other pages on the way, are stored. Raises what the store and
    `Asking.answers` raise.
    """
    so_far = ScoreProgress(store.due_rows(request.row_limit), began_s=time.monotonic())
    job = asking.job if asking.job is not None and asking.job.kind == "table" else None
    if job is not None:
        job.rows, job.done = so_far.due, 0
    on_progress(so_far)

    def written(answers: Sequence[Outcome], stored: int) -> None:
        so_far.missed += len(answers) - stored
        failed = min(stored, sum(answer.error is not None for answer in answers))
        so_far.failed += failed
        so_far.answered += stored - failed
        if job is not None:
            job.done = so_far.stored
        on_progress(so_far)

    writing = writing_into(store, asking.version, written, on_wait)

    def wait() -> None:
        writing.look()
        if on_wait is not None:
            on_wait()

    pool = RequestPool()
    try:
        for _ in range(MAX_PASSES):
            missed = so_far.missed
            left = None if request.row_limit is None else request.row_limit - so_far.stored
            pages = _pages(store, layout, request, left, so_far)
            for page, answers in pool.run(pages, asking.answers, max_in_flight=PAGES_IN_FLIGHT, on_wait=wait):
                writing.add(*_to_store(page, answers, request, layout, so_far))
            # A pass ends only when all its pages are stored: the next one must not read them as due.
            writing.finish()
            if so_far.first_fault is not None and request.on_error == "error":
                raise so_far.first_fault
            if so_far.missed == missed:
                break
    except MlUdfError:
        writing.finish()  # what was answered before is not lost
        raise
    finally:
        writing.drop()
        asking.wait_idle(_END_WAIT_S)
        pool.close()
    return so_far


def _pages(
    store: Store, layout: Layout, request: ScoreRequest, left: int | None, so_far: ScoreProgress
) -> Iterator[Page]:
    after = None
    rows = first_rows(layout.input.kind or "text", request.batch_rows)
    while left is None or left > 0:
        if so_far.first_fault is not None and request.on_error == "error":
            return  # what is on the way is stored; nothing new is asked
        page = store.page(after, rows if left is None else min(rows, left))
        if not page:
            return
        yield page
        after = page.keys[-1]
        rows = next_rows(page, request.batch_rows)
        left = None if left is None else left - len(page)


def _to_store(
    page: Page, answers: Sequence[Outcome], request: ScoreRequest, layout: Layout, so_far: ScoreProgress
) -> tuple[Page, Sequence[Outcome]]:
    """The rows of a page that are to be stored; the run's first fault is noted."""
    faulty = [row for row, answer in enumerate(answers) if answer.error is not None]
    fault = answers[faulty[0]].error if faulty else None
    if fault is not None:
        fault.detail = fault.detail or _row(page, faulty[0], layout)
        so_far.first_fault = so_far.first_fault or fault
    if faulty and request.on_error == "error":
        good = [row for row, answer in enumerate(answers) if answer.error is None]
        page = Page(_of(page.keys, good), _of(page.hashes, good), _of(page.values, good))
        answers = _of(answers, good)
    return page, answers


def _row(page: Page, row: int, layout: Layout) -> str:
    names = ", ".join(column.name for column in layout.key)
    return f"row ({names}) = ({', '.join(page.keys[row])}) of {layout.source}"


def _of(items: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [items[row] for row in rows]
