"""More workers: how near the master keeps them to the best that first-in-first-out scheduling can do."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

import pytest

from server.training.studies.journal import open_journal
from server.training.studies.messages import Assignment
from server.training.studies.study import Master
from server.training.studies.trial import random_of
from tests.unit.training.simulation import run, spec_of


def epoch_s(given: Assignment, epoch: int) -> float:
    """Epochs of about two seconds; trials differ by their knobs, epochs by chance."""
    trial = random_of(given.seed, 0, "pace").lognormal(0.7, 0.4)
    return float(trial * random_of(given.seed, epoch, "pace").lognormal(0.0, 0.1))


def first_in_first_out_s(pieces_s: Sequence[float], workers: int) -> float:
    """When the last piece ends if each goes to the first free worker, and the master takes no time."""
    free_s = [0.0] * workers
    for piece_s in pieces_s:
        heapq.heappush(free_s, heapq.heappop(free_s) + piece_s)
    return max(free_s)


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_workers_wait_for_the_master_less_than_a_twentieth_of_their_time(tmp_path, policy, workers):
    master = Master(spec_of(policy, budget_epochs=150, lease_s=1e6), open_journal(str(tmp_path / "journal")))
    pieces_s: list[float] = []
    # The processor's time, not the wall's: other programs on the machine must not fail the test.
    ended_s = run(master, workers, epoch_s, clock=time.process_time, pieces_s=pieces_s)
    assert first_in_first_out_s(pieces_s, workers) / ended_s >= 0.95
    assert ended_s <= 1.05 * sum(pieces_s) / workers + max(pieces_s)
