"""What a task is: what its rows look like, which columns answer them, and what may be done with the answers.

A task is data, and one function that the worker calls (`Task.collector`). The server, `local:` and the worker
read the same objects; clients get the columns and know no task. Standard library only: what needs numpy
is imported when a worker collects answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gpu_worker.wire.columns import TEXT, Column, number_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "BOX_NUMBERS",
    "FILE_FORMS",
    "IMAGE_FORMS",
    "MOST_BOXES",
    "ROW_FORMS",
    "TEXT_FORMS",
    "Activation",
    "Collecting",
    "Collector",
    "ColumnSpec",
    "Reads",
    "Task",
]

# What a network gives for a row: probabilities of classes · numbers before a classifier · a value, or a value
# with the ends of its interval · boxes, each as x0, y0, x1, y1, score, number of its class · a text.
Reads = Literal["scores", "features", "values", "boxes", "texts"]

# How a network's last layer becomes what is read of it.
Activation = Literal["softmax", "sigmoid", "none"]

IMAGE_FORMS = ("path", "image", "tensor")
TEXT_FORMS = ("text",)
ROW_FORMS = ("row",)
FILE_FORMS = ("path", "image")  # the second is what the wire calls bytes

BOX_NUMBERS = 6
MOST_BOXES = 1000  # of a row: ten times what COCO counts


class Collector(Protocol):
    """The answers of one model to one batch, filled piece by piece, by several threads at once."""

    def put(self, rows: NDArray[np.intp], outputs: NDArray[np.float32]) -> None:
        """Takes what the network gave for `rows`: float32 [len(rows), width], finite; texts: objects [n]."""
        ...

    def columns(self) -> list[Column]:
        """The columns that were asked for; rows that were never put hold "" or 0."""
        ...


@dataclass(frozen=True, slots=True)
class Collecting:
    """What is to be collected: the columns `wanted` of so many rows of one model.

    classes: of the model · width: numbers that its network gives for a row · thresholds: by class, from where
    on it is answered; none where the model says none · content: of the value, where the model says it.
    """

    rows: int
    classes: Sequence[str]
    width: int
    wanted: Collection[str]
    thresholds: Sequence[float] = ()
    content: str = ""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column of a task's answers.

    dims: the sizes of a model that are the shape of a row: () for one value, ("classes",), ("features",).
    on_request: left out of an answer unless it is asked for by name. content: what a text holds, as
    `wire.columns.Column` has it.
    """

    name: str
    datatype: str
    dims: tuple[str, ...] = ()
    on_request: bool = False
    content: str = ""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one row. sizes: those of the model, by name."""
        return tuple(sizes[dim] for dim in self.dims)

    def described(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """As the metadata of the Open Inference Protocol have an output."""
        told = {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape(sizes)]}
        return told | ({"parameters": {"content": self.content}} if self.content else {})

    def empty(self, rows: int, sizes: Mapping[str, int]) -> Column:
        """The column with "" or 0 in every row."""
        shape = self.shape(sizes)
        if self.datatype == TEXT:
            return Column(self.name, TEXT, shape, [""] * rows, self.content)
        width = number_bytes(self.datatype)
        for size in shape:
            width *= size
        return Column(self.name, self.datatype, shape, bytes(rows * width), self.content)


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    forms: in which rows may come, the one that SQL sends by default first; () = as each model says.
    columns: of an answer; the first is the value of the SQL function. Its SQL type follows from its datatype,
    shape and content alone (docs/architecture.md), so that it is the same for a server that is not ours.
    reads: which of a network's outputs they are made of; activation: how a network's last layer becomes that,
    unless the model says otherwise. collector: collects an answer's columns.
    rules: of combination that several members may have (`server.ensemble.combine`), the default first; none
    where one member answers alone. metrics: by which its models are compared, the first decides.
    confidence: the column that `min_confidence` is about; without one there is no threshold, and no default.
    threshold: from which score on a class is answered, where a row may have several or none of them and
    nobody says otherwise; None where a row has one. models_of: tasks whose models do this one too.
    worth: the metric, 1 at best and 0 where answers are worth nothing, by which members' answers are weighed
    against their time; "" where that is how often they are right.
    """

    name: str
    forms: tuple[str, ...]
    columns: tuple[ColumnSpec, ...]
    reads: Reads
    collector: Callable[[Collecting], Collector]
    activation: Activation = "none"
    rules: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    confidence: str | None = None
    threshold: float | None = None
    models_of: tuple[str, ...] = ()
    worth: str = ""

    @property
    def value(self) -> ColumnSpec:
        """The column that is the SQL function's value."""
        return self.columns[0]

    @property
    def default_outputs(self) -> tuple[str, ...]:
        """Names of the columns that an answer has unless it is said which."""
        return tuple(spec.name for spec in self.columns if not spec.on_request)

    @property
    def needs_classes(self) -> bool:
        """Whether a model of its own must name classes."""
        return self.reads in ("scores", "boxes")

    @property
    def needs_features(self) -> bool:
        """Whether a model of its own must say how many features it has."""
        return self.reads == "features"

    @property
    def picks_one(self) -> bool:
        """Whether a row has one of the classes, by which members can be compared and asked in turn."""
        return self.reads == "scores" and self.threshold is None

    def column(self, name: str) -> ColumnSpec | None:
        """The column of that name, if it has one."""
        return next((spec for spec in self.columns if spec.name == name), None)

    def columns_of(self, content: str) -> tuple[ColumnSpec, ...]:
        """The columns of a model that says what its value holds; content: "" where it says nothing."""
        if not content:
            return self.columns
        return (replace(self.value, content=content), *self.columns[1:])

    def is_done_by(self, task: str) -> bool:
        """Whether models of the task of that name do this one."""
        return task == self.name or task in self.models_of
