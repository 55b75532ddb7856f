"""The worker on a CUDA device answers as on a CPU. Without one, every test says so and is skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.engine import Engine
from gpu_worker.errors import Cancelled
from gpu_worker.settings import Settings
from gpu_worker.train.images import ImageExamples
from gpu_worker.train.loop import train
from gpu_worker.train.spec import TrainSpec
from gpu_worker.wire.protocol import Answer
from gpu_worker.zoo import ARCHITECTURES
from tests.answers import SCORED, scores_of
from tests.models import CLASSES, image_model
from tests.unit.gpu_worker.pictures import noise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"NO CUDA DEVICE (torch {torch.__version__}): nothing was tested on it",
    ),
]

ROWS = [noise(seed) for seed in range(40)] * 50


@pytest.fixture
def cuda() -> Iterator[Engine]:
    engine = Engine(Settings(device="cuda:0"))
    yield engine
    engine.close()


@pytest.fixture
def cpu() -> Iterator[Engine]:
    engine = Engine(Settings(device="cpu"))
    yield engine
    engine.close()


def scores(answer: Answer) -> np.ndarray:
    return np.frombuffer(scores_of(answer.members[0]), np.float32).reshape(-1, len(CLASSES))


def test_auto_finds_it_and_says_its_name_and_memory() -> None:
    engine = Engine(Settings(device="auto"))
    try:
        assert engine.device.name == "cuda:0"
        assert engine.device.description == torch.cuda.get_device_name(0)
        assert 0 < engine.device.capacity_bytes < torch.cuda.get_device_properties(0).total_memory
    finally:
        engine.close()


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_it_answers_as_the_cpu_does(architecture: str, cuda: Engine, cpu: Engine, tmp_path: Path) -> None:
    model = str(image_model(tmp_path, architecture, architecture))
    for engine in (cuda, cpu):
        engine.load("m", model)
    on_cuda, on_cpu = (engine.infer(["m"], "image", ROWS[:300], outputs=SCORED) for engine in (cuda, cpu))
    np.testing.assert_allclose(scores(on_cuda), scores(on_cpu), atol=1e-2)  # TF32 and other kernels


def test_long_batches_keep_their_order_over_several_pieces(cuda: Engine, tmp_path: Path) -> None:
    cuda.load("m", str(image_model(tmp_path, "m", "vgg")))
    once = cuda.infer(["m"], "image", ROWS[:40], outputs=SCORED)
    many = cuda.infer(["m"], "image", ROWS, outputs=SCORED)
    np.testing.assert_allclose(scores(many), np.tile(scores(once), (50, 1)), atol=1e-2)


def test_an_unloaded_model_gives_its_memory_back(tmp_path: Path) -> None:
    engine = Engine(Settings(device="cuda:0", resident_models=1))
    try:
        engine.load("a", str(image_model(tmp_path, "a", "vgg")))
        held = torch.cuda.memory_allocated()
        for number in range(5):
            engine.unload(engine.resident()[0])
            engine.load(f"b{number}", str(image_model(tmp_path, f"b{number}", "vgg")))
        assert torch.cuda.memory_allocated() < 2 * held + (1 << 20)
    finally:
        engine.close()


def test_a_cancel_returns_at_once(cuda: Engine, tmp_path: Path) -> None:
    cuda.load("m", str(image_model(tmp_path, "m", "vgg")))
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        cuda.infer(["m"], "image", ROWS * 100, cancelled=lambda: time.monotonic() - began_s > 0.3)
    assert time.monotonic() - began_s < 5


def test_training_runs_on_it() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(256) % 4
    pixels = torch.randint(0, 60, (256, 32, 32, 3), dtype=torch.uint8, generator=generator)
    pixels += (labels * 60).to(torch.uint8)[:, None, None, None]
    images = ImageExamples(pixels, labels, CLASSES)
    spec = TrainSpec("resnet", epochs=4)
    spec = replace(spec, input=replace(spec.input, height=32, width=32))
    trained = train(spec, images, images, device="cuda:0")
    assert trained.validation_accuracy > 0.9
