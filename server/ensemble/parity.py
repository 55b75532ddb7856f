"""The answer to a late row, of what a parity model said of its group and what is known of the others.

ParM (Kosaian et al., SOSP 2019, §3.2). A parity model is taught to say of k rows together the sum of what its
model says of each, in logarithms of probabilities; so the difference is the late row's, but for a constant
that no class gains by. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_worker.model_files.parity_spec import LEAST_PROBABILITY
from gpu_worker.wire.columns import TEXT, Column
from gpu_worker.wire.protocol import Answer, MemberAnswer

__all__ = ["rebuilt_answer", "rebuilt_scores"]

_LEAST = 1e-38  # of what a parity model says: its logarithms are sums of several

Scores = NDArray[np.float32]


def rebuilt_scores(parity: Scores, others: Sequence[Scores]) -> Scores:
    """[classes] probabilities, of those that the parity model said and those of each other row."""
    logs = np.log(np.maximum(parity.astype(np.float64), _LEAST))
    for other in others:
        logs -= np.log(np.maximum(other.astype(np.float64), LEAST_PROBABILITY))
    shares = np.exp(logs - logs.max())
    found: Scores = (shares / shares.sum()).astype(np.float32)
    return found


def rebuilt_answer(model: str, classes: Sequence[str], scores: Scores) -> Answer:
    """As a worker would have answered one row. model: the key of the parity model, which answers for it."""
    place = int(scores.argmax())
    columns = [
        Column("label", TEXT, (), [classes[place]]),
        Column("confidence", "FP32", (), np.float32(scores[place]).tobytes()),
        Column("scores", "FP32", (len(classes),), scores.tobytes()),
    ]
    return Answer(0, [MemberAnswer(model, columns)], [])
