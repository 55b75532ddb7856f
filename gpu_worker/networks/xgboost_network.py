"""XGBoost's own files, JSON or UBJSON, which hold trees and no code.

Answers are those of `XGBClassifier.predict_proba` and `XGBRegressor.predict`: with the trees up to the best
iteration where scikit-learn's interface saved the file, with all of them where the native one did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.regular import read_regular
from gpu_worker.networks.boosted_trees import MOST_TREE_BYTES, BoostedTrees, Numbers, TreeModel, both
from gpu_worker.networks.coded_columns import CodedColumn, CodedColumns, kind_of
from gpu_worker.networks.extras import first_line, required
from gpu_worker.networks.network import Floats, sigmoid, softmax
from gpu_worker.networks.tree_checks import check_tree
from gpu_worker.networks.ubjson import check_ubjson

__all__ = ["load_xgboost", "read_xgboost"]

# https://xgboost.readthedocs.io/en/stable/parameter.html#learning-task-parameters
_VALUES = frozenset(
    (
        *("reg:squarederror", "reg:squaredlogerror", "reg:logistic", "reg:pseudohubererror"),
        *("reg:absoluteerror", "reg:quantileerror", "reg:expectileerror"),
        *("reg:gamma", "reg:tweedie", "count:poisson"),
    )
)
_LARGEST = float(np.finfo(np.float32).max)
_REFUSED = {
    "binary:hinge": "it says a class and no probability; train with 'binary:logistic'",
    "rank": "it orders the rows of a group, and a row alone has no answer",
    "survival": "it answers hazards or times under censoring, which no task here stands for",
}


def load_xgboost(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> BoostedTrees:
    """The network of a model's folder; it computes on the CPU, on any device. Raises `ModelUnusable`."""
    return BoostedTrees(read_xgboost(manifest.path_of_weights()))


