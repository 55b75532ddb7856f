"""A server has room for its clients before they come, as far as its limits allow."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os, resource, sys
soft, hard, connections = map(int, sys.argv[1:])
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
import logging
logging.basicConfig(format="%(message)s")
from server.http.open_files import make_room
print(make_room(connections), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
size = next(line for line in open("/proc/self/status") if line.startswith("FDSize"))
print(int(size.split()[1]), len(os.listdir("/proc/self/fd")) - before)
"""


def room(soft: int, hard: int, connections: int) -> tuple[list[int], str]:
    """Limits of a process that made room: what it says and has; the kernel's table; files left open."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, (soft, hard, connections))],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()], done.stderr


@pytest.mark.parametrize("soft", [256, 900])
def test_the_soft_limit_is_raised_and_the_kernels_table_is_large_enough_at_once(soft: int) -> None:
    (said, limit, table, left_open), logged = room(soft, 3000, 1000)
    assert (said, limit, left_open, logged) == (2024, 2024, 0, "")
    assert table >= 2024


def test_a_limit_that_is_higher_stays() -> None:
    (said, limit, table, left_open), _ = room(2900, 3000, 1000)
    assert (said, limit, left_open) == (2900, 2900, 0)
    assert 2024 <= table <= 2048


def test_a_hard_limit_that_is_too_low_is_said_and_used_up() -> None:
    (said, limit, table, left_open), logged = room(256, 700, 1000)
    assert (said, limit, left_open) == (700, 700, 0)
    assert table >= 700
    assert "700 files" in logged
    assert "--max-connections" in logged
