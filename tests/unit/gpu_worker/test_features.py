"""A network's features are what its classifier is given, whatever runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file

from gpu_worker.engine import Engine
from gpu_worker.errors import BadRequest, ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.build import build_module
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import GivesFeatures, width_of
from gpu_worker.settings import Settings
from gpu_worker.zoo import ARCHITECTURES
from tests.models import CLASSES, hashing_model, image_model
from tests.unit.gpu_worker.test_onnx import (
    CPU,
    SIZE,
    Small,
    load,
    onnx_folder,
    to_onnx,
    write,
)

PIXELS = np.random.default_rng(1).integers(0, 256, (9, 64, 64, 3), np.uint8)


def features_of(network: object, inputs: np.ndarray) -> np.ndarray:
    assert isinstance(network, GivesFeatures)
    found = network.features(inputs, lambda: False)
    assert found.shape == (len(inputs), network.features_width)
    assert found.dtype == np.float32
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_classifier_makes_the_scores_of_the_features(architecture: str, tmp_path: Path) -> None:
    folder = image_model(tmp_path, "net", architecture)
    manifest = read_manifest(str(folder))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    features = features_of(network, PIXELS)
    module = build_module(architecture, len(CLASSES), {})
    module.load_state_dict(load_weights(folder))
    linear = [part for part in module.modules() if isinstance(part, torch.nn.Linear)][-1]
    with torch.no_grad():
        scores = torch.softmax(linear(torch.from_numpy(features)), 1).numpy()
    np.testing.assert_allclose(network.scores(PIXELS, lambda: False), scores, atol=1e-5)
    np.testing.assert_allclose(features[3:5], features_of(network, PIXELS[3:5]), atol=1e-4)


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_features_share_the_weights_of_the_network(tmp_path: Path) -> None:
    manifest = read_manifest(str(image_model(tmp_path, "net", "vgg")))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    body, module = network._body, network._module  # type: ignore[attr-defined]  # inside: it is about memory
    assert {part.data_ptr() for part in body.parameters()} <= {p.data_ptr() for p in module.parameters()}


def with_features(model: onnx.ModelProto, name: str, *, only: bool = False) -> onnx.ModelProto:
    """The same graph with one more output, or with that one alone."""
    if only:
        del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]))
    return model


def change(folder: Path, **fields: object) -> Path:
    manifest = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**manifest, **fields}))
    return folder


@pytest.fixture
def module() -> Small:
    torch.manual_seed(3)
    return Small(5).eval()


def test_an_output_of_an_onnx_file_that_the_manifest_names_gives_the_same_features(
    module: Small, tmp_path: Path
) -> None:
    in_torch = tmp_path / "in-torch"
    in_torch.mkdir()
    save_file(module.state_dict(), in_torch / "model.safetensors")
    one = load(write(in_torch, "torch", in_torch / "model.safetensors"))
    folder = onnx_folder(tmp_path / "in-onnx", with_features(to_onnx(module), "f"))
    other = load(change(folder, features={"output": "f"}))
    pixels = np.random.default_rng(1).integers(0, 256, (7, SIZE, SIZE, 3), np.uint8)
    np.testing.assert_allclose(features_of(one, pixels), features_of(other, pixels), atol=1e-5)
    np.testing.assert_allclose(
        one.scores(pixels, lambda: False), other.scores(pixels, lambda: False), atol=1e-5
    )


def test_a_file_without_a_classifier_is_a_model_of_its_own(module: Small, tmp_path: Path) -> None:
    folder = onnx_folder(tmp_path / "m", with_features(to_onnx(module), "f", only=True))
    change(folder, task="image-embedding", classes=[], features={"width": 8})
    assert width_of(load(folder), "features", 0) == 8
    change(folder, features={"width": 9})
    with pytest.raises(ModelUnusable, match=r"has 8 features, and model\.json says 9"):
        load(folder)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "outputs logits, f; say in model.json"),
        ({"features": {"output": "g"}}, "has no output 'g' for its features; there are logits, f"),
        ({"features": {"output": "f", "width": 9}}, "has 8 features, and"),
        ({"features": {"output": "f", "width": -1}}, "'features.width' must be"),
    ],
)
def test_features_that_are_not_there_are_refused(
    fields: dict[str, object], said: str, module: Small, tmp_path: Path
) -> None:
    folder = onnx_folder(tmp_path / "m", with_features(to_onnx(module), "f"))
    with pytest.raises(ModelUnusable, match=said):
        load(change(folder, **fields))


def test_features_that_are_no_vectors_are_refused(module: Small, tmp_path: Path) -> None:
    model = to_onnx(module)
    model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", 8, "h", "w"]))
    folder = onnx_folder(tmp_path / "m", model)
    with pytest.raises(ModelUnusable, match=r"features have the shape \[1, 8, 8, 8\]"):
        load(change(folder, features={"output": "r"}))


def test_one_resident_model_answers_classes_and_features(tmp_path: Path) -> None:
    engine = Engine(Settings(threads=2))
    try:
        report = engine.load("h", str(hashing_model(tmp_path, "h", form="path", features=3)))
        assert report.features_width == 3
        rows = [f"{number}.jpg".encode() for number in range(300)]
        (labelled,) = engine.infer(["h"], "path", rows).members
        (embedded,) = engine.infer(["h"], "path", rows, task="image-embedding").members
        assert [column.name for column in labelled.columns] == ["label", "confidence"]
        (column,) = embedded.columns
        assert (column.name, column.datatype, column.shape, column.rows) == ("embedding", "FP32", (3,), 300)
        numbers = np.frombuffer(cast("bytes", column.data), np.float32)
        assert (numbers >= 0).all()
        assert (numbers <= 1).all()
        assert len(np.unique(numbers)) > 300
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("form", "features", "said"),
    [("path", 0, "'h' has no features, of which image-embedding is made"), ("text", 3, "does text-class")],
)
def test_a_model_that_does_not_do_the_task_says_so(
    form: str, features: int, said: str, tmp_path: Path
) -> None:
    engine = Engine(Settings(threads=1))
    try:
        engine.load("h", str(hashing_model(tmp_path, "h", form=form, features=features)))
        with pytest.raises(BadRequest, match=said):
            engine.infer(["h"], form, [b"a"], task="image-embedding")
    finally:
        engine.close()


def test_a_row_of_features_that_are_no_numbers_is_its_own_error(module: Small, tmp_path: Path) -> None:
    model = with_features(to_onnx(module), "f")
    bias = next(weight for weight in model.graph.initializer if weight.name == "conv.bias")
    assert numpy_helper.to_array(bias).shape == (8,)
    # A picture that is all white overflows; black ones do not.
    weight = next(weight for weight in model.graph.initializer if weight.name == "conv.weight")
    huge = np.full(numpy_helper.to_array(weight).shape, 3e38, np.float32)
    weight.CopyFrom(numpy_helper.from_array(huge, "conv.weight"))
    folder = change(
        onnx_folder(tmp_path / "m", model),
        features={"output": "f"},
        input={"form": "tensor", "height": SIZE, "width": SIZE},
    )
    engine = Engine(Settings(threads=1))
    try:
        engine.load("m", str(folder))
        rows = [np.full((3, SIZE, SIZE), level, np.float32).tobytes() for level in (0, 1, 0)]
        answer = engine.infer(["m"], "tensor", rows, task="image-embedding")
        assert [(error.index, error.code) for error in answer.errors] == [(1, "internal")]
        assert "not finite" in answer.errors[0].message
    finally:
        engine.close()
