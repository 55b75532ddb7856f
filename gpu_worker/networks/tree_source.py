"""Files of XGBoost and LightGBM as people have them → the manifest that serves them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.networks.boosted_trees import TreeModel
from gpu_worker.networks.network import Floats
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.table import values_of

__all__ = ["recognise_lightgbm", "recognise_xgboost"]

_SHOWN_BYTES = 64
_SAMPLES = 32
_BOUND = 1e-5


def recognise_xgboost(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """What `save_model` wrote as .json or .ubj. Raises `ModelUnusable` where it cannot be served."""
    if path.suffix.lower() not in (".json", ".ubj") or b"learner" not in _begin(path):
        return None
    from gpu_worker.networks.xgboost_network import read_xgboost

    def by_library(frame: Any) -> Any:  # noqa: ANN401  # pandas' and XGBoost's own
        import xgboost

        booster = xgboost.Booster(model_file=str(path))
        if booster.attr("scikit_learn") is None:
            data = xgboost.DMatrix(frame, enable_categorical=True)
            return booster.predict(data, output_margin=model.objective == "multi:softmax")
        estimator = xgboost.XGBRegressor() if model.kind == "regression" else xgboost.XGBClassifier()
        estimator.load_model(str(path))
        return estimator.predict(frame) if model.kind == "regression" else estimator.predict_proba(frame)

    model = read_xgboost(str(path.resolve()))
    return _recognised(path, model, "xgboost", wishes, by_library)


def recognise_lightgbm(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """What `save_model` wrote, a text. Raises `ModelUnusable` where it cannot be served."""
    if path.is_dir() or not _begin(path).startswith(b"tree\nversion="):
        return None
    from gpu_worker.networks.lightgbm_network import read_lightgbm

    def by_library(frame: Any) -> Any:  # noqa: ANN401  # pandas' and LightGBM's own
        import lightgbm

        return lightgbm.Booster(model_file=str(path)).predict(frame)

    model = read_lightgbm(str(path.resolve()))
    return _recognised(path, model, "lightgbm", wishes, by_library)


def _recognised(
    path: Path,
    model: TreeModel,
    runtime: str,
    wishes: Mapping[str, Any],
    by_library: Callable[[Any], Any],
) -> Recognised:
    columns = model.columns.columns
    guesses = []
    classes: Sequence[str] = ()
    if model.kind != "regression":
        named = wishes.get("classes")
        if not named:
            guesses.append(f"the file does not name its classes: they are called 0 to {model.outputs - 1}")
        classes = list(map(str, named or range(model.outputs)))
    manifest = {
        "runtime": runtime,
        "architecture": model.objective,
        "task": f"tabular-{model.kind}",
        "classes": classes,
        "input": {
            "form": "row",
            "columns": [{"name": column.name, "kind": column.kind} for column in columns],
        },
    }
    return Recognised(
        manifest,
        {f"trees{path.suffix.lower()}": (path, "weights")},
        guesses,
        _reference(model, by_library),
        _BOUND,
        _samples(model),
    )


def _reference(
    model: TreeModel, by_library: Callable[[Any], Any]
) -> Callable[[Sequence[bytes]], Floats] | None:
    """The library's own answers to a frame of the rows, where pandas is there to make one."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        return None
    columns = model.columns.columns

    def reference(rows: Sequence[bytes]) -> Floats:
        values = [values_of(row, columns, booleans_count=True) for row in rows]
        frame = pd.DataFrame(
            {
                column.name: pd.Categorical(of_column, categories=list(column.categories))
                if column.categories
                else np.array([np.nan if value is None else value for value in of_column], np.float64)
                for column, of_column in zip(columns, zip(*values, strict=True), strict=True)
            }
        )
        found = np.asarray(by_library(frame), np.float32).reshape(len(rows), -1)
        if model.kind == "classification" and found.shape[1] == 1:
            return np.concatenate((1 - found, found), axis=1)
        return found

    return reference


def _samples(model: TreeModel) -> list[bytes]:
    """Rows of any size of number, of all categories, and with values that are missing."""
    draw = random.Random(0)

    def value(categories: Sequence[Any], kind: str) -> object:
        if draw.random() < 0.1:
            return None
        if categories:
            return draw.choice(categories)
        return draw.random() < 0.5 if kind == "boolean" else draw.gauss(0, 10 ** draw.randint(0, 3))

    columns = model.columns.columns
    return [
        json.dumps([value(column.categories, column.kind) for column in columns]).encode()
        for _ in range(_SAMPLES)
    ]


def _begin(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_SHOWN_BYTES)
    except OSError:
        return b""
