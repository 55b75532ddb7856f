"""What a task is: what its rows look like, which columns answer them, and what may be done with the answers.

A task is data, and one function that the worker calls (`Task.collector`). The server, `local:` and the worker
read the same objects; clients get the columns and know no task. Standard library only: what needs numpy
is imported when a worker collects answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from gpu_worker.wire.columns import TEXT, Column, number_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Collector", "ColumnSpec", "Reads", "Task"]

Reads = Literal["scores", "features"]


class Collector(Protocol):
    """The answers of one model to one batch, filled piece by piece, by several threads at once."""

    def put(self, rows: NDArray[np.intp], outputs: NDArray[np.float32]) -> None:
        """Takes what the network gave for `rows`: float32 [len(rows), width], finite."""
        ...

    def columns(self) -> list[Column]:
        """The columns that were asked for; rows that were never put hold "" or 0."""
        ...


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column of a task's answers.

    dims: the sizes of a model that are the shape of a row: () for one value, ("classes",), ("features",).
    on_request: left out of an answer unless it is asked for by name.
    """

    name: str
    datatype: str
    dims: tuple[str, ...] = ()
    on_request: bool = False

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one row. sizes: those of the model, by name."""
        return tuple(sizes[dim] for dim in self.dims)

    def empty(self, rows: int, sizes: Mapping[str, int]) -> Column:
        """The column with "" or 0 in every row."""
        shape = self.shape(sizes)
        if self.datatype == TEXT:
            return Column(self.name, TEXT, shape, [""] * rows)
        width = number_bytes(self.datatype)
        for size in shape:
            width *= size
        return Column(self.name, self.datatype, shape, bytes(rows * width))


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    forms: in which rows may come, the one that SQL sends by default first; () = as each model says.
    columns: of an answer; the first is the value of the SQL function. Its SQL type follows from its datatype
    and shape alone (docs/architecture.md), so that it is the same for a server that is not ours.
    reads: which of a network's outputs they are made of. collector(rows, classes, width, wanted): collects
    the columns `wanted` of n rows; width: numbers that the network gives for a row.
    rules: of combination that several members may have (`server.ensemble.combine`), the default first; none
    where one member answers alone. metrics: by which its models are compared, the first decides.
    confidence: the column that `min_confidence` is about; without one there is no threshold, and no default.
    models_of: tasks whose models do this one too.
    """

    name: str
    forms: tuple[str, ...]
    columns: tuple[ColumnSpec, ...]
    reads: Reads
    collector: Callable[[int, Sequence[str], int, Collection[str]], Collector]
    rules: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    confidence: str | None = None
    models_of: tuple[str, ...] = ()

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
        return self.reads == "scores"

    def column(self, name: str) -> ColumnSpec | None:
        """The column of that name, if it has one."""
        return next((spec for spec in self.columns if spec.name == name), None)

    def is_done_by(self, task: str) -> bool:
        """Whether models of the task of that name do this one."""
        return task == self.name or task in self.models_of
