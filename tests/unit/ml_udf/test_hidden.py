"""What another user cannot read is named by the directory that hides it."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from ml_udf.cli.pg_extension import hidden_from


@pytest.fixture
def nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def test_a_checkout_below_a_closed_home_is_hidden_and_an_open_one_is_not(
    open_folder: Path, nobody: pwd.struct_passwd
) -> None:
    home = open_folder / "home"
    checkout = home / "repository"
    checkout.mkdir(parents=True)
    checkout.chmod(0o755)
    home.chmod(0o700)
    assert hidden_from(nobody, [checkout]) == f"user nobody cannot read {home}"
    home.chmod(0o755)
    assert hidden_from(nobody, [open_folder, checkout]) == ""
