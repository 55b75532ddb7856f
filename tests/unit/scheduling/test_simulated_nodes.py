"""Devices on several machines, simulated: rows and models go over the link of their node."""

from __future__ import annotations

import pytest

from server.scheduling.simulation.simulator import (
    FunctionLoad,
    SimulatedDevice,
    SimulatedNode,
    SimulationResult,
    Workload,
    simulate,
)
from tests.unit.scheduling.views import affine

ROW_BYTES = 1000


def scanned(*nodes: SimulatedNode, devices_each: int = 2, rows: int = 4000) -> SimulationResult:
    """A scan over so many devices of each node: 5 ms a batch and 0.25 ms a row, at most 64 rows."""
    scan = FunctionLoad("f", (), 1.0, 64, affine, bulk_rows=rows, row_bytes=ROW_BYTES)
    devices = tuple(
        SimulatedDevice(f"{node.name}-{number}", in_flight_limit=2, kind="gpu", node=node.name)
        for node in nodes
        for number in range(devices_each)
    )
    return simulate(Workload((scan,), devices, nodes=nodes))


def rows_per_s(result: SimulationResult) -> float:
    return result.total.bulk_answered / result.total.bulk_done_s


def test_a_link_that_is_quick_enough_costs_its_way_and_no_rows():
    near, far = SimulatedNode("a", is_far=False), SimulatedNode("b", 1e9, way_s=0.0005)
    assert rows_per_s(scanned(far)) == pytest.approx(rows_per_s(scanned(near)), rel=0.05)


def test_where_the_link_is_the_limit_it_says_how_many_rows_there_are():
    rate = rows_per_s(scanned(SimulatedNode("a", 1000 * ROW_BYTES), rows=2000))
    assert rate == pytest.approx(1000, rel=0.05)


def test_rows_go_to_idle_devices_that_are_near_before_the_network_is_used():
    nodes = (SimulatedNode("far", 1e6), SimulatedNode("near", is_far=False))
    times_s = [0.1 * number for number in range(20)]
    devices = tuple(SimulatedDevice(f"on {node.name}", kind="gpu", node=node.name) for node in nodes)
    one = FunctionLoad("f", times_s, 0.05, 8, affine, row_bytes=1_000_000)  # a second on the way, far
    result = simulate(Workload((one,), devices, nodes=nodes))
    assert (result.total.good, result.total.late) == (20, 0)


def test_a_model_comes_to_a_node_once_and_from_its_memory_to_the_other_device():
    """Over the link in a second; each device then takes a millisecond."""

    def answered(*nodes: str) -> int:
        devices = tuple(
            SimulatedDevice(name, places=2, link_bytes_per_s=1e6, kind="gpu", node=node, resident=("x",))
            for name, node in zip(("d0", "d1"), nodes, strict=True)
        )
        times_s = [number / 1000 for number in range(2000)]  # more than one device answers
        asked = FunctionLoad("y", times_s, 0.5, 4, affine, size_bytes=1000)
        idle = FunctionLoad("x", (), 0.5, 4, affine, size_bytes=1000)
        links = tuple(SimulatedNode(name, models_bytes_per_s=1000.0) for name in "ab")
        result = simulate(Workload((idle, asked), devices, nodes=links))
        assert result.swaps == 2
        return result.functions["y"].good

    assert answered("a", "a") > 1.2 * answered("a", "b")
