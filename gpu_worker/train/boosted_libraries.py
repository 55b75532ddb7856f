"""Trees of LightGBM and of XGBoost as estimators: some iterations an epoch, and what they are as ONNX.

The libraries are extras of the install, and imported when a job names one of them. Columns are numbers
already (`networks.table`), and none is missing; what is deployed is ONNX, which needs neither library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpu_worker.networks.extras import required
from gpu_worker.networks.network import Floats, sigmoid, softmax
from gpu_worker.train.boosted_onnx import Forest, Link, Tree, float32_below

__all__ = ["BoostedClassifier", "BoostedRegressor", "LightGbm", "XgBoost"]

Margins: TypeAlias = NDArray[np.float64]  # [n, outputs]: sums of trees, before they are probabilities
Knobs: TypeAlias = Mapping[str, Any]
Weights: TypeAlias = "NDArray[np.float64] | None"


class _Library(Protocol):
    """One model of a library, that grows."""

    def begin(self, numbers: Floats, targets: NDArray[Any], weights: Weights, classes: int) -> None:
        """No trees yet. classes: 0 where a number is told."""
        ...

    def grow(self) -> bool:
        """An iteration more; whether another would change nothing."""
        ...

    def margins(self, numbers: Floats, iterations: int) -> Margins:
        """Of the first `iterations`, at least one."""
        ...

    def forest(self, iterations: int) -> Forest:
        """The same as arrays."""
        ...


class _Boosted:
    def __init__(self, library: _Library) -> None:
        self._library = library
        self._begun = False
        self.iterations = 0  # a copy keeps its own, and shares the trees
        self.has_converged = False

    def grow(
        self,
        until: int,
        numbers: Floats,
        targets: NDArray[Any],
        weights: Weights,
        check: Callable[[], None],
    ) -> None:
        """Goes on until it has that many iterations, or needs no more. check: called before each."""
        if not self._begun:
            check()
            self._library.begin(numbers, targets, weights, self._classes(targets))
            self._begun = True
        while self.iterations < until and not self.has_converged:
            check()
            self.has_converged = self._library.grow()
            self.iterations += 1

    def forest(self) -> Forest:
        """Its trees."""
        return self._library.forest(self.iterations)

    def _classes(self, targets: NDArray[Any]) -> int:
        raise NotImplementedError

    def _margins(self, numbers: Floats) -> Margins:
        return self._library.margins(numbers, self.iterations)


class BoostedRegressor(_Boosted):
    """Tells a number."""

    def predict(self, numbers: Floats) -> NDArray[np.float64]:
        """float32 [n, width] → [n]."""
        return self._margins(numbers)[:, 0]

    def _classes(self, targets: NDArray[Any]) -> int:
        return 0


class BoostedClassifier(_Boosted):
    """Tells one class of several."""

    def predict_proba(self, numbers: Floats) -> NDArray[np.float64]:
        """float32 [n, width] → [n, classes]."""
        sums = self._margins(numbers).astype(np.float32)
        if sums.shape[1] > 1:
            return np.asarray(softmax(sums), np.float64)
        second = np.asarray(sigmoid(sums), np.float64)
        return np.concatenate((1 - second, second), axis=1)

    def _classes(self, targets: NDArray[Any]) -> int:
        return max(2, int(targets.max()) + 1)


def _own(knobs: Knobs, known: frozenset[str]) -> dict[str, Any]:
    """Raises `TypeError` for knobs that the library does not have: both take any, and say nothing."""
    unknown = sorted(set(knobs) - known)
    if unknown:
        raise TypeError(f"it has no knob {unknown[0]!r} here; it has {', '.join(sorted(known))}")
    return dict(knobs)


class LightGbm:
    """See `_Library`. knobs: LightGBM's own names. Raises `TypeError` for others, `ModelUnusable` where it
    is not installed.
    """

    # https://lightgbm.readthedocs.io/en/stable/Parameters.html
    KNOBS = frozenset(
        (
            *("learning_rate", "num_leaves", "max_depth", "min_data_in_leaf", "min_sum_hessian_in_leaf"),
            *("lambda_l1", "lambda_l2", "min_gain_to_split", "max_bin", "path_smooth", "extra_trees"),
            *("feature_fraction", "feature_fraction_bynode", "bagging_fraction"),
        )
    )

    def __init__(self, seed: int, knobs: Knobs) -> None:
        own = _own(knobs, self.KNOBS)
        self._lightgbm = required("lightgbm", "lightgbm")
        self._params: dict[str, Any] = {
            "seed": seed,
            "num_threads": 1,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
            "bagging_freq": 1 if own.get("bagging_fraction", 1.0) < 1 else 0,
            **own,
        }
        self._booster: Any = None

    def begin(self, numbers: Floats, targets: NDArray[Any], weights: Weights, classes: int) -> None:
        """See `_Library.begin`."""
        objective = "multiclass" if classes > 2 else "binary" if classes else "regression"
        told = self._params | {"objective": objective} | ({"num_class": classes} if classes > 2 else {})
        data = self._lightgbm.Dataset(numbers, targets, weight=weights, params=told)
        self._booster = self._lightgbm.Booster(told, data)

    def grow(self) -> bool:
        """See `_Library.grow`."""
        return bool(self._booster.update())

    def margins(self, numbers: Floats, iterations: int) -> Margins:
        """See `_Library.margins`."""
        found = self._booster.predict(
            np.ascontiguousarray(numbers), num_iteration=iterations, raw_score=True, num_threads=1
        )
        return np.asarray(found, np.float64).reshape(len(numbers), -1)

    def forest(self, iterations: int) -> Forest:
        """See `_Library.forest`."""
        outputs = int(self._booster.num_model_per_iteration())
        text = self._booster.model_to_string(num_iteration=iterations)
        blocks = text.partition("\nend of trees")[0].split("\nTree=")[1:]
        trees = [_lightgbm_tree(block, place % outputs) for place, block in enumerate(blocks)]
        objective = self._objective_of(text)
        link: Link = "softmax" if outputs > 1 else "sigmoid" if objective == "binary" else "identity"
        return Forest(tuple(trees), np.zeros(outputs), link)

    @staticmethod
    def _objective_of(text: str) -> str:
        found = text.partition("\nobjective=")[2].partition("\n")[0]
        return found.partition(" ")[0]


def _lightgbm_tree(block: str, output: int) -> Tree:
    """A tree as LightGBM writes it: inner nodes from 0 on, leaf k as the child −1 − k."""
    pairs = (line.partition("=") for line in block.splitlines()[1:])
    said = {name: value.split() for name, _, value in pairs}
    leaves = np.array(said["leaf_value"], np.float64)
    inner = len(leaves) - 1
    if not inner:
        return Tree.of_one_leaf(float(leaves[0]), output)

    def children(side: str) -> NDArray[np.int64]:
        given = np.array(said[side], np.int64)
        found: NDArray[np.int64] = np.where(given >= 0, given, inner + ~given)
        return found

    pad = np.zeros(len(leaves), np.int64)
    return Tree(
        features=np.concatenate((np.array(said["split_feature"], np.int64), pad)),
        # float32 thresholds, rounded down, divide float32 numbers as the given ones do.
        thresholds=np.concatenate((float32_below(np.array(said["threshold"], np.float64)), pad)),
        left=np.concatenate((children("left_child"), pad)),
        right=np.concatenate((children("right_child"), pad)),
        missing_left=np.concatenate((np.array(said["decision_type"], np.int64) >> 1 & 1, pad)),
        is_leaf=np.arange(inner + len(leaves)) >= inner,
        values=np.concatenate((np.zeros(inner), leaves)),
        output=output,
    )


class XgBoost:
    """See `_Library`. knobs: XGBoost's own names. Raises `TypeError` for others, `ModelUnusable` where it is
    not installed.
    """

    # https://xgboost.readthedocs.io/en/stable/parameter.html
    KNOBS = frozenset(
        (
            *("learning_rate", "max_depth", "max_leaves", "max_bin", "min_child_weight", "gamma"),
            *("reg_alpha", "reg_lambda", "max_delta_step", "grow_policy"),
            *("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode"),
        )
    )

    def __init__(self, seed: int, knobs: Knobs) -> None:
        own = _own(knobs, self.KNOBS)
        self._xgboost = required("xgboost", "xgboost")
        self._params: dict[str, Any] = {
            "seed": seed,
            "nthread": 1,
            "device": "cpu",
            "tree_method": "hist",
            "verbosity": 0,
            **own,
        }
        self._booster: Any = None
        self._data: Any = None
        self._outputs = 1
        self._base = np.zeros(1)
        self._link: Link = "identity"
        self._grown = 0

    def begin(self, numbers: Floats, targets: NDArray[Any], weights: Weights, classes: int) -> None:
        """See `_Library.begin`."""
        told = dict(self._params)
        if classes > 2:
            told |= {"objective": "multi:softprob", "num_class": classes, "base_score": 0.5}
            self._outputs, self._link = classes, "softmax"
            self._base = np.full(classes, 0.5)
        elif classes:
            told |= {"objective": "binary:logistic", "base_score": 0.5}  # of a sum of 0
            self._link = "sigmoid"
        else:
            mean = float(np.float32(np.average(targets, weights=weights)))
            told |= {"objective": "reg:squarederror", "base_score": mean}
            self._base = np.array([mean])
        self._data = self._xgboost.QuantileDMatrix(
            numbers, targets, weight=weights, nthread=1, max_bin=int(told.get("max_bin", 256))
        )
        self._booster = self._xgboost.Booster(told, [self._data])

    def grow(self) -> bool:
        """See `_Library.grow`: it does not say that it has no more to add."""
        self._booster.update(self._data, self._grown)
        self._grown += 1
        return False

    def margins(self, numbers: Floats, iterations: int) -> Margins:
        """See `_Library.margins`."""
        found = self._booster.inplace_predict(
            np.ascontiguousarray(numbers), iteration_range=(0, iterations), predict_type="margin"
        )
        return np.asarray(found, np.float64).reshape(len(numbers), -1)

    def forest(self, iterations: int) -> Forest:
        """See `_Library.forest`."""
        kept = self._booster[:iterations]
        model = json.loads(kept.save_raw("json"))["learner"]["gradient_booster"]["model"]
        trees = zip(model["trees"], model["tree_info"], strict=True)
        return Forest(
            tuple(_xgboost_tree(tree, output) for tree, output in trees),
            self._base,
            self._link,
            split="BRANCH_LT",
        )


def _xgboost_tree(tree: Mapping[str, Any], output: int) -> Tree:
    """A tree as XGBoost writes it: a leaf has no children, and its value stands where a threshold would."""
    left = np.array(tree["left_children"], np.int64)
    is_leaf = left < 0
    conditions = np.array(tree["split_conditions"], np.float64)
    return Tree(
        features=np.where(is_leaf, 0, np.array(tree["split_indices"], np.int64)),
        thresholds=np.where(is_leaf, 0.0, conditions),
        left=np.where(is_leaf, 0, left),
        right=np.where(is_leaf, 0, np.array(tree["right_children"], np.int64)),
        missing_left=np.where(is_leaf, 0, np.array(tree["default_left"], np.int64)),
        is_leaf=is_leaf,
        values=np.where(is_leaf, conditions, 0.0),
        output=output,
    )
