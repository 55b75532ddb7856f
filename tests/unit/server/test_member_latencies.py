"""From what a real engine says of batches on several members to what each of them would take alone."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from gpu_worker.engine import Engine
from gpu_worker.settings import Settings
from server.scheduling.lanes import Lane
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.terms import FunctionSpec, MemberSpec
from server.serving.scheduler_adapter import times_of
from tests.models import hashing_model

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
        random = Random(1)
        ends_s = time.monotonic() + 60
        for number in range(36):
            rows = SIZES[number % len(SIZES)]
            names = list(SPEEDS)
            random.shuffle(names)
            answer = engine.infer(names, "text", [b"x"] * rows)
            lane.teach(rows, tuple(names), answer.work_s, "cpu", times_of(answer))
            assert time.monotonic() < ends_s, "36 batches of about 0.1 s each"
    finally:
        engine.close()
    for rows in SIZES:
        for name in SPEEDS:
            assert lane.predicted_s(rows, "cpu", (name,)) == pytest.approx(truth_s(name, rows), rel=0.15)
        all_s = sum(truth_s(name, rows) for name in SPEEDS)
        assert lane.predicted_s(rows, "cpu") == pytest.approx(all_s, rel=0.1)
