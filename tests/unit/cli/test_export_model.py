"""`ml-udf export`: of which home folder a model is written."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from typer.testing import CliRunner

from gpu_worker.importing import recognised, staged
from ml_udf.cli.app import app
from tests.unit.gpu_worker.test_onnx_as_people_have_it import numbers_of_a_row


def test_a_home_with_a_space_in_its_name_is_written_as_every_command_has_it(tmp_path: Path) -> None:
    given, home = tmp_path / "given.onnx", tmp_path / "a home"
    given.write_bytes(numbers_of_a_row().SerializeToString())
    folder = home / "models" / "m" / "1"
    folder.mkdir(parents=True)
    staged(recognised(given, {}), "m", folder)
    out = tmp_path / "out"
    endpoint = f"local:{quote(str(home))}?device=cpu"
    done = CliRunner().invoke(app, ["export", "m", str(out), "--endpoint", endpoint])
    assert done.exit_code == 0, done.output
    assert (out / "model.onnx").exists()
