"""Which members of a function take part in an answer.

Pure. `best`, `all` and a static subset are fixed when a function is deployed; `members_within` narrows them
for one request that brings its own goals (INFaaS §3: accuracy and latency instead of a model's name).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["POLICIES", "MemberEstimate", "is_policy", "members_within", "select_members"]

# Of server/ensemble/policies those that decide row by row, and learn nothing.
POLICIES = ("value", "gear", "slackfit", "async")


@dataclass(frozen=True, slots=True)
class MemberEstimate:
    """A member that could answer; `latency_s` is its predicted time for a number of rows."""

    name: str
    accuracy: float
    latency_s: Callable[[int], float]


def select_members(select: Any, accuracies: Sequence[tuple[str, float]]) -> tuple[str, ...]:  # noqa: ANN401  # JSON
    """The members that `select` names: "best", "all", or a list of names, out of (name, accuracy) pairs.

    All of them for a policy that selects row by row.

    Raises ValueError for anything else, for an unknown name, and for no member at all.
    """
    names = [name for name, _ in accuracies]
    if not names:
        raise ValueError("a function needs at least one model")
    if select == "all" or is_policy(select):
        return tuple(names)
    if select == "best":
        return (max(accuracies, key=lambda pair: pair[1])[0],)
    if isinstance(select, list | tuple) and select and all(isinstance(name, str) for name in select):
        unknown = [name for name in select if name not in names]
        if unknown:
            raise ValueError(f"select names {unknown[0]!r}, which is not among the models {names}")
        return tuple(name for name in names if name in select)
    policies = ", ".join(map(repr, POLICIES))
    raise ValueError(
        f"select must be 'best', 'all' or a list of model names, or a policy ({policies}), not {select!r}"
    )


def is_policy(select: object) -> bool:
    """Whether it names a policy that selects members row by row."""
    return isinstance(select, str) and select in POLICIES


def members_within(
    candidates: Sequence[MemberEstimate],
    rows: int,
    *,
    slo_s: float | None,
    min_accuracy: float | None,
    saved_s: float = 0.0,
) -> tuple[str, ...]:
    """The members that keep a request's own goals, in the given order; empty if no model is accurate enough.

    Members run one after the other on one device, so their latencies add up, each after the first less
    `saved_s` for what it shares with the others: the most accurate ones are taken while they fit into
    `slo_s`. If not even one fits, the fastest of the accurate enough ones stays.
    """
    fit = [c for c in candidates if min_accuracy is None or c.accuracy >= min_accuracy]
    if slo_s is None or not fit:
        return tuple(c.name for c in fit)
    chosen: set[str] = set()
    spent_s = 0.0
    for candidate in sorted(fit, key=lambda c: -c.accuracy):
        cost_s = max(0.0, candidate.latency_s(rows) - (saved_s if chosen else 0.0))
        if spent_s + cost_s <= slo_s:
            chosen.add(candidate.name)
            spent_s += cost_s
    if not chosen:
        chosen = {min(fit, key=lambda c: c.latency_s(rows)).name}
    return tuple(c.name for c in candidates if c.name in chosen)
