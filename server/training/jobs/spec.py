"""A training job: the models that are tuned over one snapshot, and the study of each. Pure.

JobSpec ─ studies ─→ {architecture: StudySpec}     knobs ─ train_spec ─→ fields of a worker's TrainSpec
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from gpu_worker.model_files.backbone import HEAD, backbone_from
from server.errors import BadOption
from server.training.datasets.leakage import Origin
from server.training.jobs.budget import DEFAULT, Budget, budget_of
from server.training.jobs.saturation import stalled_after
from server.training.recipes import AUGMENT, DEFAULT_TASK, Recipe, recipe_for
from server.training.studies.hooks import KnobValue
from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import NO_LIMIT, Advice, Assignment, StudyPolicy, StudySpec

__all__ = ["JobSpec"]

Visibility = Literal["private", "public"]
ClassWeight = Literal["none", "balanced"]

_STALE = 2  # times as many trials that bettered nothing as such that bettered it by chance at most
_COOL_EPOCHS = 5


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job was asked for; its budget is shared by its models evenly. Raises `BadOption`.

    models, policy: empty and None = the task's own; a model of pictures may be the import path of one's own
    architecture. budget_s, budget_epochs, budget_trials: one of them is
    the budget, the others are 0; all 0 = `budget.DEFAULT`. max_trials: of each model. delta: the gain that
    is worth a checkpoint (`costudy`). patience: epochs without a gain that end a trial. knobs: a hyper-space
    as `HyperSpace.as_json` writes it; None = each model's own. size: pixels of a side, of images;
    0 = the task's own.
    metric: by which trials are compared; None = the task's first. class_weight: `balanced` = rare classes
    weigh as much as frequent ones. refit: whether what is deployed is taught the validation rows as well,
    once they have chosen it; None = where that is quick. visibility: whether later jobs on other datasets may
    begin from what this one finds. pretrained: for some of the models the checkpoint, of another job, from
    which those trials begin that would begin from random weights. first: for some of the models, the knobs
    that a study begins with. backbone: the model whose features heads are learnt on, as `Backbone.to_json`
    has it; None = models are learnt whole. retrains: the function that the job was begun for, by itself.
    """

    dataset: str
    task: str = DEFAULT_TASK
    models: tuple[str, ...] = ()
    budget_epochs: int = 0
    budget_s: float = 0.0
    budget_trials: int = 0
    policy: StudyPolicy | None = None
    advisor: Advice = "random"
    max_epochs: int = 27
    max_trials: int | None = None
    delta: float = 0.0
    patience: int = 5
    seed: int = 0
    size: int = 0
    knobs: tuple[Mapping[str, Any], ...] | None = None
    metric: str | None = None
    class_weight: ClassWeight = "none"
    refit: bool | None = None
    visibility: Visibility = "private"
    pretrained: Mapping[str, Origin] | None = None
    first: Mapping[str, Mapping[str, KnobValue]] | None = None
    backbone: Mapping[str, Any] | None = None
    retrains: str = ""

    def __post_init__(self) -> None:
        if self.backbone is not None:
            try:
                backbone_from({"runtime": HEAD, "backbone": self.backbone})
            except ValueError as exc:
                raise BadOption(str(exc)) from exc
        task = self.recipe
        if not task.models:
            raise BadOption(
                f"{self.task} is learnt by a head on the features of another model: say backbone => 'NAME', "
                f"a registered embedding model of {task.form}s"
            )
        object.__setattr__(self, "models", self.models or task.defaults)
        object.__setattr__(self, "policy", self.policy or task.policies[0])
        object.__setattr__(self, "metric", self.metric or task.metrics[0])
        object.__setattr__(self, "size", self.size or task.size)
        if self.metric not in task.metrics:
            raise BadOption(
                f"'metric' must be one of {', '.join(task.metrics)} ({self.task}), not {self.metric!r}"
            )
        if self.class_weight == "balanced" and not task.has_classes:
            raise BadOption(f"{self.task} has no classes to balance; leave 'class_weight' out")
        unknown = [name for name in self.models if not task.takes(name)]
        if unknown or len(set(self.models)) != len(self.models):
            there = ", ".join(task.models) + (", package.module:attribute" if task.takes_own else "")
            given = ", ".join(map(str, self.models))
            raise BadOption(f"'models' must name some of {there} ({self.task}), each once, not {given}")
        if not (self.budget_epochs or self.budget_s or self.budget_trials):
            object.__setattr__(self, "budget_s", DEFAULT.seconds)
        if self.policy in get_args(StudyPolicy) and self.policy not in task.policies:
            raise BadOption(
                f"'policy' of {self.task} must be {', '.join(task.policies)}, not {self.policy!r}: "
                "its models share no weights"
            )
        for what, value, known in (
            ("policy", self.policy, get_args(StudyPolicy)),
            ("advisor", self.advisor, get_args(Advice)),
            ("visibility", self.visibility, get_args(Visibility)),
            ("class_weight", self.class_weight, get_args(ClassWeight)),
        ):
            if value not in known:
                raise BadOption(f"{what!r} must be one of {', '.join(known)}, not {value!r}")
        if self.refit not in (None, True, False):
            raise BadOption(f"'refit' must be true or false, not {self.refit!r}")
        for unit in ("epochs", "trials"):
            given = getattr(self, f"budget_{unit}")
            if given in range(1, len(self.models)):
                each = ", ".join(self.models)
                raise BadOption(
                    f"a budget of {given} {unit} is too small for {len(self.models)} models ({each}): "
                    f"give at least one to each, or name fewer in 'models'"
                )
        for name, low, high in (
            ("budget_epochs", 0, 10**9),
            ("budget_trials", 0, 10**9),
            *([] if self.max_trials is None else [("max_trials", 1, 10**9)]),
            ("max_epochs", 1, 10_000),
            ("patience", 1, 10_000),
            ("seed", 0, 2**31 - 1),
            ("size", 16, 512),
        ):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
                raise BadOption(f"{name!r} must be a whole number from {low} to {high}, not {given!r}")
        self.studies(0, "")

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> JobSpec:
        """The spec of a JSON object; `budget` as `budget_of` takes it. Raises `BadOption`."""
        given = {name: value for name, value in form.items() if value is not None}
        if "budget" in given:
            asked = budget_of(given.pop("budget"))
            given |= {
                "budget_s": asked.seconds,
                "budget_epochs": asked.epochs,
                "budget_trials": asked.trials,
            }
        known = {item.name for item in fields(cls)}
        unknown = sorted(given.keys() - known)
        if unknown:
            there = ", ".join(sorted([*known, "budget"]))
            raise BadOption(f"a job has no field {unknown[0]!r}; there are {there}")
        if not isinstance(given.get("dataset"), str):
            raise BadOption("a job needs a 'dataset'")
        for name in ("models", "knobs"):
            if name in given:
                if not isinstance(given[name], list | tuple):
                    raise BadOption(_no_list(name, given[name], str(given.get("task", DEFAULT_TASK))))
                if name == "models" and not all(isinstance(model, str) for model in given[name]):
                    raise BadOption(_no_list(name, given[name], str(given.get("task", DEFAULT_TASK))))
                given[name] = tuple(given[name])
        begins = given.get("first", {})
        if not isinstance(begins, dict) or not all(isinstance(knobs, dict) for knobs in begins.values()):
            raise BadOption(f"'first' must name knobs for models, {{\"resnet\": {{…}}}}, not {begins!r:.100}")
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        form = asdict(self)
        return form | {"models": list(self.models), "knobs": None if self.knobs is None else list(self.knobs)}

    def studies(self, job: int, snapshot: str, lease_s: float = 60.0) -> dict[str, StudySpec]:
        """The study of each model. Raises `BadOption`."""
        epochs, trials = _shares(self.budget_epochs, self.models), _shares(self.budget_trials, self.models)
        seconds = self.budget_s / len(self.models) or None
        try:
            return {
                model: StudySpec(
                    name=f"job {job} {model}",
                    space=self.space(model),
                    policy=self.policy or self.recipe.policies[0],
                    advisor=self.advisor,
                    budget_epochs=epochs[model] or NO_LIMIT,
                    budget_s=seconds,
                    # Who asks for epochs or trials gets them all; minutes are the most that may be used.
                    stale_trials=_STALE * stalled_after(self.budget) if seconds else 0,
                    max_epochs=self.max_epochs,
                    cool_epochs=self._cool_epochs(model),
                    max_trials=min(filter(None, (trials[model], self.max_trials)), default=None),
                    delta=self.delta,
                    patience=self.patience,
                    seed=self.seed,
                    snapshot=snapshot,
                    lease_s=lease_s,
                    metric=self.metric or self.recipe.metrics[0],
                )
                for model in self.models
            }
        except (TypeError, ValueError, OverflowError) as exc:
            raise BadOption(str(exc)) from exc

    @property
    def recipe(self) -> Recipe:
        """How its models are trained. Raises `BadOption`."""
        return recipe_for(self.task, on_backbone=self.backbone is not None)

    @property
    def budget(self) -> Budget:
        """What the job may use in all."""
        return Budget(self.budget_s, self.budget_epochs, self.budget_trials)

    def _cool_epochs(self, model: str) -> int:
        """Trees and regressions have no learning rate that falls; trees cannot be paused for it either."""
        recipe = self.recipe
        cools = recipe.pausable and not recipe.model(model).is_convex
        return min(_COOL_EPOCHS, self.max_epochs // 3) if cools else 0

    def space(self, model: str) -> HyperSpace:
        """What is tuned of a model. Raises `ValueError`, `TypeError` for knobs that are none."""
        space = self.recipe.model(model).space() if self.knobs is None else HyperSpace.from_json(self.knobs)
        begins = (self.first or {}).get(model)
        return space if begins is None else _beginning_with(begins, space)

    def train_spec(self, model: str, assignment: Assignment) -> dict[str, Any]:
        """What the worker is sent of a trial.

        The learning rate is constant, so that trials can be paused and compared, until it falls to zero
        (`StudySpec.cool_epochs`).
        """
        knobs: dict[str, KnobValue] = dict(assignment.knobs)
        spec: dict[str, Any] = {
            "architecture": model,
            "epochs": assignment.start_epoch + assignment.epochs,
            "seed": assignment.seed,
        }
        recipe = self.recipe
        if not recipe.networks:
            return knobs | spec | ({} if self.backbone is None else {"backbone": dict(self.backbone)})
        spec["schedule"] = "constant"
        if assignment.cool_from is not None:
            spec |= {"schedule": "cool_down", "cool_from": assignment.cool_from}
        options = {
            knob.name: knobs.pop(knob.name)
            for knob in self.space(model).knobs()
            if knob.group == "architecture" and knob.name in knobs
        }
        if options:
            spec["architecture_options"] = options
        if recipe.pictures:
            spec["size"] = self.size
            augment = {name: knobs.pop(name) for name in AUGMENT if name in knobs}
            # Knobs of one's own that do not name it leave pictures as they are: text and digits have sides.
            spec["augment"] = {"flip": 0} | augment
        return knobs | spec


def _beginning_with(knobs: Mapping[str, KnobValue], space: HyperSpace) -> HyperSpace:
    """The same space, whose first trial has these knobs where it may."""
    told = space.as_json()
    for knob in told:
        if knob["name"] in knobs:
            changed = knob | {"default": knobs[knob["name"]]}
            with contextlib.suppress(ValueError, TypeError):  # it lies in this range no more
                HyperSpace.from_json([{name: value for name, value in changed.items() if name != "depends"}])
                knob["default"] = changed["default"]
    return HyperSpace.from_json(told)


def _shares(amount: int, models: Sequence[str]) -> dict[str, int]:
    """Of each model; the first ones get what is left over."""
    share, rest = divmod(amount, len(models))
    return {model: share + int(place < rest) for place, model in enumerate(models)}


def _no_list(name: str, given: object, task: str) -> str:
    if name == "models":
        return f"'models' must be a list of some of {', '.join(recipe_for(task).models)}, not {given!r}"
    return f"{name!r} must be a list, not {given!r}"
