"""A Triton with the model `hash`, which answers as a `hashing` model does; run in PyTriton's environment.

python serve.py PORT
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def answer(text: np.ndarray) -> dict[str, np.ndarray]:
    """Probabilities [n, 4] of texts [n, 1]."""
    probs = np.full((len(text), 4), 0.1, np.float32)
    for row, value in enumerate(text[:, 0].tolist()):
        probs[row, zlib.crc32(value) % 4] = 0.7
    return {"probs": probs}


if __name__ == "__main__":
    config = TritonConfig(
        http_port=int(sys.argv[1]), http_address="127.0.0.1", allow_grpc=False, allow_metrics=False
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="hash",
            infer_func=answer,
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="probs", dtype=np.float32, shape=(4,))],
            config=ModelConfig(max_batch_size=64),
            strict=True,
        )
        triton.serve()
