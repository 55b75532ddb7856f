"""ONNX files as people have them: other layouts and types, several outputs, fixed batches, rows, texts."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable
from gpu_worker.importing import checked, recognised, staged
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import softmax

SIDE = 8
PICTURES = np.random.default_rng(3).integers(0, 256, (5, SIDE, SIDE, 3), np.uint8)
WEIGHTS = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)
NORMAL = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}


def mean_of_channels(
    *,
    batch: str | int = "n",
    last: bool = False,
    dtype: int = TensorProto.FLOAT,
    ends: Sequence[onnx.NodeProto] = (),
    outputs: Sequence[str] = ("logits",),
    domain: str = "",
    size: int = SIDE,
) -> onnx.ModelProto:
    """The mean of each channel times a matrix [3, 4]: small enough to be reckoned beside."""
    axes = [1, 2] if last else [2, 3]
    shape = [batch, size, size, 3] if last else [batch, 3, size, size]
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["c"], ["m"], axes=axes, keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["logits"], domain=domain),
        *ends,
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    opsets = [helper.make_opsetid("", 13), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def expected_logits(pictures: np.ndarray, *, is_raw: bool = False) -> np.ndarray:
    pixels = pictures.astype(np.float64)
    if not is_raw:
        pixels = (pixels / 255 - NORMAL["mean"]) / NORMAL["std"]
    return np.asarray(pixels.mean(axis=(1, 2)) @ WEIGHTS)


def folder_of(folder: Path, model: onnx.ModelProto, **fields: Any) -> Path:
    onnx.save(model, folder / "model.onnx")
    manifest = {
        "format": 1,
        "name": "m",
        "version": 1,
        "task": "image-classification",
        "runtime": "onnx",
        "weights": "model.onnx",
        "classes": ["a", "b", "c", "d"],
        "input": {"form": "path", "height": SIDE, "width": SIDE, **NORMAL},
        **fields,
    }
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


def network_of(folder: Path) -> Any:
    manifest = read_manifest(str(folder))
    network = load_network(manifest, find_device("cpu", threads=1))
    warm_up(network, manifest)
    return network


def never() -> bool:
    return False


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8])
def test_pixels_come_in_the_layout_and_type_of_the_graph(tmp_path: Path, *, last: bool, dtype: int) -> None:
    network = network_of(folder_of(tmp_path, mean_of_channels(last=last, dtype=dtype)))
    is_raw = dtype == TensorProto.UINT8
    expected = softmax(expected_logits(PICTURES, is_raw=is_raw).astype(np.float32))
    np.testing.assert_allclose(network.scores(PICTURES, never), expected, atol=2e-2 if dtype == 10 else 1e-4)


@pytest.mark.parametrize("batch", [1, 2, 4, 7])
def test_a_graph_of_a_fixed_batch_answers_any_number_of_rows(tmp_path: Path, batch: int) -> None:
    network = network_of(folder_of(tmp_path, mean_of_channels(batch=batch)))
    expected = softmax(expected_logits(PICTURES).astype(np.float32))
    np.testing.assert_allclose(network.scores(PICTURES, never), expected, atol=1e-5)


def test_outputs_are_chosen_by_their_names(tmp_path: Path) -> None:
    model = mean_of_channels(outputs=("m", "logits"))
    outputs = {"scores": "logits", "features": "m", "activation": "sigmoid"}
    network = network_of(folder_of(tmp_path, model, outputs=outputs))
    logits = expected_logits(PICTURES)
    np.testing.assert_allclose(network.scores(PICTURES, never), 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert network.features_width == 3


def test_a_graph_that_ends_in_probabilities_is_not_softened_again(tmp_path: Path) -> None:
    ends = [helper.make_node("Softmax", ["logits"], ["p"], axis=1)]
    model = mean_of_channels(ends=ends, outputs=("p",))
    network = network_of(folder_of(tmp_path, model, outputs={"activation": "none"}))
    np.testing.assert_allclose(network.scores(PICTURES, never).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(
        network.scores(PICTURES, never), softmax(expected_logits(PICTURES).astype(np.float32)), atol=1e-5
    )


def test_one_number_stands_for_the_second_of_two_classes(tmp_path: Path) -> None:
    ends = [
        helper.make_node("ReduceMean", ["logits"], ["one"], axes=[1], keepdims=1),
        helper.make_node("Sigmoid", ["one"], ["p"]),
    ]
    model = mean_of_channels(ends=ends, outputs=("p",))
    fields = {"classes": ["no", "yes"], "outputs": {"activation": "none"}}
    found = network_of(folder_of(tmp_path, model, **fields)).scores(PICTURES, never)
    np.testing.assert_allclose(
        found[:, 1], 1 / (1 + np.exp(-expected_logits(PICTURES).mean(axis=1))), atol=1e-5
    )
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_a_custom_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"uses the operator com\.acme\.MatMul"):
        network_of(folder_of(tmp_path, mean_of_channels(domain="com.acme")))


def test_several_inputs_are_named(tmp_path: Path) -> None:
    model = mean_of_channels()
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["n", 1]))
    model.graph.node.append(helper.make_node("Add", ["logits", "mask"], ["masked"]))
    model.graph.output[0].name = "masked"
    with pytest.raises(ModelUnusable, match=r"2 inputs \(x, mask\)"):
        network_of(folder_of(tmp_path, model))


# ── import ───────────────────────────────────────────────────────────────────────────────────────────────


def imported(tmp_path: Path, model: onnx.ModelProto, **wishes: Any) -> tuple[Any, list[str], Any]:
    """The manifest's fields, what was guessed, and the network."""
    path = tmp_path / "given.onnx"
    onnx.save(model, path)
    found = recognised(path, wishes)
    folder = tmp_path / "staged"
    folder.mkdir()
    manifest = staged(found, "m", folder)
    checked(manifest, found)
    return manifest.to_json(), found.guesses, network_of(folder)


