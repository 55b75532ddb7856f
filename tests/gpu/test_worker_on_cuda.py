"""The worker on a CUDA device answers as on a CPU. Without one, every test says so and is skipped."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from gpu_worker.device import find_device
from gpu_worker.engine import Engine
from gpu_worker.errors import Cancelled, NoRoom
from gpu_worker.networks.onnx_network import open_session
from gpu_worker.settings import Settings
from gpu_worker.train.images import ImageExamples
from gpu_worker.train.loop import train
from gpu_worker.train.spec import TrainSpec
from gpu_worker.wire.protocol import Answer
from gpu_worker.zoo import ARCHITECTURES
from tests.answers import SCORED, scores_of
from tests.models import CLASSES, image_model
from tests.unit.gpu_worker.pictures import noise
from tests.unit.gpu_worker.test_onnx import Small, to_onnx

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
    np.testing.assert_allclose(scores(on_cuda), scores(on_cpu), atol=1e-2)  # float16 and other kernels


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


def test_free_memory_is_what_models_may_fill(cuda: Engine) -> None:
    free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    assert 0 < cuda.device.capacity_bytes < total_bytes
    assert cuda.device.capacity_bytes < free_bytes + (1 << 30)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_precision_that_is_chosen_is_said_and_answers_as_float32_does(
    architecture: str, cuda: Engine, tmp_path: Path
) -> None:
    model = str(image_model(tmp_path, architecture, architecture))
    said = cuda.load("m", model).precision
    assert said == "float32" or "agreement 1.0000" in said
    exact = Engine(Settings(device="cuda:0", precision="float32", cuda_graphs=False))
    try:
        assert exact.load("m", model).precision == "float32"
        chosen, plain = (engine.infer(["m"], "image", ROWS[:40], outputs=SCORED) for engine in (cuda, exact))
    finally:
        exact.close()
    np.testing.assert_allclose(scores(chosen), scores(plain), atol=2e-2)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 31, 33, 64, 65])
def test_graphs_answer_as_single_kernels_do_whatever_the_batch(rows: int, tmp_path: Path) -> None:
    model = str(image_model(tmp_path, "m", "squeezenet"))
    answers = []
    for graphs in (True, False):
        engine = Engine(Settings(device="cuda:0", precision="float32", cuda_graphs=graphs))
        try:
            engine.load("m", model)
            answers.append(scores(engine.infer(["m"], "image", ROWS[:rows], outputs=SCORED)))
        finally:
            engine.close()
    by_graphs, by_kernels = answers
    np.testing.assert_allclose(by_graphs, by_kernels, atol=1e-4)


def test_a_model_that_left_and_came_back_does_not_run_by_graphs_of_its_old_place(tmp_path: Path) -> None:
    engine = Engine(Settings(device="cuda:0", precision="float32"))
    try:
        model, other = (
            str(image_model(tmp_path, name, "squeezenet", seed=seed)) for seed, name in enumerate("mo")
        )
        engine.load("m", model)
        before = scores(engine.infer(["m"], "image", ROWS[:4], outputs=SCORED))
        engine.unload("m")
        engine.load("o", other)  # where the weights lay
        engine.load("m", model)
        for _ in range(40):  # until its sizes are recorded again
            after = scores(engine.infer(["m"], "image", ROWS[:4], outputs=SCORED))
            np.testing.assert_allclose(after, before, atol=1e-4)
    finally:
        engine.close()


def test_several_batches_at_once_have_their_own_answers(cuda: Engine, tmp_path: Path) -> None:
    cuda.load("m", str(image_model(tmp_path, "m", "resnet")))
    alone = scores(cuda.infer(["m"], "image", ROWS[:40], outputs=SCORED))
    batches = [cuda.begin(["m"], "image", ROWS[at : at + 10], outputs=SCORED) for at in (0, 10, 20, 30)]
    found = np.concatenate([scores(cuda.answer(batch)) for batch in batches])
    np.testing.assert_allclose(found, alone, atol=1e-2)


def test_a_device_that_is_full_answers_in_smaller_parts_or_says_so(cuda: Engine, tmp_path: Path) -> None:
    cuda.load("m", str(image_model(tmp_path, "m", "vgg")))
    expected = scores(cuda.infer(["m"], "image", ROWS[:200], outputs=SCORED))
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(0)
    hoard = torch.empty(max(1, free_bytes - (96 << 20)), dtype=torch.uint8, device="cuda:0")
    try:
        with contextlib.suppress(NoRoom):  # a single row's activations may be more than is left
            found = scores(cuda.infer(["m"], "image", ROWS[:200], outputs=SCORED))
            np.testing.assert_allclose(found, expected, atol=1e-2)
    finally:
        del hoard
        torch.cuda.empty_cache()


def test_a_poisoned_context_ends_the_worker(tmp_path: Path) -> None:
    """In a process of its own, which it is of no use to afterwards."""
    code = (
        "import sys, torch\n"
        "from gpu_worker.errors import DeviceLost\n"
        "from gpu_worker.networks.parts import in_parts_that_fit\n"
        "def poison(rows):\n"
        "    index = torch.full((len(rows),), 10**6, device='cuda:0')\n"
        "    found = torch.zeros(4, device='cuda:0')[index]\n"
        "    torch.cuda.synchronize()\n"
        "    return found.cpu().numpy()\n"
        "try:\n"
        "    in_parts_that_fit(poison, [b'a', b'b'], lambda: False, 'cuda:0', torch.cuda.empty_cache)\n"
        "except DeviceLost as lost:\n"
        "    sys.exit(0 if 'cuda:0 failed' in str(lost) else 3)\n"
        "sys.exit(4)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="onnxruntime has no CUDA here: install onnxruntime-gpu in place of onnxruntime",
)
def test_onnx_runs_on_the_workers_own_device(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(to_onnx(Small(5)), path)
    number = torch.cuda.device_count() - 1
    session = open_session(str(path), find_device(f"cuda:{number}"))
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    assert session.get_provider_options()["CUDAExecutionProvider"]["device_id"] == str(number)
