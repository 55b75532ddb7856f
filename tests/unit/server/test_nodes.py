"""Which node gets which worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.workers.nodes import Node, NoNode, choose, devices_of_cluster

A = Node("a", "10.0.0.1", "front", 0, 4)
B = Node("b", "10.0.0.2", "gpu-b", 2, 16)
C = Node("c", "10.0.0.3", "gpu-c", 4, 16)


def test_a_worker_goes_where_the_smallest_part_of_the_gpus_is_taken():
    taken: dict[str, int] = {}
    order = []
    for _ in range(6):
        node = choose([A, B, C], taken, "cuda:0")
        taken[node.id] = taken.get(node.id, 0) + 1
        order.append(node.id)
    assert order.count("b") == 2
    assert order.count("c") == 4
    assert set(order[:2]) == {"b", "c"}, "spread from the first on"
    with pytest.raises(NoNode, match="no node has a GPU free: the cluster has 3 nodes; it starts"):
        choose([A, B, C], taken, "cuda:0")


def test_without_gpus_nodes_take_any_number_and_as_many_as_they_declare_where_one_does():
    assert choose([A, B], {"a": 1}, "cpu") == B
    assert choose([A, B], {"a": 100, "b": 101}, "cpu") == A
    one, none = replace(A, devices=1), replace(B, devices=0)
    assert choose([one, none], {}, "cpu") == one
    with pytest.raises(NoNode, match="ml_udf_device"):
        choose([one, none], {"a": 1}, "cpu")


def test_a_drained_node_takes_none_by_its_name_or_its_id():
    assert choose([A, B], {}, "cpu", drained={"front"}) == B
    assert choose([A, B], {}, "cpu", drained={"b"}) == A
    with pytest.raises(NoNode, match="2 of them drained"):
        choose([A, B], {}, "cpu", drained={"front", "b"})


def test_a_node_where_a_worker_did_not_start_comes_after_all_others_and_is_tried_again():
    assert choose([A, B], {"b": 9}, "cpu", failed={"a": 1.0}) == B
    assert choose([A, B], {}, "cpu", failed={"a": 2.0, "b": 1.0}) == B, "the longest ago first"
    assert choose([A], {}, "cpu", failed={"a": 2.0}) == A


def test_a_cluster_that_is_empty_has_no_node():
    with pytest.raises(NoNode, match="0 nodes"):
        choose([], {}, "cpu")


@pytest.mark.parametrize(
    ("workers", "named", "nodes", "devices"),
    [
        (0, ["auto"], [A, B, C], ("cuda:0",) * 6),
        (0, ["auto"], [A, replace(A, id="d")], ("cpu", "cpu")),
        (0, ["auto"], [replace(A, devices=3), replace(A, id="d", devices=0)], ("cpu",) * 3),
        (4, ["auto"], [A], ("cpu",) * 4),
        (3, ["cuda:3", "cpu"], [B], ("cuda:0", "cpu", "cuda:0")),
        (2, ["sim:1GiB,2.5"], [A], ("sim:1GiB,2.5",) * 2),
    ],
)
def test_the_devices_of_a_cluster(workers, named, nodes, devices):
    assert devices_of_cluster(workers, named, nodes) == devices
