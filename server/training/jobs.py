"""A training job: the models that are tuned over one snapshot, and the study of each. Pure.

JobSpec ─ studies ─→ {architecture: StudySpec}     knobs ─ train_spec ─→ fields of a worker's TrainSpec
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from server.errors import BadOption
from server.training.hooks import Value
from server.training.hyperspace import HyperSpace
from server.training.messages import Advice, Assignment, Policy, StudySpec

__all__ = ["ARCHITECTURES", "SIZE", "JobSpec", "default_space"]

# Image classification, as Rafiki names them (§4.1); the worker's zoo builds them.
ARCHITECTURES = ("squeezenet", "resnet", "vgg", "xception", "inception")
_DEFAULT_MODELS = ("squeezenet", "resnet", "vgg")
SIZE = 64
_AUGMENT = ("shift", "zoom", "colour")
_BUDGET = re.compile(r"\s*(\d{1,9})\s*(epochs?)?\s*")


def default_space() -> HyperSpace:
    """What is tuned of an image classifier when a job does not say."""
    space = HyperSpace()
    space.add_range_knob("learning_rate", "float", 8e-4, 1.6e-2, log=True, branching="lower")
    space.add_range_knob("weight_decay", "float", 1e-3, 1e-1, log=True)
    space.add_range_knob("label_smoothing", "float", 0.0, 0.12)
    space.add_categorical_knob("batch_rows", "integer", [16, 32, 64])
    for name, most in zip(_AUGMENT, (0.15, 0.2, 0.3), strict=True):
        space.add_range_knob(name, "float", 0.0, most, group="preprocessing")
    return space


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job was asked for; the budget of epochs is shared by its models evenly. Raises `BadOption`.

    knobs: a hyper-space as `HyperSpace.as_json` writes it; None = `default_space`. size: pixels of a side.
    """

    dataset: str
    models: tuple[str, ...] = _DEFAULT_MODELS
    budget_epochs: int = 90
    policy: Policy = "branch"
    advisor: Advice = "random"
    max_epochs: int = 27
    max_trials: int | None = None
    delta: float = 0.0
    patience: int = 5
    seed: int = 0
    size: int = SIZE
    knobs: tuple[Mapping[str, Any], ...] | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.models if name not in ARCHITECTURES]
        if unknown or not self.models or len(set(self.models)) != len(self.models):
            raise BadOption(f"'models' must name some of {', '.join(ARCHITECTURES)}, each once")
        for what, value, known in (
            ("policy", self.policy, get_args(Policy)),
            ("advisor", self.advisor, get_args(Advice)),
        ):
            if value not in known:
                raise BadOption(f"{what!r} must be one of {', '.join(known)}, not {value!r}")
        for name, low, high in (
            ("budget_epochs", len(self.models), 10**9),
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
        """The spec of a JSON object; `budget` may say "300 epochs". Raises `BadOption`."""
        given = {name: value for name, value in form.items() if value is not None}
        if "budget" in given:
            found = _BUDGET.fullmatch(str(given.pop("budget")))
            if found is None:
                raise BadOption("'budget' must be a number of epochs, such as '300 epochs'")
            given["budget_epochs"] = int(found[1])
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
                    raise BadOption(f"{name!r} must be a list")
                given[name] = tuple(given[name])
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        form = asdict(self)
        return form | {"models": list(self.models), "knobs": None if self.knobs is None else list(self.knobs)}

    def studies(self, job: int, snapshot: str) -> dict[str, StudySpec]:
        """The study of each model. Raises `BadOption`."""
        share, rest = divmod(self.budget_epochs, len(self.models))
        try:
            space = default_space() if self.knobs is None else HyperSpace.from_json(self.knobs)
            return {
                model: StudySpec(
                    name=f"job {job} {model}",
                    space=space,
                    policy=self.policy,
                    advisor=self.advisor,
                    budget_epochs=share + int(place < rest),
                    max_epochs=self.max_epochs,
                    max_trials=self.max_trials,
                    delta=self.delta,
                    patience=self.patience,
                    seed=self.seed,
                    snapshot=snapshot,
                )
                for place, model in enumerate(self.models)
            }
        except (TypeError, ValueError) as exc:
            raise BadOption(str(exc)) from exc

    def train_spec(self, model: str, assignment: Assignment) -> dict[str, Any]:
        """What the worker is told of a trial.

        The learning rate of `branch` is constant, since its trials are paused and go on; the others' rises
        and falls over the epochs of the trial.
        """
        knobs: dict[str, Value] = dict(assignment.knobs)
        augment = {name: knobs.pop(name) for name in _AUGMENT if name in knobs}
        return {
            **knobs,
            "architecture": model,
            "epochs": assignment.start_epoch + assignment.epochs,
            "schedule": "constant" if self.policy == "branch" else "one_cycle",
            "seed": assignment.seed,
            "size": self.size,
            "augment": augment,
        }
