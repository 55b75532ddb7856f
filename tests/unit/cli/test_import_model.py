"""`ml-udf import`: what was said wrongly is said back in words, before anything is registered."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from ml_udf.cli import console
from ml_udf.cli.app import app
from tests.unit.gpu_worker.test_onnx_as_people_have_it import mean_of_channels, numbers_of_a_row


@pytest.fixture(autouse=True)
def no_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other processes of a run of tests COLUMNS is 80, and a path may be longer."""
    monkeypatch.setattr(console._errors, "_width", 1_000_000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--size", "large"], "HEIGHTxWIDTH"),
        (["--preprocess", "resize"], "FIELD=VALUE"),
        (["--preprocess", "mean=red"], "numbers are needed"),
        (["--preprocess", "resize=crop"], "must be one of stretch, short_side, long_side"),
        (["--preprocess", "crop=224"], "has no 'crop'"),
        (["--output", "threshold=high"], "number from 0 to 1"),
        (["--output", "scores=nothing"], "nothing"),
        (["--columns", "age"], "NAME:KIND"),
        (["--runtime", "caffe"], "there is no runtime 'caffe'"),
        (["--classes", "missing/classes.txt"], "cannot be read"),
    ],
)
def test_an_option_that_means_nothing_is_named(tmp_path: Path, options: list[str], said: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mean_of_channels().SerializeToString())
    found = CliRunner().invoke(app, ["import", str(path), "--dry-run", *options])
    assert found.exit_code == 1
    assert not isinstance(found.exception, ValueError | KeyError | TypeError)
    assert said in " ".join(found.output.split())
    assert "ml-udf-import-" not in found.output  # a folder that is gone by then


def test_what_was_guessed_stands_beside_what_cannot_be_served(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(numbers_of_a_row(outputs=("l",)).SerializeToString())
    found = CliRunner().invoke(app, ["import", str(path), "--dry-run"])
    assert found.exit_code == 1
    said = " ".join(found.output.split())
    assert f"the model in {path} gives 4 values a row" in said
    assert "guessed: task: tabular-regression, by its outputs; --task says another" in said


def test_a_model_is_tried_before_it_is_registered(tmp_path: Path) -> None:
    path, photo = tmp_path / "model.onnx", tmp_path / "a photo.png"
    path.write_bytes(mean_of_channels().SerializeToString())
    Image.new("RGB", (8, 8), (200, 30, 30)).save(photo)
    options = ["--dry-run", "--classes", "a,b,c,d", "--try", str(photo)]
    found = CliRunner().invoke(app, ["import", str(path), *options])
    assert found.exit_code == 0, found.output
    assert "a photo.png" in found.output
    assert re.search(r"label: [abcd]\n +confidence: 0\.\d{4}", found.output)
    assert "answered_by" not in found.output  # there is one model
    missing = CliRunner().invoke(app, ["import", str(path), *options, "--try", "no.png"])
    assert missing.exit_code == 1
    assert "no.png cannot be read" in missing.output
    (tmp_path / "words.png").write_text("no picture")
    wrong = CliRunner().invoke(app, ["import", str(path), *options, "--try", str(tmp_path / "words.png")])
    assert wrong.exit_code == 0
    assert "not a JPEG or PNG" in wrong.output


def test_a_file_whose_name_is_no_text_is_tried(tmp_path: Path) -> None:
    path, photo = tmp_path / "model.onnx", tmp_path / os.fsdecode(b"caf\xe9.png")
    path.write_bytes(mean_of_channels().SerializeToString())
    Image.new("RGB", (8, 8), (200, 30, 30)).save(photo)
    options = ["import", str(path), "--dry-run", "--try"]
    found = CliRunner().invoke(app, [*options, str(photo)])
    assert "caf\ufffd.png\n  label: " in found.output
    missing = CliRunner().invoke(app, [*options, f"{photo}2"])
    assert "caf\ufffd.png2 cannot be read" in missing.output


def test_a_folder_as_ml_udf_keeps_models_is_registered_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    found = CliRunner().invoke(app, ["import", str(tmp_path), "--dry-run"])
    assert found.exit_code == 1
    said = " ".join(found.output.split())
    assert f'needs no import: on the server\'s host POST /register {{"directory": "{tmp_path}"}}' in said


def test_a_model_that_is_elsewhere_is_not_tried_here() -> None:
    said = ["--model", "m", "--task", "text-generation", "--try", "x"]
    found = CliRunner().invoke(app, ["import", "--openai", "http://127.0.0.1:1/v1", *said])
    assert found.exit_code == 1
    assert "ml-udf try NAME" in found.output


def test_a_dry_run_shows_what_would_be_registered(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mean_of_channels().SerializeToString())
    found = CliRunner().invoke(app, ["import", str(path), "--dry-run", "--classes", "a,b,c,d"])
    assert found.exit_code == 0, found.output
    for word in ("image-classification", "4: a, b, c, d", "guessed", "softmax"):
        assert word in found.output
