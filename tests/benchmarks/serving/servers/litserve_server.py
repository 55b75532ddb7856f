"""LitServe: batching as https://lightning.ai/docs/litserve/features/batching advises.

Images come as a form's file, which its documentation's image examples use: of a body it takes JSON or a form.
One API process per worker is its own default.
"""

from __future__ import annotations

import litserve as ls

from tests.benchmarks.serving.servers.model import MAX_BATCH, MAX_WAIT_MS, WORKERS, Model, port


class Classifier(ls.LitAPI):
    def setup(self, device: str) -> None:
        self._model = Model()

    def decode_request(self, request):  # an annotation would be taken for the body's type
        return request["image"].file.read()

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, x: list[bytes]) -> list[str]:
        return self._model(x)

    def unbatch(self, output: list[str]) -> list[str]:
        return output

    def encode_response(self, output: str) -> dict[str, str]:
        return {"label": output}


if __name__ == "__main__":
    api = Classifier(max_batch_size=MAX_BATCH, batch_timeout=MAX_WAIT_MS / 1000)
    server = ls.LitServer(api, accelerator="cpu", devices=1, workers_per_device=WORKERS)
    server.run(host="127.0.0.1", port=port(), log_level="warning", generate_client_file=False)
