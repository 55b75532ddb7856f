"""A Ray cluster on this machine: a head that takes no workers, and nodes that take one each.

All of it stays on loopback. Needs Ray: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from examples.foodlog.nodes import NODE, Nodes, nodes_of_this_machine
from server.workers.nodes import Node
from server.workers.ray import CommandOn, NodeFiles, RayPool, driver_command, ray_timing
from server.workers.supervised_pool import Timing

__all__ = ["Machines", "ray_machines"]

_ROOT = Path(__file__).parents[1]


class Machines(Nodes):
    """Nodes, and pools of workers on them."""

    def kill_head(self) -> None:
        """By force, and with it the cluster's memory of itself."""
        for name in ("gcs_server", "raylet"):
            for started in self.head.all_processes.get(name, ()):
                started.process.kill()
                started.process.wait()

    def new_head(self) -> None:
        """At the same port; of the former's nodes none is left."""
        cluster, port = self._cluster, int(self.address.rpartition(":")[2])
        for node in list(cluster.worker_nodes):
            cluster.remove_node(node, allow_graceful=False)
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        cluster.add_node(**NODE, include_dashboard=False, gcs_server_port=port)
        self.by_name = {}

    def pool(
        self,
        command: Sequence[str] | CommandOn,
        count: int = 1,
        timing: Timing | None = None,
        *,
        files: NodeFiles | None = None,
        always_encrypted: bool = False,
        drained: Sequence[str] = (),
    ) -> RayPool:
        def command_on(index: int, node: Node) -> Sequence[str]:
            return command(index, node) if callable(command) else command

        return RayPool(
            count,
            command_on,
            lambda fd: driver_command(self.address, fd),
            ["cpu"],
            timing or ray_timing(60.0),
            files=files,
            always_encrypted=always_encrypted,
            drained=drained,
        )


@contextlib.contextmanager
def ray_machines() -> Iterator[Machines]:
    with nodes_of_this_machine(_ROOT, Machines) as there:
        yield there
