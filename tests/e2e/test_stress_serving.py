"""The stress of `make stress-serving`, 20 seconds of it."""

from __future__ import annotations

from tests.stress.faults import Plan
from tests.stress.serving import stressed


def test_under_every_kind_of_caller_and_fault_every_request_gets_its_answer_or_its_error() -> None:
    plan = Plan(hang_at_s=0.5, kill_at_s=6.0, lock_at_s=8.0, locked_s=5.0, round_s=1000.0)
    outcome = stressed(20.0, plan, seed=1)
    outcome.show()
    assert (outcome.hung, outcome.killed, outcome.locked) == (1, 1, 1)
    assert outcome.faults() == []
