"""Files as a graph of bytes has them: beginning and end, white space left out, filled."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpu_worker.errors import ModelUnusable, RowFault
from gpu_worker.importing import checked, recognised, staged
from gpu_worker.model_files.preprocess import Preprocess
from gpu_worker.networks.file_input import FileInput
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import softmax
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.media import MediaRoots
from gpu_worker.pipeline.piece import Piece
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.unit.gpu_worker.recognising import CPU

HOW = Preprocess(first_bytes=3, last_bytes=2, padding=256, strip_bytes=6, least_bytes=2)
WEIGHTS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32) / 100


def numbers(rows: list[bytes], how: Preprocess = HOW, kind: str = "tensor(int32)") -> list[list[int]]:
    given = SimpleNamespace(name="bytes", type=kind, shape=["n", how.first_bytes + how.last_bytes])
    feed, _ = FileInput([given], how, "graph").feed(rows)
    found: list[list[int]] = feed["bytes"].tolist()
    return found


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (b"abcdefghij", [97, 98, 99, 105, 106]),
        (b" \nabcdefgh\t ", [97, 98, 99, 103, 104]),
        (b"ab", [97, 98, 256, 97, 98]),
        (b"a", [97, 256, 256, 256, 97]),
        (b"        abcd", [256, 256, 256, 99, 100]),  # nothing but white space within `strip_bytes`
        (b"", [256] * 5),
    ],
)
def test_a_file_is_its_beginning_and_its_end(row: bytes, expected: list[int]) -> None:
    assert numbers([row]) == [expected]


def test_without_strip_bytes_nothing_is_left_out() -> None:
    assert numbers([b" ab "], Preprocess(first_bytes=2, last_bytes=1)) == [[32, 97, 32]]
    assert numbers([b"abc"], Preprocess(first_bytes=2)) == [[97, 98]]


def test_of_a_large_file_no_more_than_its_ends_is_read(tmp_path: Path) -> None:
    media = MediaRoots([str(tmp_path)])
    assert HOW.file_ends == (6, 6)
    for content in (b"  begin" + bytes(5_000) + b"the end \n", b"abcdefghijkl", b"abcdefghijklm", b"a"):
        (tmp_path / "f").write_bytes(content)
        read = media.read(b"f", max_bytes=100, ends=HOW.file_ends)
        assert len(read) <= 12
        assert numbers([read]) == numbers([content])
    with pytest.raises(RowFault, match="outside the media roots"):
        media.read(b"/etc/passwd", max_bytes=100, ends=HOW.file_ends)


def graph(folder: Path, *, kind: int = TensorProto.INT32, ends_in: str = "") -> Path:
    """Bytes times a matrix [5, 3]; ends_in: an operator after that."""
    nodes = [
        helper.make_node("Cast", ["bytes"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
    ]
    if ends_in == "Div":  # as exporters take a softmax apart
        nodes += [
            helper.make_node("Exp", ["logits"], ["e"]),
            helper.make_node("ReduceSum", ["e", "axis"], ["sum"]),
            helper.make_node("Div", ["e", "sum"], ["out"]),
        ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("bytes", kind, ["n", 5])],
            [helper.make_tensor_value_info("out" if ends_in else "logits", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(np.array([1]), "axis")],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def imported(path: Path, folder: Path, **wishes: Any) -> Any:
    folder.mkdir()
    found = recognised(path, wishes)
    manifest = staged(found, "files", folder)
    checked(manifest, found)
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    return manifest, network, found


@pytest.mark.parametrize("ends_in", ["", "Div"])
def test_a_graph_of_bytes_is_imported_and_answers(tmp_path: Path, ends_in: str) -> None:
    said = {"input": {"preprocess": HOW.to_json()}, "classes": ["a", "b", "c"]}
    manifest, network, found = imported(graph(tmp_path / "g", ends_in=ends_in), tmp_path / "m", **said)
    assert (manifest.task, manifest.input.form) == ("file-classification", "path")
    assert manifest.outputs.activation == ("none" if ends_in else "softmax")
    assert any("has the sum 1" in guess for guess in found.guesses) == bool(ends_in)
    rows = [b"abcdefghij", b"xy", b"  "]
    scores = network.scores(rows, lambda: False)
    expected = softmax(np.asarray(np.array(numbers(rows)) @ WEIGHTS, np.float32))
    np.testing.assert_allclose(scores[:2], expected[:2], atol=1e-5)
    assert np.isnan(scores[2]).all()
    assert network.fault_of(rows[2]) == (
        "the file has 0 bytes, white space at its start left out, and the model needs 2"
    )


def test_a_folder_says_how_it_reads_files(tmp_path: Path) -> None:
    graph(tmp_path / "g")
    config = {"beg_size": 3, "end_size": 2, "padding_token": 256, "block_size": 6}
    own = tmp_path / "g" / "config.min.json"
    own.write_text(json.dumps(config | {"min_file_size_for_dl": 2, "target_labels_space": ["a", "b", "c"]}))
    manifest, _, _ = imported(tmp_path / "g", tmp_path / "m")
    assert manifest.input.preprocess == HOW
    assert manifest.classes == ("a", "b", "c")
    own.write_text(json.dumps(config | {"mid_size": 9, "target_labels_space": ["a"]}))
    with pytest.raises(ModelUnusable, match="reads the middle of files"):
        recognised(tmp_path / "g", {})
    own.write_text(json.dumps({"target_labels_space": ["a"]}))
    with pytest.raises(ModelUnusable, match="does not say how files are read"):
        recognised(tmp_path / "g", {})


@pytest.mark.parametrize(
    ("kind", "wishes", "reason"),
    [
        (TensorProto.INT32, {"task": "file-classification"}, "takes 5 numbers of a file; say how many bytes"),
        (TensorProto.INT32, {"input": {"preprocess": {"first_bytes": 4}}}, "takes 5 bytes of a file, and"),
        (TensorProto.UINT8, {"input": {"preprocess": HOW.to_json()}}, "takes bytes alone"),
        (TensorProto.INT32, {"input": {"preprocess": {"first_bytes": 1 << 20}}}, "whole number to 65536"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, kind: int, wishes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelUnusable, match=reason):
        recognised(graph(tmp_path / "g", kind=kind), wishes)


def test_rows_at_fault_leave_the_others_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    piece = Piece(0, [b"a", b"none", b"a"])
    piece.file_ends = HOW.file_ends
    threads = Threads(1, "test")
    try:
        intake = Intake(Settings(media_roots=(str(tmp_path),)), threads, pinned=False)
        intake.decode_here(piece, "path", (), lambda: False)
    finally:
        threads.close()
    assert [piece.rows[0], piece.rows[2]] == [b"abc", b"abc"]
    assert [(fault.index, fault.code) for fault in piece.faults] == [(1, "input_not_found")]
