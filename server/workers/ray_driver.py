"""`python -m server.workers.ray_driver`: it speaks to a Ray cluster, and nothing else imports Ray.

Ray for placement and life alone: an actor a device, at most one life each, on the node that was chosen. Rows
travel over sockets of their own (`ray.py`).
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from server.workers.cluster_driver import drive
from server.workers.device_host import DeviceHost
from server.workers.nodes import DEVICE_RESOURCE, Node

__all__ = ["RayCluster", "main"]


class RayCluster:
    """The cluster at `address`, "" for the one that this machine belongs to. See `Cluster`."""

    def __init__(self, address: str, lost: Callable[[str, str], None]) -> None:
        self._address = address or "auto"
        self._lost = lost
        self._actors: dict[str, Any] = {}
        self._changed = threading.Lock()

    def connect(self) -> None:
        """See `Cluster.connect`."""
        ray.init(
            address=self._address,
            namespace="ml_udf",
            logging_level=logging.WARNING,
            log_to_driver=True,  # what workers log stands in the server's log, as that of local ones
        )

    def nodes(self) -> list[Node]:
        """See `Cluster.nodes`."""
        here = ray.get_runtime_context().get_node_id()
        alive = [told for told in ray.nodes() if told["Alive"]]
        declared = any(DEVICE_RESOURCE in told["Resources"] for told in alive)
        return [_node(told, here, declared) for told in alive]

    def start(self, host: str, node: str, gpu: bool, order: bytes, start_s: float) -> bytes:
        """See `Cluster.start`."""
        declared = next(each.devices for each in self.nodes() if each.id == node)
        actor = (
            ray.remote(DeviceHost)
            .options(
                num_cpus=0,
                num_gpus=1 if gpu else 0,
                resources={DEVICE_RESOURCE: 1} if declared is not None and not gpu else None,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(order)
        )
        with self._changed:
            self._actors[host] = actor
        try:
            place: bytes = ray.get(actor.listen.remote(), timeout=start_s)
        except BaseException:
            self.end(host)
            raise
        actor.serve.remote().future().add_done_callback(lambda served: self._over(host, served))
        return place

    def end(self, host: str) -> None:
        """See `Cluster.end`."""
        with self._changed:
            actor = self._actors.pop(host, None)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """See `Cluster.close`."""
        ray.shutdown()

    def _over(self, host: str, served: Any) -> None:  # noqa: ANN401  # a Future of Ray's making
        error = served.exception()
        reason = served.result().decode() if error is None else str(error).strip().splitlines()[0]
        with self._changed:
            self._actors.pop(host, None)
        self._lost(host, reason)


def _node(told: dict[str, Any], here: str, declared: bool) -> Node:
    """declared: whether any node says how many workers it takes; Ray drops a resource of 0."""
    has = told["Resources"]
    return Node(
        id=told["NodeID"],
        address=told["NodeManagerAddress"],
        name=told.get("NodeName") or told["NodeManagerHostname"],
        gpus=int(has.get("GPU", 0)),
        cores=int(has.get("CPU", 0)),
        devices=int(has.get(DEVICE_RESOURCE, 0)) if declared else None,
        is_here=told["NodeID"] == here,
    )


def main() -> int:
    """Drive the cluster for the server at the other end of `--fd`."""
    parser = argparse.ArgumentParser(prog="python -m server.workers.ray_driver", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--address", default="")
    flags = parser.parse_args()
    logging.basicConfig(format="ray_driver %(levelname)s %(message)s", level=logging.WARNING)
    drive(socket.socket(fileno=flags.fd), lambda lost: RayCluster(flags.address, lost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
