"""Which node gets which worker. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["DEVICE_RESOURCE", "NoNode", "Node", "choose", "devices_of_cluster", "wants_gpu"]

# A node that declares it takes so many workers that need no GPU; where one does, the others take none.
DEVICE_RESOURCE = "ml_udf_device"


class NoNode(Exception):
    """There is no node that a worker could start on; the text says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster that is there. id: the cluster's · address: of its network interface.

    gpus, cores: in all, whoever has them · devices: workers that it takes that need no GPU; None for any
    number. is_here: whether this process runs on it.
    """

    id: str
    address: str
    name: str
    gpus: int
    cores: int
    devices: int | None = None
    is_here: bool = False

    def takes(self, gpu: bool) -> int | None:
        """Workers at most, of those that need a GPU or of the others; None for any number."""
        return self.gpus if gpu else self.devices


def wants_gpu(device: str) -> bool:
    """Whether a worker of that device needs a GPU of its node."""
    return device.startswith("cuda")


def devices_of_cluster(workers: int, named: Sequence[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """The device of each of so many workers, 0 = one worker a device. named: "auto" stands for all there are.

    Of a cluster those are its GPUs; where it has none, each node's CPU. A worker sees the one GPU that it was
    given, so that each is cuda:0.
    """
    gpus = sum(node.gpus for node in nodes)
    without = sum(1 if node.devices is None else node.devices for node in nodes)
    all_there_are = ["cuda:0"] * gpus or ["cpu"] * max(1, without)
    devices: list[str] = []
    for name in named:
        if name == "auto":
            devices += all_there_are
        else:
            devices.append("cuda:0" if wants_gpu(name) else name)
    return tuple(devices[number % len(devices)] for number in range(workers or len(devices)))


def choose(
    nodes: Sequence[Node],
    taken: Mapping[str, int],
    device: str,
    *,
    drained: Collection[str] = (),
    failed: Mapping[str, float] | None = None,
) -> Node:
    """The node for one more worker: of those with a free device, the one that has the fewest for what it
    takes.

    taken: by node, its workers of that sort · drained: names and ids of nodes that take none · failed: by
    node, when a worker last did not come up there; such a one is tried after all others, the longest ago
    first. Raises `NoNode`.
    """
    gpu = wants_gpu(device)
    open_to = [node for node in nodes if node.id not in drained and node.name not in drained]
    free = []
    for node in open_to:
        most, has = node.takes(gpu), taken.get(node.id, 0)
        if most is None or has < most:
            free.append((has / most if most else has, node))
    if not free:
        sort = "a GPU" if gpu else f"a device ({DEVICE_RESOURCE})"
        away = len(nodes) - len(open_to)
        beside = f", {away} of them drained" if away else ""
        raise NoNode(
            f"no node has {sort} free: the cluster has {len(nodes)} nodes{beside}; it starts when one has"
        )
    since = failed or {}
    return min(free, key=lambda each: (since.get(each[1].id, 0.0), each[0], each[1].name, each[1].id))[1]
