"""Policies of a user's own, each with another bug."""

from __future__ import annotations

import math
from typing import Any

from server.scheduling.policy import BatchOutcome, Dispatch, FunctionView, Refuse, Wait, member_names

METHODS = ("initial", "decide", "observe")


class Fine:
    """Runs all there is; what the others are but for their bug."""

    name = "fine"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        return {}

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Any]:
        return state, Dispatch(member_names(view), min(view.queued_rows, view.max_batch))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        return state


class RaisesInInitial(Fine):
    """When its function is deployed all is well; not when rows come."""

    begun = 0

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        type(self).begun += 1
        if type(self).begun % 2 == 0:  # configured, asked
            raise RuntimeError("a bug in initial")
        return {}


class RaisesInDecide(Fine):
    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Any]:
        raise RuntimeError("a bug in decide")


class RaisesInObserve(Fine):
    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        raise RuntimeError("a bug in observe")


class CannotBegin(Fine):
    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("target")


class CannotBeMade(Fine):
    def __init__(self) -> None:
        raise RuntimeError("a bug in __init__")


class Decides(Fine):
    """Its decision is what it was made with."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Any]:
        return state, self.decision


NONSENSE = {
    "no_rows": Decides(Dispatch((), 0)),
    "fewer_than_none": Decides(Dispatch((), -3)),
    "more_than_wait": Decides(Dispatch((), 4, skip=1000)),
    "more_than_a_batch": Decides(Dispatch((), 1000)),
    "before_the_first": Decides(Dispatch((), 1, skip=-1)),
    "half_a_row": Decides(Dispatch((), 0.5)),  # type: ignore[arg-type]  # the bug
    "part_of_a_row": Decides(Dispatch((), 1.5)),  # type: ignore[arg-type]  # the bug
    "another_member": Decides(Dispatch(("nobody/1",), 1)),
    "no_time": Decides(Dispatch((), 1, expected_s=math.nan)),
    "less_than_no_time": Decides(Dispatch((), 1, expected_s=-1.0)),
    "refuses_none": Decides(Refuse(0, 1.0)),
    "refuses_more_than_wait": Decides(Refuse(1000, 1.0)),
    "refuses_nobody_knows_when": Decides(Refuse(1, math.nan)),
    "waits_for_ever_and_a_nan": Decides(Wait(math.nan)),
    "nothing": Decides(None),
    "a_word": Decides("dispatch"),
}
globals().update(NONSENSE)


class AnswersWithNothing(Fine):
    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Any]:
        return None  # type: ignore[return-value]  # the bug


class ForgetsItsState(Fine):
    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Any]:
        return {"n": state.get("n", 0)}, Dispatch(member_names(view), 1)

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        return None  # type: ignore[return-value]  # the bug


FAULTY = [
    *(f"RaisesIn{method.capitalize()}" for method in METHODS),
    *NONSENSE,
    "AnswersWithNothing",
    "ForgetsItsState",
]


def named(policy: str) -> str:
    """The import path of one of these."""
    return f"{__name__}:{policy}"
