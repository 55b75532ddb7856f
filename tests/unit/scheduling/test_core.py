"""The core: rows in, batches out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from server.scheduling.arbitration import ReadyBatch
from server.scheduling.core import (
    FunctionSpec,
    Idle,
    MemberSpec,
    RefuseRows,
    RunBatch,
    Scheduler,
    WorkerView,
)
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policy import BatchOutcome, Dispatch, FunctionView, Wait
from tests.unit.scheduling.cores import actions, batches, core, parts, rows, spec, worker
from tests.unit.scheduling.views import affine


def test_a_lone_caller_is_served_at_once() -> None:
    scheduler = core()
    assert scheduler.submit(0.0, rows(1, 3)) is None
    (batch,) = batches(scheduler, 0.0)
    assert batch == RunBatch(1, "f", "w", ("f-m",), batch.slices, 3)
    assert parts(batch) == [(1, 0, 3)]


def test_a_large_request_is_cut_over_several_batches_and_two_are_in_flight() -> None:
    scheduler = core()
    scheduler.submit(0.0, rows(1, 20))
    first, second = batches(scheduler, 0.0)
    assert parts(first) + parts(second) == [(1, 0, 8), (1, 8, 8)]
    scheduler.finished(0.007, first.batch_id)
    assert (
        batches(scheduler, 0.007) == []
    )  # 4 rows are no full batch: more may come before the worker is free
    idle = scheduler.next_action(0.007)
    assert idle == Idle(pytest.approx(0.014 - 0.002))  # type: ignore[arg-type]  # approx stands for a float
    (third,) = batches(scheduler, 0.0121)
    assert parts(third) == [(1, 16, 4)]


def test_rows_that_come_while_the_worker_is_busy_share_the_next_batch() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1))
    (first,) = batches(scheduler, 0.0)
    for request in (2, 3, 4):
        scheduler.submit(0.001, rows(request, 2))
        assert batches(scheduler, 0.001) == []
    scheduler.finished(0.005, first.batch_id)
    (second,) = batches(scheduler, 0.005)
    assert parts(second) == [(2, 0, 2), (3, 0, 2), (4, 0, 2)]


def test_higher_priority_goes_first_then_the_earlier_goal() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 8))
    (first,) = batches(scheduler, 0.0)
    scheduler.submit(0.001, rows(2))
    scheduler.submit(0.002, rows(3, slo_s=0.03))
    scheduler.submit(0.003, rows(4, priority=1))
    scheduler.finished(0.007, first.batch_id)
    (second,) = batches(scheduler, 0.007)
    assert [request for request, _, _ in parts(second)] == [4, 3, 2]


def test_a_cancelled_requests_rows_are_gone_at_once() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 20))
    batches(scheduler, 0.0)
    assert scheduler.queue_depth() == {"f": (12, 120)}
    assert scheduler.cancel(0.001, 1) == 12
    assert scheduler.cancel(0.001, 1) == 0
    assert scheduler.queue_depth() == {"f": (0, 0)}
    assert scheduler.next_action(0.001) == Idle(math.inf)


def test_ten_thousand_cancelled_requests_leave_nothing_behind() -> None:
    scheduler = core()
    scheduler.set_worker(0.0, worker(alive=False))
    for request in range(10_000):
        scheduler.submit(0.0, rows(request, deadline_s=1e9 if request % 2 else math.inf))
        scheduler.cancel(0.0, request)
    assert scheduler.queue_depth() == {"f": (0, 0)}
    queues = scheduler._queues
    assert (len(queues._lanes_of), len(queues._with_rows)) == (0, 0)
    assert len(queues._deadlines) < 100


def test_a_full_queue_says_when_to_come_back() -> None:
    scheduler = core(spec(max_queued_rows=100, max_queued_bytes=10_000))
    scheduler.set_worker(0.0, worker(alive=False))
    scheduler.set_worker(0.0, worker("w2"))
    assert scheduler.submit(0.0, rows(1, 96)) is None
    rejection = scheduler.submit(0.0, rows(2, 5))
    assert rejection is not None
    assert rejection.code == "overloaded"
    # half of 96 rows, 8 in 7 ms
    assert rejection.retry_after_s == pytest.approx(96 / 2 * 0.007 / 8)
    assert "96 rows wait for f" in rejection.message


def test_bytes_are_bounded_too_but_one_oversized_request_may_come_in_alone() -> None:
    scheduler = core(spec(max_queued_rows=10, max_queued_bytes=50))
    scheduler.set_worker(0.0, worker(alive=False))
    assert scheduler.submit(0.0, rows(1, 11)) is None
    assert scheduler.cancel(0.0, 1) == 11
    assert scheduler.submit(0.0, rows(2, 4)) is None
    rejection = scheduler.submit(0.0, rows(3, 2))
    assert rejection is not None
    assert rejection.code == "overloaded"


def test_scans_that_fill_the_queue_leave_interactive_rows_their_part_of_it() -> None:
    scheduler = core(spec(max_queued_rows=100, max_queued_bytes=100_000))
    scheduler.set_worker(0.0, worker(alive=False))
    assert scheduler.submit(0.0, rows(1, 70, row_class="bulk")) is None
    assert scheduler.submit(0.0, rows(2, 6, row_class="bulk")) is not None
    assert scheduler.submit(0.0, rows(3, 5, row_class="bulk")) is None
    assert scheduler.submit(0.0, rows(4, 25)) is None
    assert scheduler.submit(0.0, rows(5, 1)) is not None
    scheduler = core(spec(max_queued_rows=100, max_queued_bytes=100_000))
    scheduler.set_worker(0.0, worker(alive=False))
    assert scheduler.submit(0.0, rows(1, 1000, row_class="bulk")) is None  # alone, or it would never run
    assert scheduler.submit(0.0, rows(2, 20)) is None


def test_a_deadline_that_cannot_be_met_is_refused_early_with_the_predicted_finish() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 8))
    assert len(batches(scheduler, 0.0)) == 1  # until 7 ms
    rejection = scheduler.submit(0.001, rows(2, deadline_s=0.012))
    assert rejection is not None
    assert rejection.code == "deadline_exceeded"
    assert rejection.predicted_finish_s == pytest.approx(0.007 + affine(1))
    assert rejection.alike_s == pytest.approx(0.007 + affine(1) - 0.012)
    assert scheduler.submit(0.001, rows(3, deadline_s=0.013)) is None


def test_rows_whose_deadline_becomes_hopeless_while_they_wait_are_refused() -> None:
    scheduler = core(spec(policy="goodput"), workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 8))
    (first,) = batches(scheduler, 0.0)
    scheduler.submit(0.001, rows(2, deadline_s=0.020))
    scheduler.finished(0.019, first.batch_id)  # it took longer than predicted
    (refused,) = actions(scheduler, 0.019)
    assert isinstance(refused, RefuseRows)
    assert parts(refused) == [(2, 0, 1)]
    assert refused.predicted_finish_s > 0.020


def test_rows_that_expire_are_refused_whatever_the_policy() -> None:
    scheduler = core(spec(policy="greedy", slo_s=5.0))
    scheduler.submit(0.0, rows(1, deadline_s=0.5))
    assert scheduler.next_action(0.1) == Idle(0.5)
    (refused,) = actions(scheduler, 0.5)
    assert isinstance(refused, RefuseRows)
    assert parts(refused) == [(1, 0, 1)]


def test_rows_past_their_goal_but_not_their_deadline_are_answered_late_after_those_in_time() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 8))
    (first,) = batches(scheduler, 0.0)
    scheduler.submit(0.001, rows(2))  # goal 51 ms, no deadline
    scheduler.submit(0.050, rows(3, 8))
    scheduler.finished(0.060, first.batch_id)
    (second,) = batches(scheduler, 0.060)
    assert [request for request, _, _ in parts(second)] == [3]
    scheduler.finished(0.067, second.batch_id)
    (third,) = batches(scheduler, 0.067)
    assert parts(third) == [(2, 0, 1)]


def test_a_dead_workers_batches_are_forgotten_and_its_rows_are_the_shells() -> None:
    scheduler = core(workers=(worker("w1"), worker("w2")))
    scheduler.submit(0.0, rows(1, 8))
    (batch,) = batches(scheduler, 0.0)
    scheduler.set_worker(0.001, worker(batch.worker, alive=False))
    scheduler.finished(0.002, batch.batch_id)  # a late word of it changes nothing
    assert scheduler.queue_depth() == {"f": (0, 0)}
    scheduler.submit(0.002, rows(1, 8))  # resubmitted under its own name
    (again,) = batches(scheduler, 0.002)
    assert again.worker != batch.worker


def test_a_batch_of_a_dead_worker_teaches_nothing_when_word_of_it_comes_late() -> None:
    latency = LatencyModel({1: affine(1), 8: affine(8)})
    scheduler = core(spec(latency=latency))
    for turn in range(12):
        scheduler.set_worker(float(turn), worker())
        scheduler.submit(float(turn), rows(turn, 8))
        (batch,) = batches(scheduler, float(turn))
        scheduler.set_worker(turn + 0.1, worker(alive=False))
        scheduler.finished(turn + 0.5, batch.batch_id)
    assert latency.on("", "")(8) == pytest.approx(affine(8))


def test_part_of_a_request_can_be_resubmitted_while_the_rest_still_waits() -> None:
    scheduler = core(workers=(worker("w1", in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 12))
    (batch,) = batches(scheduler, 0.0)
    scheduler.set_worker(0.001, worker("w1", alive=False))
    scheduler.submit(0.002, rows(1, batch.rows, offset=0))
    assert scheduler.cancel(0.003, 1) == 12


def test_a_row_runs_only_where_its_model_is_resident() -> None:
    for swap_s in (None, lambda device: 0.03):
        scheduler = core(spec("f"), spec("g", swap_s=swap_s), workers=(worker("w", "f"),))
        scheduler.submit(0.0, rows(1, function="g"))
        assert batches(scheduler, 0.0) == []
        scheduler.set_worker(0.1, worker("w", "f", "g"))
        assert [batch.function for batch in batches(scheduler, 0.1)] == ["g"]


def test_waiting_a_little_for_the_worker_that_holds_the_model_beats_loading_it_on_an_idle_one() -> None:
    scheduler = core(
        spec("f", swap_s=lambda device: 0.05),
        workers=(worker("holder", "f", in_flight_limit=1), worker("idle", "none")),
    )
    scheduler.submit(0.0, rows(1, 8))
    (first,) = batches(scheduler, 0.0)
    assert first.worker == "holder"
    scheduler.submit(0.001, rows(2, 8))
    assert batches(scheduler, 0.001) == []
    scheduler.finished(0.007, first.batch_id)
    assert [batch.worker for batch in batches(scheduler, 0.007)] == ["holder"]


def test_rows_that_a_load_would_bring_too_late_hear_when_they_would_be_done() -> None:
    scheduler = core(spec("f", swap_s=lambda device: 0.2), workers=(worker("w", "none"),))
    assert scheduler.submit(0.0, rows(1, deadline_s=0.1)) is None
    refused = scheduler.next_action(0.11)
    assert isinstance(refused, RefuseRows)
    assert refused.predicted_finish_s == pytest.approx(0.11 + 0.2 + affine(1))


def test_a_function_whose_rows_cannot_run_keeps_no_other_waiting() -> None:
    nowhere = core(spec("f"), spec("g"), workers=(worker("w", "g"),))
    nowhere.submit(0.0, rows(1))
    nowhere.submit(0.0, rows(2, function="g"))
    assert [batch.function for batch in batches(nowhere, 0.0)] == ["g"]
    busy = core(spec("f"), spec("g"), workers=(worker("w1", "f"), worker("w2", "g")))
    busy.submit(0.0, rows(1))
    assert len(batches(busy, 0.0)) == 1
    busy.submit(0.001, rows(2))  # not a full batch: it waits until its worker is nearly free
    busy.submit(0.001, rows(3, function="g"))
    assert [batch.function for batch in batches(busy, 0.001)] == ["g"]


def test_a_scan_that_came_first_does_not_go_before_interactive_rows_of_another_function() -> None:
    scheduler = core(spec("f"), spec("g"))
    scheduler.submit(0.0, rows(1, 8, row_class="bulk"))
    scheduler.submit(0.0, rows(2, 1, "g"))
    assert batches(scheduler, 0.0)[0].function == "g"


@pytest.mark.parametrize(("wait_s", "sent"), [(1.0, 8), (affine(6), 6), (affine(1), 1), (0.004, 0)])
def test_fillers_use_the_time_for_which_interactive_rows_wait_and_no_more(wait_s: float, sent: int) -> None:
    patient = spec("f", policy=f"{__name__}:Patient", policy_options={"wait_s": wait_s})
    scheduler = core(patient, spec("g"), workers=(worker("w", "f", "g", in_flight_limit=1),))
    scheduler.submit(0.0, rows(1))
    scheduler.submit(0.0, rows(2, 100, "g", row_class="bulk"))
    assert [batch.rows for batch in batches(scheduler, 0.0)] == ([sent] if sent else [])


def test_what_a_load_takes_is_no_part_of_a_batch() -> None:
    seen: list[float] = []

    def arbitrate(now_s: float, ready: Sequence[ReadyBatch]) -> ReadyBatch:
        seen.extend(each.takes_s for each in ready)
        return ready[0]

    workers = (worker("v", "f"), worker("w", "none"))
    scheduler = core(spec("f", swap_s=lambda device: 0.03), workers=workers, arbitration=arbitrate)
    scheduler.submit(0.0, rows(1))
    assert len(batches(scheduler, 0.0)) == 1
    assert seen == [pytest.approx(affine(1))]


@pytest.mark.parametrize("scan", [80, 100, 101, 1000])
def test_a_scan_that_was_let_in_alone_leaves_interactive_rows_a_quarter_of_the_queue(scan: int) -> None:
    scheduler = core(spec(max_queued_rows=100, max_queued_bytes=1000))
    scheduler.set_worker(0.0, worker(alive=False))
    assert scheduler.submit(0.0, rows(1, scan, row_class="bulk")) is None
    assert scheduler.submit(0.0, rows(2, 25)) is None
    assert scheduler.submit(0.0, rows(3, 1)) is not None


def test_bytes_of_scans_and_of_interactive_rows_are_counted_apart() -> None:
    scheduler = core(spec(max_queued_rows=1000, max_queued_bytes=1000))
    scheduler.set_worker(0.0, worker(alive=False))
    assert scheduler.submit(0.0, rows(1, 50, row_class="bulk")) is None
    assert scheduler.submit(0.0, rows(2, 45)) is None
    assert scheduler.submit(0.0, rows(3, 6)) is not None


def test_a_queue_that_is_empty_in_no_time_is_worth_another_try_after_10_ms() -> None:
    scheduler = core(spec(max_queued_rows=4, latency=lambda rows: 1e-6))
    scheduler.submit(0.0, rows(1, 4))
    rejection = scheduler.submit(0.0, rows(2))
    assert rejection is not None
    assert rejection.retry_after_s == 0.01


def test_a_refusal_says_by_how_much_the_deadline_would_be_missed() -> None:
    rejection = core().submit(100.0, rows(1, deadline_s=100.001))
    assert rejection is not None
    assert "4.25 ms after the deadline" in rejection.message


def overloaded(waiting: int, **fields: Any) -> Scheduler:
    """At 10 ms so many single rows wait, each with the goal of 50 ms, and a batch of 8 is under way."""
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, 8))
    batches(scheduler, 0.0)
    for request in range(2, 2 + waiting):
        assert scheduler.submit(0.0, rows(request, **fields)) is None
    return scheduler


def test_a_row_behind_more_than_can_be_answered_by_its_deadline_is_refused_when_it_comes() -> None:
    scheduler = overloaded(60)
    rejection = scheduler.submit(0.001, rows(99, deadline_s=0.051))
    assert rejection is not None
    assert rejection.code == "deadline_exceeded"
    assert "60 rows wait for f before it" in rejection.message
    # The batch under way takes 7 ms, seven full ones before it as long each, and so does its own, of five.
    assert rejection.predicted_finish_s == pytest.approx(0.063)
    assert scheduler.submit(0.001, rows(100, deadline_s=0.067)) is None


def test_a_row_that_its_own_batch_would_make_late_is_refused_when_it_comes() -> None:
    scheduler = overloaded(6)
    # The batch under way ends at 7 ms, and one of seven rows takes 6.75 ms.
    rejection = scheduler.submit(0.001, rows(99, deadline_s=0.0125, priority=-1))
    assert rejection is not None
    assert rejection.predicted_finish_s == pytest.approx(0.01375)
    assert scheduler.submit(0.001, rows(100, deadline_s=0.0145, priority=-1)) is None


def test_where_rows_that_were_let_in_were_late_those_that_have_to_queue_need_more_time() -> None:
    def needs(late_s: float) -> tuple[float, str]:
        """So many seconds, and why a millisecond less is refused."""
        scheduler = core(workers=(worker(in_flight_limit=1),))
        for turn in range(4):
            scheduler.submit(0.2 * turn, rows(turn, 8, slo_s=0.00705))
            (batch,) = batches(scheduler, 0.2 * turn)
            scheduler.finished(0.2 * turn + 0.007 + late_s, batch.batch_id)
        scheduler.submit(0.8, rows(50, 8))
        batches(scheduler, 0.8)
        scheduler.submit(0.8, rows(51, 6))
        reason = ""
        for ms in range(1, 50):
            refused = scheduler.submit(0.8, rows(100 + ms, deadline_s=0.8 + ms / 1000, priority=-1))
            if refused is None:
                return ms / 1000, reason
            reason = refused.message
        raise AssertionError("nobody is let in")

    assert needs(0.0) == (0.014, "6 rows wait for f before it, 0.75 ms too long for its deadline")
    needed_s, reason = needs(0.0001)
    assert 0.02 <= needed_s <= 0.025
    assert reason.endswith("its deadline less 29%, because rows that were let in have been late")


def test_rows_behind_many_are_let_in_where_they_need_not_be_in_time_or_go_first() -> None:
    scheduler = overloaded(60)
    assert scheduler.submit(0.001, rows(99)) is None  # no deadline: answered late
    assert scheduler.submit(0.001, rows(100, deadline_s=0.051, row_class="bulk")) is None
    assert scheduler.submit(0.001, rows(101, deadline_s=0.051, priority=1)) is None
    assert scheduler.submit(0.001, rows(102, deadline_s=0.045)) is None  # before those that have until 50 ms
    assert scheduler.submit(0.001, rows(103, deadline_s=0.051, tenant="other")) is None  # whose turn it is


def test_whoever_is_let_in_under_overload_is_answered_in_time_but_for_a_few() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    refused = in_time = given_up = request = 0
    now_s, ends_s = 0.0, math.inf
    under_way: RunBatch | None = None
    while now_s < 3.0:
        now_s += 0.0002  # 5,000 rows/s, of which the worker stands 1,143
        request += 1
        refused += scheduler.submit(now_s, rows(request, deadline_s=now_s + 0.05)) is not None
        if under_way is not None and now_s >= ends_s:
            in_time += under_way.rows
            scheduler.finished(now_s, under_way.batch_id)
            under_way = None
        for action in actions(scheduler, now_s):
            if isinstance(action, RunBatch):
                under_way, ends_s = action, now_s + affine(action.rows)
            else:
                given_up += sum(part.rows for part in action.slices)
    assert in_time > 0.95 * 3.0 * 8 / affine(8)
    assert refused > 0.7 * request
    assert given_up < 0.02 * request


def test_a_deadline_that_is_met_to_the_moment_is_met_and_one_that_is_now_is_not() -> None:
    scheduler = core()
    assert scheduler.submit(0.0, rows(1, deadline_s=affine(1))) is None
    silent = core()
    assert silent.submit(5.0, rows(1, deadline_s=5.0)) is not None


def test_rows_that_ask_for_one_member_do_not_share_a_batch_with_those_that_ask_for_all() -> None:
    members = (MemberSpec("a", 0.9, affine), MemberSpec("b", 0.8, affine))
    both = FunctionSpec("f", 0.1, 8, (1, 8), members)
    view = worker()
    scheduler = core(both, workers=(type(view)("w", True, frozenset({"a", "b"}), 4),))
    scheduler.submit(0.0, rows(1, 4))
    scheduler.submit(0.0, rows(2, 4, members=("b",)))
    scheduler.submit(0.0, rows(3, 8, members=("b",)))
    sent = {batch.members: [request for request, _, _ in parts(batch)] for batch in batches(scheduler, 0.0)}
    assert sent[("b",)] == [2, 3]
    with pytest.raises(KeyError, match="no member c"):
        scheduler.submit(0.0, rows(4, members=("c",)))
    with pytest.raises(KeyError):
        scheduler.submit(0.0, rows(5, function="unknown"))


def test_rows_of_different_shapes_do_not_share_a_batch() -> None:
    scheduler = core(workers=(worker(in_flight_limit=1),))
    scheduler.submit(0.0, rows(1, bucket="64"))
    scheduler.submit(0.0, rows(2, bucket="128"))
    (batch,) = batches(scheduler, 0.0)
    assert len(parts(batch)) == 1


def test_what_batches_take_is_learned_unless_they_failed() -> None:
    latency = LatencyModel({1: affine(1), 8: affine(8)})
    scheduler = core(spec(latency=latency, max_batch=8))
    for turn in range(12):
        now_s = float(turn)
        scheduler.submit(now_s, rows(turn, 8, slo_s=0.5))
        (batch,) = batches(scheduler, now_s)
        scheduler.finished(now_s + 0.02, batch.batch_id, failed=turn % 2 == 0)
        if turn == 0:
            assert latency.on("", "")(8) == pytest.approx(affine(8))
    assert latency(8) > 1.5 * affine(8)


def test_batches_that_are_cancelled_for_being_late_teach_that_they_are_slow() -> None:
    latency = LatencyModel({1: affine(1), 8: affine(8)})
    scheduler = core(spec(latency=latency, max_batch=8))
    for turn in range(12):
        now_s = float(turn)
        scheduler.submit(now_s, rows(turn, 8, slo_s=0.5))
        (batch,) = batches(scheduler, now_s)
        cut_short_s = 0.03 if turn % 2 == 0 else affine(8) / 2  # of the second kind it says nothing
        scheduler.finished(now_s + cut_short_s, batch.batch_id, cancelled=True)
    assert latency(8) > 2 * affine(8)


def test_a_wrong_prediction_cannot_refuse_all_rows_for_ever() -> None:
    latency = LatencyModel({1: 10.0})  # the truth is 5 ms
    scheduler = core(spec(latency=latency), workers=(worker(in_flight_limit=1),))
    answered = 0
    for turn in range(20):
        now_s = 2.0 * turn
        if scheduler.submit(now_s, rows(turn, deadline_s=now_s + 0.05)) is not None:
            continue
        for action in actions(scheduler, now_s):
            if isinstance(action, RunBatch):
                scheduler.finished(now_s + 0.005, action.batch_id)
                answered += 1
    assert answered >= 10
    assert latency(1) < 0.05


@pytest.mark.parametrize(
    "bad",
    [
        spec(policy="no-such-policy"),
        spec(policy_options={"tolerance": "much"}),
        spec(slo_s=0.0),
        FunctionSpec("f", 0.05, 8, (1, 4), (MemberSpec("m", 0.9, affine),)),
        FunctionSpec("f", 0.05, 8, (4, 1, 8), (MemberSpec("m", 0.9, affine),)),
        FunctionSpec("f", 0.05, 8, (1, 8), ()),
    ],
)
def test_a_bad_specification_changes_nothing(bad: FunctionSpec) -> None:
    scheduler = core(spec(max_batch=4))
    with pytest.raises(ValueError, match=r"polic|SLO|batch sizes|members"):
        scheduler.configure(0.0, bad)
    scheduler.submit(0.0, rows(1, 8))
    assert {batch.rows for batch in batches(scheduler, 0.0)} == {4}


def test_a_function_that_is_removed_gives_its_rows_back() -> None:
    scheduler = core(spec("f"), spec("g"))
    scheduler.set_worker(0.0, worker("w", alive=False))
    scheduler.submit(0.0, rows(1, 5))
    scheduler.submit(0.0, rows(2, 3, "g"))
    assert [(part.request_id, part.rows) for part in scheduler.remove(0.0, "f")] == [(1, 5)]
    assert scheduler.queue_depth() == {"g": (3, 30)}
    assert scheduler.remove(0.0, "f") == ()


def test_a_submission_without_rows_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no rows"):
        core().submit(0.0, rows(1, 0))


def test_a_policy_that_runs_one_of_two_members_teaches_of_that_one_alone() -> None:
    ran, idle = LatencyModel({1: 0.01}), LatencyModel({1: 0.03})
    members = (MemberSpec("a", 0.9, ran), MemberSpec("b", 0.8, idle))
    first = FunctionSpec("f", 0.1, 8, (1, 8), members, policy=f"{__name__}:OnlyTheFirst")
    scheduler = core(first, workers=(WorkerView("w", True, frozenset({"a", "b"})),))
    for turn in range(30):
        scheduler.submit(float(turn), rows(turn))
        (batch,) = batches(scheduler, float(turn))
        assert batch.members == ("a",)
        scheduler.finished(turn + 0.05, batch.batch_id)
    assert ran(1) == pytest.approx(0.05, rel=0.1)
    assert idle(1) == pytest.approx(0.03)


def test_the_policy_learns_of_every_batch_that_ran_and_of_no_failed_one() -> None:
    Watching.seen.clear()
    scheduler = core(spec(policy=f"{__name__}:Watching"), workers=(worker(in_flight_limit=1),))
    for turn, failed in enumerate((False, True, False)):
        scheduler.submit(float(turn), rows(turn, 2, slo_s=0.01))
        (batch,) = batches(scheduler, float(turn))
        scheduler.finished(turn + 0.02, batch.batch_id, failed=failed)
    assert [(seen.rows, seen.members, seen.overdue_rows) for seen in Watching.seen] == [(2, ("f-m",), 2)] * 2
    assert [seen.latency_s for seen in Watching.seen] == pytest.approx([0.02, 0.02])
    assert [seen.predicted_s for seen in Watching.seen] == pytest.approx([affine(2)] * 2)


def test_a_release_that_another_function_overtook_still_holds() -> None:
    """`ewma` lets rows go at a tick of its clock; losing the worker to another lane takes nothing back."""
    urgent = spec("g", policy="goodput")
    scheduler = core(
        spec("f", policy="ewma", policy_options={"quantum_ms": 1000}, slo_s=5.0),
        urgent,
        workers=(worker("w", "f", "g", in_flight_limit=1),),
    )
    scheduler.submit(0.9, rows(1))
    scheduler.submit(1.0, rows(2, function="g"))
    (first,) = batches(scheduler, 1.0)
    assert first.function == "g"
    scheduler.finished(1.01, first.batch_id)
    assert [batch.function for batch in batches(scheduler, 1.01)] == ["f"]


def test_a_lane_that_ran_a_moment_ago_is_not_silent_and_refuses_what_cannot_be_met() -> None:
    scheduler = core()
    scheduler.submit(0.0, rows(1))
    scheduler.cancel(0.0, 1)
    scheduler.submit(1.5, rows(2))
    (batch,) = batches(scheduler, 1.5)
    scheduler.finished(1.506, batch.batch_id)
    hopeless = scheduler.submit(1.7, rows(3, deadline_s=1.701))
    assert hopeless is not None
    assert hopeless.code == "deadline_exceeded"
    assert scheduler.submit(3.0, rows(4, deadline_s=3.001)) is None  # silent for a second: worth a try


class OnlyTheFirst:
    name = "only-the-first"

    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        return {}

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Dispatch]:
        return state, Dispatch((view.members[0].name,), min(view.queued_rows, view.max_batch))

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        return state


class Patient(OnlyTheFirst):
    def initial(self, options: dict[str, Any]) -> dict[str, Any]:
        return dict(options)

    def decide(self, state: dict[str, Any], view: FunctionView) -> tuple[dict[str, Any], Any]:
        return state, Wait(state["wait_s"])


class Watching(OnlyTheFirst):
    seen: ClassVar[list[BatchOutcome]] = []

    def observe(self, state: dict[str, Any], outcome: BatchOutcome) -> dict[str, Any]:
        self.seen.append(outcome)
        return state
