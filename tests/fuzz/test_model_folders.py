"""Model folders at random, loaded by a real worker: each load is answered, and the worker goes on.

A worker has bounded memory here, as an operator may give it; a model that wants more is a failed load.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx
from gpu_worker.wire.protocol import Failed, Load, Loaded, Ping, Pong, Unload
from server.catalog.functions import ModelVersion
from server.errors import BadOption
from server.store.manifest import model_from_manifest
from tests.fuzz.budget import rounds
from tests.models import CLASSES, image_model
from tests.unit.gpu_worker.worker_process import WorkerProcess

pytestmark = pytest.mark.security

SECRET = "/etc/passwd"
MEMORY_BYTES = 6 << 30
SIDE = 8
PATIENCE_S = 150.0  # a changed loop may run for as long as a pass of a warm-up may


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("--memory-bytes", str(MEMORY_BYTES), "--threads", "2") as running:
        running.socket.settimeout(PATIENCE_S)
        yield running


def ask_to_load(worker: WorkerProcess, folder: Path, seed: int) -> bool:
    """Whether the model was loaded; the worker has answered and lives."""
    reply = worker.ask(Load(seed + 1, "m", str(folder)))
    assert isinstance(reply, Loaded | Failed), seed
    if isinstance(reply, Failed):
        assert reply.code in ("bad_option", "internal", "overloaded"), (seed, reply)
        assert "root:" not in reply.message, seed
    else:
        worker.ask(Unload(seed + 1, "m"))
    assert isinstance(worker.ask(Ping(seed + 1)), Pong), seed
    return isinstance(reply, Loaded)


def flipped(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(out) or 1)
        change = rng.randrange(5)
        if change == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del out[at : at + rng.randrange(1, 30)]
        elif change == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 30))
        elif change == 3:
            out[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 0x7F, 0xFF, 2**31 - 1, 2**32 - 1)))
        else:
            begin = rng.randrange(len(out) or 1)
            out[at:at] = out[begin : begin + rng.randrange(100)]
    return bytes(out)


# ── ONNX ──────────────────────────────────────────────────────────────────────────────────────────────


def onnx_model(rng: random.Random) -> onnx.ModelProto:
    """Mean of the pixels, then a layer, and now and then something that a stranger would put in."""
    head = np.random.default_rng(rng.randrange(1 << 30)).normal(size=(3, len(CLASSES))).astype(np.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "head"], ["logits"]),
    ]
    initializers = [numpy_helper.from_array(head, "head")]
    extra = rng.randrange(8)
    if extra == 0:
        nodes += loop(rng.choice((0, 3, 1000)))
        initializers += numbers()
    elif extra == 1:
        outside = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[16])
        outside.data_location = TensorProto.EXTERNAL
        outside.external_data.add(key="location", value=rng.choice((SECRET, "../../x", "model.json")))
        initializers.append(outside)
    elif extra == 2:
        dims = rng.choice(([2**40], [2**31, 2**31], [-1], [0], [2**62, 4]))
        initializers.append(TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=dims))
        nodes.append(helper.make_node("ReduceSum", ["huge"], ["s"], keepdims=0))
    elif extra == 3:
        shape = rng.choice(([2**33], [2**20, 2**20], [-5], [2**62, 2**62]))
        initializers.append(numpy_helper.from_array(np.array(shape, np.int64), "shape"))
        nodes.append(helper.make_node("ConstantOfShape", ["shape"], ["zeros"]))
        nodes.append(helper.make_node("ReduceSum", ["zeros"], ["s"], keepdims=0))
        nodes.append(helper.make_node("Add", ["logits", "s"], ["sum"]))
    outputs = [node.output[0] for node in nodes]
    last = "sum" if "sum" in outputs else "logits"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", len(CLASSES)])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def loop(trips: int) -> list[onnx.NodeProto]:
    """A loop of so many rounds whose result is added to the answer."""
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
    trip_count = numpy_helper.from_array(np.array(trips, np.int64))
    return [
        helper.make_node("Constant", [], ["trips"], value=trip_count),
        helper.make_node("Loop", ["trips", "yes", "one"], ["rounds"], body=body),
        helper.make_node("Add", ["logits", "rounds"], ["sum"]),
    ]


def numbers() -> list[TensorProto]:
    return [
        numpy_helper.from_array(np.array(1.0, np.float32), "one"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]


def names_a_file(model: onnx.ModelProto) -> bool:
    """Whether any message in the model, at whatever depth, says that its values are elsewhere."""
    for field, value in model.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        parts = value if field.is_repeated else [value]
        for part in parts:
            if isinstance(part, TensorProto) and (part.data_location or part.external_data):
                return True
            if names_a_file(part):
                return True
    return False


def folder_of(tmp_path: Path, weights: str, data: bytes, **fields: Any) -> Path:
    (tmp_path / weights).write_bytes(data)
    manifest = {
        "format": 1,
        "name": "m",
        "version": 1,
        "task": "image-classification",
        "runtime": "onnx",
        "weights": weights,
        "classes": list(CLASSES),
        "input": {"form": "image", "height": SIDE, "width": SIDE},
        **fields,
    }
    (tmp_path / "model.json").write_text(json.dumps(manifest))
    return tmp_path


def test_any_onnx_file_is_loaded_or_refused_and_the_worker_goes_on(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    loaded = 0
    for seed in rounds(60):
        rng = random.Random(seed)
        model = onnx_model(rng)
        data = model.SerializeToString()
        is_whole = rng.random() < 0.5
        data = data if is_whole else flipped(rng, data)
        told = ask_to_load(worker, folder_of(tmp_path, rng.choice(("m.onnx", "m.ort")), data), seed)
        assert not (told and is_whole and names_a_file(model)), seed
        loaded += told
    assert loaded > 5, "the fuzzer still finds models"


def test_no_onnx_file_that_the_walk_lets_pass_names_another_file(tmp_path: Path) -> None:
    passed = 0
    for seed in rounds(3000):
        rng = random.Random(seed)
        data = flipped(rng, onnx_model(rng).SerializeToString())
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        try:
            with open(path, "rb") as file:
                check_onnx(file)
        except OnnxRefused:
            continue
        passed += 1
        with contextlib.suppress(Exception):  # protobuf refuses more than the walk does
            assert not names_a_file(onnx.ModelProto.FromString(data)), seed
    assert passed > 100


# ── safetensors ───────────────────────────────────────────────────────────────────────────────────────


def test_any_safetensors_file_is_loaded_or_refused_and_the_worker_goes_on(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    made = image_model(tmp_path / "made", "net", "squeezenet")
    weights = (made / "model.safetensors").read_bytes()
    manifest = json.loads((made / "model.json").read_text())
    del manifest["sha256"]
    head_bytes = struct.unpack("<Q", weights[:8])[0]
    for seed in rounds(60):
        rng = random.Random(seed)
        head = json.loads(weights[8 : 8 + head_bytes])
        for _ in range(rng.randint(0, 3)):
            entry = head[rng.choice([name for name in head if name != "__metadata__"])]
            entry[rng.choice(("dtype", "shape", "data_offsets"))] = rng.choice(
                (
                    "F32",
                    "F64",
                    "I8",
                    "BOOL",
                    "F8_E4M3",
                    "C64",
                    [2**40],
                    [0],
                    [-1],
                    [0, 2**63],
                    [4, 2],
                    [0, 16],
                    {},
                )
            )
        text = json.dumps(head).encode()
        length = rng.choice((len(text), len(text), len(text), 0, 2**63, len(text) + 5))
        data = struct.pack("<Q", length) + text + weights[8 + head_bytes :]
        if rng.random() < 0.3:
            data = flipped(rng, data)
        (made / "model.safetensors").write_bytes(data)
        (made / "model.json").write_text(json.dumps(manifest))
        ask_to_load(worker, made, seed)


# ── manifests ─────────────────────────────────────────────────────────────────────────────────────────

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**400, 1e999, -1e999, float("nan"), "", "a", "../../etc/passwd"),
    *("/etc/passwd", "a\0b", "\ud800", "x" * 5000, "1", [], [1], ["a", ["b"]], {}, {"a": 1}, [[]] * 50),
    *("model.json", ".", "..", "torch", "onnx", "hashing", "fasttext", "os:system", [0.5, 0.5, 0.5]),
)
FIELDS = (
    *("format", "name", "version", "task", "runtime", "architecture", "architecture_options", "weights"),
    *("classes", "input", "accuracy", "sha256"),
)
OPTIONS = ("width", "blocks", "dropout", "delay_ms", "row_delay_ms", "buckets", "length", "classes", "self")


def odd_manifest(rng: random.Random) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "format": 1,
        "name": "m",
        "version": 1,
        "task": "text-classification",
        "runtime": "torch",
        "architecture": rng.choice(("hashing", "squeezenet", "fasttext")),
        "architecture_options": {},
        "weights": None,
        "classes": ["a", "b"],
        "input": {"form": "text", "height": 8, "width": 8},
        "accuracy": 0.5,
    }
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(4)
        if where == 0:
            manifest["architecture_options"] = {rng.choice(OPTIONS): deepcopy(rng.choice(ODD))}
        elif where == 1 and isinstance(manifest["input"], dict):
            field = rng.choice(("form", "height", "width", "mean", "std", "columns"))
            manifest["input"][field] = deepcopy(rng.choice(ODD))
        elif where == 2:
            manifest.pop(rng.choice(FIELDS), None)
        else:
            manifest[rng.choice(FIELDS)] = deepcopy(rng.choice(ODD))
        manifest.setdefault("input", {})
    return manifest


def test_any_manifest_is_read_or_refused_by_both_readers(tmp_path: Path) -> None:
    for seed in rounds(3000):
        manifest = odd_manifest(random.Random(seed))
        with contextlib.suppress(BadOption):
            assert isinstance(model_from_manifest(manifest, tmp_path), ModelVersion), seed
        (tmp_path / "model.json").write_text(json.dumps(manifest))
        with contextlib.suppress(ModelUnusable):
            read = read_manifest(str(tmp_path))
            assert isinstance(read, Manifest), seed
            if read.weights is not None:
                assert Path(read.path_of_weights()).parent == tmp_path, seed


def test_any_manifest_is_loaded_or_refused_and_the_worker_goes_on(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    loaded = 0
    for seed in rounds(150):
        (tmp_path / "model.json").write_text(json.dumps(odd_manifest(random.Random(seed))))
        loaded += ask_to_load(worker, tmp_path, seed)
    assert loaded > 5
