"""Whose the worker's time is: the parts add up, in whatever order batches begin and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.pipeline.work_time import COMMON, Part, WorkClock, WorkTimer


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_batch_that_is_alone_has_all_the_time_on_however_many_threads() -> None:
    clock = Clock()
    timer = WorkClock(clock).timer()
    with timer:
        clock.now_s += 1.0
        with timer:
            clock.now_s += 2.0
    clock.now_s += 5.0  # nothing of it is worked on
    with timer:
        clock.now_s += 1.0
    assert timer.seconds == pytest.approx(4.0)


def test_two_batches_at_once_have_half_each_and_one_that_waits_has_none() -> None:
    clock = Clock()
    work = WorkClock(clock)
    first, second, waiting = work.timer(), work.timer(), work.timer()
    with first:
        clock.now_s += 1.0
        with second:
            clock.now_s += 4.0
        clock.now_s += 1.0
    assert first.seconds == pytest.approx(4.0)
    assert second.seconds == pytest.approx(2.0)
    assert waiting.seconds == 0.0


def test_what_is_done_for_a_part_is_that_parts_and_the_rest_is_common() -> None:
    clock = Clock()
    timer = WorkClock(clock).timer()
    with timer:
        clock.now_s += 1.0
    with timer.part(1):
        clock.now_s += 2.0
    with timer.part(2):
        clock.now_s += 4.0
    with timer:
        clock.now_s += 0.5
    assert timer.parts_s == pytest.approx({COMMON: 1.5, 1: 2.0, 2: 4.0})


def test_threads_that_work_for_different_parts_at_once_have_equal_parts_of_the_batchs_time() -> None:
    clock = Clock()
    work = WorkClock(clock)
    first, second = work.timer(), work.timer()
    with first:
        with first.part(1):
            clock.now_s += 2.0  # one thread decodes while another runs the pass
        with second:
            clock.now_s += 2.0  # of another batch's time nothing is this one's
    assert first.parts_s == pytest.approx({COMMON: 1.0 + 1.0, 1: 1.0})
    assert second.parts_s == pytest.approx({COMMON: 1.0})


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["leave", COMMON, 1, 2]), st.floats(0, 10)),
        min_size=1,
        max_size=60,
    )
)
def test_the_parts_of_a_batch_add_up_to_its_share(steps: list[tuple[int, str | int, float]]) -> None:
    clock = Clock()
    work = WorkClock(clock)
    batches = [work.timer() for _ in range(2)]
    threads: list[list[WorkTimer | Part]] = [[], []]  # what each thread of a batch is in
    had_s = [0.0, 0.0]
    for which, does, then_s in steps:
        timer, on = batches[which], threads[which]
        if isinstance(does, int):
            on.append(timer if does == COMMON else timer.part(does))
            on[-1].__enter__()
        elif on:
            on.pop(0).__exit__()
        clock.now_s += then_s
        at_work = [number for number in (0, 1) if threads[number]]
        for number in at_work:
            had_s[number] += then_s / len(at_work)
    for timer, on, wanted_s in zip(batches, threads, had_s, strict=True):
        for part in on:
            part.__exit__()
        assert sum(timer.parts_s.values()) == pytest.approx(timer.seconds) == pytest.approx(wanted_s)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 10)), min_size=1, max_size=60))
def test_the_shares_add_up_to_the_time_in_which_there_was_work(
    steps: list[tuple[int, bool, float]],
) -> None:
    clock = Clock()
    work = WorkClock(clock)
    batches = [work.timer() for _ in range(4)]
    threads = [0] * 4
    worked_s = 0.0
    for which, enters, then_s in steps:
        if enters:
            batches[which].__enter__()
            threads[which] += 1
        elif threads[which]:
            batches[which].__exit__()
            threads[which] -= 1
        clock.now_s += then_s
        worked_s += then_s if any(threads) else 0.0
    for which, count in enumerate(threads):
        for _ in range(count):
            batches[which].__exit__()
    assert sum(timer.seconds for timer in batches) == pytest.approx(worked_s)
