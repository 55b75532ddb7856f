"""Another selection policy while rows wait and batches are under way: every row is answered once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.ensemble.policies.by_name import SELECTION_POLICIES, selection_policy
from server.ensemble.selection import Ensemble
from server.scheduling.core import AnswerKnown, Idle, RefuseRows, RunBatch, Scheduler
from tests.unit.ensemble.ensembles import ensemble_of
from tests.unit.scheduling.test_pooled_functions import ENSEMBLE, GOAL_S, OUTCOMES, asked, core

OWN = [
    f"tests.unit.ensemble.own_policies:{name}"
    for name in ("the_first_two", "in_select", "in_steer", "leaves")
]
POLICIES = [*SELECTION_POLICIES, *OWN]
APART = ensemble_of(OUTCOMES, [0.1, 0.2, 0.6], [0, 1, 1])  # the same evidence, other devices
APART = replace(APART, evidence=ENSEMBLE.evidence, combination=ENSEMBLE.combination)


class _Served:
    """A scheduler of which each row is to be answered, or refused, once."""

    def __init__(self, policy: str, seed: int) -> None:
        self.core: Scheduler = core(policy, a="012", b="012")
        self.draw = Random(seed)
        self.now_s = 0.0
        self.open: Counter[tuple[int, int]] = Counter()
        self.flying: list[tuple[float, RunBatch]] = []
        self.requests = 0

    def submit(self, rows: int) -> None:
        self.requests += 1
        goal_s = self.now_s + GOAL_S
        deadline_s = self.draw.choice([goal_s, goal_s + 1.0, float("inf")])
        if self.core.submit(self.now_s, asked(self.requests, rows, deadline_s=deadline_s)) is None:
            self.open.update((self.requests, row) for row in range(rows))

    def follow(self, policy: str, ensemble: Ensemble) -> None:
        self.core.follow(self.now_s, "e", "", ensemble, selection_policy(policy, ensemble))

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            for _ in range(1000):
                action = self.core.next_action(self.now_s)
                if isinstance(action, Idle):
                    break
                if isinstance(action, RunBatch):
                    self.flying.append((self.now_s + self.draw.uniform(0.001, 0.02), action))
                elif isinstance(action, AnswerKnown | RefuseRows):
                    self._settle(action.slices)
            else:
                pytest.fail("it does not come to rest")
            next_s = min([action.until_s, *(at_s for at_s, _ in self.flying)])
            if next_s > end_s:
                self.now_s = end_s
                return
            self.now_s = max(self.now_s, next_s)
            for pair in [pair for pair in self.flying if pair[0] <= self.now_s]:
                self.flying.remove(pair)
                self._finish(pair[1])

    def _finish(self, batch: RunBatch) -> None:
        sure = [self.draw.random() for _ in range(batch.rows)] if batch.choices else ()
        self.core.finished(self.now_s, batch.batch_id, sure=sure)
        if not batch.choices:
            self._settle(batch.slices)

    def _settle(self, slices) -> None:
        for part in slices:
            for row in range(part.offset, part.offset + part.rows):
                self.open[part.request_id, row] -= 1
                assert self.open[part.request_id, row] == 0, "it was answered before"


@pytest.mark.parametrize("before", POLICIES)
@pytest.mark.parametrize("after", POLICIES)
def test_each_policy_takes_over_from_each_other_with_rows_waiting_and_under_way(before, after):
    served = _Served(before, 1)
    served.submit(30)
    served.run(0.004)
    served.submit(5)
    served.follow(after, ENSEMBLE)
    served.submit(5)
    served.run(0.004)
    served.follow(before, APART)
    served.run(20.0)
    assert +served.open == Counter()
    assert served.core.queue_depth() == {"e": (0, 0)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(POLICIES), st.booleans()),
            st.integers(1, 40),
            st.floats(0.0005, 0.06),
        ),
        max_size=30,
    ),
    st.sampled_from(POLICIES),
    st.integers(0, 1000),
)
def test_whatever_changes_and_whenever_every_row_is_answered_or_refused_once(events, policy, seed):
    served = _Served(policy, seed)
    for event in events:
        if isinstance(event, tuple):
            served.follow(event[0], APART if event[1] else ENSEMBLE)
        elif isinstance(event, int):
            served.submit(event)
        else:
            served.run(event)
    served.run(60.0)
    assert +served.open == Counter()
    assert served.core.queue_depth() == {"e": (0, 0)}
