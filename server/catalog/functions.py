"""The nouns that are served: a model version, and a function made of such members.

Immutable and plain; knows no database, no wire, no worker. A bare model is a function with one member.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from gpu_worker.model_files.backbone import Backbone
from gpu_worker.model_files.file_list import ModelFile
from gpu_worker.model_files.parity_spec import ParitySpec
from gpu_worker.model_files.preprocess import PLAIN, Preprocess
from gpu_worker.tasks import ColumnSpec, Task, task_named
from gpu_worker.tasks.thresholds import thresholds_of
from server.catalog.late_rows import LateRows
from server.catalog.pipeline import Pipeline
from server.catalog.wants import Wants
from server.ensemble.actor import ActorNetwork
from server.ensemble.answer import AnswerRule
from server.ensemble.error_weights import error_weights
from server.ensemble.evidence import EvidenceStates
from server.ensemble.feedback import Feedback, adapted
from server.ensemble.fit import Fit
from server.ensemble.guard import left_out
from server.ensemble.policies.proxied import ProxyPlace, proxy_evidence
from server.ensemble.proxy import ProxyFit
from server.ensemble.proxy_rule import ProxyRule
from server.ensemble.select import is_policy

__all__ = [
    "INPUT_NAMES",
    "Form",
    "Function",
    "InputShape",
    "LateMembers",
    "ModelVersion",
    "Proxy",
    "forms_of",
]

Form = Literal["path", "image", "tensor", "text", "row"]
LateMembers = Literal["wait", "leave_out"]

INPUT_NAMES: Mapping[str, str] = {
    "path": "image_path",
    "image": "image",
    "tensor": "pixels",
    "text": "text",
    "row": "row",
}


def forms_of(task: str, own: Form) -> tuple[Form, ...]:
    """The forms in which rows of a task may come, the model's own one first."""
    others = cast("tuple[Form, ...]", task_named(task).forms)
    return (own, *(form for form in others if form != own))


@dataclass(frozen=True, slots=True)
class InputShape:
    """What a model wants of a row; the sizes and the normalisation are those of images alone.

    columns: (name, kind) of each value of a row of a table; kind: one of `COLUMN_KINDS`.
    """

    form: Form
    height: int = 0
    width: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    preprocess: Preprocess = PLAIN

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as float32 pixels, [3, height, width]; 0 where that form does not apply."""
        return 4 * 3 * self.height * self.width

    @property
    def pixels(self) -> tuple[object, ...]:
        """What pixels mean to a network: members of which this is equal can share them."""
        how = self.preprocess
        return self.height, self.width, self.mean, self.std, how.scale, how.channels


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One immutable version of a model, as its manifest and the registry describe it."""

    name: str
    version: int
    task: str
    classes: tuple[str, ...]
    input: InputShape
    accuracy: float
    directory: Path
    runtime: str = "torch"
    architecture: str = ""
    sha256: str = ""
    files: tuple[ModelFile, ...] = ()  # beside its manifest, the weights first
    features: int = 0  # numbers of its features, where its manifest says so
    # By class, of those that have not their task's.
    thresholds: Mapping[str, float] = field(default_factory=dict, hash=False)
    content: str = ""  # of what it writes; "" = plain text
    score: Mapping[str, Any] | None = field(default=None, hash=False)  # of held-out rows, and by which metric
    resident_bytes: int = 0  # measured at its first load; 0 = not known yet
    last_used_at: float = 0.0  # Unix time; 0 = never
    rows_per_s: float = 0.0  # of late, when it was last used
    endpoint: str = ""  # the URL of a model behind another server
    backbone: Backbone | None = None  # the model that it stands on, of a head
    as_backbone: str = field(default="", compare=False)  # the hash by which heads would know it
    concurrency: int = 0  # requests that this takes at a time
    parity: ParitySpec | None = None  # of one whose rows are groups of its model's
    job: int = 0  # that trained it; 0 = none that its manifest names
    snapshot: str = ""  # of a dataset, the rows that it was trained on
    key: str = field(init=False, repr=False, compare=False)  # its name on the workers

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.name}/{self.version}")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A model that may answer alone in place of a function's members, and what was found of it.

    place: among all that its rows may be asked of · weighed: as a worker reckons how sure it is.
    """

    model: ModelVersion
    fit: ProxyFit
    place: ProxyPlace
    evidence: EvidenceStates = field(repr=False, compare=False)
    weighed: Fit = field(repr=False, compare=False)

    @classmethod
    def of(cls, model: ModelVersion, members: Sequence[ModelVersion], fit: ProxyFit) -> Proxy:
        """Of a function of these members, of which it may be one. Raises ValueError for another fit's."""
        names = [member.name for member in members]
        if fit.proxy != model.name or list(fit.members) != names:
            raise ValueError(f"it is of {fit.proxy} for {', '.join(fit.members)}")
        everyone = (1 << len(names)) - 1
        if model in members:
            place = ProxyPlace(list(members).index(model), everyone)
        else:
            place, names = ProxyPlace(0, everyone << 1), [model.name, *names]
        temperatures = tuple(fit.temperature if name == model.name else 1.0 for name in names)
        weighed = Fit(tuple(names), temperatures, (), 0, 0)
        return cls(model, fit, place, proxy_evidence(fit, place, len(names)), weighed)


