"""nvJPEG decodes what the CPU would, nearly; where torchvision is not there, every test says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.engine import Engine
from gpu_worker.pipeline.decode import decode_image
from gpu_worker.pipeline.device_jpeg import decoded_by, decoder_on, offered
from gpu_worker.settings import Settings
from tests.answers import SCORED, scores_of
from tests.models import image_model
from tests.unit.gpu_worker.pictures import noise
from tests.unit.gpu_worker.test_device_jpeg import jpeg, png

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"NO CUDA DEVICE (torch {torch.__version__}): nothing was tested on it",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is None,
        reason="NO TORCHVISION: pip install torchvision, of torch's release",
    ),
]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_those_of_the_cpu_and_upright(orientation: int) -> None:
    decoder = decoder_on("cuda:0")
    assert decoder is not None
    data = [jpeg(orientation=orientation), jpeg((200, 300), orientation), jpeg(orientation=1, mode="L")]
    found = decoded_by(decoder, [offered(one, 1 << 20) for one in data], 48, 40)
    for one, pixels in zip(data, found, strict=True):
        assert pixels is not None
        expected = decode_image(one, 48, 40, max_pixels=1 << 20)
        assert np.abs(pixels.astype(int) - expected.astype(int)).mean() < 4


def test_a_damaged_file_costs_no_other_its_place() -> None:
    decoder = decoder_on("cuda:0")
    assert decoder is not None
    whole = jpeg((128, 128))
    found = decoded_by(decoder, [offered(each, 1 << 20) for each in (whole, whole[:900], whole)], 32, 32)
    assert found[0] is not None
    assert found[2] is not None


def test_a_model_answers_nearly_the_same_and_faults_are_the_same(tmp_path: Path) -> None:
    model = str(image_model(tmp_path, "m", "resnet"))
    rows = [*(noise(seed, 128, 128) for seed in range(100)), png(), b"no picture"]
    answers = []
    for on_device in (True, False):
        engine = Engine(Settings(device="cuda:0", precision="float32", jpeg_on_device=on_device))
        try:
            engine.load("m", model)
            answers.append(engine.infer(["m"], "image", rows, outputs=SCORED))
        finally:
            engine.close()
    on_device_answer, on_cpu = answers
    assert (
        [error.index for error in on_device_answer.errors]
        == [error.index for error in on_cpu.errors]
        == [101]
    )
    found, expected = (np.frombuffer(scores_of(one.members[0]), np.float32) for one in answers)
    np.testing.assert_allclose(found, expected, atol=0.1)
