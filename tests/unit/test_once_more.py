"""A second try is for a few tests that failed beside others, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.once_more import MOST, failed_before, worth_another_try


@pytest.mark.parametrize(
    ("status", "failed", "again"),
    [
        (1, ["tests/a.py::test_a"], True),
        (1, [f"tests/a.py::test_{n}" for n in range(MOST)], True),
        (1, [f"tests/a.py::test_{n}" for n in range(MOST + 1)], False),
        (1, ["tests/a.py"], False),  # it could not be imported
        (1, [], False),
        (2, ["tests/a.py::test_a"], False),  # stopped by Ctrl-C
        (3, ["tests/a.py::test_a"], False),
        (0, [], False),
    ],
)
def test_who_gets_a_second_try(status: int, failed: list[str], again: bool):
    assert worth_another_try(status, failed) is again


@pytest.mark.parametrize("kept", [None, "", "{", json.dumps({"tests/a.py::test_a": True})])
def test_what_failed_is_read_where_pytest_keeps_it(tmp_path: Path, kept: str | None):
    file = tmp_path / "lastfailed"
    if kept is not None:
        file.write_text(kept)
    assert failed_before(file) == (["tests/a.py::test_a"] if kept and kept != "{" else [])
