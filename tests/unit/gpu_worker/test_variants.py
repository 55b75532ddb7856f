"""Variants answer as their original does, or nearly so, and are judged on rows that it was not taught."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_worker.device import find_device
from gpu_worker.errors import Cancelled, ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.run_spec import RunSpec, run_from
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.pipeline.media import MediaRoots
from gpu_worker.variants.judging import MakingRows, made_and_judged
from gpu_worker.variants.making import make_variant
from gpu_worker.wire.protocol import MakeVariant
from tests.models import CLASSES, image_model, text_model
from tests.training_data import draw_photos

CPU = find_device("cpu", threads=1)
PIXELS = np.random.default_rng(2).integers(0, 256, (8, 64, 64, 3), np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("made"), "net", "resnet")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 photos, half of them to learn from, named by two of the model's classes."""
    folder = tmp_path_factory.mktemp("photos")
    drawn = draw_photos(folder)
    table = pa.table(
        {
            "input": [str(folder / name) for name, _ in drawn],
            "target": [CLASSES["ab".index(label)] for _, label in drawn],
            "split": ["train" if row % 4 < 2 else "validation" for row in range(len(drawn))],
        }
    )
    pq.write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet"


def scores(folder: Path) -> np.ndarray:
    manifest = read_manifest(str(folder))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    return np.asarray(network.scores(PIXELS, lambda: False))


def rows_of(snapshot: Path) -> MakingRows:
    media = MediaRoots([str(snapshot.parent)])
    return MakingRows(lambda path: media.read(path, max_bytes=1 << 20), 1 << 20, lambda: None)


def message(model: Path, target: Path, recipe: str, snapshot: Path | str = "") -> MakeVariant:
    rows = 32 if snapshot else 0
    split = "validation" if snapshot else ""
    return MakeVariant(
        1, str(model), str(target), f"net~{recipe}", recipe, 1, str(snapshot), split, rows, 4 * rows
    )


@pytest.mark.parametrize(("recipe", "bound"), [("onnx", 1e-4), ("bf16", 0.03)])
def test_a_variant_answers_as_its_original_does(
    model: Path, tmp_path: Path, recipe: str, bound: float
) -> None:
    made = make_variant(model, tmp_path, f"net~{recipe}", recipe)
    assert made.manifest == read_manifest(str(tmp_path))
    assert (made.manifest.name, made.manifest.version) == (f"net~{recipe}", 1)
    np.testing.assert_allclose(scores(tmp_path), scores(model), atol=bound)


def test_int8_is_calibrated_by_training_rows_and_judged_on_the_others(
    model: Path, snapshot: Path, tmp_path: Path
) -> None:
    told = made_and_judged(message(model, tmp_path / "int8", "int8", snapshot), rows_of(snapshot))
    assert (told.runtime, told.precision, told.calibrated) == ("onnx", "int8", 30)
    assert len(told.right) == len(told.original_right) == 30
    assert 0 <= told.agreed <= 30
    original = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert told.nbytes < original / 2
    assert read_manifest(str(tmp_path / "int8")).accuracy == pytest.approx(sum(told.right) / 30, abs=1e-6)
    assert np.abs(scores(tmp_path / "int8") - scores(model)).max() < 0.3
    graph = (tmp_path / "int8" / "model.onnx").read_bytes()
    assert b"QuantizeLinear" in graph
    assert [path.name for path in (tmp_path / "int8").iterdir() if path.name.startswith(".")] == []


def test_threads_are_an_onnx_models_own(model: Path, tmp_path: Path) -> None:
    make_variant(model, tmp_path / "onnx", "net~onnx", "onnx")
    made = make_variant(tmp_path / "onnx", tmp_path / "two", "net~same-2t", "same", threads=2)
    assert made.manifest.run == RunSpec(threads=2)
    np.testing.assert_allclose(scores(tmp_path / "two"), scores(tmp_path / "onnx"), atol=1e-5)
    with pytest.raises(ModelUnusable, match="runs on one core"):
        make_variant(model, tmp_path / "none", "net~same-2t", "same", threads=2)


def test_what_cannot_be_made_says_why(model: Path, tmp_path: Path) -> None:
    texts = text_model(tmp_path / "made", "texts", seed=1)
    for folder, recipe, why in (
        (model, "int8", "name the dataset"),
        (model, "traced", "traced as they are"),
        (model, "fp4", "there is no variant"),
        (texts, "int8", "models of pictures"),
        (texts, "bf16", "models of pictures"),
        (texts, "onnx", "ONNX has no words"),
    ):
        with pytest.raises(ModelUnusable, match=why):
            make_variant(folder, tmp_path / f"{recipe}-{folder.parent.name}", "net~x", recipe)


def test_pictures_that_are_gone_are_left_out_and_none_left_is_said(
    model: Path, snapshot: Path, tmp_path: Path
) -> None:
    table = pq.read_table(snapshot)
    gone = [str(tmp_path / "gone.png")]
    pq.write_table(
        table.set_column(0, "input", pa.array(gone + table["input"].to_pylist()[1:])),
        tmp_path / "one.parquet",
    )
    media = MediaRoots([str(snapshot.parent), str(tmp_path)])
    rows = MakingRows(lambda path: media.read(path, max_bytes=1 << 20), 1 << 20, lambda: None)
    assert (
        made_and_judged(message(model, tmp_path / "a", "int8", tmp_path / "one.parquet"), rows).calibrated
        == 29
    )
    pq.write_table(table.set_column(0, "input", pa.array(gone * len(table))), tmp_path / "none.parquet")
    with pytest.raises(ModelUnusable, match="none of them can be read"):
        made_and_judged(message(model, tmp_path / "b", "int8", tmp_path / "none.parquet"), rows)
    with pytest.raises(ModelUnusable, match="cannot be read"):
        made_and_judged(message(model, tmp_path / "c", "int8", tmp_path / "lost.parquet"), rows)


def test_it_ends_when_it_is_given_up(model: Path, snapshot: Path, tmp_path: Path) -> None:
    def given_up() -> None:
        raise Cancelled("the variant was given up")

    rows = MakingRows(rows_of(snapshot).read, 1 << 20, given_up)
    with pytest.raises((Cancelled, ModelUnusable)):
        made_and_judged(message(model, tmp_path / "x", "int8", snapshot), rows)


@pytest.mark.parametrize(
    "run", [{"precision": "int4"}, {"threads": 0}, {"threads": True}, {"traced": 1.5}, {"x": 1}, []]
)
def test_a_manifest_that_says_otherwise_is_refused(run: object, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run"):
        run_from({"run": run})
    said = json.loads((model / "model.json").read_text()) | {"run": run}
    (tmp_path / "model.json").write_text(json.dumps(said))
    with pytest.raises(ModelUnusable, match="run"):
        read_manifest(str(tmp_path))
