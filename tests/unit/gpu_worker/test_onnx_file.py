"""An ONNX file that names another file is refused, wherever the name stands, before anything runs it."""

from __future__ import annotations

import io
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx
from gpu_worker.networks.onnx_network import open_session
from server.errors import BadOption
from server.store.artifacts import Artifacts
from tests.unit.server.manifests import manifest

pytestmark = pytest.mark.security

SECRET = "/etc/passwd"


def outside(name: str = "w") -> TensorProto:
    """A tensor whose values are the first bytes of a file of the host."""
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[16])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=SECRET)
    return tensor


def plain(**graph: Any) -> onnx.ModelProto:
    """A model of one node that gives back its input."""
    made = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        **graph,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def subgraph(tensor: TensorProto, depth: int) -> onnx.GraphProto:
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor)], "inner", [], [])
    for _ in range(depth):
        inner = helper.make_graph([helper.make_node("If", ["p"], ["q"], then_branch=inner)], "outer", [], [])
    return inner


def in_graph(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(outside())


def in_sparse_values(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(outside())


def in_sparse_indices(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().indices.CopyFrom(outside())


def in_constant(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=outside()))


def in_list_of_tensors(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="a", tensors=[outside()])


def in_sparse_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="a").sparse_tensor.values.CopyFrom(outside())


def in_sparse_attributes(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="a").sparse_tensors.add().indices.CopyFrom(outside())


def in_subgraph(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="body").g.CopyFrom(subgraph(outside(), 0))


def in_deep_subgraph(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="body").g.CopyFrom(subgraph(outside(), 20))


def in_list_of_graphs(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="bodies", graphs=[subgraph(outside(), 1)])


def in_function(model: onnx.ModelProto) -> None:
    model.functions.add(name="f", domain="d").node.append(
        helper.make_node("Constant", [], ["c"], value=outside())
    )


def in_functions_default(model: onnx.ModelProto) -> None:
    model.functions.add(name="f", domain="d").attribute_proto.add(name="a").t.CopyFrom(outside())


def in_training(model: onnx.ModelProto) -> None:
    model.training_info.add().algorithm.initializer.append(outside())


def in_first_training_step(model: onnx.ModelProto) -> None:
    model.training_info.add().initialization.initializer.append(outside())


def without_location(model: onnx.ModelProto) -> None:
    tensor = outside()
    tensor.data_location = TensorProto.DEFAULT
    model.graph.initializer.append(tensor)


def without_path(model: onnx.ModelProto) -> None:
    tensor = outside()
    del tensor.external_data[:]
    model.graph.initializer.append(tensor)


def compiled_elsewhere(model: onnx.ModelProto) -> None:
    model.graph.node.append(
        helper.make_node(
            "EPContext", ["x"], ["z"], domain="com.microsoft", embed_mode=0, ep_cache_context=SECRET
        )
    )


PLACES = (
    in_graph,
    in_sparse_values,
    in_sparse_indices,
    in_constant,
    in_list_of_tensors,
    in_sparse_attribute,
    in_sparse_attributes,
    in_subgraph,
    in_deep_subgraph,
    in_list_of_graphs,
    in_function,
    in_functions_default,
    in_training,
    in_first_training_step,
    without_location,
    without_path,
    compiled_elsewhere,
)


@pytest.fixture(params=PLACES, ids=lambda place: place.__name__)
def place(request: pytest.FixtureRequest) -> Callable[[onnx.ModelProto], None]:
    put: Callable[[onnx.ModelProto], None] = request.param
    return put


def test_a_model_with_a_file_in_it_is_not_registered(
    place: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    model = plain()
    place(model)
    artifacts = Artifacts(tmp_path / "home", max_model_bytes=1 << 20)
    described = manifest(runtime="onnx", weights="model.onnx")
    with pytest.raises(BadOption, match="another file"):
        artifacts.install(described, io.BytesIO(model.SerializeToString()))
    assert list(artifacts.found()) == []


def test_a_model_with_a_file_in_it_is_not_adopted_where_it_lies(tmp_path: Path) -> None:
    model = plain()
    in_graph(model)
    artifacts = Artifacts(tmp_path / "home", max_model_bytes=1 << 20)
    _, placed = artifacts.install(
        manifest(runtime="onnx", weights="model.onnx"), io.BytesIO(plain().SerializeToString())
    )
    (placed / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BadOption, match="another file"):
        artifacts.adopt(placed)


@pytest.mark.parametrize("name", ["model.onnx", "model.ort", "model"])
def test_a_model_with_a_file_in_it_is_not_loaded(
    place: Callable[[onnx.ModelProto], None], tmp_path: Path, name: str
) -> None:
    model = plain()
    place(model)
    (tmp_path / name).write_bytes(model.SerializeToString())
    with pytest.raises(ModelUnusable, match="another file"):
        open_session(str(tmp_path / name), find_device("cpu", threads=1))


def test_not_even_a_file_in_the_models_own_folder_is_read(tmp_path: Path) -> None:
    model = plain(initializer=[onnx.numpy_helper.from_array(np.ones(400, np.float32), "w")])
    onnx.save(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="beside", size_threshold=100
    )
    assert (tmp_path / "beside").stat().st_size >= 1600
    with pytest.raises(ModelUnusable, match="external data"):
        open_session(str(tmp_path / "model.onnx"), find_device("cpu", threads=1))


def checked(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with open(path, "rb") as file:
        check_onnx(file)


def test_a_model_that_holds_all_its_tensors_passes_in_every_form_of_field(tmp_path: Path) -> None:
    tensors = [
        helper.make_tensor(f"t{kind}", kind, [2], [1, 0])
        for kind in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.BOOL)
    ]
    tensors.append(TensorProto(name="text", data_type=TensorProto.STRING, string_data=[b"\x70\x01"]))
    model = plain(initializer=tensors)
    model.graph.node[0].attribute.add(name="body").g.CopyFrom(subgraph(tensors[0], 3))
    model.metadata_props.add(key="k", value="external_data")
    checked(tmp_path / "m", model.SerializeToString())


@pytest.mark.parametrize(
    "location",
    [
        b"\x70\x01",
        b"\x70\x81\x00",  # the same number, written longer
        b"\x70\x81\x80\x80\x80\x10",  # 2³² + 1, which protobuf cuts to 1
        b"\xf0\x00\x01",  # the same field, its tag written longer
        b"\x72\x01\x01",  # as bytes
        b"\x70\x00\x70\x01",  # twice: the last one counts
        b"\x70\x01\x70\x00",
        b"\x08\x02\x70\x01",  # behind a number that may be skipped
        b"\x25\0\0\0\0\x70\x01",
    ],
)
def test_no_spelling_of_the_field_gets_past(location: bytes, tmp_path: Path) -> None:
    tensor = b"\x2a" + bytes([len(location)]) + location  # initializer
    with pytest.raises(OnnxRefused, match="external data"):
        checked(tmp_path / "m", b"\x3a" + bytes([len(tensor)]) + tensor)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not onnx",
        b"\x3a",  # ends in a length
        b"\x3a\x7f",  # longer than the file
        b"\x3a\x02\x2a\x01\x00",  # longer than the message around it
        b"\x3b\x3c",  # a group
        b"\x00\x00",  # field 0
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff" * 40,
        b"\x08\xff",
    ],
)
def test_what_cannot_be_read_for_certain_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(OnnxRefused):
        checked(tmp_path / "m", content)


def test_graphs_nested_without_end_end_nothing(tmp_path: Path) -> None:
    content = b""
    for _ in range(20_000):
        for field in (6, 5, 1):  # a graph in an attribute of a node
            content = _message(field, content)
    checked(tmp_path / "m", _message(7, content))


def test_a_large_forest_is_looked_over_in_a_moment(tmp_path: Path) -> None:
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        nodes_values=np.zeros(300_000, np.float32).tolist(),
        nodes_nodeids=list(range(300_000)),
        nodes_modes=["BRANCH_LEQ"] * 100_000,
    )
    model = plain()
    model.graph.node.append(node)
    begin_s = time.monotonic()
    checked(tmp_path / "m", model.SerializeToString())
    assert time.monotonic() - begin_s < 5


def test_only_a_runtime_that_keeps_to_the_models_folder_is_asked_for() -> None:
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    (asked,) = [
        part
        for part in declared["project"]["optional-dependencies"]["worker"]
        if part.startswith("onnxruntime")
    ]
    assert asked == "onnxruntime>=1.24"


def _message(field: int, content: bytes) -> bytes:
    length = len(content)
    digits = bytearray()
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([field << 3 | 2]) + bytes(digits) + bytes([length]) + content
