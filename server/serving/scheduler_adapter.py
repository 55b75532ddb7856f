"""Between what is served and what the scheduler's core knows: functions, calls and refusals, translated.

Pure. The core speaks of rows, members and seconds; everything else of a function stays on this side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpu_worker.wire.protocol import Answer, Failed
from server.catalog.functions import Function, ModelVersion
from server.errors import DeadlineExceeded, Overloaded, ServiceError
from server.scheduling.core import (
    BatchTimes,
    FunctionSpec,
    MemberSpec,
    MemberTime,
    RefuseRows,
    Rejection,
    Submission,
)
from server.scheduling.terms import Latency
from server.serving.calls import PendingReply

__all__ = [
    "LatencyOf",
    "QueueBounds",
    "SwapTime",
    "error_of",
    "late_of",
    "overdue_of",
    "spec_of",
    "submission_of",
    "submission_of_like",
    "times_of",
]

LatencyOf = Callable[[ModelVersion], Latency]
SwapTime = Callable[[ModelVersion, str], float]  # a model, a kind of device → seconds of its load there


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What may wait per function."""

    rows: int
    nbytes: int


def spec_of(function: Function, bounds: QueueBounds, latency_of: LatencyOf, swap_s: SwapTime) -> FunctionSpec:
    """The function as the core knows it, under its `key`: versions do not share batches."""
    return FunctionSpec(
        name=function.key,
        slo_s=function.slo_ms / 1000,
        max_batch=function.max_batch,
        batch_sizes=function.batch_sizes,
        members=tuple(
            MemberSpec(m.key, m.accuracy, latency_of(m), partial(swap_s, m)) for m in function.asked
        ),
        policy=function.policy,
        policy_options=function.policy_options,
        max_queued_rows=bounds.rows,
        max_queued_bytes=bounds.nbytes,
        pooled=function.follows_plans,
        prefix=_prefix_of(function),
    )


def _prefix_of(function: Function) -> str:
    """The network that its rows go through before the head that answers them, or that says itself what it
    sees; "" where there is none.

    Rows whose files may lie elsewhere are another's: a batch says for all of its rows which may be read.
    """
    if len(function.asked) != 1 or function.follows_plans or function.late_rows is not None:
        return ""
    model = function.asked[0]
    if model.backbone is not None:
        return f"{model.backbone.key} {model.backbone.sha256} {function.media_roots}"
    if function.task.reads == "features" and not model.endpoint:
        return f"{model.key} {model.as_backbone} {function.media_roots}"
    return ""


def submission_of(
    pending: PendingReply, offset: int, rows: int, members: tuple[str, ...] | None = None
) -> Submission:
    """Rows [offset, offset + rows) of a call. Rows of different forms do not share batches either.

    members: that the rows still wait for; None for all that the call asks for.
    """
    call = pending.call
    return Submission(
        request_id=pending.request_id,
        function=call.function.key,
        rows=rows,
        nbytes=call.nbytes * rows // len(call.rows),
        deadline_s=call.deadline_s,
        row_class=call.row_class,
        priority=call.priority,
        members=call.members if members is None else members,
        slo_s=call.slo_s,
        bucket=call.form,
        offset=offset,
        min_accuracy=call.least,
        tenant=call.turn or call.caller,
        weight=call.turn_weight or call.shares.weight,
    )


def submission_of_like(request_id: int, calls: Sequence[PendingReply]) -> Submission:
    """Calls of one row each that are like each other: row i is that of the i-th."""
    like = submission_of(calls[0], 0, 1)
    return replace(
        like,
        request_id=request_id,
        rows=len(calls),
        nbytes=sum(pending.call.nbytes for pending in calls),
        deadline_s=min(pending.call.deadline_s for pending in calls),
    )


def times_of(reply: Answer | Failed) -> BatchTimes:
    """What a worker says that a batch took."""
    if not isinstance(reply, Answer):
        return BatchTimes(reply.work_s, reply.stay_s)
    members = tuple(
        MemberTime(own_s, shared_s, _rows_asked(reply, place))
        for place, (own_s, shared_s) in enumerate(reply.members_s)
    )
    return BatchTimes(reply.work_s, reply.stay_s, members)


def _rows_asked(reply: Answer, place: int) -> int | None:
    """How many of the rows that member answered; None for all."""
    return sum(who >> place & 1 for who in reply.answered) if reply.answered else None


def error_of(rejection: Rejection, function: Function, now_s: float) -> ServiceError:
    """What the caller of a refused submission is told."""
    message = rejection.message.replace(function.key, function.name)
    error: ServiceError
    if rejection.code == "overloaded":
        error = Overloaded(message, rejection.retry_after_s or 1.0)
    else:
        when = ""
        if rejection.predicted_finish_s is not None:
            when = f"; predicted to finish in {(rejection.predicted_finish_s - now_s) * 1000:.0f} ms"
        error = DeadlineExceeded(message + when)
    error.alike_s = rejection.alike_s
    return error


def overdue_of(function: Function, waited_s: float) -> ServiceError:
    """What a caller is told whose deadline has come."""
    return DeadlineExceeded(f"no answer of {function.name} after {waited_s * 1000:.0f} ms, its deadline")


def late_of(refusal: RefuseRows, function: Function, now_s: float) -> ServiceError:
    """What the callers of rows are told that could not run in time."""
    predicted_ms = (refusal.predicted_finish_s - now_s) * 1000
    reason = refusal.reason.replace(function.key, function.name)
    return DeadlineExceeded(f"{reason}; predicted to finish in {predicted_ms:.0f} ms")
