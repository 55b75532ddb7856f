"""One cluster for all of these tests: Ray takes one token a process, and seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray_machines import Machines, ray_machines


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    """A head and two nodes."""
    with ray_machines() as there:
        for _ in range(2):
            there.add()
        yield there
