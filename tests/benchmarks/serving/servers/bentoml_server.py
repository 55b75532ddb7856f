"""BentoML: a batchable API, https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html.

Images come as files of a form, of which its input types make paths
(https://docs.bentoml.com/en/latest/build-with-bentoml/iotypes.html). Its window and size of batches adapt by
themselves up to `max_latency_ms`, the callers' goal. Each worker is an HTTP server with a model of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bentoml

from tests.benchmarks.serving.servers.model import MAX_BATCH, WORKERS, Model, port, slo_ms


@bentoml.service(workers=WORKERS, traffic={"timeout": 60})
class Classifier:
    def __init__(self) -> None:
        self._model = Model()

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=slo_ms())
    def classify(self, images: list[Path]) -> list[str]:
        return self._model([image.read_bytes() for image in images])


if __name__ == "__main__":
    arguments = ["serve", f"{__spec__.name}:Classifier", "--host=127.0.0.1", f"--port={port()}"]
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", *arguments])
