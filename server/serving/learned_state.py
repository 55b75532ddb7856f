"""What deployments have learned from labels: used as the registry has it, made anew when a member breaks.

    take       what labels have just taught answers from now on; a member that errs other than expected is
               looked for, and if there is one, its fit is made anew in a thread, kept, and used
    agreed     rows that all members were asked though no plan would: one that agrees with the others no more
               is left out, until it does again, or labels tell more
    follow     what other servers on the registry have learned is used here too, within seconds

What is beyond the bounds of what is kept is forgotten here as well, some at a time. Knows neither requests
nor tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.exc import SQLAlchemyError

from server.access.audit_entry import Auditing, entry_by_server
from server.catalog.catalog import Catalog
from server.catalog.functions import Function
from server.ensemble.agreement import RECENT_ROWS, agreed, broken, is_back
from server.ensemble.breakage import RefitNote
from server.ensemble.contexts import Context
from server.ensemble.feedback import Feedback, begun, begun_anew
from server.ensemble.fit import Fit
from server.ensemble.guard import back, guarded
from server.ensemble.refit import LEAST_ROWS, Due, refit, refit_due
from server.ensemble.selection import SelectionPolicy
from server.errors import ServiceError, UnknownFunction, VersionGone
from server.observability.metrics import Metrics
from server.serving.contexts import Contexts
from server.serving.dispatcher import Dispatcher
from server.store.feedback import FeedbackRepository, Labelled
from server.supervision import Tasks

__all__ = ["LearnedState", "context_of", "feedback_of", "refits_of", "with_feedback"]

log = logging.getLogger("ml_udf.server.learning")

_EVERY_S = 2.0
_FORGET_EVERY_S = 15.0


class LearnedState:
    """Of all functions of this server."""

    def __init__(
        self,
        repository: FeedbackRepository,
        catalog: Catalog,
        dispatcher: Dispatcher,
        metrics: Metrics,
        tasks: Tasks | None = None,
        contexts: Contexts | None = None,
        *,
        every_s: float = _EVERY_S,
        audit: Auditing | None = None,
    ) -> None:
        """audit: is told of each fit that is made anew."""
        self._repository = repository
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._tasks = tasks or Tasks()
        self._contexts = contexts or Contexts()
        self._every_s = every_s
        self._audit = audit
        self._turns: dict[str, int] = {}  # function's key → the last turn of its contexts that is known here
        self._revisions: dict[tuple[str, int], int] = {}  # as they were last seen
        self._under_way: set[str] = set()  # keys of functions whose fit is being made
        # Function's key → of the last rows that all members were asked: refits and labels before, who agreed.
        self._agreed: dict[str, deque[tuple[int, int, tuple[bool, ...]]]] = {}
        self._forgotten_s = -_FORGET_EVERY_S

    async def start(self) -> None:
        """Answer by what the registry's servers have learned, now and from now on."""
        await self.refresh()
        self._tasks.always("follow feedback", self._follow_all)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    @property
    def is_refitting(self) -> bool:
        """Whether a fit is being made anew."""
        return bool(self._under_way)

    def served(self, function: Function) -> Function:
        """The function as it answers now. Raises `VersionGone`."""
        try:
            versions = self._catalog.versions(function.name)
        except UnknownFunction as exc:
            raise VersionGone(f"{function.name} is no longer served") from exc
        for known in versions:
            if known.version == function.version and not known.bare:
                return known
        raise VersionGone(f"version {function.version} of {function.name} is no longer served")

    async def learner(self, function: Function) -> SelectionPolicy | None:
        """The selection policy that the function follows, where that learns from labels."""
        return await self._dispatcher.learner(function)

    def take(self, function: Function, kept: Mapping[str, Any] | None) -> None:
        """Answer by what the deployment has learned, if that is newer than what is known here.

        Nothing happens where another server has made a fit anew that is not known here: `follow` reads it.
        """
        try:
            known = self.served(function)
            if refits_of(kept) == _refits(known):
                self._use(known, replace(known, feedback=feedback_of(known, kept)))
        except VersionGone:
            return  # nobody asks it any more
        except ValueError as exc:
            log.error("feedback not used function=%s reason=%s", function.key, exc)

    def take_context(self, function: Function, digest: str, kept: Mapping[str, Any]) -> None:
        """Answer in a context by what it has just been taught."""
        with contextlib.suppress(VersionGone):  # nobody would forget it any more
            self._contexts.learn(self.served(function), [(digest, context_of(function, kept))])

    async def follow(self, function: Function) -> None:
        """Answer by what the registry has of it, whoever learned it. Raises the registry's errors."""
        try:
            known = self.served(function)
            found = await asyncio.to_thread(self._repository.state, known.name, known.version)
            if found is None or found.feedback is None:
                return
            known = self.served(function)
            if refits_of(found.feedback) == _refits(known):
                self.take(known, found.feedback)
            else:
                self._use(known, with_feedback(known, found.feedback, found.refit))
        except VersionGone:
            return

    def _use(self, known: Function, taught: Function) -> None:
        """Answer so from now on, unless what is known is newer; see whether a member is as expected."""
        if _age(taught.feedback) > _age(known.feedback) and self._catalog.replace(taught):
            self._dispatcher.answer_as(taught)
            self._look(taught)

    def agreed(self, function: Function, named: NDArray[np.integer[Any]]) -> None:
        """All members were asked of these rows. named: [members, rows], in the order of the fit."""
        with contextlib.suppress(VersionGone):
            known = self.served(function)
            labels = 0 if known.feedback is None else known.feedback.whole
            rows = self._agreed.setdefault(known.key, deque(maxlen=RECENT_ROWS))
            rows.extend((_refits(known), labels, row) for row in agreed(named))
            self._compare(known)

    def _compare(self, function: Function) -> None:
        """See whether a member agrees with the others no more, or again."""
        fit, rows = function.fit, self._agreed.get(function.key, ())
        if fit is None or not fit.agreement or function.key in self._under_way or not function.learns:
            return
        feedback = function.feedback or feedback_of(function, None)
        if set(feedback.members) != set(fit.members):
            return
        recent = [each for refits, _, each in rows if refits == feedback.refits]
        labels_since = min((labels for refits, labels, _ in rows if refits == feedback.refits), default=0)
        if feedback.whole - labels_since >= LEAST_ROWS:
            return  # labels come, and they know more
        note, count = feedback.refit, len(fit.members)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        if note is None or not note.off:
            fall = broken(count, recent, fit.agreement, fit.rows)
            if fall is not None:
                self._guard_soon(function, fit, *guarded(feedback, fit, fall, at))
        elif not note.rows:
            off = [fit.members.index(name) for name in note.off]
            if all(is_back(member, off, count, recent, fit.agreement, fit.rows) for member in off):
                self._guard_soon(function, fit, back(feedback, fit, at), None)

    def _guard_soon(self, function: Function, fit: Fit, note: RefitNote, made: Fit | None) -> None:
        self._under_way.add(function.key)
        self._tasks.once("refits", self._guard(function, fit, note, made), f"guard {function.key}")

    async def _guard(self, function: Function, fit: Fit, note: RefitNote, made: Fit | None) -> None:
        with self._at_work(function):
            await self._revise("guarded", function, fit, note, made, time.monotonic())

    def _look(self, function: Function) -> None:
        fit, feedback = function.fit, function.feedback
        if fit is None or feedback is None or function.key in self._under_way or not function.learns:
            return
        due = refit_due(feedback, fit)
        if due is not None:
            self._under_way.add(function.key)
            self._tasks.once("refits", self._refit(function, fit, feedback, due), f"refit {function.key}")

    async def _refit(self, function: Function, fit: Fit, feedback: Feedback, due: Due) -> None:
        began_s = time.monotonic()
        with self._at_work(function):
            rows = await asyncio.to_thread(self._repository.newest, function.name, function.version, due.rows)
            if len(rows) < min(LEAST_ROWS, due.rows):
                log.error("not refitted function=%s reason=%r rows=%d", function.key, due.reason, len(rows))
                return
            note, made = await asyncio.to_thread(_made, function, fit, feedback, due, rows)
            await self._revise("refitted", function, fit, note, made, began_s)

    @contextlib.contextmanager
    def _at_work(self, function: Function) -> Iterator[None]:
        """While a fit is made, which is under way. Of a version that is gone nothing is left to do."""
        try:
            with contextlib.suppress(VersionGone):
                yield
        finally:
            self._under_way.discard(function.key)

    async def _revise(
        self, how: str, function: Function, fit: Fit, note: RefitNote, made: Fit | None, began_s: float
    ) -> None:
        """Answer by another fit from now on. fit: of the deployment; by which it answers where none is made.

        Raises `VersionGone`, and the registry's errors.
        """

        def revise(kept: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
            is_lost = kept is None and function.feedback is not None
            if is_lost or refits_of(kept) != _refits(function):
                return None  # another server was faster, or what it learned is gone
            anew = begun_anew(feedback_of(function, kept), made or fit, note)
            return anew.to_json(), None if made is None else made.to_json()

        if await asyncio.to_thread(self._repository.revise, function.name, function.version, revise):
            log.warning(
                "%s function=%s version=%d reason=%r took_s=%.2f",
                how,
                function.name,
                function.version,
                str(note),
                time.monotonic() - began_s,
            )
            self._metrics.refits[function.name, "deployed" if made is None else how] += 1
            if self._audit is not None:
                what = f"{function.name} version {function.version}"
                await self._audit.keep(entry_by_server(time.time(), "refit function", what, str(note)))
        await self.follow(function)

    async def _follow_all(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.refresh()
                if time.monotonic() - self._forgotten_s >= _FORGET_EVERY_S:
                    await self._forget_old()
            except (SQLAlchemyError, ServiceError) as error:  # next time
                log.error("feedback not followed error=%r", str(error.__cause__ or error))

    async def _forget_old(self) -> None:
        if not await asyncio.to_thread(self._repository.forget_old):
            self._forgotten_s = time.monotonic()  # else some more of it the next time

    async def refresh(self) -> None:
        """Follow what was learned since the last time, on any server. Raises the registry's errors."""
        revisions = await asyncio.to_thread(self._repository.revisions)
        served = {(each.name, each.version): each for each in self._catalog if not each.bare}
        self._turns = {each.key: self._turns.get(each.key, 0) for each in served.values()}
        self._agreed = {key: rows for key, rows in self._agreed.items() if key in self._turns}
        # What is deployed elsewhere, and not served here yet, is looked at once it is.
        seen = {key: revisions[key] for key in revisions.keys() & served.keys()}
        for key, revision in seen.items():
            if revision != self._revisions.get(key, 0):
                await self.follow(served[key])
                await self._follow_contexts(served[key])
        self._revisions = seen

    async def _follow_contexts(self, function: Function) -> None:
        if not function.learns:
            return
        after = self._turns.get(function.key, 0)
        found = await asyncio.to_thread(self._repository.contexts, function.name, function.version, after)
        if not found:
            return
        try:
            contexts = [(digest, context_of(function, kept)) for digest, kept, _ in found]
        except ValueError as exc:
            log.error("contexts not used function=%s reason=%s", function.key, exc)
        else:
            with contextlib.suppress(VersionGone):
                self._contexts.learn(self.served(function), contexts)
        self._turns[function.key] = found[-1][2]


def with_feedback(
    function: Function, kept: Mapping[str, Any] | None, refit: Mapping[str, Any] | None = None
) -> Function:
    """A function as the registry's feedback has taught it. What cannot be read is left out, and logged.

    refit: the fit made anew of the labels, where one answers.
    """
    if kept is None:
        return function
    try:
        made = None if refit is None else Fit.from_json(refit)
        if made is not None and (function.fit is None or made.members != function.fit.members):
            raise ValueError("the fit made anew is of other members")
        return replace(function, feedback=feedback_of(function, kept), refit=made)
    except ValueError as exc:
        log.error("feedback not used function=%s version=%d reason=%s", function.name, function.version, exc)
        return function


def feedback_of(function: Function, kept: Mapping[str, Any] | None) -> Feedback:
    """What is known of a function by its labelled rows. Raises ValueError for what cannot be read."""
    fit = function.fit if function.learns else None
    names = [member.name for member in function.members]
    if kept is None:
        return begun(names, fit)
    found = Feedback.from_json(kept, fit)
    if list(found.members) != names:
        raise ValueError(f"it is of {', '.join(found.members)}")
    return found


def context_of(function: Function, kept: Mapping[str, Any]) -> Context:
    """What a context of a function has learned. Raises ValueError for what cannot be read."""
    return Context.from_json(kept, len(function.members))


def refits_of(kept: Mapping[str, Any] | None) -> int:
    """How many times a fit was made anew, by the registry's feedback."""
    note = None if kept is None else kept.get("refit")
    return int(note["number"]) if isinstance(note, Mapping) and "number" in note else 0


def _refits(function: Function) -> int:
    return 0 if function.feedback is None else function.feedback.refits


def _age(feedback: Feedback | None) -> tuple[int, int]:
    """What has learned more is greater."""
    if feedback is None:
        return (-1, 0)
    return (feedback.refits, feedback.taught)


def _made(
    function: Function, fit: Fit, feedback: Feedback, due: Due, rows: Sequence[Labelled]
) -> tuple[RefitNote, Fit | None]:
    """Blocking."""
    place_of = {label: place for place, label in enumerate(function.classes)}
    told: list[NDArray[np.float32]] = [
        np.frombuffer(row.probabilities, "<f4").reshape(len(feedback.members), -1) for row in rows
    ]
    labels = [place_of[row.label] for row in rows]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return refit(feedback, fit, due, np.stack(told, axis=1), labels, at, function.refit)
