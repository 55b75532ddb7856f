"""What the doctor prints comes from anybody: names of functions, answers of servers."""

from __future__ import annotations

import pytest

from ml_udf.cli.findings import failed, found, show


@pytest.mark.security
def test_nothing_that_is_printed_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert not show(found("server \x1b[2J[bold]x[/]\rall is well\x07 \u202e"))
    assert show(failed("\x1b]0;title\x07", "mend \x9b31m this"))
    said = capsys.readouterr().out
    assert all(one.isprintable() or one == "\n" for one in said)
    assert "[bold]x[/]" in said
