"""Triton Inference Server, with its Python backend fed by PyTriton.

Set up as https://triton-inference-server.github.io/pytriton/latest/ advises under "Binding models" and
"Binding configuration": one callable per instance of the model, a dynamic batcher with a delay. A raw body
is one row of the only input (Triton's user guide, "Binary tensor data extension", "Raw binary request").
"""

from __future__ import annotations

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from tests.benchmarks.serving.servers.model import MAX_BATCH, MAX_WAIT_MS, WORKERS, Model, port


class Classifier:
    """Makes its model at the first batch, in the process that answers."""

    def __init__(self) -> None:
        self._model: Model | None = None

    @batch
    def __call__(self, image: np.ndarray) -> dict[str, np.ndarray]:
        if self._model is None:
            self._model = Model()
        labels = self._model(image[:, 0].tolist())
        return {"label": np.char.encode(np.array(labels), "utf-8")[:, None]}


if __name__ == "__main__":
    config = TritonConfig(
        http_port=port(), http_address="127.0.0.1", allow_grpc=False, allow_metrics=False, log_verbose=0
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="photo",
            infer_func=[Classifier() for _ in range(WORKERS)],
            inputs=[Tensor(name="image", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="label", dtype=bytes, shape=(1,))],
            config=ModelConfig(
                max_batch_size=MAX_BATCH,
                batcher=DynamicBatcher(max_queue_delay_microseconds=1000 * MAX_WAIT_MS),
            ),
            strict=True,
        )
        triton.serve()
