"""Model folders of tasks that answer more than classes: small ONNX graphs that really look at their rows.

Of a picture they see how bright it is, or its quadrants; of a table's row, its numbers. So what they answer
can be said without running them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from gpu_worker.networks.encoders import Scaled
from gpu_worker.networks.row_network import COLUMNS_KEY
from gpu_worker.networks.table import Table, TableColumn
from tests.models import hashing_model, write_manifest

__all__ = [
    "COLOURS",
    "QUADRANTS",
    "boxes_model",
    "brightness_model",
    "colours_model",
    "eyes_model",
    "generation_model",
    "price_model",
    "tags_model",
    "text_value_model",
    "tint_model",
    "words_model",
]

SIDE = 16  # of the pictures that they take
COLOURS = ("red", "green", "blue")
QUADRANTS = ("upper left", "upper right", "lower left", "lower right")
_FORM = {"form": "path", "height": SIDE, "width": SIDE, "mean": [0, 0, 0], "std": [1, 1, 1]}
_NUMBERS = Table([TableColumn(name, "number", (Scaled(0.0, 1.0),)) for name in ("grams", "fat")])


def brightness_model(
    directory: Path,
    name: str = "brightness",
    *,
    interval: float | None = None,
    times: float = 100.0,
    dazzled: bool = False,
    **more: Any,
) -> Path:
    """image-regression: mean of the pixels from 0 to `times`; with the ends of an interval to each side.

    dazzled: what is nearly white has no number.
    """
    ends = [0.0] if interval is None else [0.0, -interval, interval]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Sub", ["limit", "mean"], ["left"]),
        helper.make_node("Sqrt", ["left"], ["root"]),
        helper.make_node("Mul", ["root", "nothing"], ["nan_or_0"]),
        helper.make_node("Add", ["mean", "nan_or_0"], ["seen"]),
        helper.make_node("Unsqueeze", ["seen", "axis"], ["column"]),
        helper.make_node("Mul", ["column", "times"], ["scaled"]),
        helper.make_node("Add", ["scaled", "ends"], ["out"]),
    ]
    constants = {
        "limit": np.array([0.95 if dazzled else 9.0], np.float32),
        "nothing": np.array([0.0], np.float32),
        "axis": np.array([1]),
        "times": np.array([times], np.float32),
        "ends": np.array([ends], np.float32),
    }
    return _saved(directory, name, _picture(nodes, constants), more, task="image-regression", classes=[])


def tint_model(directory: Path, name: str, *, rounds: int = 0, **more: Any) -> Path:
    """image-classification of a photo as more red, "a", or more green, "b".

    rounds: of a thousand times a thousand multiplications a row, which change nothing and take their time.
    """
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["mean", "wide"], ["state0"]),
        *(helper.make_node("MatMul", [f"state{at}", "square"], [f"state{at + 1}"]) for at in range(rounds)),
        helper.make_node("MatMul", [f"state{rounds}", "narrow"], ["nothing"]),
        helper.make_node("MatMul", ["mean", "tints"], ["seen"]),
        helper.make_node("Add", ["seen", "nothing"], ["out"]),
    ]
    side = 1024
    constants = {
        "wide": np.zeros((3, side), np.float32),
        "square": np.zeros((side, side), np.float32),
        "narrow": np.zeros((side, 2), np.float32),
        "tints": np.array([[20, 0], [0, 20], [0, 0]], np.float32),
    }
    picture = _picture(nodes, constants)
    return _saved(directory, name, picture, more, task="image-classification", classes=["a", "b"])


def colours_model(directory: Path, name: str = "colours", *, sharpness: float = 40.0, **more: Any) -> Path:
    """image-multilabel: the colours that are on average more than half on; logits are that, less a half."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Sub", ["mean", "half"], ["over"]),
        helper.make_node("Mul", ["over", "times"], ["out"]),
    ]
    constants = {"half": np.array([0.5], np.float32), "times": np.array([sharpness], np.float32)}
    return _saved(directory, name, _picture(nodes, constants), more, task="image-multilabel", classes=COLOURS)


def eyes_model(directory: Path, name: str = "eyes", *, times: float = 1.0, **more: Any) -> Path:
    """image-embedding: how much there is of each colour, from 0 to `times`."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "times"], ["out"]),
    ]
    picture = _picture(nodes, {"times": np.array([times], np.float32)})
    told = {"features": {"output": "out", "width": 3}, **more}
    return _saved(directory, name, picture, told, task="image-embedding", classes=[])


def words_model(directory: Path, words: Sequence[str], name: str = "words", **more: Any) -> Path:
    """text-embedding: the mean of the text's words, each of which is a direction of its own."""
    vectors = np.concatenate([np.zeros((1, len(words))), np.eye(len(words))]).astype(np.float32)
    tokens = {word: at for at, word in enumerate(["[UNK]", *words])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "[UNK]"},
    }
    told = {"task": "text-embedding", "runtime": "static", "classes": [], "input": {"form": "text"}, **more}
    folder = write_manifest(directory, name, **told, features={"width": len(words)})
    save_file({"embeddings": vectors}, folder / "table.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    files = [
        {"name": file, "sha256": hashlib.sha256((folder / file).read_bytes()).hexdigest(), "role": role}
        for file, role in (("table.safetensors", "weights"), ("tokenizer.json", "tokenizer"))
    ]
    return _changed(folder, files=files)


