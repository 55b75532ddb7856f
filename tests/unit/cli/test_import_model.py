"""`ml-udf import`: what was said wrongly is said back in words, before anything is registered."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app
from tests.unit.gpu_worker.test_onnx_as_people_have_it import mean_of_channels


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


def test_a_dry_run_shows_what_would_be_registered(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mean_of_channels().SerializeToString())
    found = CliRunner().invoke(app, ["import", str(path), "--dry-run", "--classes", "a,b,c,d"])
    assert found.exit_code == 0, found.output
    for word in ("image-classification", "4: a, b, c, d", "guessed", "softmax"):
        assert word in found.output
