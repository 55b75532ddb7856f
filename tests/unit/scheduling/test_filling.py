"""Bulk rows: they fill, they pause, they never starve, and they do not hurt."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from server.scheduling.bulk_sharing import BULK_SHARING, Utilization
from server.scheduling.core import Idle, RunBatch
from server.scheduling.filling import FillerLimits, Filling, filler_limits
from server.scheduling.lanes import Lane
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.simulation.arrivals import poisson
from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulationResult,
    Workload,
    simulate,
)
from server.scheduling.worker_state import WorkerState
from tests.unit.scheduling.cores import batches, core, parts, rows, spec, worker
from tests.unit.scheduling.views import affine


def test_a_scan_alone_runs_full_batches_two_in_flight() -> None:
    scheduler = core()
    scheduler.submit(0.0, rows(1, 100, row_class="bulk"))
    assert [batch.rows for batch in batches(scheduler, 0.0)] == [8, 8]


def test_the_end_of_a_scan_does_not_wait_for_more() -> None:
    scheduler = core(spec(policy="greedy", slo_s=10.0))
    scheduler.submit(0.0, rows(1, 3, row_class="bulk"))
    assert [batch.rows for batch in batches(scheduler, 0.0)] == [3]


def test_bulk_rows_fill_the_empty_places_of_an_interactive_batch() -> None:
    scheduler = core(spec(max_batch=64), workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 2))
    scheduler.submit(0.0, rows(2, 500, row_class="bulk"))
    (batch,) = batches(scheduler, 0.0)
    assert parts(batch)[0] == (1, 0, 2)
    # filled up to 1.8 times what interactive batches take
    assert affine(batch.rows) <= 1.8 * affine(1) < affine(batch.rows + 1)


def test_the_longer_an_interactive_row_waited_the_fewer_fillers_share_its_batch() -> None:
    scheduler = core(spec(max_batch=64), workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1))
    (first,) = batches(scheduler, 0.0)
    scheduler.submit(0.0, rows(2))
    scheduler.submit(0.0, rows(3, 500, row_class="bulk"))
    scheduler.finished(0.009, first.batch_id)
    (second,) = batches(scheduler, 0.009)
    # 2.8 batches of 5.25 ms, less the 9 ms it waited
    assert affine(second.rows) <= 2.8 * affine(1) - 0.009 < affine(second.rows + 1)


def test_filler_batches_are_short_while_interactive_rows_keep_coming_and_scans_are_no_sign_of_them() -> None:
    for kind, longest_s in (("interactive", 1.8 * affine(1)), ("bulk", 1.0)):
        scheduler = core(spec(max_batch=64), workers=(worker(in_flight_limit=1),))
        for turn in range(10):
            scheduler.submit(turn / 50, rows(turn, row_class=kind))
            (batch,) = batches(scheduler, turn / 50)
            scheduler.finished(turn / 50 + 0.006, batch.batch_id)
        scheduler.submit(0.19, rows(99, 64, row_class="bulk"))
        (scan,) = batches(scheduler, 0.19)
        assert affine(scan.rows) <= longest_s
        assert scan.rows == 64 or affine(scan.rows + 1) > longest_s


def lane_of(name: str = "f", **fields: Any) -> Lane:
    function = spec(name, **fields)
    return Lane(0.0, (name, (f"{name}-m",), ""), function, GuardedPolicy(function))


def limits(*lanes: Lane, now_s: float = 100.0, in_flight_limit: int = 1, busy_s: float = 0.0) -> FillerLimits:
    state = WorkerState(worker("w", "f", "g", in_flight_limit=in_flight_limit))
    if busy_s:
        state.work(now_s, busy_s)
    return filler_limits(Filling(), now_s, lanes, state)


def test_without_interactive_rows_in_the_last_minute_fillers_have_all_the_room() -> None:
    lane = lane_of()
    assert limits(lane) == FillerLimits(math.inf, math.inf, math.inf, is_limited=False)
    lane.rhythm.came(40.0)
    assert limits(lane, now_s=100.0).alone_s < math.inf, "60 s ago is remembered"
    assert limits(lane, now_s=100.1) == FillerLimits(math.inf, math.inf, math.inf, is_limited=False)


def test_a_first_interactive_row_that_may_come_again_meets_its_goal_behind_all_fillers_in_flight() -> None:
    lane, hasty, elsewhere = lane_of(), lane_of("g", slo_s=0.02), lane_of("h", slo_s=0.01)
    for each in (lane, hasty, elsewhere):
        each.rhythm.came(90.0)
    assert limits(lane).alone_s == pytest.approx(0.8 * (0.05 - affine(1)))
    assert limits(lane, in_flight_limit=2).alone_s == pytest.approx(0.4 * (0.05 - affine(1)))
    assert (
        limits(lane, hasty).alone_s == limits(hasty, lane).alone_s == pytest.approx(0.8 * (0.02 - affine(1)))
    )
    assert limits(lane, elsewhere) == limits(lane), "its model is not on that worker: its rows run on another"
    assert limits(elsewhere, lane) == limits(lane)
    assert not limits(lane).is_limited


def test_fillers_are_measured_by_the_shortest_interactive_batches_that_keep_coming() -> None:
    slow, quick = lane_of(latency=lambda rows: 0.02), lane_of("g", latency=lambda rows: 0.002)
    for lane in (slow, quick):
        lane.rhythm.came(99.9)
        lane.rhythm.came(100.0)
    found = limits(slow, quick)
    assert found.is_limited
    assert found.alone_s == pytest.approx(1.8 * 0.002)
    assert found.filled_s == pytest.approx(1.8 * 0.002)
    assert found.latency_s == pytest.approx(2.8 * 0.002)
    slow.typical_s = 0.001  # what its batches take of late goes before what one row is predicted to take
    assert limits(slow, quick).alone_s == pytest.approx(1.8 * 0.001)
    assert not limits(slow, quick, now_s=100.3).is_limited, "they have stopped coming"


def test_the_busier_a_worker_is_with_interactive_rows_the_fewer_fillers_share_their_batches() -> None:
    lane = lane_of()
    lane.rhythm.came(100.0)
    filled = [limits(lane, busy_s=busy_s).filled_s / affine(1) for busy_s in (0.0, 0.5, 1.0, 2.0)]
    assert filled == pytest.approx([1.8, 1 + 0.8 / 4, 1.0, 1.0])


def test_fillers_do_not_make_an_interactive_row_miss_its_goal() -> None:
    scheduler = core(spec(max_batch=64), workers=(worker(in_flight_limit=1),))
    scheduler.submit(5.0, rows(1, slo_s=0.0081))
    scheduler.submit(5.0, rows(2, 500, row_class="bulk"))
    (batch,) = batches(scheduler, 5.0)
    assert affine(batch.rows) <= 0.0081 < affine(batch.rows + 1)


def test_bulk_rows_pause_while_interactive_rows_need_the_worker() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 100, row_class="bulk"))
    now_s, waits = 0.0, 100
    for turn in range(10):
        scheduler.submit(now_s, rows(10 + turn, 16))
        (batch,) = batches(scheduler, now_s)
        if turn:
            assert not any(request == 1 for request, _, _ in parts(batch))
        else:
            waits -= batch.rows if parts(batch)[0][0] == 1 else 0
        now_s += affine(batch.rows)
        scheduler.finished(now_s, batch.batch_id)
    assert scheduler.cancel(now_s, 1) == waits


def test_bulk_rows_never_starve() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 8, row_class="bulk", deadline_s=1e9))
    now_s, scanned = 0.0, 0
    for turn in range(60):
        scheduler.submit(now_s, rows(10 + turn, 16))
        (batch,) = batches(scheduler, now_s)
        assert isinstance(batch, RunBatch)
        scanned += sum(count for request, _, count in parts(batch) if request == 1)
        now_s += affine(batch.rows)
        scheduler.finished(now_s, batch.batch_id)
    assert scanned > 0


def together(rate: float, bulk_rows: int, duration_s: float, in_flight_limit: int) -> SimulationResult:
    load = FunctionLoad(
        "f",
        poisson(Random(11), rate, duration_s) if rate else [],
        0.05,
        64,
        affine,
        bulk_rows=bulk_rows,
        bulk_at_s=1.0 if rate else 0.0,
    )
    return simulate(Workload((load,), (SimulatedDevice(in_flight_limit=in_flight_limit),)))


@pytest.mark.parametrize("in_flight_limit", [1, 2])
@pytest.mark.parametrize("rate", [50.0, 100.0])
def test_a_scan_leaves_an_interactive_load_its_latency_and_keeps_most_of_what_is_left(
    rate: float, in_flight_limit: int
) -> None:
    scan = 30_000
    alone = together(0.0, scan, 0.0, in_flight_limit)
    scan_rate = scan / alone.total.bulk_done_s
    calm = together(rate, 0, 15.0, in_flight_limit)
    left = 1 - calm.busy_s / calm.duration_s
    both = together(rate, scan, 25.0, in_flight_limit).total
    assert both.goodput > 0.999
    assert both.quantile_s(0.99) < 1.5 * calm.total.quantile_s(0.99)
    assert scan / (both.bulk_done_s - 1.0) > 0.6 * left * scan_rate


@pytest.mark.parametrize("rate", [5.0, 20.0, 100.0])
def test_a_scan_is_at_full_speed_within_a_second_after_the_last_interactive_row(rate: float) -> None:
    scan, begins_s, ends_s = 30_000, 1.0, 3.0
    alone_s = together(0.0, scan, 0.0, 2).total.bulk_done_s
    arrivals_s = [number / rate for number in range(round(ends_s * rate))]
    load = FunctionLoad("f", arrivals_s, 0.05, 64, affine, bulk_rows=scan, bulk_at_s=begins_s)
    took_s = simulate(Workload((load,), (SimulatedDevice(in_flight_limit=2),))).total.bulk_done_s - begins_s
    assert took_s < (ends_s - begins_s) + 2 / rate + 1.06 * alone_s


def test_a_goal_that_no_batch_can_meet_does_not_make_batches_small() -> None:
    load = FunctionLoad(
        "f", poisson(Random(7), 400.0, 5.0), 0.008, 64, lambda rows: 0.010 + 2e-5 * rows, refuses=False
    )
    result = simulate(Workload((load,), (SimulatedDevice(in_flight_limit=2),))).total
    assert result.late == result.offered
    assert result.batches < result.offered / 3
    assert max(result.latencies_s) < 0.05


def test_a_scan_that_starves_goes_before_one_that_has_just_begun() -> None:
    """Though the other's function was not served for longer."""
    scheduler = core(spec("f"), spec("g"), workers=(worker("w", "f", "g", in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, function="f"))
    scheduler.cancel(0.0, 1)
    scheduler.submit(0.0, rows(2, 100, function="g", row_class="bulk"))
    scheduler.submit(0.1, rows(3, 1, function="g"))
    (first,) = batches(scheduler, 0.1)  # `g` is served; its scan too, in the empty places
    scheduler.finished(0.107, first.batch_id)
    scheduler.submit(0.5, rows(4, 100, function="f", row_class="bulk"))
    (second,) = batches(scheduler, 0.5)
    assert second.function == "g"


@pytest.mark.parametrize("each", [8, 3])
def test_a_scan_does_not_starve_where_the_next_batch_is_sent_before_the_worker_is_free(each: int) -> None:
    """Interactive rows always wait, enough for whole batches or for less, and two batches are in flight."""
    scheduler = core(spec("f"), spec("g"), workers=(worker("w", "f", "g", in_flight_limit=2),))
    scheduler.submit(0.0, rows(1, 10_000, function="g", row_class="bulk"))
    now_s, request, busy_until_s, bulk_s, in_flight = 0.0, 2, 0.0, 0.0, list[tuple[float, int]]()
    while now_s < 2.0:
        for _ in range(2):
            scheduler.submit(now_s, rows(request := request + 1, each))
        action = scheduler.next_action(now_s)
        while isinstance(action, RunBatch):
            busy_until_s = max(busy_until_s, now_s) + affine(action.rows)
            in_flight.append((busy_until_s, action.batch_id))
            if action.function == "g":
                bulk_s += affine(action.rows)
            action = scheduler.next_action(now_s)
        wake_s = action.until_s if isinstance(action, Idle) else now_s
        now_s = max(now_s + 1e-4, min(wake_s, in_flight[0][0]))
        if in_flight[0][0] <= now_s:
            _, batch_id = in_flight.pop(0)
            scheduler.finished(now_s, batch_id)
    assert bulk_s / now_s >= 0.6 / 21


def test_rows_that_missed_their_goal_are_all_answered_while_others_that_can_meet_theirs_keep_coming() -> None:
    """As after an outage: more than they can take at once is late, and two batches are in flight."""
    scheduler = core(workers=(worker(in_flight_limit=2),))
    late = range(1, 13)
    for request in late:
        scheduler.submit(0.0, rows(request, 8))
    began_s = now_s = busy_until_s = 0.2  # four times the goal
    request, left, in_flight = len(late), 8 * len(late), list[tuple[float, RunBatch]]()
    while left and now_s < began_s + 5.0:
        for _ in range(2):
            scheduler.submit(now_s, rows(request := request + 1, 8, deadline_s=now_s + 0.05))
        action = scheduler.next_action(now_s)
        while not isinstance(action, Idle):
            if isinstance(action, RunBatch):
                busy_until_s = max(busy_until_s, now_s) + affine(action.rows)
                in_flight.append((busy_until_s, action))
            action = scheduler.next_action(now_s)
        now_s = max(now_s + 1e-4, min(action.until_s, in_flight[0][0]))
        if in_flight[0][0] <= now_s:
            _, batch = in_flight.pop(0)
            left -= sum(part.rows for part in batch.slices if part.request_id in late)
            scheduler.finished(now_s, batch.batch_id)
    assert left == 0
    assert now_s - began_s <= 1.5 * 21 * len(late) * affine(8), "one part in 21 of the time is theirs"


def test_below_the_threshold_bulk_rows_run_by_themselves_and_above_it_they_wait() -> None:
    scheduler = core(
        spec(max_batch=64), workers=(worker(in_flight_limit=1),), bulk_sharing=BULK_SHARING["threshold"]
    )
    scheduler.submit(0.0, rows(1, 60_000, row_class="bulk"))
    scheduler.submit(0.0, rows(2, 2))
    (online,) = batches(scheduler, 0.0)
    assert parts(online) == [(2, 0, 2)]  # no bulk row joins it
    now_s, sent, bulk = 0.0, online, 0
    for _ in range(400):
        now_s += affine(sent.rows)
        scheduler.finished(now_s, sent.batch_id)
        action = scheduler.next_action(now_s)
        while isinstance(action, Idle):
            assert now_s < action.until_s < now_s + 10  # it asks to be woken
            now_s = action.until_s
            action = scheduler.next_action(now_s)
        assert isinstance(action, RunBatch)
        sent = action
        bulk += sent.rows
    # 64 rows take 21 ms: of the whole worker 3,048 a second
    assert 0.37 < bulk * affine(64) / 64 / now_s < 0.47


def test_late_rows_do_not_wait_for_the_threshold() -> None:
    scheduler = core(
        spec(max_batch=8), workers=(worker(in_flight_limit=1),), bulk_sharing=BULK_SHARING["threshold"]
    )
    scheduler.submit(0.0, rows(1, 8, slo_s=0.001))  # whose goal is lost from the beginning
    scheduler.submit(0.0, rows(2, 1000, row_class="bulk"))
    seen: set[int] = set()
    now_s = 0.0
    for _ in range(60):
        action = scheduler.next_action(now_s)
        if isinstance(action, Idle):
            break
        assert isinstance(action, RunBatch)
        seen.update(part.request_id for part in action.slices)
        now_s += affine(action.rows)
        scheduler.finished(now_s, action.batch_id)
    assert 1 in seen


def test_utilization_fades_and_says_when_it_is_low_enough() -> None:
    used = Utilization()
    assert used.at(5.0) == 0.0
    used.add(10.0, 1.6)
    assert used.at(10.0) == pytest.approx(0.8)
    falls_s = used.falls_at_s(10.0, 0.4)
    assert used.at(falls_s) < 0.4 <= used.at(falls_s - 1e-3)
    assert used.falls_at_s(falls_s, 0.4) == falls_s
