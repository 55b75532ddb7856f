"""A model exported to ONNX answers as it does in torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file

from gpu_worker.device import Device, find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.regular import file_sha256
from gpu_worker.networks import onnx_network
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Network

CLASSES = ["a", "b", "c", "d", "e"]
SIZE = 16
CPU = find_device("cpu", threads=1)


class Small(torch.nn.Module):
    """Convolution, ReLU, mean, linear: small enough to be written down in ONNX by hand."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(torch.relu(self.conv(x)).mean(dim=(2, 3)))
        return y


def to_onnx(module: Small, shape: tuple[str | int, ...] = ("n", 3, SIZE, SIZE)) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(t.detach().numpy(), name) for name, t in module.state_dict().items()]
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [shape[0], len(CLASSES)])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(folder: Path, runtime: str, weights: Path) -> Path:
    manifest = {
        "format": 1,
        "name": folder.name,
        "version": 1,
        "task": "image-classification",
        "runtime": runtime,
        "architecture": "tests.unit.gpu_worker.test_onnx:Small",
        "weights": weights.name,
        "classes": CLASSES,
        "input": {
            "form": "path",
            "height": SIZE,
            "width": SIZE,
            "mean": [0.4, 0.5, 0.6],
            "std": [0.2, 0.25, 0.3],
        },
        "sha256": file_sha256(str(weights)),
    }
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


def load(folder: Path) -> Network:
    manifest = read_manifest(str(folder))
    network = load_network(manifest, CPU, allow_import=True)
    warm_up(network, manifest)
    return network


@pytest.fixture
def module() -> Small:
    torch.manual_seed(3)
    return Small(len(CLASSES)).eval()


def onnx_folder(folder: Path, model: onnx.ModelProto) -> Path:
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    return write(folder, "onnx", folder / "model.onnx")


def test_onnx_and_torch_answer_the_same(module: Small, tmp_path: Path) -> None:
    in_torch = tmp_path / "in-torch"
    in_torch.mkdir()
    save_file(module.state_dict(), in_torch / "model.safetensors")
    one = load(write(in_torch, "torch", in_torch / "model.safetensors"))
    other = load(onnx_folder(tmp_path / "in-onnx", to_onnx(module)))
    pixels = np.random.default_rng(1).integers(0, 256, (33, SIZE, SIZE, 3), np.uint8)
    tensor = np.random.default_rng(1).normal(size=(33, 3, SIZE, SIZE)).astype(np.float32)
    for inputs in (pixels, tensor):
        a, b = (network.scores(inputs, lambda: False) for network in (one, other))
        np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_allclose(a.sum(axis=1), 1, atol=1e-5)
        assert np.ptp(a.argmax(axis=1)) > 0 or np.ptp(a) > 0.01, "the answers depend on the input"


def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not onnx")
    with pytest.raises(ModelUnusable, match="not an ONNX model"):
        load(write(tmp_path, "onnx", tmp_path / "model.onnx"))


@pytest.mark.parametrize("shape", [("n", 3, 8, 8), ("n", 5, SIZE, SIZE), ("n", 1, SIZE, SIZE)])
def test_an_input_of_another_shape_is_refused(
    shape: tuple[str | int, ...], module: Small, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnusable, match=r"takes tensor\(float\)|cannot read|fails at its first rows"):
        load(onnx_folder(tmp_path / "m", to_onnx(module, shape)))


def test_other_counts_of_classes_are_refused_when_warming_up(tmp_path: Path) -> None:
    folder = onnx_folder(tmp_path / "m", to_onnx(Small(len(CLASSES))))
    manifest = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**manifest, "classes": ["a", "b"]}))
    with pytest.raises(ModelUnusable, match="2 classes"):
        load(folder)


@pytest.mark.security
def test_a_pass_that_never_ends_is_ended_and_the_model_refused(
    module: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_network, "_WARM_UP_S", 0.3)
    model = to_onnx(module)
    model.graph.node[-1].output[0] = "before"
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still_going"]),
            helper.make_node("Add", ["sum_in", "one"], ["sum_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_in", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("still_going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_out", TensorProto.FLOAT, []),
        ],
    )
    for name, value in {"one": np.float32(1), "yes": np.bool_(True), "trips": np.int64(2**62)}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    model.graph.node.append(helper.make_node("Loop", ["trips", "yes", "one"], ["rounds"], body=body))
    model.graph.node.append(helper.make_node("Add", ["before", "rounds"], ["logits"]))
    folder = onnx_folder(tmp_path / "m", model)
    with pytest.raises(ModelUnusable, match=r"fails at its first rows.*have 0\.3 s"):
        load(folder)


@pytest.mark.security
def test_a_graph_that_asks_for_endless_memory_is_refused(module: Small, tmp_path: Path) -> None:
    model = to_onnx(module)
    model.graph.node[-1].output[0] = "before"
    shape = np.array([2**62, 2**62], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(shape, "shape"))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["zeros"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["zeros"], ["s"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["before", "s"], ["logits"]))
    with pytest.raises(ModelUnusable):
        load(onnx_folder(tmp_path / "m", model))


def test_a_session_is_opened_on_the_workers_own_device() -> None:
    providers = onnx_network._providers
    second = Device("cuda:1", "a GPU", 1 << 30, 1)
    own = {
        "device_id": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": "0",
    }
    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert providers(second, available) == [
        ("CUDAExecutionProvider", own),
        "CPUExecutionProvider",
    ]
    assert providers(second, ["CPUExecutionProvider"]) == ["CPUExecutionProvider"]
    assert providers(Device("cpu", "", 1, 1), available) == ["CPUExecutionProvider"]


def test_a_runtime_that_cannot_use_the_gpu_is_said_and_the_cpu_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    path = tmp_path / "model.onnx"
    onnx.save(to_onnx(Small(len(CLASSES))), path)
    onnx_network.open_session(str(path), Device("cuda:0", "a GPU", 1 << 30, 1))
    assert "runs on the CPU, not on cuda:0" in caplog.text
    assert "onnxruntime-gpu" in caplog.text
