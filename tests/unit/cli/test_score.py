"""`ml-udf score`: what a command needs is said in its own options."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app


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
