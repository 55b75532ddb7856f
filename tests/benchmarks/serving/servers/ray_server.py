"""Ray Serve: `serve.batch` as https://docs.ray.io/en/latest/serve/advanced-guides/dyn-req-batch.html advises.

The ingress deployment reads the body of the Starlette request and hands it to the batching method.
`max_ongoing_requests` must leave room for batches to fill, as that page says.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading

import ray
from ray import serve
from starlette.requests import Request

from tests.benchmarks.serving.servers.model import MAX_BATCH, MAX_WAIT_MS, WORKERS, Model, port


@serve.deployment(num_replicas=WORKERS, max_ongoing_requests=8 * MAX_BATCH, ray_actor_options={"num_cpus": 1})
class Classifier:
    def __init__(self) -> None:
        self._model = Model()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=MAX_WAIT_MS / 1000)
    async def classify(self, images: list[bytes]) -> list[str]:
        return self._model(images)

    async def __call__(self, request: Request) -> str:
        return await self.classify(await request.body())


if __name__ == "__main__":
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(num_cpus=WORKERS, include_dashboard=False, _temp_dir=folder, logging_level="warning")
        serve.start(http_options={"host": "127.0.0.1", "port": port()})
        serve.run(Classifier.bind())
        stopping.wait()
        serve.shutdown()
        ray.shutdown()
    sys.exit(0)
