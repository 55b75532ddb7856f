"""A worker's batches: when it is free, what each took, in whatever order they finish, and when it hangs."""

from __future__ import annotations

import itertools

import pytest

from server.scheduling.core import BatchTimes, MemberSpec, Scheduler
from server.scheduling.latency_model import LatencyModel
from server.scheduling.worker_state import SentBatch, WorkerState, hangs_after_s
from tests.unit.scheduling.cores import batches, core, rows, spec, worker


def state(*predicted_s: float, in_flight_limit: int = 3, is_guess: bool = False) -> WorkerState:
    """A worker that was sent batches 1, 2, … at time 0, one after the other."""
    made = WorkerState(worker(in_flight_limit=in_flight_limit))
    for batch_id, each_s in enumerate(predicted_s, 1):
        alone = not made.in_flight
        made.send(SentBatch(batch_id, ("f-m",), 1, 0.0, each_s, (), is_guess, alone))
    return made


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_each_batch_teaches_its_own_time_in_whatever_order_they_land(order: tuple[int, ...]) -> None:
    """Worked on together, they finish within a moment of each other at the end."""
    took_s = {1: 1.0, 2: 0.5, 3: 0.25}
    made = state(*took_s.values())
    learned = {}
    for place, batch_id in enumerate(order):
        now_s = 1.70 + 0.02 * place
        _, learned[batch_id] = made.finish(now_s, batch_id, BatchTimes(took_s[batch_id], now_s - 0.001))
    assert learned[2] == pytest.approx(0.5)
    assert learned[3] == pytest.approx(0.25)
    assert learned[1] == pytest.approx(1.0, abs=0.01), "with the way there and back, which nothing hid"


def test_a_batch_taken_back_before_it_began_lands_first_and_moves_nothing() -> None:
    made = state(1.0, 0.5)
    assert made.free_at_s(0.0) == pytest.approx(1.5)
    _, service_s = made.finish(0.2, 2, BatchTimes(0.0, 0.2))
    assert service_s == 0.0
    assert made.free_at_s(0.2) == pytest.approx(1.0)


def test_a_batch_that_overtook_another_delays_it_by_what_it_took() -> None:
    made = state(1.0, 0.5)
    made.finish(0.8, 2, BatchTimes(0.4, 0.8))
    assert made.free_at_s(0.8) == pytest.approx(1.4)
    made.finish(1.4, 1, BatchTimes(1.0, 1.4))
    assert made.free_at_s(1.4) == pytest.approx(1.4)


def test_a_shell_that_is_told_nothing_counts_from_landing_to_landing() -> None:
    made = state(1.0, 0.5)
    assert made.finish(1.1, 1)[1] == pytest.approx(1.1)
    assert made.finish(1.5, 2)[1] == pytest.approx(0.4)


def test_an_overdue_worker_is_counted_on_later_the_longer_it_is_overdue() -> None:
    made = state(1.0)
    assert made.starts_at_s(0.5) == pytest.approx(1.0)
    assert made.starts_at_s(1.0) == pytest.approx(1.0)
    assert made.starts_at_s(3.0) == pytest.approx(5.0)
    made.finish(3.0, 1, BatchTimes(3.0, 3.0))
    assert made.starts_at_s(4.0) == pytest.approx(4.0)
    assert state().starts_at_s(4.0) == pytest.approx(4.0)


def test_a_worker_that_is_long_overdue_is_sent_nothing_more_until_a_batch_comes_back() -> None:
    made = state(0.1)
    assert made.has_room(0.2)
    assert not made.has_room(1.0)
    made.finish(1.0, 1, BatchTimes(1.0, 1.0))
    assert made.has_room(1.0)
    assert [state(0.5).has_room(now_s) for now_s in (1.5, 1.6)] == [True, False]  # twice as long beyond it


def test_the_next_batch_has_its_turn_when_the_first_comes_back_whatever_that_took() -> None:
    made = state(1.0, 1.0, 1.0)
    made.finish(1.0, 1, BatchTimes(1.0, 1.0))
    made.finish(3.0, 2, BatchTimes(0.5, 3.0))
    assert made.free_at_s(3.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("expected_s", "is_guess", "most_s", "after_s"),
    [
        (0.01, False, 120.0, 15.0),  # never sooner
        (2.0, False, 120.0, 40.0),  # twenty times
        (20.0, False, 120.0, 120.0),  # the operator's patience
        (100.0, False, 120.0, 300.0),  # but three times what it takes
        (0.01, False, 3.0, 3.0),
        (0.01, True, 120.0, 120.0),  # nothing is known
        (100.0, True, 120.0, 120.0),
    ],
)
def test_patience_is_a_multiple_of_what_is_known(
    expected_s: float, is_guess: bool, most_s: float, after_s: float
) -> None:
    assert hangs_after_s(expected_s, is_guess=is_guess, most_s=most_s) == pytest.approx(after_s)


