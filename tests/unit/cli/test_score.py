"""`ml-udf score`: what a command needs is said in its own options."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ml_udf.cli import score
from ml_udf.cli.app import app
from ml_udf.scoring import ScoreProgress


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([], "the answers need one place"),
        (["--to", "label", "--into", "labels"], "the answers need one place, not two"),
    ],
)
def test_where_the_answers_go_is_one_place(places: list[str], said: str) -> None:
    found = CliRunner().invoke(app, ["score", "t", "udf_f", "x", "--duckdb", "food.db", *places])
    assert found.exit_code == 1
    told = " ".join(found.output.split())
    assert told == f"error: {said} give --to COLUMN of the same table, or --into TABLE of their own"


def test_where_no_bar_can_be_drawn_anew_a_line_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(score, "_LOG_S", 0.0)
    with score._bar() as show:
        show(ScoreProgress(2000, answered=1200, failed=34))
    assert "1,234 of 2,000 rows scored" in capsys.readouterr().out
