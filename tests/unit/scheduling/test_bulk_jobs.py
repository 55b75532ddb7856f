"""Bulk jobs: what is held back, for how long, and how large jobs of one caller share what the caller has."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from server.scheduling.bulk_jobs import (
    NO_CONTROL,
    BulkControl,
    BulkJobs,
    BulkKind,
    BulkTag,
    BulkWhose,
    Held,
    JobKey,
    Turn,
)

A, B = JobKey("ana", "a"), JobKey("ana", "b")


def enter(
    jobs: BulkJobs,
    now_s: float,
    key: JobKey = A,
    rows: int = 100,
    weight: float = 1.0,
    kind: BulkKind = "table",
) -> Turn | Held:
    return jobs.enter(now_s, key, BulkTag(key.id, kind), BulkWhose(key.caller), "f", rows, weight)


def answered(jobs: BulkJobs, now_s: float, key: JobKey = A, rows: int = 100) -> None:
    assert isinstance(enter(jobs, now_s, key, rows), Turn)
    jobs.left(now_s, key, rows, answered=True)


def test_a_paused_job_is_held_until_it_is_resumed_and_others_are_not() -> None:
    jobs = BulkJobs()
    answered(jobs, 0.0)
    jobs.steer(1.0, A, BulkControl(paused=True))
    assert enter(jobs, 2.0) == Held(BulkControl(paused=True), math.inf)
    assert jobs.heard(2.0, A) == math.inf
    assert isinstance(enter(jobs, 2.0, B), Turn)
    jobs.steer(3.0, A, NO_CONTROL)
    assert jobs.heard(3.0, A) == 0.0
    assert isinstance(enter(jobs, 3.0), Turn)


@given(
    st.floats(1.0, 1000.0),
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 500)), min_size=1, max_size=60),
)
def test_no_more_rows_go_on_than_the_cap_and_a_seconds_worth_and_one_request(
    cap: float, wishes: list[tuple[float, int]]
) -> None:
    jobs = BulkJobs()
    answered(jobs, 0.0, rows=1)
    jobs.steer(0.0, A, BulkControl(max_rows_per_s=cap))
    now_s, went = 0.0, 0
    largest = max(rows for _, rows in wishes)
    for later_s, rows in wishes:
        now_s += later_s
        found = enter(jobs, now_s, rows=rows)
        if isinstance(found, Turn):
            went += rows
        else:  # and who waits as long as it is told may go on
            assert 0 < found.wait_s < math.inf
            assert jobs.heard(now_s + found.wait_s + 1e-6, A) == 0.0
            now_s += found.wait_s + 1e-6
    assert went <= cap * (now_s + 1) + 1 + largest + 1e-6


def test_rows_that_were_not_answered_are_not_owed_for() -> None:
    jobs = BulkJobs()
    answered(jobs, 0.0, rows=1)
    jobs.steer(0.0, A, BulkControl(max_rows_per_s=10.0))
    enter(jobs, 0.0, rows=100)
    assert isinstance(enter(jobs, 0.0, rows=100), Held)
    jobs.left(0.0, A, 100, answered=False)
    assert isinstance(enter(jobs, 0.0, rows=100), Turn)


def test_pausing_a_capped_job_forgives_no_debt() -> None:
    jobs = BulkJobs()
    answered(jobs, 0.0, rows=1)
    jobs.steer(0.0, A, BulkControl(max_rows_per_s=10.0))
    answered(jobs, 0.0, rows=100)
    jobs.steer(0.0, A, BulkControl(paused=True, max_rows_per_s=10.0))
    jobs.steer(0.0, A, BulkControl(max_rows_per_s=10.0))
    assert 9.0 < jobs.heard(0.0, A) <= 9.2


def test_two_large_jobs_of_one_caller_weigh_what_the_caller_weighs() -> None:
    jobs = BulkJobs()
    assert enter(jobs, 0.0, A, 100, weight=2.0) == Turn("ana", 2.0)
    for key in (A, B):
        answered(jobs, 0.0, key, 5000)
    found = [enter(jobs, 10.0, key, 100, weight=2.0) for key in (A, B, A, B)]
    last = [turn for turn in found[2:] if isinstance(turn, Turn)]
    assert len({turn.tenant for turn in last}) == 2
    assert sum(turn.weight for turn in last) == 2.0
    small = enter(jobs, 10.0, JobKey("ana", "c"), 1, weight=2.0)
    assert small == Turn("ana", 2.0 / 3)
    assert enter(jobs, 10.0, JobKey("bob", "a"), 1) == Turn("bob", 1.0)


def test_a_large_job_alone_has_all_that_its_caller_has() -> None:
    jobs = BulkJobs()
    answered(jobs, 0.0, A, 5000)
    found = enter(jobs, 10.0, A, 100, weight=3.0)
    assert isinstance(found, Turn)
    assert found.weight == 3.0


def test_jobs_that_ask_no_more_are_forgotten_those_held_back_later_and_watches_never() -> None:
    jobs = BulkJobs()
    held, watch = JobKey("ana", "held"), JobKey("ana", "watch")
    answered(jobs, 0.0, A)
    answered(jobs, 0.0, held)
    enter(jobs, 0.0, watch, kind="watch")
    jobs.left(0.0, watch, 100, answered=True)
    for key in (held, watch):
        jobs.steer(0.0, key, BulkControl(paused=True))
    assert jobs.forget(30.0) == []
    assert len(jobs) == 3
    assert jobs.forget(61.0) == []
    assert {job.key for job in jobs.all()} == {held, watch}
    assert [job.key for job in jobs.forget(4000.0)] == [held]
    assert [job.key for job in jobs.all()] == [watch]


def test_a_job_with_requests_under_way_is_not_forgotten() -> None:
    jobs = BulkJobs(most_jobs=2)
    for number in range(5):
        enter(jobs, float(number), JobKey("ana", str(number)))
    jobs.left(6.0, JobKey("ana", "1"), 100, answered=True)
    jobs.forget(7.0)
    assert {job.key.id for job in jobs.all()} == {"0", "2", "3", "4"}


def test_what_a_job_is_and_how_far() -> None:
    jobs = BulkJobs()
    enter(jobs, 0.0)
    job = jobs.find(A)
    assert job is not None
    assert (job.state, job.rows_done, job.rows_per_s(0.0)) == ("running", 0, 0.0)
    jobs.left(1.0, A, 100, answered=True)
    assert (job.state, job.rows_done) == ("idle", 100)
    assert job.rows_per_s(1.0) > 0
    assert job.rows_per_s(100.0) == 0.0
    jobs.steer(2.0, A, BulkControl(paused=True, cancelled=True))
    assert job.state == "cancelled"


def test_a_table_counts_what_was_answered_since_its_client_said_how_far_it_was() -> None:
    jobs = BulkJobs()

    def ask(done: int, rows: int = 300) -> None:
        jobs.enter(0.0, A, BulkTag("a", "table", "t.c", rows=1000, done=done), BulkWhose(), "f", rows)

    def told() -> int:
        job = jobs.find(A)
        assert job is not None
        return job.rows_told

    ask(100)
    ask(100)
    assert told() == 100
    jobs.left(1.0, A, 300, answered=True)
    assert told() == 400
    ask(100)  # what was answered is not stored yet
    assert told() == 400
    jobs.left(1.0, A, 300, answered=True)
    jobs.left(1.0, A, 300, answered=True)
    assert told() == 1000
    ask(700)
    assert told() == 700
    jobs.left(1.0, A, 300, answered=True)
    assert told() == 1000
    ask(900)
    jobs.left(1.0, A, 300, answered=True)
    assert told() == 1000  # of rows that came while it ran nothing is said