def test_what_a_graph_says_is_read_and_what_is_guessed_is_shown(tmp_path: Path) -> None:
    ends = [helper.make_node("Softmax", ["logits"], ["p"], axis=1)]
    fields, guesses, _ = imported(tmp_path, mean_of_channels(ends=ends, outputs=("p",), last=True))
    assert (fields["task"], fields["classes"]) == ("image-classification", ["0", "1", "2", "3"])
    assert fields["outputs"] == {"scores": "p", "activation": "none"}
    assert (fields["input"]["height"], fields["input"]["width"]) == (SIDE, SIDE)
    told = "\n".join(guesses)
    for word in ("task", "classes: 0 to 3", "comes of Softmax", "ImageNet", "stretched"):
        assert word in told


def test_what_was_said_is_not_guessed(tmp_path: Path) -> None:
    wishes = {
        "task": "image-multilabel",
        "classes": ["red", "green", "blue", "grey"],
        "input": {**NORMAL, "preprocess": {"resize": "short_side"}},
        "outputs": {"scores": "logits"},
    }
    fields, guesses, network = imported(tmp_path, mean_of_channels(outputs=("m", "logits")), **wishes)
    assert fields["classes"] == wishes["classes"]
    assert fields["outputs"]["activation"] == "sigmoid"
    assert [guess for guess in guesses if "activation" not in guess] == []
    logits = expected_logits(PICTURES)
    np.testing.assert_allclose(network.scores(PICTURES, never), 1 / (1 + np.exp(-logits)), atol=1e-5)


def test_a_fixed_batch_and_size_are_made_free_where_the_graph_is(tmp_path: Path) -> None:
    model = mean_of_channels(batch=10, size=4)
    wishes = {"input": {**NORMAL, "height": SIDE, "width": SIDE}}
    _, guesses, network = imported(tmp_path, model, **wishes)
    assert any("answers any number of pictures of 8×8" in guess for guess in guesses)
    expected = softmax(expected_logits(PICTURES).astype(np.float32))
    np.testing.assert_allclose(network.scores(PICTURES, never), expected, atol=1e-5)