def boxes_model(directory: Path, name: str = "quadrants", *, shift: float = 0.0, **more: Any) -> Path:
    """object-detection: the four quadrants, `shift` pixels to the right, scored by how bright they are."""
    half = SIDE / 2
    corners = [[x + shift, y, x + half + shift, y + half] for y in (0, half) for x in (0, half)]
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[SIDE // 2] * 2, strides=[SIDE // 2] * 2),
        helper.make_node("ReduceMean", ["p"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Reshape", ["m", "lines"], ["score"]),
        helper.make_node("Mul", ["score", "zeros"], ["of_rows"]),
        helper.make_node("Add", ["of_rows", "corners"], ["places"]),
        helper.make_node("Mul", ["score", "zero"], ["of_scores"]),
        helper.make_node("Add", ["of_scores", "classes"], ["class"]),
        helper.make_node("Concat", ["places", "score", "class"], ["out"], axis=2),
    ]
    constants = {
        "lines": np.array([-1, 4, 1]),
        "zeros": np.zeros((1, 1, 4), np.float32),
        "zero": np.zeros((1, 1, 1), np.float32),
        "corners": np.array([corners], np.float32),
        "classes": np.arange(4, dtype=np.float32).reshape(1, 4, 1),
    }
    return _saved(
        directory, name, _picture(nodes, constants), more, task="object-detection", classes=QUADRANTS
    )


def price_model(directory: Path, name: str = "price", *, a_gram: float = 2.0, **more: Any) -> Path:
    """tabular-regression of (grams, fat): `a_gram` · grams + fat."""
    weights = np.array([[a_gram], [0], [1], [0]], np.float32)  # each number has a flag for missing beside it
    return _saved_table(directory, name, "values", weights, "none", "tabular-regression", [], **more)


def tags_model(directory: Path, name: str = "tags", **more: Any) -> Path:
    """tabular-multilabel of (grams, fat): `heavy` from 100 grams on, `fat` from 10 on."""
    weights = np.array([[1, 0], [0, 0], [0, 1], [0, 0]], np.float32)
    bias = np.array([-99.5, -9.5], np.float32)
    return _saved_table(
        directory,
        name,
        "probabilities",
        weights,
        "sigmoid",
        "tabular-multilabel",
        ["heavy", "fat"],
        bias,
        **more,
    )


def text_value_model(
    directory: Path, name: str = "text_value", *, values: int = 3, delay_ms: float = 0.0, **more: Any
) -> Path:
    """text-regression: crc32 of the text, from 0 to 1."""
    return _changed(
        hashing_model(directory, name, values=values, delay_ms=delay_ms),
        task="text-regression",
        classes=[],
        **more,
    )


def generation_model(directory: Path, name: str = "writer", **more: Any) -> Path:
    """text-generation: crc32 of the text in hexadecimal, as a JSON text."""
    return _changed(hashing_model(directory, name, texts=1), task="text-generation", classes=[], **more)


def _picture(nodes: Sequence[NodeProto], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A graph over pixels [n, 3, SIDE, SIDE] from 0 to 1."""
    return _model(nodes, constants, ["n", 3, SIDE, SIDE], "out")


def _model(
    nodes: Sequence[NodeProto], constants: dict[str, np.ndarray], shape: Sequence[str | int], output: str
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "looks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _saved_table(
    directory: Path,
    name: str,
    output: str,
    weights: np.ndarray,
    activation: str,
    task: str,
    classes: Sequence[str],
    bias: np.ndarray | None = None,
    **more: Any,
) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["product"])]
    nodes.append(helper.make_node("Add", ["product", "bias"], ["sum" if activation == "sigmoid" else output]))
    if activation == "sigmoid":
        nodes.append(helper.make_node("Sigmoid", ["sum"], [output]))
    constants = {"weights": weights, "bias": np.zeros(weights.shape[1], np.float32) if bias is None else bias}
    model = _model(nodes, constants, ["n", _NUMBERS.width], output)
    model.metadata_props.add(key=COLUMNS_KEY, value=_NUMBERS.as_json())
    columns = [{"name": column.name, "kind": column.kind} for column in _NUMBERS.columns]
    return _saved(
        directory, name, model, more, task=task, classes=classes, input={"form": "row", "columns": columns}
    )


def _saved(directory: Path, name: str, model: onnx.ModelProto, more: dict[str, Any], **fields: Any) -> Path:
    content = model.SerializeToString()
    given = {"input": _FORM, **fields, **more}
    folder = write_manifest(
        directory,
        name,
        runtime="onnx",
        weights="model.onnx",
        sha256=hashlib.sha256(content).hexdigest(),
        **{**given, "classes": list(given["classes"])},
    )
    (folder / "model.onnx").write_bytes(content)
    return folder


def _changed(folder: Path, **fields: Any) -> Path:
    manifest = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**manifest, **fields}))
    return folder
