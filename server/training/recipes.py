"""How a task is trained: its models, and what is tuned of them when a job does not say. Pure.

The worker builds the models: the zoo's for images and texts, scikit-learn's for rows of tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from gpu_worker.model_files.backbone import HEAD
from gpu_worker.tasks import (
    IMAGE_CLASSIFICATION,
    IMAGE_MULTILABEL,
    IMAGE_REGRESSION,
    OBJECT_DETECTION,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    TEXT_MULTILABEL,
    TEXT_REGRESSION,
    Task,
    task_named,
)
from gpu_worker.tasks.metrics import METRICS, Metric, metric_named
from server.errors import BadOption
from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import StudyPolicy

__all__ = [
    "AUGMENT",
    "DEFAULT_TASK",
    "HEADS",
    "RECIPES",
    "Model",
    "Recipe",
    "TargetKind",
    "recipe_for",
    "regression_beside",
]

TargetKind = Literal["class", "labels", "number", "boxes"]

DEFAULT_TASK = IMAGE_CLASSIFICATION.name
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
AUGMENT = ("shift", "zoom", "colour", "flip")


@dataclass(frozen=True, slots=True)
class Model:
    """family: how it is built; models of one family err alike. space: makes what is tuned of it. is_costly:
    whether it takes minutes where others take seconds: it is trained where a job names it, and not to see how
    good it is. is_convex: whether it has one optimum, by whatever learning rate. refits: whether what is
    deployed of it is taught the validation rows too, unless a job says otherwise. extra: of the install, that
    it needs; it is trained where a job names it.
    """

    family: str
    space: Callable[[], HyperSpace]
    is_costly: bool = False
    is_convex: bool = False
    refits: bool = True
    extra: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether a job may take it without being told to."""
        return not (self.is_costly or self.extra)


@dataclass(frozen=True, slots=True)
class Recipe:
    """models: in the order in which they are tried; none of a task that is learnt on a backbone alone.
    defaults: those of a job while nothing is known.

    policies: the default first. suffix: of its checkpoints' files. pausable: whether trials go on from one.
    form: of the rows that its functions take. runtime: of model.json. pictures: whether its inputs are paths
    of pictures, which are looked at before they are learned. columns: whether a row is several columns of a
    table. networks: whether its models are networks, whose learning rate has a schedule. size: pixels of a
    picture's side, where a job does not say.
    """

    name: str
    form: str
    models: Mapping[str, Model]
    defaults: tuple[str, ...]
    policies: tuple[StudyPolicy, ...]
    runtime: str = "torch"
    suffix: str = ".safetensors"
    pausable: bool = True
    pictures: bool = False
    columns: bool = False
    networks: bool = True
    size: int = 64

    @property
    def metrics(self) -> tuple[str, ...]:
        """By which its models may be compared; the first unless a job says another."""
        return tuple(name for name in task_named(self.name).metrics if name in METRICS)

    def metric_of(self, job: Mapping[str, Any]) -> Metric:
        """By which a job's trials are compared. job: its spec as JSON, where an old one names none."""
        return metric_named(job.get("metric") or self.metrics[0])

    @property
    def target(self) -> TargetKind:
        """What the target column holds."""
        task = task_named(self.name)
        if task.reads == "boxes":
            return "boxes"
        if task.reads == "values":
            return "number"
        return "class" if task.picks_one else "labels"

    @property
    def has_classes(self) -> bool:
        """Whether an answer is one of a few."""
        return self.target == "class"

    @property
    def families(self) -> dict[str, str]:
        """Of each model that a job may take unasked, in the order in which they are tried."""
        return {name: model.family for name, model in self.models.items() if model.is_usual}

    @property
    def takes_own(self) -> bool:
        """Whether a job may name an architecture of one's own, as package.module:attribute."""
        return self.pictures and self.networks and self.runtime == "torch" and self.has_classes

    def takes(self, name: object) -> bool:
        """Whether a job may name that model."""
        own = self.takes_own and isinstance(name, str) and _IMPORT_PATH.fullmatch(name) is not None
        return name in self.models or own

    def model(self, name: str) -> Model:
        """The model of that name; one of one's own is like no other, and tuned as pictures' are."""
        return self.models[name] if name in self.models else Model(name, _image)

    @property
    def weights(self) -> str:
        """The file of a registered model."""
        return f"model{self.suffix}"