@dataclass(frozen=True, slots=True)
class Function:
    """One deployment of a function: what answers under its name and version."""

    name: str
    version: int
    members: tuple[ModelVersion, ...]
    form: Form
    asked_task: str = ""  # of its members, where it is not the one that they were made for
    features: int = 0  # numbers of its members' features, where it answers them
    combine: str = "majority_vote"  # of the rules of its task; "" where that has none
    fit: Fit | None = None  # of its members, and perhaps others, on held-out rows
    feedback: Feedback | None = None  # what labelled rows have taught since; None for nothing
    refit: Fit | None = None  # made anew of labelled rows since a member changed; answers in place of `fit`
    actor: ActorNetwork | None = None  # of `select: actor_critic`
    select: Any = "all"  # "best", "all", the list of member names that take part, or a selection policy
    min_confidence: float = 0.0
    default: str | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)  # by class, where they are not its models'
    slo_ms: float = 500.0
    max_batch: int = 256
    batch_sizes: tuple[int, ...] = ()
    policy: str = "greedy"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    bare: bool = False  # a model answering under its own name
    late_members: LateMembers = "wait"  # at a row's goal: wait for all, or answer with those that came
    late_rows: LateRows | None = None  # what is done about rows whose batch does not come back in time
    parity: ModelVersion | None = None  # by which they are rebuilt
    media_roots: tuple[str, ...] | None = None  # below which its paths must lie; None for all that are read
    answer_cache: bool | None = None  # whether answers are kept; None: unless they may change by themselves
    named: tuple[str, ...] = ()  # keys of the models that it may select from; () where that is its members
    proxy: Proxy | None = None  # that may answer alone in place of all members
    cascade: Mapping[str, Any] | None = field(default=None, hash=False)  # what was asked, and came of it
    # Of functions; its `members` are all their models then, those of the first stage first.
    pipeline: Pipeline | None = field(default=None, hash=False)
    wants: Wants | None = None  # what is wished of whichever model answers
    candidates: tuple[ModelVersion, ...] = ()  # that may answer it, the one that does at rest first
    is_candidate: bool = False  # it is the function as another model than its own members answers it
    # What follows from the others, found once: each is read several times a row.
    key: str = field(init=False, repr=False, compare=False)  # its name in the scheduler
    task: Task = field(init=False, repr=False, compare=False)  # what it answers
    outputs: tuple[ColumnSpec, ...] = field(init=False, repr=False, compare=False)  # in which columns
    rule: AnswerRule = field(init=False, repr=False, compare=False)  # how
    # All models that its rows may be asked of: its members, and a proxy that is none of them.
    asked: tuple[ModelVersion, ...] = field(init=False, repr=False, compare=False)
    # Whether a row is asked of one member after the other, by a policy, and not of all.
    follows_plans: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        # With its version: rows of different versions never share a batch.
        set_field("key", f"{self.name}@{self.version}")
        if self.is_candidate:
            set_field("key", f"{self.name}@{self.version}:{self.members[0].key}")
        made_of = self.pipeline
        if made_of is None:
            set_field("task", task_named(self.asked_task or self.members[0].task))
            set_field("outputs", self.task.columns_of(self.members[0].content))
        else:
            set_field("task", made_of.task)
            set_field("outputs", made_of.outputs)
        proxy = self.proxy
        is_member = proxy is not None and proxy.model in self.members
        set_field("asked", self.members if proxy is None or is_member else (proxy.model, *self.members))
        answering = self.asked if self.parity is None else (*self.asked, self.parity)
        members = {model.key: (model.name, model.accuracy) for model in answering}
        rule = AnswerRule(
            self.name,
            self.task,
            self.combine,
            self.classes,
            members,
            self.min_confidence,
            self.default,
            None if self.fit is None else adapted(self.refit or self.fit, self.feedback),
            self._applied_thresholds(),
            error_weights({model.name: model.score for model in self.members}, self._squares()),
            None if proxy is None else ProxyRule(proxy.model.name, proxy.fit.temperature, is_member),
        )
        set_field("rule", rule)
        by_policy = is_policy(self.select) and len(self.members) > 1
        set_field("follows_plans", by_policy or proxy is not None)

    def by(self, candidate: ModelVersion) -> Function:
        """The function as that one of its candidates answers it."""
        is_other = candidate != self.candidates[0]
        return replace(self, members=(candidate,), is_candidate=is_other, feedback=None, refit=None)

    @property
    def coded(self) -> Function | None:
        """What is asked of groups of its rows; None where nothing is."""
        if self.parity is None:
            return None
        return replace(
            self,
            members=(self.parity,),
            is_candidate=True,
            late_rows=None,
            parity=None,
            min_confidence=0.0,
            default=None,
            feedback=None,
            refit=None,
        )

    def _applied_thresholds(self) -> tuple[float, ...]:
        """Those that its answers are held against, once its members have answered by their own."""
        if self.pipeline is not None:
            return ()
        if len(self.members) == 1 and not self.thresholds:
            return ()
        models = [model.thresholds for model in self.members]
        return thresholds_of(self.task, self.classes, models, self.thresholds)

    def _squares(self) -> dict[str, tuple[float, ...]]:
        """By member, its squared errors on those of the last labels of numbers that it answered."""
        known = self.feedback
        return {} if known is None or not known.squares else known.squares_of_members

    @property
    def evidence(self) -> EvidenceStates | None:
        """By which plans tell its rows apart; None where nothing was counted."""
        if self.proxy is not None:
            return self.proxy.evidence
        return None if self.rule.fit is None else self.rule.fit.evidence

    @property
    def answers_numbers(self) -> bool:
        """Whether an answer errs by so much, and is not right or wrong."""
        return self.task.reads == "values" and self.pipeline is None

    @property
    def is_taught(self) -> bool:
        """Whether labels change its answers."""
        if self.answers_numbers:
            return len(self.members) > 1 and self.combine == "weighted_mean"
        return self.learns

    @property
    def learns(self) -> bool:
        """Whether labels of classes change its answers: several members, whose rule has weights to learn."""
        return len(self.members) > 1 and self.combine == "log_pool" and self.fit is not None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The members that plans ask no more, since they are broken: their names."""
        fit = self.rule.fit
        return () if fit is None or self.feedback is None else left_out(self.feedback, fit)

    @property
    def held_out(self) -> dict[frozenset[str], float]:
        """By the keys of members that were judged together: how often they are right on other rows, or what
        their answers are worth, where they are no classes.

        Empty where that is not known of the function's own rule.
        """
        fit = self.rule.fit
        if fit is None or self.combine != fit.rule:
            return {}
        keys = {model.name: model.key for model in self.members}
        subsets = {tuple(fit.members[place] for place in each.members): each for each in fit.subsets}
        return {
            frozenset(keys[name] for name in subset): each.accuracy
            for subset, each in subsets.items()
            if all(name in keys for name in subset)
        }

    @property
    def full_accuracy(self) -> float | None:
        """How often all its members together are right on held-out rows; None where that is not known."""
        alone = self.members[0].accuracy if len(self.members) == 1 else 0.0
        return self.held_out.get(frozenset(model.key for model in self.members)) or alone or None

    @property
    def takes_feedback(self) -> bool:
        """Whether its answers have ids by which labels are given: classes and numbers, of no bare model."""
        if self.bare or self.pipeline is not None:
            return False
        return self.answers_numbers or (bool(self.classes) and self.task.picks_one)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by which the shapes of its answers are given (`ColumnSpec.dims`)."""
        if self.pipeline is not None:
            return self.pipeline.last.sizes
        return {"classes": len(self.classes), "features": self.features or self.members[0].features}

    @property
    def groups(self) -> tuple[tuple[ModelVersion, ...], ...]:
        """Its models, as they are loaded together: all, or those of each stage."""
        if self.pipeline is None:
            return (self.asked,) if self.parity is None else (self.asked, (self.parity,))
        return tuple(stage.asked for stage in self.pipeline.stages)

    def outputs_of(self, wanted: Collection[str], members: int) -> list[str]:
        """The columns that workers are asked for; none for those that an answer has by default.

        wanted: by callers, none for those by default. members: how many answer together.
        """
        needed = self.rule.needs(members)
        if not wanted and not needed:
            return []
        names = {*self.task.default_outputs, *wanted, *needed}
        return [spec.name for spec in self.task.columns if spec.name in names]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that all members share, in the order of `scores`; none where it answers none."""
        if self.pipeline is not None:
            return self.pipeline.last.classes if self.task.needs_classes else ()
        return self.members[0].classes if self.task.needs_classes else ()

    def label_at(self, place: int | None) -> str | None:
        """The class at a place among them; None for none."""
        return None if place is None else self.classes[place]

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """(name, kind) of each value of a row of a table, which all members share; else empty."""
        return self.members[0].input.columns

    @property
    def input_name(self) -> str:
        """The name of the input that SQL sends by default."""
        return INPUT_NAMES[self.form]

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms in which its rows may come, the default first; pixels only if members agree on them.

        Of a pipeline those of its first stage; where that is cut up, whole pictures.
        """
        if self.pipeline is not None:
            taken = self.pipeline.stages[0].forms
            return taken if self.pipeline.crop is None else tuple(form for form in taken if form != "tensor")
        forms = forms_of(self.task.name, self.form)
        first = self.members[0].input
        models = self.candidates or self.asked
        same_pixels = first.row_bytes > 0 and all(m.input.pixels == first.pixels for m in models)
        return forms if same_pixels else tuple(form for form in forms if form != "tensor")

    def row_shape(self, form: Form) -> tuple[int, ...]:
        """The shape of one row of that form on the wire, without the row dimension."""
        shape = self.members[0].input
        return (3, shape.height, shape.width) if form == "tensor" else ()

    def row_bytes(self, form: Form) -> int:
        """Bytes of one row where the form fixes them, else 0."""
        return 4 * math.prod(self.row_shape(form)) if form == "tensor" else 0
