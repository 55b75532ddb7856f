"""scikit-learn's HistGradientBoosting as ONNX: its trees in one node, and probabilities of their sums.

Our own conversion: skl2onnx's (1.20) fails on these trees with the newer releases of onnx. No thresholds are
lost by float32 (`exact_in_float32`), so the file answers as the estimator does but for rounding of sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gpu_worker.networks.row_network import PROBABILITIES, VALUES

__all__ = ["boosted_nodes", "boosted_onnx", "exact_in_float32"]


def exact_in_float32(estimator: Any) -> None:  # noqa: ANN401  # scikit-learn ships no types
    """Rounds thresholds down to float32, in place: no float32 is answered otherwise, and ONNX's trees split
    where these do.
    """
    for iteration in estimator._predictors:
        for tree in iteration:
            given = tree.nodes["num_threshold"]
            rounded = given.astype(np.float32)
            above = rounded > given
            rounded[above] = np.nextafter(rounded[above], np.float32(-np.inf))
            tree.nodes["num_threshold"] = rounded


def boosted_onnx(estimator: Any, width: int, opsets: dict[str, int]) -> onnx.ModelProto:  # noqa: ANN401
    """The model of a fitted classifier, with its output `probabilities` [n, classes], or of a fitted
    regressor, with `values` [n, 1]; it takes float32 [n, width]. Raises `ValueError` as `boosted_nodes`.
    """
    classes = len(getattr(estimator, "classes_", ()))
    name = PROBABILITIES if classes else VALUES
    nodes, constants = boosted_nodes(estimator, "X", name)
    graph = helper.make_graph(
        nodes,
        "hist_gradient_boosting",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, width])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, classes or 1])],
        constants,
    )
    versions = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def boosted_nodes(
    estimator: Any,  # noqa: ANN401
    given: str,
    wanted: str,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Nodes, and their constants, from the numbers `given`, float32 [n, width], to `wanted`.

    Other names begin with that of `wanted`. Raises `ValueError` for trees that split by categories, which
    ONNX's older trees do not.
    """
    if any(tree.nodes["is_categorical"].any() for each in estimator._predictors for tree in each):
        raise ValueError("its trees split by categories: encode them before it, as numbers")
    classes = len(getattr(estimator, "classes_", ()))
    sums, first, second, one = (f"{wanted}_{part}" for part in ("sums", "first", "second", "one"))
    trees = _trees(estimator, estimator._baseline_prediction.size)
    nodes = [helper.make_node("TreeEnsembleRegressor", [given], [sums], domain="ai.onnx.ml", **trees)]
    if not classes:
        is_log = type(estimator._loss.link).__name__ == "LogLink"  # of Poisson's and gamma's deviance
        return [*nodes, helper.make_node("Exp" if is_log else "Identity", [sums], [wanted])], []
    if classes > 2:
        return [*nodes, helper.make_node("Softmax", [sums], [wanted], axis=1)], []
    nodes += [
        helper.make_node("Sigmoid", [sums], [second]),
        helper.make_node("Sub", [one, second], [first]),
        helper.make_node("Concat", [first, second], [wanted], axis=1),
    ]
    return nodes, [helper.make_tensor(one, TensorProto.FLOAT, [1], [1.0])]


def _trees(estimator: Any, outputs: int) -> dict[str, Any]:  # noqa: ANN401
    """The attributes of ONNX's node; of a sum for each of `outputs`."""
    columns: dict[str, list[NDArray[Any]]] = {}
    leaves: dict[str, list[NDArray[Any]]] = {}
    count = 0
    for iteration in estimator._predictors:
        for output, tree in enumerate(iteration):
            nodes = tree.nodes
            leaf = nodes["is_leaf"].astype(bool)
            number = np.arange(len(nodes))
            for name, values in (
                ("nodes_treeids", np.full(len(nodes), count)),
                ("nodes_nodeids", number),
                ("nodes_featureids", np.where(leaf, 0, nodes["feature_idx"])),
                ("nodes_values", np.where(leaf, 0.0, nodes["num_threshold"])),
                ("nodes_truenodeids", np.where(leaf, 0, nodes["left"])),
                ("nodes_falsenodeids", np.where(leaf, 0, nodes["right"])),
                ("nodes_modes", np.where(leaf, "LEAF", "BRANCH_LEQ")),
                (
                    "nodes_missing_value_tracks_true",
                    np.where(leaf, 0, nodes["missing_go_to_left"].astype(np.int64)),
                ),
            ):
                columns.setdefault(name, []).append(values)
            for name, values in (
                ("target_treeids", np.full(int(leaf.sum()), count)),
                ("target_nodeids", number[leaf]),
                ("target_ids", np.full(int(leaf.sum()), output)),
                ("target_weights", nodes["value"][leaf]),
            ):
                leaves.setdefault(name, []).append(values)
            count += 1
    told = {name: np.concatenate(parts).tolist() for name, parts in (columns | leaves).items()}
    return told | {
        "n_targets": outputs,
        "base_values": estimator._baseline_prediction.ravel().astype(np.float32).tolist(),
        "aggregate_function": "SUM",
        "post_transform": "NONE",
    }
