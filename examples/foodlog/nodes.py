"""A Ray cluster of several nodes on this machine: a head that takes no workers, and nodes that take one each.

All of it stays on loopback, asks for a token that is made for it, and is gone when the `with` block ends.
Needs Ray: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from server.workers.nodes import DEVICE_RESOURCE

__all__ = ["NODE", "Nodes", "nodes_of_this_machine"]

NODE: Mapping[str, Any] = {
    "node_ip_address": "127.0.0.1",
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
}


class Nodes:
    """Those of a cluster; they are named n1, n2, …"""

    def __init__(self, cluster: Any) -> None:  # noqa: ANN401  # Ray's own
        self._cluster = cluster
        self._added = 0
        self.by_name: dict[str, Any] = {}
        self.address: str = cluster.address

    @property
    def head(self) -> Any:  # noqa: ANN401
        """Ray's own node that takes no workers."""
        return self._cluster.head_node

    def add(self) -> Any:  # noqa: ANN401
        """One more, once it is there. Only in the main thread."""
        self._added += 1
        name = f"n{self._added}"
        resources = {DEVICE_RESOURCE: 1}
        self.by_name[name] = self._cluster.add_node(**NODE, node_name=name, resources=resources)
        return self.by_name[name]

    def remove(self, name: str) -> None:
        """One less, with all that runs on it."""
        self._cluster.remove_node(self.by_name.pop(name))

    def kill(self, name: str) -> None:
        """End a node by force, with all that runs on it, as when it loses its power."""
        for started in self.by_name[name].all_processes.get("raylet", ()):
            for pid in [started.process.pid, *_below(started.process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            started.process.wait()  # a zombie would keep its children alive


def _below(pid: int) -> Iterator[int]:
    """The children of a process, and theirs."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield int(child)
                yield from _below(int(child))


_Nodes = TypeVar("_Nodes", bound=Nodes)


@contextmanager
def nodes_of_this_machine(python_path: Path, kind: type[_Nodes]) -> Iterator[_Nodes]:
    """The cluster, with its head. Meanwhile this process's variables are those of one that belongs to it.

    python_path: of what runs on its nodes. kind: what they are to be.
    """
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
        "RAY_raylet_start_wait_time_s": "60",  # a machine may be busy
        # Whatever belongs to a head that stays away ends, after a minute by default.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
        "PYTHONPATH": str(python_path),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            yield kind(cluster)
        finally:
            cluster.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            with suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value
