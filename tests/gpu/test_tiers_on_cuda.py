"""Device ← pinned host memory on CUDA: what leaves and comes back answers as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.engine import Engine
from gpu_worker.errors import Cancelled
from gpu_worker.settings import Settings
from tests.answers import SCORED, scores_of
from tests.models import image_model
from tests.unit.gpu_worker.pictures import noise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"NO CUDA DEVICE (torch {torch.__version__}): nothing was tested on it",
    ),
]


def scores(engine: Engine) -> np.ndarray:
    answer = engine.infer(["m"], "image", [noise(seed) for seed in range(8)], outputs=SCORED)
    return np.frombuffer(scores_of(answer.members[0]), np.float32)


def test_a_model_comes_back_by_one_copy_and_answers_as_before(tmp_path: Path) -> None:
    model = str(image_model(tmp_path, "m", "resnet"))
    engine = Engine(Settings(device="cuda:0", precision="float32", prepared=str(tmp_path / "prepared")))
    try:
        engine.load("m", model)
        expected = scores(engine)
        for _ in range(3):
            engine.unload("m")
            report = engine.load("m", model)
            assert (report.times.read_s, report.times.make_s, report.times.warm_up_s) == (0.0, 0.0, 0.0)
            np.testing.assert_allclose(scores(engine), expected, atol=1e-5)
    finally:
        engine.close()


def test_a_load_that_is_given_up_leaves_no_memory_of_the_device_taken(tmp_path: Path) -> None:
    model = str(image_model(tmp_path, "m", "resnet"))
    engine = Engine(Settings(device="cuda:0"))
    try:
        with pytest.raises(Cancelled):
            engine.load("m", model, lambda: True)
        assert (engine.used_bytes, engine.resident(), engine.loading()) == (0, [], [])
        engine.load("m", model)
    finally:
        engine.close()
