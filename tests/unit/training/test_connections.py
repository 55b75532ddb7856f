"""The connections file: which lines it may have, and for whom each is."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import BadOption
from server.training.datasets.connections import SourceConnections
from server.training.datasets.spec import DatasetSpec

pytestmark = pytest.mark.security


def refused(file: Path, text: str, roles: list[str] | None = None, source: str = "a") -> str:
    file.write_text(text)
    spec = DatasetSpec("d", "SELECT 1", "t", "k", source=source)
    with pytest.raises(BadOption) as caught, SourceConnections(file, 1.0).batches(spec, roles):
        pass
    return caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        "a = 7",
        "a = {}",
        "a = {dsn = 7}",
        "a = {dsn = 's3cret', roles = 'alice'}",
        "a = {dsn = 's3cret', roles = [7]}",
        "a = {dsn = 's3cret', role = ['alice']}",
    ],
)
def test_a_line_that_is_none_is_named_and_its_dsn_is_not(tmp_path: Path, line: str) -> None:
    told = refused(tmp_path / "c.toml", line)
    assert "'a' must be a line name = " in told
    assert "s3cret" not in told


DEAD = "postgresql:///gone?host=/nowhere"
FILE = f"""
a = {{dsn = "{DEAD}", roles = ["analysts", "carol"]}}
b = "{DEAD}"
c = {{dsn = "{DEAD}", roles = ["*"]}}
"""


@pytest.mark.parametrize(
    ("source", "roles", "may"),
    [
        ("a", ["alice"], False),
        ("a", ["alice", "analysts"], True),
        ("a", ["carol"], True),
        ("a", [], False),
        ("a", None, True),
        ("b", ["postgres"], False),
        ("b", None, True),
        ("c", ["alice"], True),
        ("c", [], True),
    ],
)
def test_a_source_is_for_its_roles_and_for_the_tokens_holder(
    tmp_path: Path, source: str, roles: list[str] | None, may: bool
) -> None:
    told = refused(tmp_path / "c.toml", FILE, roles, source)
    assert ("cannot be opened" in told) is may
    assert ("is not for" in told) is not may


def test_the_connections_say_what_is_wrong_with_them_and_no_dsn(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(FILE)
    known = SourceConnections(tmp_path / "c.toml", 1.0).checked()
    assert [(source["name"], source["roles"]) for source in known] == [
        ("a", ["analysts", "carol"]),
        ("b", []),
        ("c", ["*"]),
    ]
    assert all("cannot be opened" in source["problem"] for source in known)
    assert "nowhere" not in str(known)
    assert SourceConnections(None, 1.0).checked() == []
