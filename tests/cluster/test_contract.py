"""Workers on a Ray cluster of two nodes on one machine: the contract of pools. What may die: test_faults.py.

Needs Ray, which is not part of `dev`: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from server.workers.supervised_pool import SupervisedPool, Timing
from tests.ray_machines import Machines
from tests.unit.server.pool_contract import (
    SCENARIOS,
    Listener,
    Running,
    fake_worker,
    served,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="NO RAY, NO CLUSTER: pip install 'ml_udf[ray]'"
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_contract_of_pools(
    scenario: Callable[[Running], Coroutine[Any, Any, None]], machines: Machines
) -> None:
    def running(
        behaviour: str, count: int = 1, timing: Timing | None = None
    ) -> AbstractAsyncContextManager[tuple[SupervisedPool, Listener]]:
        return served(machines.pool(fake_worker(behaviour, "{fd}"), count, timing))

    asyncio.run(scenario(running))