def test_a_graph_that_mixes_its_rows_keeps_its_batch(tmp_path: Path) -> None:
    ends = [
        helper.make_node("ReduceMean", ["logits"], ["all"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["logits", "all"], ["mixed"]),
    ]
    _, guesses, _ = imported(tmp_path, mean_of_channels(batch=2, ends=ends, outputs=("mixed",)))
    assert any("2 pictures a pass and no other number" in guess for guess in guesses)


def test_a_size_that_the_graph_cannot_take_is_refused(tmp_path: Path) -> None:
    model = mean_of_channels(batch=1)
    model.graph.node[1].CopyFrom(helper.make_node("Reshape", ["c", "flat"], ["r"]))
    model.graph.node.insert(2, helper.make_node("ReduceMean", ["r"], ["m"], axes=[2], keepdims=0))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 3, SIDE * SIDE]), "flat"))
    with pytest.raises(ModelUnusable, match="takes pictures of 8×8 and none"):
        imported(tmp_path, model, input={"height": 16, "width": 16})


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.pt", "pytorch_model.bin"])
def test_a_pickle_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(ModelUnusable, match=r"pickle, which runs code|pickle by its name"):
        recognised(tmp_path / name, {})


def test_a_checkpoint_that_is_code_is_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "model.pth", tmp_path / "pwned"
    path.write_bytes(f"cos\nsystem\n(S'touch {mark}'\ntR.".encode())
    with pytest.raises(ModelUnusable, match="tensors alone"):
        recognised(path, {"architecture": "squeezenet"})
    assert not mark.exists()


@pytest.mark.security
def test_a_checkpoint_of_few_numbers_is_no_large_matrix(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save({"head.weight": torch.zeros(1).expand(1 << 40, 8)}, path)
    with pytest.raises(ModelUnusable, match="are not all there"):
        recognised(path, {"architecture": "squeezenet"})


@pytest.mark.security
def test_a_checkpoint_that_grows_when_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (1 << 20))
    with pytest.raises(ModelUnusable, match="is packed"):
        recognised(path, {"architecture": "squeezenet"})


@pytest.mark.security
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"architecture": "resnet10t", "pretrained_cfg": 3}),
        ("config.json", {"model_type": "bert", "architectures": 3}),
        ("modules.json", 3),
    ],
)
def test_a_source_that_says_nonsense_is_a_clear_error(tmp_path: Path, name: str, content: object) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ModelUnusable):
        recognised(tmp_path, {})


@pytest.mark.security
def test_a_graph_that_says_it_has_billions_of_inputs_takes_no_memory(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="numbers at once"):
        imported(tmp_path, mean_of_channels(size=1 << 20))


