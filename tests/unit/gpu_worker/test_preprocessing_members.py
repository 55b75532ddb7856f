"""Members of a batch whose pictures are prepared differently are each right; alike ones share a decoding."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpu_worker.device import find_device
from gpu_worker.engine import Engine
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.preprocess import Frame, Preprocess
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.pipeline import intake as intake_module
from gpu_worker.pipeline.decode import Pixels, decode_picture
from gpu_worker.settings import Settings
from tests.models import image_model

HOW = {
    "plain": Preprocess(),
    "crop": Preprocess("short_side", 80, "bicubic"),
    "padded": Preprocess("long_side", fill=(114, 114, 114)),
    "bgr": Preprocess(channels="bgr", scale=1.0),
    "crop too": Preprocess("short_side", 80, "bicubic"),
}


def test_members_with_other_preprocessing_answer_as_they_do_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coarse = np.random.default_rng(1).integers(0, 256, (9, 12, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((240, 120), Image.Resampling.BICUBIC).save(file, "PNG")
    photo = file.getvalue()
    folders = {}
    for number, (name, how) in enumerate(HOW.items()):
        folder = image_model(tmp_path / str(number), "m", seed=1)
        content = json.loads((folder / "model.json").read_text())
        content["input"]["preprocess"] = how.to_json()
        (folder / "model.json").write_text(json.dumps(content))
        folders[name] = folder
    decoded: list[Frame] = []

    def counting(data: bytes, frame: Frame, *, max_pixels: int) -> Pixels:
        decoded.append(frame)
        return decode_picture(data, frame, max_pixels=max_pixels)

    monkeypatch.setattr(intake_module, "decode_picture", counting)
    engine = Engine(Settings(device="cpu", threads=1))
    try:
        for name, folder in folders.items():
            engine.load(name, str(folder))
        answer = engine.infer(list(folders), "image", [photo], outputs=("scores",))
    finally:
        engine.close()
    assert len(decoded) == len(HOW) - 1, "the two that crop alike share one"
    together = {}
    for member in answer.members:
        data = member.columns[0].data
        assert not isinstance(data, list)
        together[member.model] = np.frombuffer(data, np.float32)
    for name, folder in folders.items():
        manifest = read_manifest(str(folder))
        network = load_network(manifest, find_device("cpu", threads=1))
        warm_up(network, manifest)
        pixels = decode_picture(photo, manifest.input.frame, max_pixels=1 << 20)
        np.testing.assert_allclose(
            together[name], network.scores(pixels[None].copy(), lambda: False)[0], atol=1e-5
        )
    assert not np.allclose(together["plain"], together["crop"], atol=1e-4)
