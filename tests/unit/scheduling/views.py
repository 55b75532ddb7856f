"""What a policy sees, in one line: ages of the rows that wait, and what batches take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from server.scheduling.policies.by_name import policy_named
from server.scheduling.policy import Decision, FunctionView, MemberView, RowRun, Wait

NOW_S = 100.0
SLO_S = 0.05
SIZES = (1, 2, 4, 8, 16, 32, 64)


def affine(rows: int) -> float:
    """5 ms a batch and 0.25 ms a row: 64 rows in 21 ms."""
    return 0.005 + 0.00025 * rows


def view(
    ages_s: Sequence[float],
    *,
    now_s: float = NOW_S,
    slo_s: float = SLO_S,
    sizes: Sequence[int] = SIZES,
    latency_s: Callable[[int], float] = affine,
    free_in_s: float = 0.0,
    swap_s: float | None = None,
    rows_each: int = 1,
) -> FunctionView:
    """A queue of requests of `rows_each` rows, oldest first, and one member."""
    queue = [
        RowRun(number, rows_each, now_s - age_s, due_s=now_s - age_s + slo_s)
        for number, age_s in enumerate(sorted(ages_s, reverse=True))
    ]
    member = MemberView("m", 0.9, latency_s, now_s + free_in_s, swap_s is None, swap_s or 0.0)
    return FunctionView(now_s, slo_s, sizes[-1], tuple(sizes), queue, len(queue) * rows_each, (member,))


def decide(policy: str, seen: FunctionView, state: dict[str, Any] | None = None, **options: Any) -> Decision:
    """What a policy answers from its initial state, or from `state`."""
    rule = policy_named(policy)
    return rule.decide(rule.initial(options) if state is None else state, seen)[1]


def waits_until_s(decision: Decision) -> float:
    """When a decision to wait ends."""
    assert isinstance(decision, Wait)
    return decision.until_s
