"""Packages of tests that stand beside ours in no environment: installed once each, below .build."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["installed_apart"]

_BUILD = Path(__file__).parents[1] / ".build"
_INSTALL_S = 600


def installed_apart(name: str, packages: Sequence[str]) -> Path:
    """A folder for PYTHONPATH with these packages, and none that they need.

    The test that asks is left out, loudly, where they cannot be had.
    """
    home = _BUILD / name
    home.mkdir(parents=True, exist_ok=True)
    folder, done = home / "site", home / "installed.txt"
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if done.exists() and done.read_text() == "\n".join(packages):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--disable-pip-version-check", "--target", str(folder)]
        found = subprocess.run(
            [*command, *packages], capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
        if found.returncode:
            reason = f"NOT TESTED, {name}: its packages cannot be installed: {found.stderr[-500:]}"
            warnings.warn(reason, stacklevel=2)
            pytest.skip(reason)
        done.write_text("\n".join(packages))
    return folder
