"""A function made of functions: what follows what, and what its answers look like. Immutable and plain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_worker.tasks import OBJECT_DETECTION, Collecting, ColumnSpec, Task
from gpu_worker.wire.columns import JSON, TEXT
from server.ensemble.crop import Crop

if TYPE_CHECKING:
    from server.catalog.functions import Function

__all__ = ["OBJECTS", "Pipeline"]


def _never_collected(_: Collecting) -> NoReturn:
    raise TypeError("a worker collects the answers of a pipeline's stages, and never its own")


# Of each thing that a detector finds: its label, its score, its box, and what the stages after it answer.
OBJECTS = Task(
    "pipeline",
    OBJECT_DETECTION.forms,
    (ColumnSpec("objects", TEXT, content=JSON),),
    reads="texts",
    collector=_never_collected,
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """stages: functions, each in one version; each takes what the one before it answers. crop: what is cut
    out between the first and the second; None where nothing is. split: how the goal is split among them.
    """

    stages: tuple[Function, ...]
    crop: Crop | None
    split: str
    numbers: tuple[int, ...] = field(init=False)  # of the stages, as its specification counts them, from 1

    def __post_init__(self) -> None:
        numbers = tuple(at + 1 + (self.crop is not None and at > 0) for at in range(len(self.stages)))
        object.__setattr__(self, "numbers", numbers)

    @property
    def last(self) -> Function:
        """The stage whose answers are the pipeline's, or those of each thing in a picture."""
        return self.stages[-1]

    @property
    def task(self) -> Task:
        """What it answers."""
        return self.last.task if self.crop is None else OBJECTS

    @property
    def outputs(self) -> tuple[ColumnSpec, ...]:
        """In which columns."""
        return self.last.outputs if self.crop is None else OBJECTS.columns

    def name_of(self, stage: int) -> str:
        """A stage as errors name it."""
        return f"stage {self.numbers[stage]} ({self.stages[stage].name})"

    def told(self) -> list[dict[str, Any]]:
        """As its specification has it, the versions pinned."""
        stages: list[dict[str, Any]] = [
            {"function": stage.name, "version": stage.version} for stage in self.stages
        ]
        return stages if self.crop is None else [stages[0], {"crop": self.crop.to_json()}, *stages[1:]]
