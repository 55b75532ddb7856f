"""A watch's rows and notes on PostgreSQL, for one connection of one worker.

    step()    a few notes are taken, their rows asked, the answers stored, the notes deleted: one transaction,
              so whoever dies in it leaves the notes for the next one
    sweep()   the whole table: what is due is asked, what has no row is cleared; the notes that wanted it go

Each transaction ends by counting in the watch's own row, and only if that is still the one this worker knows:
else everything is rolled back and `WatchChanged` raised. A row is stored, or noted again, or needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ml_udf.client.statement import Outcome
from ml_udf.client.transport import Abort
from ml_udf.errors import MlUdfError, WrongType
from ml_udf.scoring.asking import Asking
from ml_udf.scoring.layout import Layout
from ml_udf.scoring.pages import Key, Page, first_rows, next_rows
from ml_udf.scoring.postgres_catalog import Parameter, Sql
from ml_udf.scoring.postgres_store import PostgresStore, writing
from ml_udf.scoring.run import score
from ml_udf.scoring.texts import array_literal
from ml_udf.scoring.watch import LOOK, Watch, retry_s
from ml_udf.scoring.watch_queries import NoteQueries, WatchQueries

__all__ = ["WatchChanged", "WatchStore"]

LOOK_AGAIN_S = 1.0  # at a row that somebody else held
_BAD_KEY = "22"  # data_exception: a key is no value of its column's type any more
# What a row can be refused with by its table: its type, a constraint, a trigger that raises.
_REFUSALS = ("22", "23", "44", "P0")


class WatchChanged(Exception):
    """The watch was edited, paused or dropped, or another version of its function answers now."""


@dataclass(slots=True)
class _Taken:
    """Some notes: the places of all, and what their keys are."""

    places: list[str] = field(default_factory=list)
    keys: dict[Key, tuple[str, int]] = field(default_factory=dict)  # when noted first, attempts
    left: list[tuple[str, int, list[Key]]] = field(default_factory=list)  # too many for this time


@dataclass(slots=True)
class _Settled:
    """What became of rows that were asked."""

    answered: int = 0
    failed: int = 0
    missed: list[Key] = field(default_factory=list)  # not stored: held by another, or refused
    faults: list[tuple[Key, MlUdfError]] = field(default_factory=list)  # stored in place of an answer


class WatchStore:
    """`ml_udf.scoring.pages.Store` for a sweep, and the steps between sweeps."""

    gathers = False

    def __init__(self, sql: Sql, watch: Watch, layout: Layout, version: str) -> None:
        self._sql = sql
        self._watch = watch
        self._layout = layout
        self._version = version
        self._rows_store = PostgresStore(sql, layout, version)
        self._notes = NoteQueries(watch.id, watch.revision, version)
        self._queries = WatchQueries(layout, version)
        self._batch_rows = watch.definition.batch_rows
        self._rows = first_rows(layout.input.kind or "text", self._batch_rows)

    # ── notes ────────────────────────────────────────────────────────────────────────────────────

    def step(self, asking: Asking, abort: Abort) -> bool:
        """Settle a few notes; False where none is due.

        Raises `WatchChanged`, what `Asking.answers` raises, and the database's errors: then nothing was
        changed, and the caller ends the transaction.
        """
        taken = self._take()
        if not taken.places:
            self._sql.commit()
            return False
        try:
            found = self._present(taken)
        except self._sql.Error as error:
            if not _state(error).startswith(_BAD_KEY):
                raise
            self._sql.rollback()
            self._look_at_all()
            return True
        due = [row for row in found if row["due"]]
        page = Page([self._key(row) for row in due], [row["h"] for row in due], [row["v"] for row in due])
        again = any(taken.keys[key][1] for key in page.keys)
        settled = self._store(page, asking.answers(page, abort) if page else [], again=again)
        gone = [self._key(row) for row in found if row["answered"] and not row["there"]]
        if gone:
            self._sql.change(self._queries.clear(), *_columns(gone))
        if not self._layout.beside:
            settled.missed = self._amiss(list(taken.keys))
        self._note_again(taken, settled)
        self._sql.change(self._notes.forget(), array_literal(taken.places))
        self._tally(settled)
        self._sql.commit()
        if page:
            self._rows = next_rows(page, self._batch_rows)
        return True

    def wait(self) -> None:
        """Have writers notify; notes that come before they know it are there to be taken afterwards."""
        self._sql.change(self._notes.wait())
        self._sql.commit()

    def keep_fault(self, error: str) -> None:
        """Show an error that stopped a whole try."""
        self._sql.change(self._notes.fault(), error)
        self._sql.commit()

    # ── the whole table ──────────────────────────────────────────────────────────────────────────

    def wants_sweep(self) -> str | None:
        """The notes that want one, for `sweep`; None where there are none."""
        (found,) = self._sql.rows(self._notes.sweep())
        self._sql.commit()
        wanted: str | None = found["ids"]
        return wanted

    def sweep(self, asking: Asking, wanted: str, on_wait: Callable[[], None]) -> None:
        """Bring the whole table up to date; then forget the notes that `wanted` it.

        Raises as `score`, `AlreadyRunning`, `WatchChanged`.
        """
        self._rows_store.lock()
        try:
            score(self, asking, self._layout, self._watch.request, on_wait=on_wait)
            self._clear_forsaken(on_wait)
            self._sql.change(self._notes.swept(), wanted)
            self._sql.change(self._notes.counted(), "")
            self._tally(_Settled())
            self._sql.commit()
        finally:
            self._sql.rollback()
            self._rows_store.unlock()
            self._sql.commit()

    def due_rows(self, row_limit: int | None) -> int:
        """How many rows are due; the view shows it."""
        due = self._rows_store.due_rows(row_limit)
        self._sql.change(self._notes.counted(), str(due))
        self._tally(_Settled())
        self._sql.commit()
        return due

    def page(self, after: Key | None, rows: int) -> Page:
        """The next rows that are due."""
        return self._rows_store.page(after, rows)

    def write(self, page: Page, answers: Sequence[Outcome], version: str) -> int:
        """Store answers in one transaction; what could not be stored is noted."""
        taken = _Taken(keys=dict.fromkeys(page.keys, ("", 0)))
        settled = self._store(page, answers, again="errors" in self._layout.rescore)
        if not self._layout.beside:
            settled.missed = self._amiss(page.keys)
        self._note_again(taken, settled)
        self._tally(settled, swept_rows=len(page))
        self._sql.commit()
        return settled.answered + settled.failed

    def stop_writing(self) -> None:
        """Nothing is written by another thread."""

    def _clear_forsaken(self, on_wait: Callable[[], None]) -> None:
        after: Key | None = None
        while True:
            on_wait()
            found = self._sql.rows(self._queries.forsaken(after, self._batch_rows), *(after or ()))
            keys = [self._key(row) for row in found]
            if not keys:
                self._sql.commit()
                return
            self._sql.change(self._queries.clear(), *_columns(keys))
            missed = self._amiss(keys) if not self._layout.beside else []
            self._note_again(_Taken(keys=dict.fromkeys(keys, ("", 0))), _Settled(missed=missed))
            self._tally(_Settled())
            self._sql.commit()
            after = keys[-1]

    # ── parts of both ────────────────────────────────────────────────────────────────────────────

    def _take(self) -> _Taken:
        taken = _Taken()
        width = len(self._layout.key)
        for note in self._sql.rows(self._notes.take(self._rows)):
            taken.places.append(note["place"])
            keys: list[Key] = [(key,) if width == 1 else tuple(key) for key in note["keys"]]
            room = max(0, self._rows - len(taken.keys))
            for key in keys[:room]:
                first, attempts = taken.keys.get(key, (note["noted_at"], 0))
                taken.keys[key] = (first, max(attempts, note["attempts"]))
            if keys[room:]:
                taken.left.append((note["noted_at"], note["attempts"], keys[room:]))
        return taken

    def _present(self, taken: _Taken) -> list[dict[str, Any]]:
        again = ["true" if attempts else "false" for _, attempts in taken.keys.values()]
        return self._sql.rows(self._queries.present(), *_columns(list(taken.keys)), array_literal(again))

    def _store(self, page: Page, answers: Sequence[Outcome], *, again: bool) -> _Settled:
        settled = _Settled()
        if not page:
            return settled
        if self._layout.beside:
            found = self._sql.rows(self._queries.free(), *_columns(page.keys))
            free = {self._key(row) for row in found}
            settled.missed += [key for key in page.keys if key not in free]
            rows = [row for row, key in enumerate(page.keys) if key in free]
            page, answers = _of(page, rows), [answers[row] for row in rows]
        self._store_some(page, answers, again, settled)
        return settled

    def _store_some(self, page: Page, answers: Sequence[Outcome], again: bool, settled: _Settled) -> None:
        """By halves where the table refuses a row, so that it stands alone."""
        if not page:
            return
        self._sql.change("SAVEPOINT ml_udf_page")
        try:
            statement, parameters = writing(
                self._sql,
                self._layout,
                page,
                answers,
                lambda vector: self._queries.store(vector, again=again),
            )
            stored = {self._key(row) for row in self._sql.rows(statement, *parameters)}
        except self._sql.Error as error:
            if not _state(error).startswith(_REFUSALS):
                raise
            self._sql.change("ROLLBACK TO SAVEPOINT ml_udf_page")
            if len(page) > 1:
                middle = len(page) // 2
                for begin, end in ((0, middle), (middle, len(page))):
                    self._store_some(page.part(begin, end), answers[begin:end], again, settled)
            elif answers[0].error is None:
                refused = WrongType(f"the answer was refused: {str(error).splitlines()[0]}")
                self._store_some(page, [Outcome(error=refused)], again, settled)
            else:  # not even the error can be stored
                settled.faults.append((page.keys[0], answers[0].error))
            return
        self._sql.change("RELEASE SAVEPOINT ml_udf_page")
        for key, answer in zip(page.keys, answers, strict=True):
            if key not in stored:
                settled.missed.append(key)
            elif answer.error is None:
                settled.answered += 1
            else:
                settled.failed += 1
                settled.faults.append((key, answer.error))

    def _amiss(self, keys: Sequence[Key]) -> list[Key]:
        return [self._key(row) for row in self._sql.rows(self._queries.amiss(), *_columns(keys))]

    def _note_again(self, taken: _Taken, settled: _Settled) -> None:
        for first, attempts, keys in taken.left:
            self._note(keys, first, attempts, 0.0)
        if settled.missed:
            self._note(settled.missed, None, 0, LOOK_AGAIN_S)
        later: dict[tuple[int, float], list[Key]] = {}
        for key, error in settled.faults:
            attempts = taken.keys[key][1] + 1
            delay_s = retry_s(error, attempts)
            if delay_s is not None:
                later.setdefault((attempts, delay_s), []).append(key)
        for (attempts, delay_s), keys in later.items():
            self._note(keys, None, attempts, delay_s)

    def _note(self, keys: Sequence[Key], first: str | None, attempts: int, delay_s: float) -> None:
        told = [array_literal(key) for key in keys]
        text = array_literal([key for (key,) in keys]) if len(keys[0]) == 1 else "{" + ",".join(told) + "}"
        self._sql.change(
            self._notes.note(), text, str(len(keys)), first or "now", str(attempts), repr(delay_s)
        )

    def _tally(self, settled: _Settled, *, swept_rows: int = 0) -> None:
        told = (str(settled.answered), str(settled.failed), str(swept_rows))
        counted = self._sql.rows(self._notes.tally(), *told)
        if not counted:
            self._sql.rollback()
            raise WatchChanged

    def _look_at_all(self) -> None:
        """The keys of some notes cannot be read: forget them, and look at the whole table instead."""
        for note in self._sql.rows(self._notes.take(self._rows)):
            self._sql.change(self._notes.forget(), array_literal([note["place"]]))
        self._sql.change(LOOK, str(self._watch.id))
        self._sql.commit()

    def _key(self, row: dict[str, Any]) -> Key:
        return tuple(row[f"k{at}"] for at in range(len(self._layout.key)))


def _columns(keys: Sequence[Key]) -> list[Parameter]:
    return [array_literal(column) for column in zip(*keys, strict=True)]


def _of(page: Page, rows: Sequence[int]) -> Page:
    return Page(
        [page.keys[row] for row in rows],
        [page.hashes[row] for row in rows],
        [page.values[row] for row in rows],
    )


def _state(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""
