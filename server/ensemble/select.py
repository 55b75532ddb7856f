"""Which members of a function take part in an answer.

Pure. `best`, `all` and a static subset are fixed when a function is deployed; `subset_within` narrows them
for one request that brings limits of its own (INFaaS §3: accuracy and latency instead of a model's name), by
what subsets have been found to answer, and `members_within` where only single members are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.ensemble.costs import one_after_the_other_s
from server.ensemble.policies.by_name import SELECTION_POLICIES

__all__ = [
    "POLICIES",
    "Limits",
    "MemberEstimate",
    "is_own_policy",
    "is_policy",
    "members_within",
    "select_members",
    "subset_within",
]

_FIXED = ("all", "best")  # when a function is deployed
POLICIES = tuple(name for name in SELECTION_POLICIES if name not in _FIXED)  # which decide row by row


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request asks of its answers: how soon they come, how often they are right. None: nothing."""

    slo_s: float | None = None
    min_accuracy: float | None = None


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
        f"select must be 'best', 'all' or a list of model names, or a policy ({policies}, or a "
        f"package.module:attribute), not {select!r}"
    )


def is_policy(select: object) -> bool:
    """Whether it names a policy that selects members row by row: one of ours, or a user's own."""
    return isinstance(select, str) and (select in POLICIES or is_own_policy(select))


def is_own_policy(select: object) -> bool:
    """Whether it is the import path of a user's own policy, `package.module:attribute`."""
    return isinstance(select, str) and ":" in select


def subset_within(
    candidates: Sequence[MemberEstimate],
    accuracies: Mapping[frozenset[str], float],
    rows: int,
    limits: Limits,
    *,
    workers: Collection[Collection[str]] = (),
    saved_s: float = 0.0,
) -> tuple[str, ...]:
    """The members that keep a request's limits together, in the given order.

    All of them where they do; else the most accurate subset that does, of equally accurate ones the fastest.
    Where nothing is fast enough, and no accuracy is asked for, the fastest: a goal may be missed.

    accuracies: of the subsets that may answer, by the function's own rule, on rows that they were not fitted
    on. workers: the members that each of them holds. On one of them members run one after the other, each
    after the first less `saved_s` for what it shares with the others; on several side by side.

    Raises ValueError, naming what can be had, where no subset keeps the limits.
    """
    latency_s = {each.name: each.latency_s(rows) for each in candidates}
    names = tuple(latency_s)

    everybody = frozenset(names)
    # The common case: then nobody needs to look who holds whom, of every subset.
    together = not workers or any(everybody.issubset(held) for held in workers)

    def takes_s(subset: frozenset[str]) -> float:
        members = [name for name in names if name in subset]
        if together:
            return one_after_the_other_s([latency_s[name] for name in members], saved_s)
        return _takes_s(members, latency_s, workers, saved_s)

    least, most_s = limits.min_accuracy, limits.slo_s
    if accuracies.get(everybody, -1.0) >= (least or 0.0) and (most_s is None or takes_s(everybody) <= most_s):
        return names
    able = {each: found for each, found in accuracies.items() if each <= everybody}
    right = {each: found for each, found in able.items() if least is None or found >= least}
    if not right:
        best = min(able, key=lambda each: (-able[each], takes_s(each)), default=everybody)
        reached = f"the best, {_named(names, best)}, has {able[best]:g}" if able else "none was counted"
        raise ValueError(f"no members have an accuracy of {least:g} together; {reached}")
    duration_s = {each: takes_s(each) for each in right}
    timely = [each for each in right if most_s is None or duration_s[each] <= most_s]
    if timely:
        chosen = min(timely, key=lambda each: (-right[each], duration_s[each], len(each)))
    else:
        chosen = min(right, key=lambda each: (duration_s[each], -right[each]))
        if least is not None and most_s is not None:
            raise ValueError(_too_slow(names, able, rows, least, most_s, chosen, takes_s))
    return tuple(name for name in names if name in chosen)


def _too_slow(
    names: Sequence[str],
    able: Mapping[frozenset[str], float],
    rows: int,
    least: float,
    most_s: float,
    fastest: frozenset[str],
    takes_s: Callable[[frozenset[str]], float],
) -> str:
    """Why there is no subset both so accurate and so fast, and the nearest on either side."""
    timely = [each for each in able if takes_s(each) <= most_s]
    best = max(timely, key=lambda each: able[each], default=None)
    reached = (
        "" if best is None else f"; within that time the best, {_named(names, best)}, has {able[best]:g}"
    )
    return (
        f"no members answer {rows} rows in {most_s * 1000:g} ms with an accuracy of {least:g}: "
        f"{_named(names, fastest)} would take {takes_s(fastest) * 1000:.3g} ms{reached}"
    )


def _takes_s(
    members: Sequence[str],
    latency_s: Mapping[str, float],
    workers: Collection[Collection[str]],
    saved_s: float,
) -> float:
    """How long they take together: on one worker if one holds them all, else on as few as hold them."""
    if not any(all(name in held for name in members) for held in workers):
        parts: list[list[str]] = []
        left = list(members)
        while left:
            held = max(workers, key=lambda each: sum(name in each for name in left), default=())
            part = [name for name in left if name in held] or left  # nobody has the rest: one will load it
            parts.append(part)
            left = [name for name in left if name not in part]
    else:
        parts = [list(members)]
    return max(one_after_the_other_s([latency_s[name] for name in part], saved_s) for part in parts)


def _named(names: Sequence[str], subset: frozenset[str]) -> str:
    """A subset for a message, in the function's order, without the versions."""
    return " + ".join(name.rpartition("/")[0] or name for name in names if name in subset)


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
