"""Whether a training process still takes steps: patience before the first, and for what travels to it."""

from __future__ import annotations

from gpu_worker.wire.protocol import TrainingProbed
from server.training.jobs.steps import BEGIN_S, StepWatch

LEASE_S = 60.0


def watching(*seen: tuple[int, int]) -> tuple[StepWatch, float]:
    """Of message 7, looked at every 20 s: (steps, on) each time. When the last look was."""
    watch = StepWatch(BEGIN_S)
    watch.message = 7
    watch.begin(0.0)
    for number, (steps, on) in enumerate(seen, 1):
        watch.saw(TrainingProbed(1, steps, on), 20.0 * number)
    return watch, 20.0 * len(seen)


def has_ended(watch: StepWatch, heard_at_s: float, now_s: float) -> bool:
    """At a time up to which it goes on answering, that nothing has changed."""
    assert watch._steps is not None
    at_s = heard_at_s
    while (at_s := at_s + LEASE_S / 3) < now_s:
        watch.saw(TrainingProbed(1, watch._steps, 7), at_s)
    return watch.have_ended(now_s, LEASE_S)


def test_after_its_first_step_a_process_has_a_lease_for_each() -> None:
    assert not has_ended(*watching((3, 7), (4, 7)), 40.0 + LEASE_S)
    assert has_ended(*watching((3, 7), (4, 7)), 50.0 + LEASE_S)


def test_before_it_there_is_time_to_begin() -> None:
    assert not has_ended(*watching((3, 7)), BEGIN_S)
    assert has_ended(*watching((3, 7)), 30.0 + BEGIN_S)


def test_files_on_their_way_are_no_step_and_what_has_them_has_time_to_begin() -> None:
    assert not has_ended(*watching((-1, 7), (-900, 7)), BEGIN_S), "each piece is a sign of life"
    assert not has_ended(*watching((-1, 7), (-900, 7), (3, 7)), 60.0 + BEGIN_S)
    assert has_ended(*watching((-1, 7), (-900, 7), (3, 7)), 70.0 + BEGIN_S)
    assert has_ended(*watching((-1, 7), (3, 7), (4, 7)), 70.0 + LEASE_S), "then steps are counted"
    assert has_ended(*watching((-1, 7), (-900, 7)), 50.0 + BEGIN_S), "a file that comes no more"
