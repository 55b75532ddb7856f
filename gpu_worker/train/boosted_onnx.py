"""Boosted trees as ONNX: all in one node, and probabilities of their sums.

Our own conversion: skl2onnx's (1.20) fails on scikit-learn's HistGradientBoosting with the newer releases of
onnx, and knows no other library's trees. No thresholds are lost by float32 (`exact_in_float32`,
`float32_below`), so the file answers as the estimator does but for rounding of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gpu_worker.networks.row_network import PROBABILITIES, VALUES

__all__ = [
    "Forest",
    "Link",
    "Tree",
    "boosted_nodes",
    "exact_in_float32",
    "float32_below",
    "forest_onnx",
    "hist_forest",
]

Link: TypeAlias = Literal["softmax", "sigmoid", "exp", "identity"]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Arrays [nodes] each; node 0 is the root.

    thresholds: float32 would not change them. left, right: nodes; of a leaf 0. missing_left: 1 where a number
    that is missing goes left. values: of a leaf, what it adds to the sum of `output`.
    """

    features: NDArray[np.int64]
    thresholds: NDArray[np.float64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    missing_left: NDArray[np.int64]
    is_leaf: NDArray[np.bool_]
    values: NDArray[np.float64]
    output: int

    @classmethod
    def of_one_leaf(cls, value: float, output: int) -> Tree:
        """It adds the same to every row."""
        none, nothing = np.zeros(1, np.int64), np.zeros(1)
        return cls(none, nothing, none, none, none, np.ones(1, bool), np.array([value]), output)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """base: [outputs], what sums begin with. link: what becomes of sums; of one sum with `sigmoid` the second
    class's probability. split: how a number is held against a threshold where it goes left.
    """

    trees: tuple[Tree, ...]
    base: NDArray[np.float64]
    link: Link
    split: Literal["BRANCH_LEQ", "BRANCH_LT"] = "BRANCH_LEQ"

    @property
    def classes(self) -> int:
        """How many; 0 where it tells a number."""
        return {"softmax": len(self.base), "sigmoid": 2}.get(self.link, 0)


def float32_below(thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest float32 numbers that are not above them: a float32 number is at most the one where it is at
    most the other.
    """
    rounded = thresholds.astype(np.float32)
    above = rounded > thresholds
    rounded[above] = np.nextafter(rounded[above], np.float32(-np.inf))
    return rounded.astype(np.float64)


def exact_in_float32(estimator: Any) -> None:  # noqa: ANN401  # scikit-learn ships no types
    """Rounds thresholds of HistGradientBoosting down to float32, in place: no float32 is answered otherwise,
    and ONNX's trees split where these do.
    """
    for iteration in estimator._predictors:
        for tree in iteration:
            tree.nodes["num_threshold"] = float32_below(tree.nodes["num_threshold"])


def hist_forest(estimator: Any) -> Forest:  # noqa: ANN401
    """The trees of a fitted HistGradientBoosting.

    Raises `ValueError` for trees that split by categories, which ONNX's older trees do not.
    """
    if any(tree.nodes["is_categorical"].any() for each in estimator._predictors for tree in each):
        raise ValueError("its trees split by categories: encode them before it, as numbers")
    classes = len(getattr(estimator, "classes_", ()))
    link: Link = "softmax" if classes > 2 else "sigmoid" if classes else "identity"
    if not classes and type(estimator._loss.link).__name__ == "LogLink":  # of Poisson's and gamma's deviance
        link = "exp"
    return Forest(tuple(_hist_trees(estimator)), estimator._baseline_prediction.ravel(), link)


def _hist_trees(estimator: Any) -> Iterator[Tree]:  # noqa: ANN401
    for iteration in estimator._predictors:
        for output, tree in enumerate(iteration):
            nodes = tree.nodes
            leaf = nodes["is_leaf"].astype(bool)
            yield Tree(
                features=np.where(leaf, 0, nodes["feature_idx"]),
                thresholds=np.where(leaf, 0.0, nodes["num_threshold"]),
                left=np.where(leaf, 0, nodes["left"]),
                right=np.where(leaf, 0, nodes["right"]),
                missing_left=np.where(leaf, 0, nodes["missing_go_to_left"].astype(np.int64)),
                is_leaf=leaf,
                values=nodes["value"],
                output=output,
            )


def forest_onnx(forest: Forest, width: int, opsets: dict[str, int]) -> onnx.ModelProto:
    """The model, with its output `probabilities` [n, classes], or with `values` [n, 1]; it takes float32
    [n, width].
    """
    name = PROBABILITIES if forest.classes else VALUES
    nodes, constants = _nodes(forest, "X", name)
    graph = helper.make_graph(
        nodes,
        "boosted_trees",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, width])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, forest.classes or 1])],
        constants,
    )
    versions = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def boosted_nodes(
    estimator: Any,  # noqa: ANN401
    given: str,
    wanted: str,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Nodes, and their constants, of a fitted HistGradientBoosting: from the numbers `given`, float32
    [n, width], to `wanted`.

    Other names begin with that of `wanted`. Raises `ValueError` as `hist_forest`.
    """
    return _nodes(hist_forest(estimator), given, wanted)


def _nodes(forest: Forest, given: str, wanted: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    sums, first, second, one = (f"{wanted}_{part}" for part in ("sums", "first", "second", "one"))
    nodes = [
        helper.make_node("TreeEnsembleRegressor", [given], [sums], domain="ai.onnx.ml", **_attributes(forest))
    ]
    if forest.link == "softmax":
        return [*nodes, helper.make_node("Softmax", [sums], [wanted], axis=1)], []
    if forest.link != "sigmoid":
        operator = "Exp" if forest.link == "exp" else "Identity"
        return [*nodes, helper.make_node(operator, [sums], [wanted])], []
    nodes += [
        helper.make_node("Sigmoid", [sums], [second]),
        helper.make_node("Sub", [one, second], [first]),
        helper.make_node("Concat", [first, second], [wanted], axis=1),
    ]
    return nodes, [helper.make_tensor(one, TensorProto.FLOAT, [1], [1.0])]


def _attributes(forest: Forest) -> dict[str, Any]:
    """Of ONNX's node; of a sum for each output."""
    columns: dict[str, list[NDArray[Any]]] = {}
    leaves: dict[str, list[NDArray[Any]]] = {}
    for place, tree in enumerate(forest.trees):
        number = np.arange(len(tree.is_leaf))
        found = int(tree.is_leaf.sum())
        for name, values in (
            ("nodes_treeids", np.full(len(number), place)),
            ("nodes_nodeids", number),
            ("nodes_featureids", tree.features),
            ("nodes_values", tree.thresholds),
            ("nodes_truenodeids", tree.left),
            ("nodes_falsenodeids", tree.right),
            ("nodes_modes", np.where(tree.is_leaf, "LEAF", forest.split)),
            ("nodes_missing_value_tracks_true", tree.missing_left),
        ):
            columns.setdefault(name, []).append(values)
        for name, values in (
            ("target_treeids", np.full(found, place)),
            ("target_nodeids", number[tree.is_leaf]),
            ("target_ids", np.full(found, tree.output)),
            ("target_weights", tree.values[tree.is_leaf]),
        ):
            leaves.setdefault(name, []).append(values)
    told = {name: np.concatenate(parts).tolist() for name, parts in (columns | leaves).items()}
    return told | {
        "n_targets": len(forest.base),
        "base_values": forest.base.astype(np.float32).tolist(),
        "aggregate_function": "SUM",
        "post_transform": "NONE",
    }