def read_xgboost(path: str) -> TreeModel:
    """The model of a file. Raises `ModelUnusable`: for an objective that no task answers, by its name."""
    xgboost = required("xgboost", "xgboost")
    try:
        content = bytearray(read_regular(path, MOST_TREE_BYTES))
    except ValueError as exc:
        raise ModelUnusable(f"the model {exc}") from exc
    if content[:1] != b"{":  # what is no JSON and no UBJSON at all ends the process that reads it
        raise ModelUnusable(f"{path} is no model of XGBoost, in JSON or UBJSON")
    try:
        # The library's own readers overflow the stack where a file nests deep.
        if content[1:2] == b"L":
            check_ubjson(content)
        else:
            json.loads(content)
        booster = xgboost.Booster(model_file=content)
        booster.set_param({"nthread": 1, "device": "cpu"})  # the engine runs pieces side by side (see there)
        learner = json.loads(booster.save_config())["learner"]
        _check(json.loads(booster.save_raw("json"))["learner"], booster.num_features(), path)
    except (xgboost.core.XGBoostError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ModelUnusable(f"{path} is no model that XGBoost reads: {first_line(exc)}") from exc
    objective = str(learner["objective"]["name"])
    classes = int(learner["learner_model_param"]["num_class"])
    targets = int(learner["learner_model_param"].get("num_target", 1))
    columns = CodedColumns(_columns(booster, path))
    run = _runner(xgboost, booster, learner["gradient_booster"]["name"])
    nbytes = len(booster.save_raw("ubj"))
    if objective in ("multi:softprob", "multi:softmax"):
        return TreeModel(
            columns, objective, "classification", classes, lambda x: softmax(run(x, "margin")), nbytes
        )
    if objective in ("binary:logistic", "binary:logitraw"):

        def positive(numbers: Numbers) -> Floats:
            return sigmoid(run(numbers, "margin"))

        if targets > 1:
            return TreeModel(columns, objective, "multilabel", targets, positive, nbytes)
        return TreeModel(columns, objective, "classification", 2, lambda x: both(positive(x)), nbytes)
    if objective in _VALUES:
        order = _order(learner, targets)
        if order is None:
            raise ModelUnusable(
                f"{path} answers {targets} values a row, and a regression has one: train a model for each"
            )
        return TreeModel(
            columns, objective, "regression", len(order), lambda x: run(x, "value")[:, order], nbytes
        )
    reason = _REFUSED.get(objective) or _REFUSED.get(objective.partition(":")[0])
    raise ModelUnusable(
        f"{path} has the objective {objective!r}, which cannot be served: "
        f"{reason or 'its answers are not known here'}"
    )


def _check(learner: dict[str, Any], width: int, path: str) -> None:
    """Raises `ValueError` or `KeyError` for arrays that XGBoost would follow out of its memory.

    And `ModelUnusable` for trees of several answers: their arrays mean other things.
    """
    booster = learner["gradient_booster"]
    model = booster.get("gbtree", booster)["model"]  # of dart it is one deeper
    param = learner["learner_model_param"]
    groups = max(1, int(param["num_class"])) * max(1, int(param.get("num_target", 1)))
    if "trees" not in model:
        if len(model["weights"]) != (width + 1) * groups:
            raise ValueError(f"it has {len(model['weights'])} weights for {width} columns")
        return
    if not all(0 <= group < groups for group in model["tree_info"]):
        raise ValueError(f"a tree is of an answer that the {groups} answers do not have")
    if len(model["tree_info"]) != len(model["trees"]):
        raise ValueError(f"it has {len(model['trees'])} trees, and says of {len(model['tree_info'])} whose")
    for tree in model["trees"]:
        if int(tree["tree_param"]["size_leaf_vector"]) > 1:
            raise ModelUnusable(
                f"{path} has trees whose leaves hold several answers (multi_strategy = 'multi_output_tree'), "
                "which cannot be served: train with 'one_output_per_tree', XGBoost's own default"
            )
        check_tree(tree["left_children"], tree["right_children"], tree["split_indices"], width)
        ends = zip(tree["categories_segments"], tree["categories_sizes"], strict=True)
        if not all(0 <= at <= at + size <= len(tree["categories"]) for at, size in ends):
            raise ValueError("a tree names categories that it does not have")


def _order(learner: dict[str, Any], targets: int) -> list[int] | None:
    """Which outputs are the value, or the value, the low and the high one; None where there are others."""
    alphas = _alphas(learner)
    if len(alphas) == 3 and targets in (1, 3):
        low, middle, high = (alphas.index(alpha) for alpha in sorted(alphas))
        return [middle, low, high]
    return [0] if targets == 1 and len(alphas) < 2 else None


def _alphas(learner: dict[str, Any]) -> list[float]:
    """Of a quantile regression, its quantiles."""
    text = learner["objective"].get("quantile_loss_param", {}).get("quantile_alpha", "")
    return [float(part) for part in text.strip("[]()").split(",") if part.strip()]


def _columns(booster: Any, path: str) -> Sequence[CodedColumn]:  # noqa: ANN401  # xgboost ships no types
    width = booster.num_features()
    names = booster.feature_names or [f"f{place}" for place in range(width)]
    types = booster.feature_types or ["float"] * width
    if len(names) != width or len(set(names)) != width:
        raise ModelUnusable(f"{path} names {len(names)} columns, and has {width}")
    categories = _categories(booster) if "c" in types else {}
    columns = []
    for name, kind in zip(names, types, strict=True):
        known = categories.get(name, ())
        if not all(str(category).isascii() for category in known):
            # It counts their letters and stores their bytes, so that the last ones of a column are cut off.
            raise ModelUnusable(
                f"{path}: the categories of column {name!r} have letters beyond ASCII, which XGBoost stores "
                "cut off; train with other names for them, or with LightGBM"
            )
        try:
            columns.append(
                CodedColumn(name, kind_of(known) if known else "boolean" if kind == "i" else "number", known)
            )
        except ValueError as exc:
            raise ModelUnusable(f"{path}: column {name!r} cannot be read of a row: {exc}") from exc
    return columns


def _categories(booster: Any) -> dict[str, tuple[Any, ...]]:  # noqa: ANN401  # xgboost ships no types
    """Of each column that has some in the file; files before XGBoost 3.1 hold none, and take the codes."""
    if not hasattr(booster, "get_categories"):
        return {}
    found = booster.get_categories(export_to_arrow=True).to_arrow()
    return {name: tuple(values.to_pylist()) for name, values in found if values is not None}


def _runner(xgboost: Any, booster: Any, kind: str) -> Callable[[Numbers, str], Floats]:  # noqa: ANN401
    """float64 [n, columns], "value" or "margin" → float32 [n, outputs]."""
    trees = (0, 0)  # all
    if booster.attr("scikit_learn") is not None and booster.attr("best_iteration") and kind != "gblinear":
        trees = (0, int(booster.attr("best_iteration")) + 1)

    def run(numbers: Numbers, answers: str) -> Floats:
        # A number too large for float32 is its largest: infinity is an error, of all rows beside it too.
        matrix = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float32)
        if kind == "gblinear":  # it cannot read rows in place
            data = xgboost.DMatrix(matrix, nthread=1, feature_names=booster.feature_names)
            found = booster.predict(data, output_margin=answers == "margin", validate_features=False)
        else:
            found = booster.inplace_predict(
                matrix, iteration_range=trees, predict_type=answers, validate_features=False
            )
        result: Floats = np.array(found, np.float32).reshape(len(matrix), -1)
        return result

    return run
