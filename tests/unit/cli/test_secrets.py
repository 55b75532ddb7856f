"""No secret stands on a command line, where every user of the machine can read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app

pytestmark = pytest.mark.security


@pytest.mark.parametrize(
    "command",
    [
        ["score", "t", "f", "c", "--to", "x", "--postgres"],
        ["doctor", "--postgres"],
        ["postgres", "uninstall", "--postgres"],
    ],
)
@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:s3cret@db/x",
        "postgresql://db/x?user=me&password=s3cret",
        "host=db user=me password=s3cret",
        "host=db password = 's3cret'",
    ],
)
def test_a_password_in_a_connection_string_is_refused_and_not_shown(command: list[str], dsn: str) -> None:
    done = CliRunner().invoke(app, [*command, dsn])
    assert done.exit_code == 1
    assert "~/.pgpass" in done.output
    assert "s3cret" not in done.output


def test_a_token_file_that_is_no_text_is_told_without_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"s3cret\xff")
    done = CliRunner().invoke(app, ["jobs", "--token-file", str(file)])
    assert done.exit_code == 1
    assert "cannot be read: it holds no text" in " ".join(done.output.split())
    assert "s3cret" not in done.output
    assert isinstance(done.exception, SystemExit)


def test_an_error_that_nobody_foresaw_shows_no_local_variables() -> None:
    assert app.pretty_exceptions_show_locals is False
