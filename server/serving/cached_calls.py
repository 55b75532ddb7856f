"""Between calls and the dispatcher: rows that were answered before are answered from what is kept.

    begin ─→ scope, keys ─→ what is kept ──────────────────────────────→ ┐
             (of paths: stamps, in a thread)                             │
                  └─→ rows that somebody has under way: wait ──────────→ ├─→ the reply, in the rows' order
                  └─→ the others ─→ dispatcher.begin ─→ their reply ───→ ┘
                                                         └─→ (of paths: stamps again) ─→ kept, and handed to
                                                              whoever waits

It has the dispatcher's face, `begin` and `end`; calls that do not ask the cache are the dispatcher's own.
Only what a fresh computation would answer is kept or handed on: no fault, no default, no answer of fewer
members than were chosen, nothing of a file that has changed, or of a function that has learned meanwhile. Who
waits for a row whose call is cancelled, fails, or gets an answer that is nobody else's, asks anew. Runs on
the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from server.cache.completeness import Completeness
from server.cache.contract import Store
from server.cache.counts import CacheCounts
from server.cache.files import FileStamps
from server.cache.in_flight import Flight, InFlight
from server.cache.key import Asked, Scope, function_digest, is_kept_of, scope_of
from server.cache.keying import Key
from server.catalog.functions import Function
from server.ensemble.threshold import NO_CONFIDENT_ANSWER
from server.errors import DeadlineExceeded, VersionGone
from server.http.body import ClientGone
from server.observability.metrics import Metrics
from server.serving.calls import Call, PendingReply, Reply
from server.serving.dispatcher import Dispatcher
from server.serving.outcomes import Outcomes, UnderWay
from server.serving.reply_rows import GatheredRows, ReplyRows, kept_reply
from server.serving.scheduler_adapter import overdue_of
from server.serving.shared_calls import SharedCall
from server.supervision import Tasks

__all__ = ["CachedCall", "CachedCalls"]

log = logging.getLogger("ml_udf.server.answer_cache")

_INLINE_BYTES = 128 << 10  # hashed on the event loop: some tenths of a millisecond
_INLINE_ROWS = 4096  # the same, of short rows
_SHARED_BYTES = 2 << 20  # the same, of rows that would be hashed one by one
_MOST_SCOPES = 1000
_AFTER_DISPATCHER_S = 0.02  # it knows better what to do at the deadline with the rows that it has
_LOOK_S = 10.0  # between two looks at whose versions are gone
_SLICE_S = 0.002  # of letting go, between which the event loop goes on
_ROWS_OWN = "input_"  # how the codes of errors begin that are a row's own


@dataclass(slots=True, eq=False)
class _Part:
    """Rows of the call `one` that the dispatcher has. keys: of each; None for one that is nobody else's.

    flight: for which others may wait. same: row → rows of the call that are the same.
    """

    one: CachedCall
    rows: Sequence[int]
    keys: Sequence[Key | None]
    flight: Flight[CachedCall]
    same: dict[int, list[int]]
    pending: PendingReply | None = None


@dataclass(slots=True, eq=False)
class _SharedPart:
    """A shared call that asked the cache, and where its rows are.

    one: stands for it where answers are kept and handed on · outer: what its clients hear of
    mine: the rows of it that the dispatcher has as `inner`, with their keys · alone: by row, those that
    somebody computed already
    """

    one: CachedCall
    outer: SharedCall
    mine: list[int]
    keys: list[Key]
    inner: SharedCall | None
    flight: Flight[CachedCall] | None = None
    alone: dict[int, PendingReply | CachedCall] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class CachedCall(UnderWay[Reply]):
    """A call under way that asked the cache. As `PendingReply` to whoever waits for it."""

    call: Call
    scope: Scope
    counts: CacheCounts
    began_s: float
    first_sent_s: float = math.inf  # when its first rows left the queue; where none did, when it was answered
    stamps: list[bytes] = field(default_factory=list)  # of paths
    keys: Sequence[Key | None] = ()
    gathered: GatheredRows | None = None
    parts: list[_Part] = field(default_factory=list)
    asking: asyncio.Task[None] | None = None  # for stamps
    timer: asyncio.TimerHandle | None = None  # at its deadline
    all_hits: bool = False


class CachedCalls:
    """One for the server, in front of its dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: Store,
        stamps: FileStamps,
        metrics: Metrics,
        tasks: Tasks | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._stamps = stamps
        self._metrics = metrics
        self._tasks = tasks or Tasks()
        self._loop = asyncio.get_running_loop()
        self._outcomes = Outcomes()
        self._flights = InFlight[CachedCall]()
        self._scopes: dict[tuple[str, Asked], Scope] = {}
        self._digests: dict[str, tuple[Function, bytes]] = {}
        self._open: set[CachedCall] = set()
        self._shared: dict[SharedCall, _SharedPart] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def store(self) -> Store:
        """What is kept."""
        return self._store

    def start(self) -> None:
        """Let go, from now on, of what versions have answered that are served no more."""
        self._tasks.always("answers of versions that are gone", self._let_go_in_turn)

    async def let_go(self) -> int:
        """Let go of it now; how many answers that were."""
        dropped, until_s = 0, time.monotonic() + _SLICE_S
        for some in self._store.drop(lambda source: not self._dispatcher.serves(source.function)):
            dropped += some
            if time.monotonic() > until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + _SLICE_S
        return dropped

    async def _let_go_in_turn(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            dropped = await self.let_go()
            if dropped:
                log.info("kept answers of versions that are gone were dropped answers=%d", dropped)

    async def close(self) -> None:
        """Stop looking at files."""
        self._stamps.close()
        await self._tasks.close()

    async def drained(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    # ── the dispatcher's face ─────────────────────────────────────────────────────────────────────────

    def begin(self, call: Call) -> PendingReply | CachedCall:
        """As `Dispatcher.begin`. What that raises once files have been looked at is the future's."""
        if not call.is_part:
            self._dispatcher.check_open()
        scope = self._scope(call)
        if scope is None:
            return self._dispatcher.begin(call)
        now_s = time.monotonic()
        counts = self._metrics.of(call.function).cache
        one = CachedCall(self._outcomes, call, scope, counts, now_s)
        if call.form == "path" or call.nbytes > _INLINE_BYTES or len(call.rows) > _INLINE_ROWS:
            one.asking = self._tasks.once("answer cache", self._find_later(one))
        else:
            one.keys = self._store.keys_of(scope.digest, call.rows)
            try:
                self._find(one)
            except BaseException:
                one.cancel()  # it may wait for others' rows
                raise
        self._open.add(one)
        self._idle.clear()
        if call.deadline_s < math.inf and not one.done:
            left_s = max(0.0, call.deadline_s - now_s) + _AFTER_DISPATCHER_S
            one.timer = self._loop.call_later(left_s, self._overdue, one)
        return one

    def begin_shared(self, call: Call) -> SharedCall | None:
        """As `Dispatcher.begin_shared`. What is kept of it is over at once, and waits for nothing else."""
        self._dispatcher.check_open()
        scope = self._scope(call)
        if scope is None:
            return self._dispatcher.begin_shared(call)
        if call.form == "path" or call.nbytes > _SHARED_BYTES:
            return None
        keys = self._store.keys_of(scope.digest, call.rows)
        found = self._store.find(keys)
        mine, theirs = self._divided(keys, found)
        inner: SharedCall | None = None
        if mine:
            asked = call
            if len(mine) < len(call.rows):
                rows = [call.rows[place] for place in mine]
                asked = call.of_rows(rows, sum(map(len, rows)), call.deadline_s)
            try:
                inner = self._dispatcher.begin_shared(asked)
            except DeadlineExceeded:
                if asked is call:
                    raise
            if inner is None:
                return None  # by themselves those are answered that are kept
        now_s = time.monotonic()
        one = CachedCall(self._outcomes, call, scope, self._metrics.of(call.function).cache, now_s)
        outer = SharedCall(self._outcomes, 0, call, now_s)
        shared = _SharedPart(one, outer, mine, [keys[place] for place in mine], inner)
        self._shared[outer] = shared
        self._idle.clear()
        if inner is not None:
            one.counts.misses += len(mine)
            shared.flight = self._flights.lead(shared.keys, is_urgent=True)
            inner.listen(self._tell_shared, shared)
        self._take_kept(shared, found)
        for place in theirs:
            self._ask_alone(shared, place)
        return outer

    def leave_shared(self, pending: SharedCall, row: int) -> None:
        """As `Dispatcher.leave_shared`."""
        shared = self._shared.get(pending)
        if shared is None:
            self._dispatcher.leave_shared(pending, row)
        elif (alone := shared.alone.get(row)) is not None:
            alone.fail(ClientGone())
        elif shared.inner is not None and row in shared.mine:
            self._dispatcher.leave_shared(shared.inner, shared.mine.index(row))

    def end_shared(self, pending: SharedCall) -> None:
        """As `end`, of a call all of whose rows are over."""
        if self._shared.pop(pending, None) is None:
            self._dispatcher.end_shared(pending)
        self._look_idle()

    def end(self, pending: CachedCall) -> None:
        """As `Dispatcher.end`. Who waits for rows of a call that is not answered asks anew."""
        self._open.discard(pending)
        self._look_idle()
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.asking is not None:
            pending.asking.cancel()
        pending.cancel()
        parts, pending.parts = pending.parts, []
        for part in parts:
            self._dispatcher.end(_pending_of(part))
            self._ask_anew(self._land(part))

    def _look_idle(self) -> None:
        if not self._open and not self._shared:
            self._idle.set()

    # ── calls that clients share ──────────────────────────────────────────────────────────────────────

    def _divided(self, keys: Sequence[Key], found: Sequence[bytes | None]) -> tuple[list[int], list[int]]:
        """The rows that are to be computed, and those that somebody, or this very call, computes already."""
        mine: list[int] = []
        theirs: list[int] = []
        new: set[Key] = set()
        for place, (key, kept) in enumerate(zip(keys, found, strict=True)):
            if kept is None:
                is_new = key not in new and not self._flights.may_wait(key, is_urgent=True)
                (mine if is_new else theirs).append(place)
                new.add(key)
        return mine, theirs

    def _take_kept(self, shared: _SharedPart, found: Sequence[bytes | None]) -> None:
        places = [place for place, row in enumerate(found) if row is not None]
        if not places:
            return
        one, now_s = shared.one, time.monotonic()
        hits = [row for row in found if row is not None]
        for source, which in self._store.sources.by_source(hits):
            kept = kept_reply(one.call.function, source, [hits[at] for at in which])
            shared.outer.end_rows([places[at] for at in which], kept, now_s)
        one.counts.hits += len(hits)
        one.counts.hit_calls += len(hits)
        one.counts.hit_s += (now_s - one.began_s) * len(hits)

    def _ask_alone(self, shared: _SharedPart, place: int) -> None:
        """A row that somebody computes already: by itself, as it may have to be asked anew."""
        call = shared.one.call
        try:
            row = call.rows[place]
            alone = self.begin(call.of_rows([row], len(row), call.deadline_s))
        except Exception as error:
            shared.outer.end_rows([place], error, math.inf)
            return
        shared.alone[place] = alone
        alone.listen(self._alone_over, (shared, place))

    def _alone_over(self, pending: PendingReply | CachedCall, about: tuple[_SharedPart, int]) -> None:
        shared, place = about
        del shared.alone[place]
        if isinstance(pending, CachedCall):
            self.end(pending)
        else:
            self._dispatcher.end(pending)
        outcome = pending.outcome
        assert outcome is not None, "it is over"
        shared.outer.end_rows([place], outcome, pending.first_sent_s)

    def _tell_shared(self, inner: SharedCall, shared: _SharedPart) -> None:
        """Rows that were asked are over: they are kept, and whoever waits for them has them."""
        over = inner.take_over()
        if inner.done:
            self._dispatcher.end_shared(inner)
        for part in over:
            keys = [shared.keys[at] for at in part.places]
            mine = [shared.mine[at] for at in part.places]
            shared.outer.end_rows(mine, part.outcome, part.sent_s)
            assert shared.flight is not None, "they were asked for"
            own = _Part(shared.one, mine, keys, self._flights.split(shared.flight, keys), {})
            if isinstance(part.outcome, BaseException):
                self._given_up(own, part.outcome)
                continue
            shared.one.counts.miss_calls += len(mine)
            self._settle(shared.one, own, ReplyRows(part.outcome, shared.one.scope.columns), None)

    # ── what is asked, and what is kept of it ─────────────────────────────────────────────────────────

    def _scope(self, call: Call) -> Scope | None:
        """What its rows have in common; None where nothing of it is kept. Raises `VersionGone`."""
        if not call.answer_cache or not call.is_traffic:
            return None
        function = self._dispatcher.current(call.function)
        if not is_kept_of(function):
            return None
        asked = Asked(
            call.form,
            call.outputs,
            call.members,
            self._dispatcher.shifts(call),
            call.with_members,
            call.row_class,
            call.least,
        )
        scope = self._scopes.get((function.key, asked))
        if scope is None or scope.function is not function:
            if len(self._scopes) >= _MOST_SCOPES:
                self._scopes.clear()
            scope = scope_of(function, self._digest(function), asked)
            self._scopes[function.key, asked] = scope
        return scope

    def _digest(self, function: Function) -> bytes:
        known = self._digests.get(function.key)
        if known is None or known[0] is not function:
            if len(self._digests) >= _MOST_SCOPES:
                self._digests.clear()
            known = self._digests[function.key] = (function, function_digest(function))
        return known[1]

    async def _find_later(self, one: CachedCall) -> None:
        call = one.call
        try:
            if call.form == "path":
                one.stamps = await self._stamps.of(call.rows, call.function.media_roots, call.media_roots)
                one.keys = self._store.keys_of_files(one.scope.digest, one.stamps)
            else:
                one.keys = await asyncio.to_thread(self._store.keys_of, one.scope.digest, call.rows)
            if not one.done:
                self._find(one)
        except Exception as error:
            one.fail(error)

    def _find(self, one: CachedCall) -> None:
        """Answer what is kept, and ask for the rest. Raises as `Dispatcher.begin`."""
        call = one.call
        rows = len(call.rows)
        found = self._store.find(one.keys)
        hits = [row for row in found if row is not None]
        if not hits:
            self._ask(one, range(rows))
            return
        one.counts.hits += len(hits)
        one.all_hits = len(hits) == rows
        sources = self._store.sources.by_source(hits)
        if one.all_hits and len(sources) == 1:
            self._finish(one, kept_reply(call.function, sources[0][0], hits))
            return
        places = [place for place, row in enumerate(found) if row is not None]
        gathered = self._gathered(one)
        for source, theirs in sources:
            gathered.take_kept([places[at] for at in theirs], source, [hits[at] for at in theirs])
        if one.all_hits:
            self._finish(one)
        else:
            self._ask(one, [place for place, row in enumerate(found) if row is None])

    def _gathered(self, one: CachedCall) -> GatheredRows:
        if one.gathered is None:
            one.gathered = GatheredRows(one.call.function, len(one.call.rows))
        return one.gathered

    def _ask(self, one: CachedCall, rows: Sequence[int], *, anew: bool = False, alone: bool = False) -> None:
        """Have rows computed, but for those that somebody computes already. Raises as `Dispatcher.begin`.

        rows: ascending, as all of them are asked in the call's order. anew: they were counted before. alone:
        nobody else's answer will do, and theirs is nobody else's.
        """
        is_urgent = one.call.row_class == "interactive"
        is_whole = len(rows) == len(one.keys)
        keys: Sequence[Key | None] = one.keys if is_whole else [one.keys[row] for row in rows]
        mine, same = rows, dict[int, list[int]]()
        flight: Flight[CachedCall] | None = None
        if alone:
            keys = [None] * len(rows)
        elif (flight := self._flights.lead_new(keys, is_urgent=is_urgent)) is None:
            mine, keys, same = self._first_of_each(one, rows, is_urgent=is_urgent)
        if not anew:
            one.counts.misses += len(mine)
            one.counts.coalesced += len(rows) - len(mine)
        if not mine:
            return
        part = _Part(one, mine, keys, flight or self._flights.lead(keys, is_urgent=is_urgent), same)
        call = one.call
        if len(mine) < len(call.rows):
            asked = [call.rows[row] for row in mine]
            call = replace(call, rows=asked, nbytes=sum(map(len, asked)))
        if self._dispatcher.is_draining:  # it came before: `begin` has seen to that
            call = replace(call, is_part=True)
        try:
            pending = part.pending = self._dispatcher.begin(call)
        except BaseException:
            self._ask_anew(self._land(part))
            raise
        one.parts.append(part)
        pending.listen(self._part_over, part)

    def _first_of_each(
        self, one: CachedCall, rows: Sequence[int], *, is_urgent: bool
    ) -> tuple[list[int], list[Key | None], dict[int, list[int]]]:
        """Of these rows those that are computed for this call, and their keys: the first of equal ones, whose
        others are by its number. The rest waits for somebody else's.
        """
        mine: list[int] = []
        keys: list[Key | None] = []
        same: dict[int, list[int]] = {}
        first_of: dict[Key, int] = {}
        for row in rows:
            key = one.keys[row]
            if key is not None:
                if (first := first_of.get(key)) is not None:
                    same.setdefault(first, []).append(row)
                    continue
                if self._flights.wait(key, one, row, is_urgent=is_urgent):
                    continue
                first_of[key] = row
            mine.append(row)
            keys.append(key)
        return mine, keys, same

    # ── what came of it ───────────────────────────────────────────────────────────────────────────────

    def _part_over(self, pending: PendingReply, part: _Part) -> None:
        """Rows of a call are answered, or never will be."""
        one = part.one
        if part not in one.parts:
            return  # the call has ended
        one.parts.remove(part)
        self._dispatcher.end(pending)
        one.first_sent_s = min(one.first_sent_s, pending.first_sent_s)
        failure = pending.outcome
        if isinstance(failure, BaseException):
            one.fail(failure)
            self._given_up(part, failure)
            return
        answered = ReplyRows(pending.result, one.scope.columns)
        again = self._take(one, part, answered)
        if again:
            self._ask_anew([(one, row) for row in again], alone=True)
        if one.scope.asked.form == "path" and any(part.keys):
            self._tasks.once("answer cache", self._settle_files(one, part, answered))
        else:
            self._settle(one, part, answered, None)

    def _take(self, one: CachedCall, part: _Part, answered: ReplyRows) -> list[int]:
        """Answer the call's own rows; those that are to be asked once more, since a fault is not theirs."""
        if one.done:
            return []
        if one.gathered is None and not part.same and len(part.rows) == len(one.call.rows):
            self._finish(one, answered.reply)
            return []
        again: list[int] = []
        pairs: list[tuple[int, int]] = []
        texts = one.call.rows
        for at, row in enumerate(part.rows):
            pairs.append((row, at))
            for other in part.same.get(row, ()):
                if at in answered.reply.errors and texts[other] != texts[row]:
                    again.append(other)  # its error names another path
                else:
                    pairs.append((other, at))
        gathered = self._gathered(one)
        gathered.take(pairs, answered)
        if not gathered.missing:
            self._finish(one)
        return again

    async def _settle_files(self, one: CachedCall, part: _Part, answered: ReplyRows) -> None:
        """Settle rows of paths, once it is known whose files are as they were."""
        call = one.call
        same: list[bool] | None = None
        try:
            paths = [call.rows[row] for row in part.rows]
            stamps = await self._stamps.of(paths, call.function.media_roots, call.media_roots)
            same = [now == one.stamps[row] for now, row in zip(stamps, part.rows, strict=True)]
        finally:
            self._settle(one, part, answered, same or [False] * len(part.rows))

    def _settle(self, one: CachedCall, part: _Part, answered: ReplyRows, same: Sequence[bool] | None) -> None:
        """Keep what is to be kept, and hand it to whoever waits. same: whether each file is as it was."""
        began_s = time.monotonic()
        fit = self._fit_rows(one, answered) if self._is_current(one) else None
        waiting = self._flights.land(part.flight)
        if fit is not None:
            self._keep(one, part, answered, fit, same)
        again: list[tuple[CachedCall, int]] = []
        at_of = {key: at for at, key in enumerate(part.keys)} if waiting else {}
        for key, theirs in waiting.items():
            at = at_of[key]
            is_fit = fit is not None and (same is None or same[at])
            for who, row in theirs:
                if who.done:
                    continue
                if fit is not None and is_fit and fit.is_anybodys(at, one.call.rows[part.rows[at]], who, row):
                    gathered = self._gathered(who)
                    gathered.take([(row, at)], answered)
                    if not gathered.missing:
                        self._finish(who)
                else:
                    again.append((who, row))
        one.counts.miss_s += time.monotonic() - began_s
        self._ask_anew(again, alone=True)

    def _is_current(self, one: CachedCall) -> bool:
        """Whether its function answers as it did when the call came."""
        try:
            scope = self._scope(one.call)
        except VersionGone:
            return False
        return scope is not None and scope.function is one.scope.function and scope.digest == one.scope.digest

    def _fit_rows(self, one: CachedCall, answered: ReplyRows) -> _FitRows:
        scope = one.scope
        function = scope.function
        plans = self._dispatcher.followed(function, scope.asked.form) if function.follows_plans else None
        return _FitRows(answered, Completeness(scope, plans))

    def _keep(
        self,
        one: CachedCall,
        part: _Part,
        answered: ReplyRows,
        fit: _FitRows,
        same: Sequence[bool] | None,
    ) -> None:
        has_all = same is None and None not in part.keys and not one.scope.asked.with_members
        if has_all and fit.are_all_to_keep:
            members = answered.answered_by[0]
            source = self._store.sources.of(
                one.scope.function.key, answered.kinds, members, one.counts, has_told=False
            )
            keys: Sequence[Key] = part.keys  # type: ignore[assignment]  # none is None
            one.counts.stored += self._store.keep_columns(source, keys, answered.columns)
            return
        by, are_all_fit = answered.answered_by, fit.are_all_to_keep
        wanted = [
            at
            for at, key in enumerate(part.keys)
            if key is not None and (are_all_fit or fit.is_to_keep(at)) and (same is None or same[at])
        ]
        told = {at: answered.told(at) for at in wanted} if one.scope.asked.with_members else {}
        alike: dict[tuple[str, bool], list[int]] = {}
        for at in wanted:
            alike.setdefault((by[at], told.get(at) is not None), []).append(at)
        for (members, has_told), theirs in alike.items():
            source = self._store.sources.of(
                one.scope.function.key, answered.kinds, members, one.counts, has_told=has_told
            )
            cells = [[column[at] for at in theirs] for column in answered.cells]
            said = [each for at in theirs if (each := told.get(at)) is not None]
            theirs_keys = [key for at in theirs if (key := part.keys[at]) is not None]
            one.counts.stored += self._store.keep(source, theirs_keys, source.pack(cells, said))

    def _finish(self, one: CachedCall, reply: Reply | None = None) -> None:
        if one.done:
            return
        now_s = time.monotonic()
        if one.all_hits:
            one.counts.hit_calls += 1
            one.counts.hit_s += now_s - one.began_s
        else:
            one.counts.miss_calls += 1
        if one.first_sent_s == math.inf:
            one.first_sent_s = now_s
        if reply is None:
            assert one.gathered is not None, "something was answered"
            reply = one.gathered.reply()
        one.finish(reply)

    def _given_up(self, part: _Part, failure: BaseException) -> None:
        """Nothing came of these rows: who else waits for them asks anew."""
        # A failure of the rows would come again for whoever leads next: they are asked side by side.
        self._ask_anew(self._land(part), alone=not isinstance(failure, ClientGone | DeadlineExceeded))

    def _land(self, part: _Part) -> list[tuple[CachedCall, int]]:
        """Nothing comes of these rows: who else waits for them."""
        return [each for theirs in self._flights.land(part.flight).values() for each in theirs]

    def _ask_anew(self, rows: Iterable[tuple[CachedCall, int]], *, alone: bool = False) -> None:
        of_call: dict[CachedCall, list[int]] = {}
        for who, row in rows:
            if not who.done:
                of_call.setdefault(who, []).append(row)
        for who, theirs in of_call.items():
            try:
                self._ask(who, sorted(theirs), anew=True, alone=alone)  # they come in others' order
            except Exception as error:
                who.fail(error)

    def _overdue(self, one: CachedCall) -> None:
        one.fail(overdue_of(one.call.function, time.monotonic() - one.began_s))


class _FitRows:
    """Which rows of a reply a fresh computation would answer alike, whoever asks for it."""

    def __init__(self, answered: ReplyRows, completeness: Completeness) -> None:
        reply = answered.reply
        self._answered = answered
        self._completeness = completeness
        self._errors, self._defaulted = reply.errors, reply.defaulted
        confidence = reply.columns.get(reply.function.task.confidence or "")
        self._sure = confidence.values if confidence is not None and confidence.rows == reply.rows else None

    @property
    def are_all_to_keep(self) -> bool:
        """Whether every row is, by what is the same for all of them."""
        by = self._answered.reply.answered_by
        is_plain = not self._errors and not self._defaulted and self._answered.is_whole and len(by) == 1
        return is_plain and self._completeness.of(by[0][2])

    def is_to_keep(self, at: int) -> bool:
        """Whether the answer to a row is kept: no fault, no default, of all who were to answer."""
        if at in self._errors or at in self._defaulted or not self._answered.is_whole:
            return False
        return self._is_complete(at)

    def is_anybodys(self, at: int, text: bytes, who: CachedCall, row: int) -> bool:
        """Whether whoever waits for a row meanwhile is answered by it. text: the row as its leader has it."""
        error = self._errors.get(at)
        if error is not None:
            is_own = error.code.startswith(_ROWS_OWN) or error.code == NO_CONFIDENT_ANSWER
            return is_own and who.call.rows[row] == text  # else it names another path
        return self._answered.is_whole and self._is_complete(at)

    def _is_complete(self, at: int) -> bool:
        sure = math.nan if self._sure is None else float(self._sure[at])
        return self._completeness.of(self._answered.answered_by[at], sure)


def _pending_of(part: _Part) -> PendingReply:
    assert part.pending is not None, "it was asked for"
    return part.pending