def recipe_for(name: str, *, on_backbone: bool = False) -> Recipe:
    """on_backbone: of heads on a frozen backbone. Raises `BadOption`."""
    if name not in RECIPES:
        raise BadOption(f"'task' must be one of {', '.join(RECIPES)}, not {name!r}")
    if not on_backbone:
        return RECIPES[name]
    if name not in HEADS:
        raise BadOption(f"models of {name} stand on no backbone; leave 'backbone' out")
    return HEADS[name]


def regression_beside(name: str) -> str | None:
    """The task that learns numbers of the same inputs, if one does."""
    form = recipe_for(name).form
    alike = (recipe for recipe in RECIPES.values() if recipe.form == form and recipe.target == "number")
    return next((recipe.name for recipe in alike), None)


def _network(low: float, high: float, default: float) -> HyperSpace:
    """What is tuned of every network; its learning rate lies in [low, high)."""
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", low, high, log=True, default=default)
    space.add_range_knob("weight_decay", "float", 1e-3, 1e-1, log=True, default=0.02)
    space.add_range_knob("label_smoothing", "float", 0.0, 0.12, default=0.05)
    space.add_categorical_knob("batch_rows", "integer", [16, 32, 64], default=32)
    return space


def _image() -> HyperSpace:
    space = _network(8e-4, 1.6e-2, 4e-3)
    for name, most, default in (("shift", 0.15, 0.08), ("zoom", 0.2, 0.1), ("colour", 0.3, 0.15)):
        space.add_range_knob(name, "float", 0.0, most, group="preprocessing", default=default)
    # A mirrored photo shows the same thing; a mirrored digit, text or sign does not.
    space.add_categorical_knob("flip", "integer", [0, 1], group="preprocessing", default=0)
    return space


def _detector() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 1e-3, 2e-2, log=True, default=6e-3)
    space.add_range_knob("weight_decay", "float", 1e-3, 1e-1, log=True, default=0.02)
    space.add_categorical_knob("batch_rows", "integer", [8, 16, 32], default=16)
    for name, most, default in (("shift", 0.25, 0.12), ("zoom", 0.35, 0.2), ("colour", 0.3, 0.15)):
        space.add_range_knob(name, "float", 0.0, most, group="preprocessing", default=default)
    space.add_categorical_knob("flip", "integer", [0, 1], group="preprocessing", default=0)
    return space


def _text() -> HyperSpace:
    space = _network(1e-3, 1.6e-2, 4e-3)
    space.add_range_knob("forget", "float", 0.0, 0.15, group="preprocessing", default=0.05)
    return space


def _n_grams() -> HyperSpace:
    # Its embeddings are seldom seen, each for itself: larger steps, and more that may be left out.
    space = _network(3e-3, 6e-2, 1.2e-2)
    space.add_range_knob("forget", "float", 0.0, 0.4, group="preprocessing", default=0.1)
    return space


def _tfidf() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("C", "float", 0.3, 100.0, log=True, default=10.0)
    return _n_gram_choices(space)


def _tfidf_numbers() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("alpha", "float", 0.01, 30.0, log=True, default=1.0)
    return _n_gram_choices(space)


def _n_gram_choices(space: HyperSpace) -> HyperSpace:
    space.add_categorical_knob("words", "integer", [1, 2], group="architecture", default=2)
    space.add_categorical_knob("characters", "integer", [0, 4, 5], group="architecture", default=0)
    return space


def _hist_gradient_boosting() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 0.02, 0.3, log=True, default=0.1)
    space.add_range_knob("max_leaf_nodes", "integer", 4, 64, log=True, default=31)
    space.add_range_knob("min_samples_leaf", "integer", 2, 64, log=True, default=20)
    space.add_range_knob("l2_regularization", "float", 1e-3, 10.0, log=True, default=1e-3)
    space.add_range_knob("max_features", "float", 0.3, 1.0, default=0.8)
    return space


