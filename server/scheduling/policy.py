"""The scheduling contract: what a batching policy sees, and what it may answer.

A policy is a pure function of (state, view): no clock, no I/O, no randomness that its state does not
carry. The live server and the simulator run the same one. The unit is the row; a request's rows that
wait together are one `RowRun`, so that a view's size follows the requests and not the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from server.record import record

__all__ = [
    "SHORTEST_WAIT_S",
    "SILENCE_S",
    "BatchOutcome",
    "DecidesAtEase",
    "Decision",
    "Dispatch",
    "FunctionView",
    "MemberView",
    "Policy",
    "Refuse",
    "RowClass",
    "RowRun",
    "Wait",
    "batch_latency_s",
    "largest_within",
    "member_names",
    "number_option",
    "rows_within",
    "start_s",
]

RowClass = Literal["interactive", "bulk"]

# Of who asks policies.
SHORTEST_WAIT_S = 1e-4  # one that waits for a time gone by must not spin its shell
SILENCE_S = 1.0  # nothing ran for so long that what l̂ says may be stale: worth a try, whatever it says


@dataclass(frozen=True, slots=True)
class RowRun:
    """`rows` consecutive rows of one request, waiting together."""

    request_id: int
    rows: int
    arrived_s: float
    deadline_s: float = math.inf  # absolute, on the clock of `now_s`
    row_class: RowClass = "interactive"
    priority: int = 0  # higher goes first
    due_s: float = math.inf  # when its latency goal is missed: the earlier of arrival + SLO and deadline
    offset: int = 0  # of its first row within the request
    row_bytes: float = 0.0
    min_accuracy: float | None = None  # that is asked for, by who selects members row by row
    answered: int = 0  # bit mask of the members that have, where they are asked one after the other
    tenant: str = ""  # whose they are, among those who share the workers

    def part(self, offset: int, rows: int) -> RowRun:
        """Rows [offset, offset + rows) of the request, which are among these."""
        return RowRun(
            self.request_id,
            rows,
            self.arrived_s,
            self.deadline_s,
            self.row_class,
            self.priority,
            self.due_s,
            offset,
            self.row_bytes,
            self.min_accuracy,
            self.answered,
            self.tenant,
        )


@record
class MemberView:
    """A model that can take part: its accuracy, and its predicted latency l̂(b) in seconds."""

    name: str
    accuracy: float
    latency_s: Callable[[int], float]
    free_at_s: float  # when the worker that holds it can start another batch
    resident: bool = True
    swap_s: float = 0.0  # to make it resident


@record
class FunctionView:
    """One function as its policy sees it; `queue` is in the order in which rows would run."""

    now_s: float
    slo_s: float
    max_batch: int
    batch_sizes: tuple[int, ...]  # B of Rafiki §5.1, ascending; the last one is `max_batch`
    queue: Sequence[RowRun]
    queued_rows: int
    members: tuple[MemberView, ...]
    together_s: Callable[[int], float] | None = None  # l̂(b) of all members, where that is not their sum


@record
class Dispatch:
    """Run `rows` rows of the queue, after the `skip` first ones, on `members` as one batch."""

    members: tuple[str, ...]
    rows: int
    skip: int = 0
    expected_s: float | None = None  # what it should take, if the policy knows better than l̂


@record
class Wait:
    """Nothing to do before `until_s`, unless rows arrive or a worker becomes free."""

    until_s: float = math.inf


@record
class Refuse:
    """Refuse the first `rows` rows: they would finish at `predicted_finish_s`, past their deadline."""

    rows: int
    predicted_finish_s: float


Decision = Dispatch | Wait | Refuse


@record
class BatchOutcome:
    """A batch that ran, as `observe` sees it."""

    now_s: float
    rows: int
    members: tuple[str, ...]
    latency_s: float
    slo_s: float
    overdue_rows: int = 0
    predicted_s: float = 0.0  # what l̂ said when it was dispatched; 0 when nothing was said


class Policy(Protocol):
    """A batching rule. `State` is a plain serialisable dict that the policy alone interprets."""

    name: str

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        """The state of a function that has not run yet. Raises `ValueError` for a bad option."""
        ...

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Decision]:
        """What to do now; called only with `queued_rows` > 0.

        The state that comes with a `Dispatch` counts if it is carried out: the worker may go to another
        function first, and then the old state is asked again.
        """
        ...

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        """Learn from a finished batch."""
        ...


@runtime_checkable
class DecidesAtEase(Protocol):
    """A batching rule that says at little cost when there is nothing to weigh."""

    def at_ease(
        self,
        state: dict[str, Any],
        latency_s: Callable[[int], float],
        starts_s: float,
        due_s: float,
        rows: int,
    ) -> tuple[dict[str, Any], float] | None:
        """The state and the seconds with which `decide` would dispatch all of these rows; None: ask it.

        Of rows for one member, as many as a batch may take: the goal of the first, and when it could start.
        """
        ...


def member_names(view: FunctionView) -> tuple[str, ...]:
    """All members: what a policy that only batches dispatches to."""
    return tuple(member.name for member in view.members)


def batch_latency_s(view: FunctionView, rows: int) -> float:
    """l̂ of a batch on all members: one after the other where they share a worker, else side by side."""
    if view.together_s is not None:
        return view.together_s(rows)
    if len(view.members) == 1:
        return view.members[0].latency_s(rows)
    return sum(member.latency_s(rows) for member in view.members)


def start_s(view: FunctionView) -> float:
    """When a batch sent now would start: the worker is free, and every member is resident."""
    free_s = max(member.free_at_s for member in view.members)
    swap_s = sum(member.swap_s for member in view.members if not member.resident)
    return max(view.now_s, free_s) + swap_s


def largest_within(view: FunctionView, budget_s: float, most: int) -> int:
    """The largest batch of at most `most` rows with l̂ ≤ budget; 0 if not even one row."""
    return rows_within(lambda rows: batch_latency_s(view, rows), most, budget_s)


def rows_within(latency_s: Callable[[int], float], most: int, limit_s: float) -> int:
    """The largest batch of at most `most` rows whose latency, which grows with them, is within the limit.

    0 if there is none.
    """
    if most == 0 or latency_s(most) <= limit_s:
        return most
    low, high = 0, most  # `low` fits, `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        if latency_s(middle) <= limit_s:
            low = middle
        else:
            high = middle
    return low


def number_option(
    options: dict[str, Any], name: str, default: float, *, low: float = -math.inf, high: float = math.inf
) -> float:
    """A numeric option in [low, high]. Raises ValueError naming it otherwise."""
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"policy option {name!r} must be a number from {low:g} to {high:g}, not {value!r}")
    return float(value)
