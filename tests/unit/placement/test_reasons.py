"""Each load and eviction has a reason that an operator understands, whatever the policy says of it."""

from __future__ import annotations

import pytest

from server.placement.policy import (
    Abort,
    Evict,
    Fetch,
    GroupKeys,
    PlacementAction,
    PlacementState,
    Residence,
    Visits,
    WaitingRows,
    Wish,
    WorkerPlaces,
)
from server.placement.reasons import reason_of

A: GroupKeys = ("a",)
B: GroupKeys = ("b",)
C: GroupKeys = ("c",)
FETCH = Fetch("w0", "a")
W0 = WorkerPlaces("w0")
ELSEWHERE = {"w0": W0, "w1": WorkerPlaces("w1", resident={"a": Residence(0.0, 0.1)})}


@pytest.mark.parametrize(
    ("action", "load", "state", "said"),
    [
        (FETCH, "a", PlacementState({"w0": W0}, wishes=(Wish(A, 0.0),)), ("wanted", "")),
        (FETCH, "a", PlacementState({"w0": W0}, waited_for={A: WaitingRows(1)}), ("rows waited", "")),
        (FETCH, "a", PlacementState(ELSEWHERE, waited_for={A: WaitingRows(1)}), ("second copy", "")),
        (FETCH, "a", PlacementState(ELSEWHERE), ("second copy", "")),
        (FETCH, "a", PlacementState({"w0": WorkerPlaces("w0", offers=(A,))}), ("there was room", "")),
        (
            FETCH,
            "a",
            PlacementState({"w0": W0}, visits=Visits(last=B, next={B: (C, 0.9), C: (A, 0.9)})),
            ("successor of", "c"),
        ),
        (FETCH, "a", PlacementState({"w0": W0}), ("rows expected", "")),
        (Fetch("w0", "a", "because", "c"), "a", PlacementState({"w0": W0}), ("because", "c")),
        (Evict("w0", "b"), "a", PlacementState({"w0": W0}), ("made room for", "a")),
        (Evict("w0", "b"), "", PlacementState({"w0": W0}), ("was of least worth", "")),
        (Abort("w0", "b"), "", PlacementState({"w0": W0}), ("rows waited for another", "")),
    ],
)
def test_a_move_has_its_reason(
    action: PlacementAction, load: str, state: PlacementState, said: tuple[str, str]
) -> None:
    assert reason_of(action, load, state) == said