@pytest.mark.parametrize("name", ["model.txt", "notes.md", ""])
def test_what_is_no_model_is_said_so(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name:
        path.write_text("hello")
    with pytest.raises(ModelUnusable, match="no model that is known"):
        recognised(path, {})


# ── rows and texts ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def iris() -> Any:
    from sklearn.datasets import load_iris

    return load_iris()


@pytest.mark.parametrize("zipmap", [True, False], ids=["ZipMap", "a tensor"])
def test_a_classifier_of_scikit_learn_answers_as_it_does_there(
    tmp_path: Path, iris: Any, *, zipmap: bool
) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    labels = np.array(["setosa", "versicolor", "virginica"])[iris.target]
    estimator = LogisticRegression(max_iter=500).fit(iris.data, labels)
    rows = iris.data[:7].astype(np.float32)
    model = to_onnx(estimator, rows, options={"zipmap": zipmap})
    fields, guesses, network = imported(tmp_path, model)
    assert (fields["task"], fields["classes"]) == ("tabular-classification", labels[[0, 50, 100]].tolist())
    assert any("columns: x0 to x3" in guess for guess in guesses)
    sent = [json.dumps(row.tolist()).encode() for row in rows]
    np.testing.assert_allclose(network.scores(sent, never), estimator.predict_proba(rows), atol=1e-5)


@pytest.mark.parametrize("zipmap", [True, False], ids=["ZipMap", "a tensor"])
@pytest.mark.parametrize("kind", ["stacked", "one against the rest", "bagged", "neighbours"])
def test_a_classifier_made_of_others_has_its_own_classes_and_not_those_of_its_parts(
    tmp_path: Path, iris: Any, kind: str, *, zipmap: bool
) -> None:
    from skl2onnx import to_onnx
    from sklearn.ensemble import BaggingClassifier, StackingClassifier
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    part = DecisionTreeClassifier(max_depth=2, random_state=0)
    estimator = {
        "stacked": lambda: StackingClassifier([("tree", part)]),
        "one against the rest": lambda: OneVsRestClassifier(part),
        "bagged": lambda: BaggingClassifier(part, 3, random_state=0),
        "neighbours": lambda: KNeighborsClassifier(),
    }[kind]()
    labels = np.array(["virginica", "setosa", "versicolor"])[iris.target]
    rows = iris.data[::9].astype(np.float32)
    estimator.fit(iris.data, labels)
    model = to_onnx(estimator, rows, options={id(estimator): {"zipmap": zipmap}})
    fields, _, network = imported(tmp_path, model)
    assert fields["classes"] == ["setosa", "versicolor", "virginica"]
    sent = [json.dumps(row.tolist()).encode() for row in rows]
    np.testing.assert_allclose(network.scores(sent, never), estimator.predict_proba(rows), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_without_probabilities_is_refused_with_what_to_say(
    tmp_path: Path, iris: Any, classes: int
) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import RidgeClassifier

    kept = iris.target < classes
    estimator = RidgeClassifier().fit(iris.data[kept], iris.target[kept])
    model = to_onnx(estimator, iris.data[:1].astype(np.float32), options={"zipmap": False})
    with pytest.raises(ModelUnusable, match="is no probability; train a classifier that gives probabilities"):
        imported(tmp_path, model)
    activation = "sigmoid" if classes == 2 else "softmax"
    _, _, network = imported(tmp_path, model, outputs={"activation": activation})
    rows = iris.data[kept][::9]
    sent = [json.dumps(row.tolist()).encode() for row in rows]
    assert network.scores(sent, never).argmax(axis=1).tolist() == estimator.predict(rows).tolist()


def test_a_regression_answers_its_value(tmp_path: Path, iris: Any) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression

    rows = iris.data[:, :3].astype(np.float32)
    estimator = LinearRegression().fit(rows, iris.data[:, 3])
    columns = [{"name": name, "kind": "number"} for name in ("length", "width", "petal")]
    fields, _, network = imported(tmp_path, to_onnx(estimator, rows), input={"columns": columns})
    assert fields["task"] == "tabular-regression"
    sent = [json.dumps(row.tolist()).encode() for row in rows[:5]]
    np.testing.assert_allclose(network.values(sent, never)[:, 0], estimator.predict(rows[:5]), atol=1e-4)


def by_column() -> onnx.ModelProto:
    """Takes a number, a truth value, a whole number and a text, each in an input of its own."""
    nodes = [
        helper.make_node("Cast", ["member"], ["member_f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["visits"], ["visits_f"], to=TensorProto.FLOAT),
        helper.make_node(
            "LabelEncoder",
            ["city"],
            ["city_f"],
            domain="ai.onnx.ml",
            keys_strings=["Bonn", "Köln"],
            values_floats=[1.0, 2.0],
            default_float=0.0,
        ),
        helper.make_node("Concat", ["age", "member_f", "visits_f", "city_f"], ["variable"], axis=1),
    ]
    types = {"age": 1, "member": 9, "visits": 7, "city": 8}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, ["n", 1]) for name, kind in types.items()],
        [helper.make_tensor_value_info("variable", TensorProto.FLOAT, ["n", 4])],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_each_column_goes_into_its_own_input(tmp_path: Path) -> None:
    path = tmp_path / "given.onnx"
    onnx.save(by_column(), path)
    found = recognised(path, {})
    assert [column["kind"] for column in found.manifest["input"]["columns"]] == [
        "number",
        "boolean",
        "number",
        "text",
    ]
    folder = tmp_path / "staged"
    folder.mkdir()
    network: Any = load_network(staged(found, "m", folder), find_device("cpu", threads=1))
    network.warm_up(2)
    rows = [b'[41.5, true, 3, "K\xc3\xb6ln"]', b'[1, false, 2.5, "x"]', b'[1, false, null, "x"]']
    values = network.values(rows, never)
    assert values[0].tolist() == [41.5, 1.0, 3.0, 2.0]
    assert np.isnan(values[1:]).all()
    for row in rows[1:]:
        assert "is not a whole number" in network.fault_of(row)


@pytest.mark.parametrize(("end", "width"), [("", 1), ("Sigmoid", 1), ("", 2), ("Softmax", 2), ("Sigmoid", 2)])
@pytest.mark.parametrize("is_picture", [True, False], ids=["a picture", "a row"])
def test_logits_become_probabilities_and_one_number_is_the_second_of_two_classes(
    tmp_path: Path, end: str, width: int, *, is_picture: bool
) -> None:
    shape: list[Any] = ["n", 3, 4, 4] if is_picture else ["n", 48]
    weights = np.random.default_rng(0).normal(size=(48, width)).astype(np.float32)
    last = helper.make_node(end or "Identity", ["logits"], ["answer"])
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
            last,
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    _, guesses, network = imported(tmp_path, model, classes=["cat", "dog"])
    assert any("outputs.activation" in guess for guess in guesses)
    rows: Any = np.random.default_rng(1).integers(0, 255, (9, 4, 4, 3)).astype(np.uint8)
    if not is_picture:
        rows = [json.dumps(row.ravel().tolist()).encode() for row in rows / 255 - 0.5]
    scores = network.scores(rows, never)
    if end != "Sigmoid" or width == 1:
        np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert len({tuple(row) for row in scores.round(4).tolist()}) > 5, "rows differ"


def numbers_of_a_row(
    *, batch: str | int = "n", outputs: Sequence[str] = ("p",), dtype: int = TensorProto.FLOAT, axis: int = 1
) -> onnx.ModelProto:
    """Three numbers times a matrix [3, 4], `l`, and the softmax of that, `p`."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["l"]),
            helper.make_node("Softmax", ["l"], ["p"], axis=axis),
        ],
        "g",
        [helper.make_tensor_value_info("x", dtype, [batch, 3])],
        [helper.make_tensor_value_info(name, dtype, [batch, 4]) for name in outputs],
        [numpy_helper.from_array(WEIGHTS.astype(helper.tensor_dtype_to_np_dtype(dtype)), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


ROWS_OF_NUMBERS = np.random.default_rng(5).normal(size=(5, 3)).astype(np.float32)


@pytest.mark.parametrize("batch", ["n", 1, 8])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_rows_of_a_fixed_batch_and_a_softmax_are_classes_of_any_number_of_rows(
    tmp_path: Path, batch: str | int, dtype: int
) -> None:
    fields, guesses, network = imported(tmp_path, numbers_of_a_row(batch=batch, dtype=dtype))
    assert (fields["task"], fields["classes"]) == ("tabular-classification", ["0", "1", "2", "3"])
    assert fields["outputs"] == {"scores": "p", "activation": "none"}
    assert any("answers any number" in guess for guess in guesses) == (batch != "n")
    told = network.scores([json.dumps(row).encode() for row in ROWS_OF_NUMBERS.tolist()], never)
    np.testing.assert_allclose(told, softmax(ROWS_OF_NUMBERS @ WEIGHTS), atol=1e-5)


def test_a_task_with_classes_takes_the_output_that_has_their_numbers(tmp_path: Path) -> None:
    model = numbers_of_a_row(outputs=("l",))
    fields, _, _ = imported(tmp_path, model, task="tabular-classification")
    assert fields["outputs"] == {"scores": "l", "activation": "softmax"}


def test_of_several_outputs_the_probabilities_are_taken_and_that_is_said(tmp_path: Path) -> None:
    fields, guesses, _ = imported(tmp_path, numbers_of_a_row(outputs=("l", "p")))
    assert fields["outputs"] == {"scores": "p", "activation": "none"}
    assert "outputs.scores: p, of l, p; --output scores=NAME" in guesses


def test_rows_that_change_each_others_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="8 rows a pass and no other number: rows change each other"):
        imported(tmp_path, numbers_of_a_row(batch=8, axis=0))


def test_one_input_of_whole_numbers_takes_the_columns_side_by_side(tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.tree import DecisionTreeRegressor

    counts = np.random.default_rng(0).integers(0, 9, (60, 3))
    estimator = DecisionTreeRegressor(random_state=0).fit(counts, counts @ [1.0, 0.5, 0.25])
    _, _, network = imported(tmp_path, to_onnx(estimator, counts[:1]))
    rows = [json.dumps(row).encode() for row in counts[:9].tolist()]
    values = network.values([*rows, b"[1, null, 2]", b"[1, 2.5, 2]"], never)[:, 0]
    assert values[:9].tolist() == estimator.predict(counts[:9]).tolist()
    assert np.isnan(values[9:]).all()


def test_one_input_of_numbers_is_none_for_a_column_of_texts(tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression

    numbers = np.eye(2, dtype=np.float32)
    model = to_onnx(LinearRegression().fit(numbers, [0.0, 1.0]), numbers[:1])
    columns = [{"name": "age", "kind": "number"}, {"name": "city", "kind": "text"}]
    with pytest.raises(ModelUnusable, match="texts beside numbers needs an input for each column"):
        imported(tmp_path, model, input={"form": "row", "columns": columns})


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_a_number_that_a_whole_input_cannot_hold_is_a_fault_and_not_another_number(
    tmp_path: Path, kind: int
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["visits"], ["variable"], to=TensorProto.FLOAT)],
        "g",
        [helper.make_tensor_value_info("visits", kind, ["n", 1])],
        [helper.make_tensor_value_info("variable", TensorProto.FLOAT, ["n", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    columns = {"form": "row", "columns": [{"name": "visits", "kind": "number"}]}
    _, _, network = imported(tmp_path, model, input=columns)
    bits = 31 if kind == TensorProto.INT32 else 63
    beyond = [[2**bits], [-(2**bits) - 2**12], [1e300]]
    rows = [json.dumps(row).encode() for row in ([-(2**bits)], [7], *beyond, [None])]
    values = network.values(rows, never)[:, 0]
    assert values[:2].tolist() == [-(2.0**bits), 7.0]
    assert np.isnan(values[2:]).all()
    for row in rows[2:5]:
        assert "is beyond the whole numbers of tensor(int" in network.fault_of(row)
    assert network.fault_of(rows[5]) == "None in column 'visits' is not a whole number, as the model needs"


def test_a_pipeline_of_texts_takes_texts(tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = ["good soup", "bad soup", "good rice", "bad rice"]
    estimator = make_pipeline(CountVectorizer(lowercase=False), LogisticRegression()).fit(
        texts, ["up", "down"] * 2
    )
    model = to_onnx(estimator, initial_types=[("text", StringTensorType([None, 1]))])
    fields, _, network = imported(tmp_path, model, task="text-classification")
    assert fields["classes"] == ["down", "up"]
    sent = [b"good", b"bad soup", b""]
    np.testing.assert_allclose(
        network.scores(sent, never), estimator.predict_proba(["good", "bad soup", ""]), atol=1e-5
    )
