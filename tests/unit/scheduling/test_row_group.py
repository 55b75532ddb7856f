"""Rows that are alike are one thing, until something tells them apart; then nothing of them is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.ensemble.evidence import carried_over, fit_evidence
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Choice
from server.scheduling.policy import RowRun
from server.scheduling.pool import MemberPool, RunOn
from server.scheduling.row_buckets import RowBuckets
from server.scheduling.row_group import PooledRequest, RowGroup, in_one_piece, laid_out
from server.scheduling.terms import Slice
from tests.unit.ensemble.ensembles import drawn, ensemble_of, outcomes_of

ASK = Choice((0,))


def group(rows: int = 10, first: int = 0) -> RowGroup:
    return RowGroup.of(PooledRequest(RowRun(1, rows, 0.0, 1.0, due_s=1.0, offset=first), 0.25))


@given(st.sets(st.integers(0, 60), min_size=1))
def test_rows_that_follow_one_another_are_told_as_one_piece(rows: set[int]) -> None:
    pieces = list(in_one_piece(sorted(rows)))
    assert [row for first, count in pieces for row in range(first, first + count)] == sorted(rows)
    assert all(end + count < first for (end, count), (first, _) in pairwise(pieces))


def test_a_batch_cuts_off_what_it_takes_with_its_places_in_other_batches() -> None:
    rest = group()
    rest.places[7] = range(20, 30)
    head = rest.head(4)
    assert (list(head.rows), list(head.places[7])) == ([0, 1, 2, 3], [20, 21, 22, 23])
    assert (list(rest.rows), list(rest.places[7])) == ([4, 5, 6, 7, 8, 9], list(range(24, 30)))
    assert laid_out([head, rest], 8) == (Slice(1, 0, 10),)
    assert set(rest.request.groups) == {head, rest}


def test_rows_of_a_request_stand_in_a_batch_by_their_numbers_whichever_groups_they_are_of() -> None:
    whole, other = group(), group(2, first=10)
    odd, even = whole.pick([3, 1, 5]), whole.pick([0, 4, 2])
    slices = laid_out([other, odd, even], 9)
    assert slices == (Slice(1, 10, 2), Slice(1, 0, 6))
    rows = [row for each in slices for row in range(each.offset, each.offset + each.rows)]
    for each in (other, odd, even):
        assert [rows[place] for place in each.places[9]] == list(each.rows)
    assert laid_out([even], 10) == (Slice(1, 0, 1), Slice(1, 2, 1), Slice(1, 4, 1))
    assert list(even.places[10]) == [0, 2, 1]


def test_rows_of_a_request_that_need_the_same_are_one_group_again() -> None:
    buckets = RowBuckets(3)
    rest = group()
    head = rest.head(4)
    other = group()
    for each in (head, rest, other):
        buckets.put(each, ASK)
    (bucket,) = buckets
    assert [each.count for each in bucket.groups] == [10, 10]
    assert (bucket.rows, buckets.counts.tolist()) == (20, [20, 0, 0])
    buckets.take(list(bucket.groups))
    assert not buckets


def test_rows_under_way_are_not_joined_with_others() -> None:
    buckets = RowBuckets(3)
    rest = group()
    head = rest.head(4)
    head.places[1] = range(4)
    for each in (head, rest):
        buckets.put(each, ASK)
    assert [each.count for bucket in buckets for each in bucket.groups] == [4, 6]


def test_rows_that_a_batch_takes_together_are_told_apart_as_before_if_no_answer_comes() -> None:
    whole = group()
    odd, even = whole.pick([3, 1, 5]), whole.pick([0, 4, 2])
    odd.state, even.state = 1, 2
    together = RowGroup.together([odd, even])
    assert laid_out([together], 8) == (Slice(1, 0, 6),)
    assert (together.rows, together.count, together.places[8]) == ([0, 1, 2, 3, 4, 5], 6, range(6))
    assert {odd, even}.isdisjoint(whole.request.groups)
    together.is_late = True
    assert list(together.apart()) == [odd, even]
    assert set(whole.request.groups) == {whole, odd, even}
    assert [(each.state, each.is_late, each.places) for each in (odd, even)] == [(1, True, {}), (2, True, {})]
    assert RowGroup.together([odd]) is odd
    assert list(odd.apart()) == [odd]


@pytest.mark.parametrize("evidence_anew", [False, True])
def test_how_sure_rows_are_is_known_again_once_the_worker_that_they_were_on_is_lost(evidence_anew) -> None:
    of = ensemble_of(outcomes_of(*drawn([0.6, 0.75, 0.9])), [0.1, 0.2, 0.6])
    latencies = [lambda rows, one=one: one.fixed_s + rows * one.per_row_s for one in of.members]
    pool = MemberPool(of, selection_policy("value", of), latencies, slo_s=0.05, max_batch=8)
    pool.set_worker(0.0, "w", range(3))
    pool.submit(0.0, RowRun(1, 4, 0.0, 0.05, due_s=0.05))
    first = pool.next_action(0.0)
    assert isinstance(first, RunOn)
    least, more, *_ = of.evidence.edges[1 << first.member]
    pool.finished(0.001, first.batch_id, [(least + more) / 2, least / 2] * 2)
    waited = {each.state: each.rows for each in pool._waiting}
    assert list(waited.values()) == [2, 2]
    second = pool.next_action(0.001)
    assert isinstance(second, RunOn)
    assert (second.rows, second.slices) == (4, (Slice(1, 0, 4),))
    if evidence_anew:
        fewer = ensemble_of(outcomes_of(*drawn([0.6, 0.75, 0.9], rows=300)), [0.1, 0.2, 0.6])
        states = carried_over(of.evidence, fewer.evidence)
        among = {states[state] for state in waited}
        waited = {one: sum(rows for state, rows in waited.items() if states[state] == one) for one in among}
        pool.follow(fewer, selection_policy("value", fewer))
    pool.set_worker(0.001, "other", range(3))
    pool.set_worker(0.002, "w", ())
    assert {each.state: each.rows for each in pool._waiting} == waited


def test_each_row_draws_a_lot_of_its_own_wherever_it_is_asked() -> None:
    request = group(100, first=5).request
    assert request.draw_of(5) == 0.25
    draws = {request.draw_of(row) for row in range(5, 105)}
    assert len(draws) == 100
    assert all(0 <= draw < 1 for draw in draws)
    assert max(sum(low <= draw < low + 0.1 for draw in draws) for low in (0.0, 0.3, 0.6, 0.9)) <= 13


@given(st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=80))
def test_the_states_of_many_rows_are_those_of_each(confidences: list[float]) -> None:
    outcomes = outcomes_of(*drawn([0.6, 0.9]))
    evidence = fit_evidence(2, outcomes.confidence, outcomes.correct)
    for subset in (1, 2, 3, 4):
        states = [evidence.state_of(subset, each) for each in confidences]
        assert evidence.states_each(subset, confidences) == states


def test_how_sure_rows_are_is_kept_for_a_policy_that_heeds_it_later() -> None:
    of = ensemble_of(outcomes_of(*drawn([0.6, 0.75, 0.9])), [0.1, 0.2, 0.6])
    latencies = [lambda rows, one=one: one.fixed_s + rows * one.per_row_s for one in of.members]
    pool = MemberPool(of, selection_policy("all", of), latencies, slo_s=0.05, max_batch=8)
    pool.set_worker(0.0, "w", range(3))
    pool.submit(0.0, RowRun(1, 2, 0.0, 0.05, due_s=0.05))
    first = pool.next_action(0.0)
    assert isinstance(first, RunOn)
    pool.finished(0.001, first.batch_id, [1.0, 0.2])
    (bucket,) = pool._waiting  # `all` asks the others in any case
    assert [each.count for each in bucket.groups] == [2]
    pool.follow(of, selection_policy("value", of))
    subset = 1 << first.member
    assert {(each.state, each.rows) for each in pool._waiting} == {
        (of.evidence.state_of(subset, confidence), 1) for confidence in (1.0, 0.2)
    }
