"""What may die of a server's workers on a cluster, and how long callers wait: a server, callers, two nodes.

Each fault leaves two nodes and two workers to the next. What was seen of each is printed at the end, and is
the table of docs/cluster.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.outages import Outage, asked_without_end
from tests.inference_server import InferenceServer
from tests.models import hashing_model
from tests.ray_machines import Machines
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="NO RAY, NO CLUSTER: pip install 'ml_udf[ray]'"
)

_FUNCTION = "udf_hash"
_WITHIN_S = 120.0  # a bound, for what never comes


@dataclass
class House:
    """A server whose home no node sees, and what was seen of each fault."""

    machines: Machines
    server: InferenceServer
    seen: dict[str, Outage] = field(default_factory=dict)

    def workers(self) -> list[dict[str, Any]]:
        with self.server.client() as client:
            return list(client.get("/v1/workers")["workers"])

    def is_whole(self) -> bool:
        return [worker["state"] for worker in self.workers()] == ["up", "up"]

    def restarts(self) -> int:
        return sum(worker["restarts"] for worker in self.workers())

    def until_whole(self, restarts: int = 0) -> None:
        wait_until(lambda: self.is_whole() and self.restarts() >= restarts, _WITHIN_S)

    def outage(self, fault: str, act: Callable[[], object], lives: int = 1) -> Outage:
        """Callers ask while it happens, until so many workers more have been started and all are there."""
        self.until_whole()
        before = self.restarts()
        with asked_without_end(self.server, _FUNCTION) as outage:
            act()
            self.until_whole(before + lives)
            outage.is_over()
        self.seen[fault] = outage
        return outage


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, machines: Machines) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("faults")
    flags = [
        "--pool=ray",
        f"--ray-address={machines.address}",
        "--workers=2",
        "--answer-cache-bytes=0",
        f"--node-folder={folder}/nodes/{{node}}",
    ]
    server = InferenceServer(folder / "home", flags=flags, forked=False)
    try:
        server.deploy(hashing_model(folder), _FUNCTION)
        there = House(machines, server)
        yield there
        tell(there.seen)
    finally:
        server.stop()


def tell(seen: dict[str, Outage]) -> None:
    """As rows of a table, and as JSON."""
    head = ("what died", "longest without an answer", "until all workers were there", "refused", "rows")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")  # noqa: T201
    for fault, outage in seen.items():
        times = f"{outage.longest_s:.2f} s | {outage.back_s:.1f} s"
        print(f"| {fault} | {times} | {len(outage.refused)} | {outage.rows} |")  # noqa: T201
    results = Path("bench-results")
    results.mkdir(exist_ok=True)
    told = {
        fault: {
            "longest_s": outage.longest_s,
            "back_s": outage.back_s,
            "refused": outage.refused,
            "rows": outage.rows,
        }
        for fault, outage in seen.items()
    }
    (results / "cluster-faults.json").write_text(json.dumps(told, indent=1))


def all_answered(outage: Outage) -> None:
    """Every row was answered as it should, none was refused."""
    assert outage.wrong == []
    assert outage.refused == []


def child_of(pid: int) -> int:
    """Started by whichever of its threads."""
    (child,) = [
        int(child)
        for children in Path(f"/proc/{pid}/task").glob("*/children")
        for child in children.read_text().split()
    ]
    return child


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_each_node_has_fetched_the_model_that_it_serves(house: House) -> None:
    house.until_whole()
    assert {worker["node"] for worker in house.workers()} == {"n1", "n2"}
    with asked_without_end(house.server, _FUNCTION) as outage:
        pass
    all_answered(outage)
    fetched = house.server.home.parent.glob("nodes/*/*/text_hash/1/model.json")
    assert {path.parts[-5] for path in fetched} <= {"n1", "n2"}
    assert any(house.server.home.parent.glob("nodes/*/*/text_hash/1/model.json"))


def test_a_worker_is_killed(house: House) -> None:
    outage = house.outage("a worker, kill -9", lambda: kill(child_of(house.workers()[0]["pid"])))
    all_answered(outage)


def test_an_actor_is_killed(house: House) -> None:
    all_answered(house.outage("its host (the actor), kill -9", lambda: kill(house.workers()[0]["pid"])))


def test_all_workers_are_killed_at_once(house: House) -> None:
    """Until there is one, rows wait."""

    def act() -> None:
        for pid in [worker["pid"] for worker in house.workers()]:
            kill(pid)

    all_answered(house.outage("every worker at once, kill -9", act, 2))


def test_a_raylet_is_killed_and_a_node_joins_under_load(house: House) -> None:
    def act() -> None:
        name = house.workers()[1]["node"]
        house.machines.kill(name)
        wait_until(lambda: house.workers()[1]["state"] == "down", _WITHIN_S)
        house.machines.remove(name)
        house.machines.add()

    all_answered(house.outage("a node (its raylet), kill -9; another joins", act))


def test_a_node_is_removed_and_another_joins_under_load(house: House) -> None:
    def act() -> None:
        house.machines.remove(house.workers()[0]["node"])
        house.machines.add()

    all_answered(house.outage("a node, removed; another joins", act))


def test_a_node_stands_still(house: House) -> None:
    """Its worker and its host are stopped, as all of it is when a machine freezes: no socket says so."""

    def act() -> None:
        host = house.workers()[0]["pid"]
        for pid in (child_of(host), host):
            os.kill(pid, signal.SIGSTOP)

    all_answered(house.outage("a node, frozen", act))


def test_a_server_is_killed_and_started_again(house: House) -> None:
    """Callers are refused meanwhile, with the reason; its workers end, and others come."""
    hosts = [worker["pid"] for worker in house.workers()]

    def act() -> None:
        house.server.signal(signal.SIGKILL)
        house.server.wait()
        house.server.start()

    house.until_whole()
    with asked_without_end(house.server, _FUNCTION) as outage:
        act()
        house.until_whole()
        outage.is_over()
        wait_until(lambda: outage.answered_since() > 0)
    house.seen["the server, kill -9, and started again"] = outage
    assert outage.wrong == []
    assert all("127.0.0.1" in refused for refused in outage.refused), outage.refused
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hosts), _WITHIN_S)


def test_the_head_goes_and_comes_back(house: House) -> None:
    """Rows go on without it, until Ray ends what belonged to it; then workers come by the new one."""
    house.until_whole()
    before = house.restarts()
    with asked_without_end(house.server, _FUNCTION) as gone:
        house.machines.kill_head()
        there = len(gone.answered_s)
        wait_until(lambda: len(gone.answered_s) > there + 50)
        gone.is_over()
    house.seen["the head: rows meanwhile"] = gone
    all_answered(gone)

    wait_until(lambda: not any(worker["state"] == "up" for worker in house.workers()), _WITHIN_S)
    outage = Outage(_FUNCTION)
    outage.happens()
    house.machines.new_head()
    house.machines.add()
    house.machines.add()
    house.until_whole(before + 2)
    outage.is_over()
    with asked_without_end(house.server, _FUNCTION) as after:
        pass
    all_answered(after)
    outage.answered_s, outage.rows = after.answered_s, after.rows
    house.seen["the head, back with new nodes: workers"] = outage
