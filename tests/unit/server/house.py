"""A dispatcher with its residency and workers of the test's own; for tests of the live shell."""

from __future__ import annotations

from typing import Any

from server.catalog.functions import Function
from server.observability.metrics import Metrics
from server.placement.policy import Capacity
from server.placement.residency import Profile, Residency
from server.scheduling.core import Scheduler
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import Call, PendingReply, Reply
from server.serving.dispatcher import Dispatcher
from server.serving.scheduler_adapter import LatencyOf, QueueBounds
from tests.answers import labels_of
from tests.unit.server.fake_worker import FakeWorker
from tests.unit.server.served import function


class House:
    """A dispatcher and its residency, with workers that answer when told to."""

    def __init__(
        self,
        *workers: FakeWorker,
        rows: int = 1000,
        profile: Profile | None = None,
        latency_of: LatencyOf | None = None,
        **fields: Any,
    ) -> None:
        self.metrics = Metrics()
        latency = LatencyModel({1: 0.001, 64: 0.01})
        self.dispatcher = Dispatcher(
            Scheduler(),
            QueueBounds(rows, 1 << 20),
            latency_of or (lambda model: latency),
            self.metrics,
            lambda listener: Residency(listener, lambda worker: Capacity(), lambda *_: None, profile=profile),
        )
        self.residency = self.dispatcher.residency
        self.function = function(
            max_batch=4, batch_sizes=(1, 4), **{"slo_ms": 50.0, "policy": "goodput", **fields}
        )
        self.dispatcher.configure(self.function)
        for worker in workers:
            self.residency.worker_up(worker)

    def ask(self, *rows: str, **fields: Any) -> PendingReply:
        data = [row.encode() for row in rows]
        served: Function = fields.pop("function", self.function)
        return self.dispatcher.begin(Call(served, "text", data, sum(map(len, data)), **fields))

    def lose(self, worker: FakeWorker) -> None:
        """The worker dies under its oldest batch."""
        self.residency.worker_down(worker)
        worker.fail()

    def labels(self, pending: PendingReply) -> list[str]:
        labels = list(labels_of(pending.future.result()))
        self.dispatcher.end(pending)
        return labels

    def labels_of(self, reply: Reply) -> list[str]:
        return list(labels_of(reply))