def _lightgbm() -> HyperSpace:
    # The library's own defaults; but of rows and columns nine in ten, so that trials differ by their seeds.
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 0.02, 0.3, log=True, default=0.1)
    space.add_range_knob("num_leaves", "integer", 4, 64, log=True, default=31)
    space.add_range_knob("min_data_in_leaf", "integer", 2, 64, log=True, default=20)
    space.add_range_knob("lambda_l2", "float", 1e-3, 10.0, log=True, default=1e-3)
    space.add_range_knob("feature_fraction", "float", 0.3, 1.0, default=0.9)
    space.add_range_knob("bagging_fraction", "float", 0.5, 1.0, default=0.9)
    return space


def _xgboost() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 0.02, 0.5, log=True, default=0.3)
    space.add_range_knob("max_depth", "integer", 2, 10, default=6)
    space.add_range_knob("min_child_weight", "float", 0.1, 30.0, log=True, default=1.0)
    space.add_range_knob("reg_lambda", "float", 1e-2, 30.0, log=True, default=1.0)
    space.add_range_knob("subsample", "float", 0.5, 1.0, default=0.9)
    space.add_range_knob("colsample_bytree", "float", 0.3, 1.0, default=0.9)
    return space


def _gradient_boosting() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 0.03, 0.3, log=True, default=0.1)
    space.add_range_knob("max_depth", "integer", 2, 7, default=3)
    space.add_range_knob("min_samples_leaf", "integer", 1, 40, log=True, default=1)
    space.add_range_knob("subsample", "float", 0.5, 1.0, default=0.8)
    space.add_range_knob("max_features", "float", 0.3, 1.0, default=0.8)
    return space


def _random_forest_of_numbers() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("max_depth", "integer", 4, 24, default=20)
    space.add_range_knob("min_samples_leaf", "integer", 1, 20, log=True, default=1)
    space.add_range_knob("max_features", "float", 0.2, 1.0, default=0.4)
    return space


def _random_forest() -> HyperSpace:
    space = _random_forest_of_numbers()
    space.add_categorical_knob("criterion", "string", ["gini", "entropy"], default="gini")
    return space


def _ridge() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("alpha", "float", 1e-3, 1e3, log=True, default=1.0)
    return space


def _head() -> HyperSpace:
    # Features are scaled, and often more than rows: what holds down the weights must be able to hold much.
    space = HyperSpace()
    space.add_range_knob("C", "float", 1e-3, 1e2, log=True, default=0.1)
    return space


def _class_head() -> HyperSpace:
    space = _head()
    space.add_categorical_knob("class_weight", "string", ["none", "balanced"], default="none")
    return space


def _number_head() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("alpha", "float", 1e-1, 1e5, log=True, default=1e2)
    return space


