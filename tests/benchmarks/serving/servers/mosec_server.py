"""mosec: its documentation's batching worker (https://mosecorg.github.io/mosec/reference/interface.html).

The body is the image itself: an ingress worker may read raw bytes by overriding `deserialize`, as its PyTorch
example does. `max_wait_time` is in milliseconds.
"""

from __future__ import annotations

import sys

from mosec import Server, Worker

from tests.benchmarks.serving.servers.model import MAX_BATCH, MAX_WAIT_MS, WORKERS, Model, port


class Classifier(Worker):
    def __init__(self) -> None:
        super().__init__()
        self._model = Model()

    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[bytes]) -> list[str]:
        return self._model(data)


if __name__ == "__main__":
    sys.argv[1:] = [f"--port={port()}", "--address=127.0.0.1", "--log-level=warning"]
    server = Server()
    server.append_worker(Classifier, num=WORKERS, max_batch_size=MAX_BATCH, max_wait_time=MAX_WAIT_MS)
    server.run()
