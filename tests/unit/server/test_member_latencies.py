"""From what a real engine says of batches on several members to what each of them would take alone."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import median

import pytest

from gpu_worker.engine import Engine
from gpu_worker.settings import Settings
from server.scheduling.lanes import Lane
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.terms import FunctionSpec, MemberSpec
from server.serving.scheduler_adapter import times_of
from tests.models import hashing_model
from tests.waiting import wait_until

SPEEDS = {"a": (20.0, 1.0), "b": (40.0, 2.0), "c": (10.0, 0.5)}  # ms of a batch, and of each row
SIZES = (1, 4, 16)


def truth_s(name: str, rows: int) -> float:
    batch_ms, row_ms = SPEEDS[name]
    return (batch_ms + row_ms * rows) / 1000


@pytest.mark.alone  # it compares with what time is
def test_batches_on_all_members_teach_what_each_takes_alone_and_what_all_take(tmp_path: Path) -> None:
    engine = Engine(Settings(device="cpu", threads=2))
    try:
        for name, (batch_ms, row_ms) in SPEEDS.items():
            engine.load(name, str(hashing_model(tmp_path, name, delay_ms=batch_ms, row_delay_ms=row_ms)))
        members = tuple(
            MemberSpec(name, 0.9, LatencyModel({1: 0.001, 64: 0.016}, measured=False)) for name in SPEEDS
        )
        function = FunctionSpec("f", 1.0, 16, (1, 16), members)
        lane = Lane(0.0, ("f", tuple(SPEEDS), "text"), function, GuardedPolicy(function))
        random, took = Random(1), dict[tuple[str, int], list[float]]()

        def teach(batches: int) -> None:
            for number in range(batches):
                rows = SIZES[number % len(SIZES)]
                names = list(SPEEDS)
                random.shuffle(names)
                answer = engine.infer(names, "text", [b"x"] * rows)
                lane.teach(rows, tuple(names), answer.work_s, "cpu", times_of(answer))
                for name, (own_s, _) in zip(names, answer.members_s, strict=True):
                    took.setdefault((name, rows), []).append(own_s)

        def is_learnt() -> bool:
            """As batches were of late; a machine that is busy may be late with all but a few."""
            teach(36)
            usual_s = {case: median(times_s[-12:]) for case, times_s in took.items()}
            return (
                all(
                    lane.predicted_s(rows, "cpu", (name,)) == pytest.approx(usual_s[name, rows], rel=0.15)
                    for name, rows in usual_s
                )
                and all(min(times_s) <= 1.15 * truth_s(*case) for case, times_s in took.items())
                and all(
                    lane.predicted_s(rows, "cpu")
                    == pytest.approx(sum(usual_s[n, rows] for n in SPEEDS), rel=0.1)
                    for rows in SIZES
                )
            )

        wait_until(is_learnt, 60)
    finally:
        engine.close()
    assert all(min(times_s) >= truth_s(*case) for case, times_s in took.items())
