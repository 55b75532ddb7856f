"""Measures a model that a worker has loaded for the first time: what batches of a few sizes take.

Before the worker is given rows for it, for half a second in all, and no longer as soon as rows wait: a worker
that also serves other models is held up by one short batch at a time. What stays unmeasured is learned from
the rows that come.

The rows are made up. They are tensors where the model takes such, texts where it takes those; for models of
paths and images the forward pass is so measured and the decoding is learned later.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from gpu_worker.wire.protocol import Answer, Infer, Message
from server.catalog.functions import Form, ModelVersion
from server.catalog.latencies import Latencies
from server.workers.pool import Worker

__all__ = ["Profiler"]

log = logging.getLogger("ml_udf.server.profiling")

_SIZES = (1, 4, 16, 64)
_TIMES = 3  # the least of so many counts: what disturbs a batch makes it slower, never faster
_BUDGET_S = 0.5
_LONGEST_S = 0.15  # expected of a batch of more than one row
_PATIENCE_S = 2.0  # with the first batch, of a model that may hang
_TEXT = b"The laksa was rich and hot, the queue was long, and we would come again on any other day. "


class Profiler:
    """Tries each model once on each kind of device.

    A worker that does not come back from such a batch within `worker_hang_s` is killed; 0 = never.
    """

    def __init__(
        self,
        latencies: Latencies,
        clock: Callable[[], float] = time.perf_counter,
        *,
        worker_hang_s: float = 0.0,
    ) -> None:
        self._latencies = latencies
        self._clock = clock
        self._worker_hang_s = worker_hang_s
        self._tried: set[tuple[str, str]] = set()

    async def measure(self, worker: Worker, model: ModelVersion, is_waited_for: Callable[[], bool]) -> None:
        """Teach l̂ what the model takes there, unless that is known. Raises nothing: it may stay unknown."""
        device = worker.info.device_name
        sample = _sample(model)
        # Once: of a model that kills its worker, the next load must not do so again.
        if sample is None or (model.key, device) in self._tried or self._latencies.is_known(model, device):
            return
        self._tried.add((model.key, device))
        form, row = sample
        profile_s = await self._profile(worker, model, form, row, is_waited_for, _BUDGET_S)
        if profile_s:
            self._latencies.profiled(model, device, form, profile_s)
            points = ",".join(f"{rows}:{1000 * took_s:.3g}" for rows, took_s in profile_s.items())
            log.info("model profiled worker=%s model=%s form=%s ms=%s", worker.name, model.key, form, points)

    async def profile(
        self, worker: Worker, model: ModelVersion, is_waited_for: Callable[[], bool], *, budget_s: float
    ) -> dict[int, float]:
        """Rows → seconds of a model that the worker holds, whatever is known of it; nothing is taught.

        Empty for one that takes nothing that can be made up.
        """
        sample = _sample(model)
        if sample is None:
            return {}
        return await self._profile(worker, model, *sample, is_waited_for, budget_s)

    async def _profile(
        self,
        worker: Worker,
        model: ModelVersion,
        form: Form,
        row: bytes,
        is_waited_for: Callable[[], bool],
        budget_s: float,
    ) -> dict[int, float]:
        """Rows → seconds, for as many sizes as there is time for."""
        profile_s: dict[int, float] = {}
        ends_s, longest_s = self._clock() + budget_s, _LONGEST_S * budget_s / _BUDGET_S
        for rows in _SIZES:
            least_s = math.inf
            for _ in range(_TIMES):
                now_s = self._clock()
                expected_s = profile_s[size] * rows / size if (size := max(profile_s, default=0)) else 0.0
                if expected_s > longest_s or now_s + expected_s > ends_s or is_waited_for():
                    break
                message = Infer(0, [model.key], form, [row] * rows)
                reply = await self._answer(worker, message, model)
                if not isinstance(reply, Answer) or reply.errors:
                    return profile_s
                least_s = min(least_s, self._clock() - now_s)
            if least_s == math.inf:
                break
            profile_s[rows] = max(least_s, *profile_s.values(), 1e-6)
        return profile_s

    async def _answer(self, worker: Worker, message: Message, model: ModelVersion) -> Message | None:
        """The worker's reply; None if it takes long: then the worker is asked to cancel it, and watched."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Message] = loop.create_future()
        message_id = worker.send(message, lambda came: None if reply.done() else reply.set_result(came))
        await asyncio.wait({reply}, timeout=_PATIENCE_S)
        if reply.done():
            return reply.result()
        worker.cancel(message_id)
        if self._worker_hang_s:
            loop.call_later(self._worker_hang_s, _end_if_hung, worker, model, reply)
        return None


def _end_if_hung(worker: Worker, model: ModelVersion, reply: asyncio.Future[Message]) -> None:
    if not reply.done():
        worker.kill(f"it hangs in a first batch of {model.key}")


def _sample(model: ModelVersion) -> tuple[Form, bytes] | None:
    """A form that the model takes, and a row of it; None if it takes nothing that can be made up."""
    if model.input.form == "text":
        return "text", _TEXT
    if model.input.row_bytes:
        return "tensor", bytes(model.input.row_bytes)
    return None
