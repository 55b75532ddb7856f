"""A Ray cluster on this machine: a head that takes no workers, and nodes that take one each.

All of it stays on loopback. Needs Ray: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.workers.nodes import DEVICE_RESOURCE, Node
from server.workers.ray import CommandOn, RayPool, driver_command, ray_timing
from server.workers.supervised_pool import Timing

__all__ = ["Machines", "ray_machines"]

_ROOT = Path(__file__).parents[1]
_NODE = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": 80 << 20}


class Machines:
    """Nodes of a cluster; they are named n1, n2, …"""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._added = 0
        self.address: str = cluster.address

    @property
    def head(self) -> Any:
        return self._cluster.head_node

    def add(self) -> Any:
        """One more, once it is there. Only in the main thread."""
        self._added += 1
        return self._cluster.add_node(**_NODE, node_name=f"n{self._added}", resources={DEVICE_RESOURCE: 1})

    def remove(self, node: Any) -> None:
        self._cluster.remove_node(node)

    def pool(
        self,
        command: Sequence[str] | CommandOn,
        count: int = 1,
        timing: Timing | None = None,
        *,
        always_encrypted: bool = False,
    ) -> RayPool:
        def command_on(index: int, node: Node) -> Sequence[str]:
            return command(index, node) if callable(command) else command

        return RayPool(
            count,
            command_on,
            lambda fd: driver_command(self.address, fd),
            ["cpu"],
            timing or ray_timing(60.0),
            always_encrypted=always_encrypted,
        )


@contextlib.contextmanager
def ray_machines() -> Iterator[Machines]:
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets below it have long paths
    (folder / "ray").mkdir()
    variables = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else another address is put in place of loopback's
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(16).hex(),
        "RAY_TMPDIR": str(folder / "ray"),
        # A node that is gone is known to be so in seconds; half a minute is usual.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "3000",
        "RAY_health_check_failure_threshold": "2",
        "PYTHONPATH": str(_ROOT),
    }
    with pytest.MonkeyPatch.context() as changes:
        for name, value in variables.items():
            changes.setenv(name, value)
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
        try:
            yield Machines(cluster)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
