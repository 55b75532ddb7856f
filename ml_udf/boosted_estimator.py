"""HistGradientBoosting for skl2onnx, alone and as a step of a pipeline, by the converter that training uses.

skl2onnx's own (1.20) fails with the newer releases of onnx. The worker's package is imported when a pipeline
is converted that holds one.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["know_boosted_trees"]

_KINDS = {"HistGradientBoostingClassifier": True, "HistGradientBoostingRegressor": False}


def know_boosted_trees() -> None:
    """Have skl2onnx convert HistGradientBoosting by our nodes, in this process."""
    skl2onnx = importlib.import_module("skl2onnx")
    ensemble = importlib.import_module("sklearn.ensemble")
    for name, tells_classes in _KINDS.items():
        skl2onnx.update_registered_converter(
            getattr(ensemble, name),
            f"MlUdf{name}",
            _classifier_shapes if tells_classes else _regressor_shapes,
            _convert,
            options={
                "zipmap": [True, False, "columns"],
                "nocl": [True, False],
                "output_class_labels": [False],
            }
            if tells_classes
            else None,
        )


def _classifier_shapes(operator: Any) -> None:  # noqa: ANN401  # skl2onnx ships no types
    types = importlib.import_module("skl2onnx.common.data_types")
    classes = len(operator.raw_operator.classes_)
    operator.outputs[0].type = types.Int64TensorType([None])
    operator.outputs[1].type = types.FloatTensorType([None, classes])


def _regressor_shapes(operator: Any) -> None:  # noqa: ANN401
    types = importlib.import_module("skl2onnx.common.data_types")
    operator.outputs[0].type = types.FloatTensorType([None, 1])


def _convert(scope: Any, operator: Any, container: Any) -> None:  # noqa: ANN401
    boosted_onnx = importlib.import_module("gpu_worker.train.boosted_onnx")
    given = scope.get_unique_variable_name("numbers")
    container.add_node(
        "Cast", [operator.inputs[0].full_name], [given], name=scope.get_unique_operator_name("Cast"), to=1
    )
    wanted = operator.outputs[-1].full_name
    nodes, constants = boosted_onnx.boosted_nodes(operator.raw_operator, given, wanted)
    container.initializers.extend(constants)
    for node in nodes:
        node.name = scope.get_unique_operator_name(node.op_type)
        container.nodes.append(node)
        container.node_domain_version_pair_sets.add((node.domain, 3 if node.domain else 17))
    if len(operator.outputs) > 1:  # the label, by its place; whoever wants it by name has the classes
        container.add_node(
            "ArgMax",
            [wanted],
            [operator.outputs[0].full_name],
            name=scope.get_unique_operator_name("ArgMax"),
            axis=1,
            keepdims=0,
        )
