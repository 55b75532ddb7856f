"""l̂ of models: what requests with a goal of their own are judged by."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ml_udf.oip import InferRequest, Tensor
from server.catalog.latencies import Latencies
from server.routes.codec import Codec
from server.store.latencies import LatencyFiles
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model

SLOW, FAST = text_model("slow", accuracy=0.9), text_model("fast", accuracy=0.8)


def asked(latencies: Latencies, slo_ms: float) -> tuple[str, ...] | None:
    parameters: dict[str, Any] = {"ml_udf_slo_ms": slo_ms}
    request = InferRequest([Tensor.of_bytes("text", [b"a"])], parameters=parameters)
    codec = Codec(max_rows=10, latency_of=latencies.of_rows)
    return codec.call_of(function(SLOW, FAST), request, 0.0).members


def test_a_goal_of_the_requests_own_chooses_members_by_what_batches_took(tmp_path: Path) -> None:
    """A model that takes half a second is not taken for one of a millisecond once it has run."""

    async def scenario() -> None:
        latencies, worker = Latencies(LatencyFiles(tmp_path)), FakeWorker()
        house = House(worker, latency_of=latencies)
        alone = function(SLOW, name="g", max_batch=4, batch_sizes=(1, 4), policy="goodput")
        house.dispatcher.configure(alone)
        assert asked(latencies, 200.0) is None  # nothing is known yet: both are hoped to make it
        for _ in range(3):
            pending = house.ask("a", function=alone)
            await settle()
            await asyncio.sleep(0.3)
            worker.answer()
            await settle()
            house.labels(pending)
        assert latencies.of_rows(SLOW, "text")(1) == pytest.approx(0.3, rel=0.5)
        assert asked(latencies, 200.0) == ("fast/1",)
        assert asked(latencies, 2000.0) is None

    asyncio.run(scenario())


def test_of_several_kinds_of_device_the_fastest_counts_and_other_forms_do_not(tmp_path: Path) -> None:
    latencies = Latencies(LatencyFiles(tmp_path))
    for device, took_s in (("cpu", 0.4), ("gpu", 0.02)):
        latencies(SLOW).on(device, "text").observe(1, took_s)
    latencies(SLOW).on("gpu", "path").observe(1, 0.001)
    latencies(SLOW).on("npu", "text")  # never ran there: a guess
    assert latencies.of_rows(SLOW, "text")(1) == pytest.approx(0.02)