def _logistic_regression() -> HyperSpace:
    space = HyperSpace()
    space.add_range_knob("C", "float", 1e-3, 1e2, log=True, default=1.0)
    space.add_categorical_knob("class_weight", "string", ["none", "balanced"], default="none")
    return space


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        task.name: task
        for task in (
            Recipe(
                IMAGE_CLASSIFICATION.name,
                "path",
                {
                    "small_cnn": Model("plain", _image),
                    "squeezenet": Model("branched", _image),
                    "resnet": Model("residual", _image),
                    "vgg": Model("plain", _image),
                    "xception": Model("residual", _image),
                    "inception": Model("branched", _image),
                },
                ("small_cnn", "squeezenet", "resnet"),
                ("asha", "branch", "costudy", "study"),
                pictures=True,
            ),
            Recipe(
                OBJECT_DETECTION.name,
                "path",
                {"grid_detector": Model("one-stage", _detector, refits=False)},
                ("grid_detector",),
                ("asha", "branch", "costudy", "study"),
                pictures=True,
                size=128,
            ),
            Recipe(
                TEXT_CLASSIFICATION.name,
                "text",
                {
                    "tfidf_linear": Model("linear", _tfidf, is_convex=True),
                    "fasttext": Model("bag of n-grams", _n_grams),
                    "temporal_cnn": Model("convolutional", _text, is_costly=True),
                    "character_rnn": Model("recurrent", _text, is_costly=True),
                },
                ("tfidf_linear", "fasttext"),
                ("study", "asha", "branch", "costudy"),
            ),
            Recipe(
                TABULAR_CLASSIFICATION.name,
                "row",
                {
                    "logistic_regression": Model("linear", _logistic_regression),
                    "hist_gradient_boosting": Model("boosted trees", _hist_gradient_boosting),
                    "random_forest": Model("bagged trees", _random_forest),
                    "gradient_boosting": Model("boosted trees", _gradient_boosting),
                    "lightgbm": Model("boosted trees", _lightgbm, extra="lightgbm"),
                    "xgboost": Model("boosted trees", _xgboost, extra="xgboost"),
                },
                ("logistic_regression", "hist_gradient_boosting", "random_forest"),
                ("study",),  # trees share no weights with other trees
                "onnx",
                ".onnx",
                pausable=False,
                columns=True,
                networks=False,
            ),
            Recipe(
                TABULAR_REGRESSION.name,
                "row",
                {
                    "ridge": Model("linear", _ridge),
                    "hist_gradient_boosting": Model("boosted trees", _hist_gradient_boosting),
                    "random_forest": Model("bagged trees", _random_forest_of_numbers),
                    "gradient_boosting": Model("boosted trees", _gradient_boosting),
                    "lightgbm": Model("boosted trees", _lightgbm, extra="lightgbm"),
                    "xgboost": Model("boosted trees", _xgboost, extra="xgboost"),
                },
                ("ridge", "hist_gradient_boosting", "random_forest"),
                ("study",),
                "onnx",
                ".onnx",
                pausable=False,
                columns=True,
                networks=False,
            ),
            # What sees pictures as numbers is not learnt of numbers: these need a backbone.
            Recipe(IMAGE_REGRESSION.name, "path", {}, (), ("study",), pictures=True),
            Recipe(IMAGE_MULTILABEL.name, "path", {}, (), ("study",), pictures=True),
            Recipe(
                TEXT_REGRESSION.name,
                "text",
                {"tfidf_linear": Model("linear", _tfidf_numbers, is_convex=True)},
                ("tfidf_linear",),
                ("study",),
            ),
            Recipe(
                TEXT_MULTILABEL.name,
                "text",
                {"tfidf_linear": Model("linear", _tfidf, is_convex=True)},
                ("tfidf_linear",),
                ("study",),
            ),
        )
    }
)


def _heads(task: Task, form: str, models: Mapping[str, Model]) -> Recipe:
    return Recipe(
        task.name,
        form,
        models,
        (next(iter(models)),),
        ("study",),
        HEAD,
        ".onnx",
        pausable=False,
        pictures=form == "path",
        networks=False,
    )


_CLASS_HEADS = {
    "logistic_regression": Model("linear", _class_head, is_convex=True),
    "hist_gradient_boosting": Model("boosted trees", _hist_gradient_boosting, is_costly=True),
}
_LABEL_HEADS = {"logistic_regression": Model("linear", _head, is_convex=True)}
_NUMBER_HEADS = {
    "ridge": Model("linear", _number_head, is_convex=True),
    "hist_gradient_boosting": Model("boosted trees", _hist_gradient_boosting, is_costly=True),
}
HEADS: Mapping[str, Recipe] = MappingProxyType(
    {
        task.name: _heads(task, form, models)
        for task, form, models in (
            (IMAGE_CLASSIFICATION, "path", _CLASS_HEADS),
            (IMAGE_MULTILABEL, "path", _LABEL_HEADS),
            (IMAGE_REGRESSION, "path", _NUMBER_HEADS),
            (TEXT_CLASSIFICATION, "text", _CLASS_HEADS),
            (TEXT_MULTILABEL, "text", _LABEL_HEADS),
            (TEXT_REGRESSION, "text", _NUMBER_HEADS),
        )
    }
)
"""How heads on a frozen backbone are learnt, by task; the first of the models is the default."""