def test_a_worker_hangs_when_it_ends_nothing_and_not_while_batches_come_back() -> None:
    made = state(0.5, 0.5, 0.5)
    assert not made.hangs(14.0, 120.0)
    assert not made.hangs(30.0, 120.0), "that is how long it may take"
    assert made.hangs(31.0, 120.0)
    made.finish(31.0, 2, BatchTimes(0.5, 31.0))
    assert not made.hangs(32.0, 120.0)
    assert made.hangs(62.0, 120.0)
    assert not state().hangs(1e9, 120.0), "one without batches is silent by right"


def test_a_worker_is_doubtful_after_three_seconds_and_five_times_what_was_predicted() -> None:
    assert [state(0.1).is_doubtful(now_s) for now_s in (3.0, 3.1)] == [False, True]
    made = state(1.0, 1.0)
    assert [made.is_doubtful(now_s) for now_s in (10.0, 10.1)] == [False, True]
    made.finish(10.1, 1, BatchTimes(1.0, 10.1))
    assert [made.is_doubtful(now_s) for now_s in (15.1, 15.2)] == [False, True]
    assert not state().is_doubtful(1e9)


def test_the_core_says_who_is_doubtful() -> None:
    scheduler = core(workers=(worker("w1", in_flight_limit=1), worker("w2", in_flight_limit=1)))
    scheduler.submit(0.0, rows(1, 8))
    (batch,) = batches(scheduler, 0.0)
    assert scheduler.doubtful(3.0) == frozenset()
    assert scheduler.doubtful(3.1) == {batch.worker}


def test_the_core_says_who_hangs_and_a_first_guess_is_no_ground() -> None:
    for measured, said in ((True, ["w"]), (False, [])):
        scheduler = core(spec(latency=LatencyModel({1: 0.001}, measured=measured)))
        scheduler.submit(0.0, rows(1))
        assert len(batches(scheduler, 0.0)) == 1
        assert [name for name, _ in scheduler.hung(20.0, 120.0)] == said
        assert [name for name, _ in scheduler.hung(121.0, 120.0)] == ["w"]


def two_workers() -> Scheduler:
    return core(spec(slo_s=1000.0), workers=(worker("w0", "f"), worker("w1", "f")))


def test_rows_go_to_the_idle_worker_while_another_hangs() -> None:
    scheduler = two_workers()
    scheduler.submit(0.0, rows(1, 8))
    (hanging,) = batches(scheduler, 0.0)
    served = 0
    for turn in range(1, 200):
        now_s = 0.05 * turn
        scheduler.submit(now_s, rows(1 + turn, 8))
        for batch in batches(scheduler, now_s):
            assert batch.worker != hanging.worker
            served += batch.rows
            scheduler.finished(now_s + 0.01, batch.batch_id, worked=BatchTimes(0.01, 0.01))
    assert served == 199 * 8


def test_no_worker_is_idle_while_rows_wait_even_if_the_other_is_full_and_hangs() -> None:
    scheduler = two_workers()
    scheduler.submit(0.0, rows(1, 1000))
    first = batches(scheduler, 0.0)
    assert sorted(batch.worker for batch in first) == ["w0", "w0", "w1", "w1"]
    alive = [batch for batch in first if batch.worker == "w1"]
    now_s, served = 0.0, 0
    while alive:
        now_s += 0.01
        batch = alive.pop(0)
        scheduler.finished(now_s, batch.batch_id, worked=BatchTimes(0.01, 0.01))
        served += batch.rows
        alive += [each for each in batches(scheduler, now_s) if each.worker == "w1"]
    assert served == 1000 - 16, "all but the two batches that hang"


def test_a_reserved_worker_is_sent_nothing_and_nobody_waits_for_it() -> None:
    scheduler = core(workers=(worker("w0", "f", in_flight_limit=0), worker("w1", "f")))
    scheduler.submit(0.0, rows(1, 8))
    assert [batch.worker for batch in batches(scheduler, 0.0)] == ["w1"]


def test_what_is_learned_of_batches_that_share_the_worker_is_the_truth() -> None:
    """Two of 256 rows at a time, cut into pieces that take turns: each takes 1 s, and lands after 2."""
    latency = LatencyModel({1: 0.01, 256: 0.5})
    member = MemberSpec("f-m", 0.9, latency)
    scheduler = core(spec(max_batch=64, slo_s=1000.0))
    scheduler.configure(0.0, spec(max_batch=64, slo_s=1000.0, latency=latency))
    assert member.latency is latency
    now_s = 0.0
    for turn in range(20):
        scheduler.submit(now_s, rows(turn, 128))
        pair = batches(scheduler, now_s)
        assert len(pair) == 2
        for batch in reversed(pair):
            scheduler.finished(now_s + 2.0, batch.batch_id, worked=BatchTimes(1.0, 2.0))
        now_s += 2.0
    assert latency(64) == pytest.approx(1.0, rel=0.1)
