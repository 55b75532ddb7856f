"""A call of a pipeline: its rows go from stage to stage, some at a time, and never leave the server.

    begin ─→ parts of the rows ─┬─→ stage 1 ─→ (boxes ─→ workers cut ─→ pieces) ─→ stage 2 ─→ … ─┬─→ the reply
                                └─→ …                                                             ┘

Each stage is asked by a call of its own, in the name of whoever asks the pipeline: so it shares batches, kept
answers and fairness with those who ask the stage itself. The deadline goes with it, and the goal as
`splitting` parts it. Who asks no more ends what is under way in every stage. Has the dispatcher's face,
`begin` and `end`. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

from gpu_worker.wire.protocol import Column, RowError
from server.catalog.functions import Form, Function, ModelVersion
from server.catalog.pipeline import Pipeline
from server.ensemble.objects import answers_of, boxes_of, objects_text
from server.ensemble.threshold import NO_CONFIDENT_ANSWER
from server.errors import Overloaded, ServiceError, ShuttingDown, VersionGone
from server.scheduling.splitting import StageLoad, goals_s
from server.scheduling.terms import Latency
from server.serving.cached_calls import CachedCall, CachedCalls
from server.serving.calls import Call, PendingReply, Reply
from server.serving.dispatcher import Dispatcher
from server.serving.outcomes import Outcomes, UnderWay
from server.serving.pipelines.cropping import Cropper, Pieces, message_of
from server.serving.scheduler_adapter import overdue_of
from server.serving.wishes import Wishes
from server.supervision import Tasks

__all__ = ["PipelineCall", "PipelineCalls", "StageTimes"]

_PART_ROWS = 64  # that go from stage to stage together
_MOST_PARTS = 16  # of a call, under way at a time
_MOST_CUT = 8  # parts whose pieces are in memory, of all calls of a class
_LARGE_TEXT = 256 << 10  # characters of boxes, or bytes of answers; more are read in a thread
_TRIES = 20  # of rows that a stage has no room for, after they were taken
_AFTER_STAGES_S = 0.02  # they know better what to say at the deadline
_LEARNS = 0.1  # weight of a new part in what is known of a pipeline
_LEAST_GOAL_S = 0.001


@dataclass(slots=True, eq=False)
class PipelineCall(UnderWay[Reply]):
    """A call under way. As `PendingReply` to whoever waits for it."""

    call: Call
    began_s: float
    first_sent_s: float = math.inf  # when its first rows left a queue
    is_taken: bool = False  # a stage has some of its rows: from now on they wait where there is no room
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class StageTimes:
    """What is known of a pipeline's calls. objects: that a picture has, of late · cut_s: what cutting those
    of one part takes · rows, found: in all, pictures and what was cut out of them.
    """

    objects: float = 1.0
    cut_s: float = 0.0
    rows: int = 0
    found: int = 0

    def cut(self, rows: int, objects: int, took_s: float) -> None:
        """Take in what a part had."""
        weight = _LEARNS if self.rows else 1.0
        self.objects += weight * (objects / rows - self.objects)
        self.cut_s += weight * (took_s - self.cut_s)
        self.rows += rows
        self.found += objects


@dataclass(slots=True)
class _Part:
    """Some rows of a call on their way. errors: by row of the part · by: who answered each."""

    first: int
    rows: list[bytes]
    columns: dict[str, Column] = field(default_factory=dict)
    errors: dict[int, RowError] = field(default_factory=dict)
    defaulted: set[int] = field(default_factory=set)
    by: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by = [[] for _ in self.rows]


@dataclass(slots=True)
class _Answered:
    """What a stage said of the rows that it was asked, each of which is of some row of the part."""

    reply: Reply
    owners: Sequence[int]


class PipelineCalls:
    """latency_of: l̂ of a model, of rows of a form. wishes: chooses who answers stages by wish."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        cached: CachedCalls | None,
        cropper: Cropper,
        latency_of: Callable[[ModelVersion, Form], Latency],
        tasks: Tasks | None = None,
        wishes: Wishes | None = None,
    ) -> None:
        self._wishes = wishes
        self._dispatcher = dispatcher
        self._cached = cached
        self._cropper = cropper
        self._latency_of = latency_of
        self._tasks = tasks or Tasks()
        self._times: dict[str, StageTimes] = {}
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._open: set[PipelineCall] = set()
        self._outcomes = Outcomes()
        self._idle = asyncio.Event()
        self._idle.set()

    # ── the dispatcher's face ─────────────────────────────────────────────────────────────────────────

    def begin(self, call: Call) -> PipelineCall:
        """As `Dispatcher.begin`. What its stages raise is the future's."""
        self._dispatcher.check_open()
        one = PipelineCall(self._outcomes, call, time.monotonic())
        self._open.add(one)
        self._idle.clear()
        one.task = self._tasks.once("pipeline", self._run(one))
        return one

    def end(self, pending: PipelineCall) -> None:
        """As `Dispatcher.end`."""
        self._open.discard(pending)
        if not self._open:
            self._idle.set()
        if pending.task is not None:
            pending.task.cancel()
        pending.cancel()

    async def drained(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.close()

    def times(self, function: Function) -> StageTimes:
        """What is known of a pipeline by its calls."""
        return self._times.get(function.key) or StageTimes()

    def forget(self, function: Function) -> None:
        """A pipeline is served no longer."""
        self._times.pop(function.key, None)

    # ── a call ────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, one: PipelineCall) -> None:
        call = one.call
        left_s = call.deadline_s - time.monotonic() + _AFTER_STAGES_S
        try:
            async with asyncio.timeout(None if left_s == math.inf else max(0.0, left_s)):
                reply = await self._answered(one)
        except TimeoutError:
            one.fail(overdue_of(call.function, time.monotonic() - one.began_s))
        except asyncio.CancelledError:
            one.fail(ShuttingDown())
            raise
        except ServiceError as error:
            one.fail(error)
        except BaseExceptionGroup as several:
            one.fail(_first_of(several))
        except Exception as error:
            one.fail(error)
        else:
            one.finish(reply)

    async def _answered(self, one: PipelineCall) -> Reply:
        call = one.call
        goals = self._goals(call)
        rows = len(call.rows)
        parts = [_Part(first, call.rows[first : first + _PART_ROWS]) for first in range(0, rows, _PART_ROWS)]
        if len(parts) == 1:
            await self._answer_part(one, parts[0], goals)
            return _reply_of(call.function, rows, parts)
        room = asyncio.Semaphore(_MOST_PARTS)

        async def in_turn(part: _Part) -> None:
            async with room:
                await self._answer_part(one, part, goals)

        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(in_turn(part))
        return _reply_of(call.function, rows, parts)

    def _goals(self, call: Call) -> tuple[float, ...]:
        """When each stage's rows should be answered, on the clock of `time.monotonic`."""
        function, now_s = call.function, time.monotonic()
        pipeline = _pipeline_of(function)
        slo_s = function.slo_ms / 1000 if call.slo_s is None else call.slo_s
        known = self.times(function)
        loads: list[StageLoad] = []
        rows = float(len(call.rows))
        for place, stage in enumerate(pipeline.stages):
            is_cut = place > 0 and pipeline.crop is not None
            form: Form = call.form if place == 0 else "image" if is_cut and place == 1 else "text"
            of_stage = [self._latency_of(model, form) for model in stage.members]
            before_s = known.cut_s if is_cut and place == 1 else 0.0
            gamma = known.objects if is_cut else 1.0
            loads.append(StageLoad(partial(_together_s, of_stage), rows * gamma, stage.max_batch, before_s))
        return tuple(now_s + goal_s for goal_s in goals_s(pipeline.split, loads, slo_s))

    async def _answer_part(self, one: PipelineCall, part: _Part, goals: Sequence[float]) -> None:
        call = one.call
        pipeline = _pipeline_of(call.function)
        if pipeline.crop is not None:
            async with self._room(call):
                await self._answer_objects(one, pipeline, part, goals)
            return
        owners = list(range(len(part.rows)))
        asked = await self._asked(one, 0, call.form, part.rows, owners, goals)
        answered = await self._chained(one, part, asked, 1, goals)
        _take(part, answered, pipeline, len(pipeline.stages) - 1)
        columns = answered.reply.columns
        for name, column in columns.items():
            part.columns[name] = column.empty(len(part.rows))
            for at, owner in enumerate(answered.owners):
                part.columns[name].put(owner, column, at, 1)
        part.defaulted.update(answered.owners[at] for at in answered.reply.defaulted)

    async def _answer_objects(
        self, one: PipelineCall, pipeline: Pipeline, part: _Part, goals: Sequence[float]
    ) -> None:
        """Rows that are pictures, cut up by the boxes that the first stage finds."""
        call = one.call
        owners = list(range(len(part.rows)))
        found = await self._asked(one, 0, call.form, part.rows, owners, goals)
        _take(part, found, pipeline, 0)
        boxes = await _boxes_by_row(found.reply, pipeline)
        cut = [row for row, there in enumerate(boxes) if there and row not in part.errors]
        answers: list[list[dict[str, Any] | None]] = [[] for _ in part.rows]
        known = self._times.setdefault(call.function.key, StageTimes())
        waiting = len(part.rows)
        while waiting:  # mostly once: large pieces are answered before there are more of them
            began_s = time.monotonic()
            got = await self._cut(one, pipeline, [part.rows[row] for row in cut], [boxes[row] for row in cut])
            objects, took_s = sum(map(len, got.by_row)), time.monotonic() - began_s
            known.cut(waiting - len(got.later), objects, took_s)
            for place, error in got.errors.items():
                told = f"stage 2 (crop): {error.message}"
                part.errors[cut[place]] = replace(error, index=cut[place], message=told)
            pieces = dict(zip(cut, got.by_row, strict=True))
            await self._answer_pieces(one, pipeline, part, pieces, answers, goals)
            cut, waiting = [cut[place] for place in got.later], len(got.later)
        texts = [
            "" if row in part.errors else objects_text(boxes[row], answers[row])
            for row in range(len(part.rows))
        ]
        (spec,) = pipeline.outputs
        part.columns[spec.name] = Column(spec.name, spec.datatype, (), texts, spec.content)

    async def _answer_pieces(
        self,
        one: PipelineCall,
        pipeline: Pipeline,
        part: _Part,
        pieces: Mapping[int, Sequence[bytes]],
        answers: Sequence[list[dict[str, Any] | None]],
        goals: Sequence[float],
    ) -> None:
        """Adds to `answers`, by row of the part, what the later stages say of its pieces."""
        rows = [piece for of_row in pieces.values() for piece in of_row]
        if not rows:
            return
        owners = [row for row, of_row in pieces.items() for _ in of_row]
        asked = await self._asked(one, 1, "image", rows, owners, goals)
        answered = await self._chained(one, part, asked, 2, goals)
        _take(part, answered, pipeline, len(pipeline.stages) - 1, but=NO_CONFIDENT_ANSWER)
        names = [spec.name for spec in pipeline.last.task.columns if spec.name != "scores"]
        columns = answered.reply.columns
        said = await _answers_of([columns[name] for name in names if name in columns])
        for at, owner in enumerate(answered.owners):
            answers[owner].append(None if at in answered.reply.errors else said[at])

    async def _chained(
        self, one: PipelineCall, part: _Part, asked: _Answered, first: int, goals: Sequence[float]
    ) -> _Answered:
        """What the last stage says of what `asked` said; the stages from `first` on take texts."""
        pipeline = _pipeline_of(one.call.function)
        for stage in range(first, len(pipeline.stages)):
            _take(part, asked, pipeline, stage - 1)
            said = asked.reply.columns[pipeline.stages[stage - 1].task.value.name].data
            sound = [at for at, owner in enumerate(asked.owners) if owner not in part.errors]
            rows = [str(said[at]).encode() for at in sound]
            asked = await self._asked(one, stage, "text", rows, [asked.owners[at] for at in sound], goals)
        return asked

    # ── a stage ───────────────────────────────────────────────────────────────────────────────────────

    async def _asked(
        self,
        one: PipelineCall,
        stage: int,
        form: Form,
        rows: list[bytes],
        owners: Sequence[int],
        goals: Sequence[float],
    ) -> _Answered:
        """What a stage says of some rows. Raises `ServiceError`, which names the stage."""
        call, pipeline = one.call, _pipeline_of(one.call.function)
        function = pipeline.stages[stage]
        if not rows:
            empty = {spec.name: spec.empty(0, function.sizes) for spec in function.outputs}
            return _Answered(Reply(function, 0, empty, {}, [], set()), [])
        is_last = stage == len(pipeline.stages) - 1
        outputs: tuple[str, ...] = ()
        if is_last:
            everything = tuple(spec.name for spec in function.task.columns if spec.name != "scores")
            outputs = call.outputs if pipeline.crop is None else everything
        asked = Call(
            function,
            form,
            rows,
            sum(map(len, rows)),
            outputs=outputs,
            deadline_s=call.deadline_s,
            row_class=call.row_class,
            priority=call.priority,
            slo_s=max(_LEAST_GOAL_S, goals[stage] - time.monotonic()),
            min_agreement=call.min_agreement,
            caller=call.caller,
            in_name_of=call.in_name_of,
            shares=call.shares,
            media_roots=call.media_roots,
            answer_cache=call.answer_cache and call.function.answer_cache is not False,
            is_traffic=call.is_traffic,
            is_part=True,
            turn=call.turn,
            turn_weight=call.turn_weight,
        )
        try:
            return _Answered(await self._reply(one, asked), owners)
        except VersionGone:
            whole = call.function
            gone = f"version {whole.version} of {whole.name} is no longer served"
            raise VersionGone(gone) from None
        except ServiceError as error:
            named = copy.copy(error)  # others may wait for the same failure
            named.message = f"{pipeline.name_of(stage)}: {error.message}"
            raise named from error

    async def _reply(self, one: PipelineCall, asked: Call) -> Reply:
        """The answers of a stage. Rows that were taken once wait for room, and are not refused."""
        for _ in range(_TRIES):
            was_taken = one.is_taken
            try:
                pending = self._begin(asked)
            except Overloaded as refused:
                if not was_taken:
                    raise
                why = refused
            else:
                one.is_taken = True
                try:
                    return await pending.future
                except Overloaded as refused:  # where files are looked at first, the queue is asked later
                    if not was_taken or pending.first_sent_s < math.inf or isinstance(refused, ShuttingDown):
                        raise
                    why = refused
                finally:
                    one.first_sent_s = min(one.first_sent_s, pending.first_sent_s)
                    self._end(pending)
            await asyncio.sleep(max(0.01, min(1.0, why.retry_after_s)))
        raise why

    def _begin(self, asked: Call) -> PendingReply | CachedCall:
        asked = replace(asked, function=self._dispatcher.current(asked.function))
        if self._wishes is not None:
            asked = self._wishes.answered_by(asked)
        return self._dispatcher.begin(asked) if self._cached is None else self._cached.begin(asked)

    def _end(self, pending: PendingReply | CachedCall) -> None:
        if not isinstance(pending, CachedCall):
            self._dispatcher.end(pending)
        elif self._cached is not None:
            self._cached.end(pending)

    async def _cut(
        self,
        one: PipelineCall,
        pipeline: Pipeline,
        rows: Sequence[bytes],
        boxes: Sequence[Sequence[Mapping[str, Any]]],
    ) -> Pieces:
        if not rows:
            return Pieces([], {}, [])
        call, crop = one.call, pipeline.crop
        assert crop is not None, "the pipeline cuts"
        corners = [[box["box"] for box in of_row] for of_row in boxes]
        roots = pipeline.stages[0].media_roots
        message = message_of(call.form, rows, corners, crop.margin, roots, call.media_roots)
        try:
            return await self._cropper.cut(message, call.deadline_s)
        except ServiceError as error:
            error.message = f"stage 2 (crop): {error.message}"
            raise

    def _room(self, call: Call) -> asyncio.Semaphore:
        """Pieces are larger than paths: so many parts may have theirs in memory."""
        return self._rooms.setdefault(call.row_class, asyncio.Semaphore(_MOST_CUT))


def _pipeline_of(function: Function) -> Pipeline:
    assert function.pipeline is not None, "calls of others go to the dispatcher"
    return function.pipeline


def _together_s(latencies: Sequence[Latency], rows: int) -> float:
    return math.fsum(latency(rows) for latency in latencies)


def _take(part: _Part, answered: _Answered, pipeline: Pipeline, stage: int, but: str = "") -> None:
    """Take in who answered, and what was at fault, but for errors of that code."""
    owners = answered.owners
    for first, end, members in answered.reply.answered_by:
        for owner in set(owners[first:end]):
            part.by[owner] += [name for name in members.split(",") if name and name not in part.by[owner]]
    for at, error in answered.reply.errors.items():
        if error.code != but and owners[at] not in part.errors:
            message = f"{pipeline.name_of(stage)}: {error.message}"
            part.errors[owners[at]] = replace(error, index=owners[at], message=message)


async def _boxes_by_row(reply: Reply, pipeline: Pipeline) -> list[list[dict[str, Any]]]:
    """What the first stage found in each picture, as far as it is cut out; nothing of a row at fault."""
    crop, texts = pipeline.crop, reply.columns[pipeline.stages[0].task.value.name].data
    assert crop is not None, "the pipeline cuts"

    def read() -> list[list[dict[str, Any]]]:
        return [
            [] if row in reply.errors else crop.cuts(boxes_of(str(text))) for row, text in enumerate(texts)
        ]

    return await asyncio.to_thread(read) if sum(map(len, texts)) > _LARGE_TEXT else read()  # type: ignore[arg-type]


async def _answers_of(columns: Sequence[Column]) -> list[dict[str, Any]]:
    is_large = sum(len(column.data) for column in columns) > _LARGE_TEXT
    return await asyncio.to_thread(answers_of, columns) if is_large else answers_of(columns)


def _reply_of(function: Function, rows: int, parts: Sequence[_Part]) -> Reply:
    columns = parts[0].columns
    if len(parts) > 1:
        columns = {name: column.empty(rows) for name, column in columns.items()}
        for part in parts:
            for name, column in part.columns.items():
                columns[name].put(part.first, column, 0, len(part.rows))
    errors = {
        part.first + row: replace(error, index=part.first + row)
        for part in parts
        for row, error in part.errors.items()
    }
    defaulted = {part.first + row for part in parts for row in part.defaulted}
    by = (",".join(names) for part in parts for names in part.by)
    return Reply(function, rows, columns, errors, list(_spans(by)), defaulted)


def _spans(by: Iterable[str]) -> Iterable[tuple[int, int, str]]:
    first = 0
    for members, alike in groupby(by):
        end = first + len(list(alike))
        if members:
            yield first, end, members
        first = end


def _first_of(several: BaseExceptionGroup[BaseException]) -> Exception:
    """Of what went wrong side by side, the first that is no cancellation."""
    for error in several.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first_of(error)
        if isinstance(error, Exception):
            return error
    return ServiceError("the server failed inside; its log holds the cause")
