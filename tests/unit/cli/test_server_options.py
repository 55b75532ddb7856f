"""What every command that asks a server says of one that answers otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ml_udf.cli import server_options
from ml_udf.cli.app import app


class OtherServer:
    """It has JSON for everything."""

    def get(self, _path: str) -> dict[str, Any]:
        return {"name": "another", "version": "1"}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("command", ["variants m --list", "residency", "workers list", "workers drain w0"])
def test_an_answer_of_another_shape_is_told_in_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_options, "Client", lambda *_, **__: OtherServer())
    done = CliRunner().invoke(app, [*command.split(), "--endpoint", "http://127.0.0.1:9"])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "what answers at http://127.0.0.1:9 lacks '" in done.stderr
