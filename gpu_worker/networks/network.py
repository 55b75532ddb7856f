"""What every loaded model looks like to the worker, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import Cancelled, RowFault
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.tasks.task import Reads

__all__ = [
    "ChoosesPrecision",
    "Closes",
    "Explains",
    "Floats",
    "GivesFeatures",
    "Inputs",
    "IsCancelled",
    "Network",
    "ReportsFaults",
    "TakesEncoded",
    "TimesPasses",
    "UntilDeadline",
    "check",
    "pixel_line",
    "reading",
    "softmax",
    "width_of",
]

Floats = NDArray[np.float32]

# uint8 pixels [n, H, W, 3] · float32 normalised pixels [n, 3, H, W] · n raw rows
Inputs = NDArray[np.uint8] | Floats | Sequence[bytes]

IsCancelled = Callable[[], bool]


class UntilDeadline:
    """`is_cancelled` of rows that nobody wants any more after `ends_s` of `time.monotonic`."""

    def __init__(self, is_cancelled: IsCancelled, ends_s: float) -> None:
        self._is_cancelled = is_cancelled
        self.ends_s = ends_s

    def __call__(self) -> bool:
        """Whether the caller has taken them back."""
        return self._is_cancelled()


class Network(Protocol):
    """A model that is resident: a batch goes in, class probabilities come out.

    Its properties are fixed once it is warm. `scores` may be called by several threads at once.
    """

    @property
    def pixels(self) -> tuple[int, int] | None:
        """(H, W) of the images it takes, or None when it takes rows as they are."""
        ...

    @property
    def forms(self) -> frozenset[str]:
        """The wire forms it accepts."""
        ...

    @property
    def cuttable(self) -> bool:
        """Whether a batch may run in pieces, one after the other, at much the same cost."""
        ...

    @property
    def resident_bytes(self) -> int:
        """What it takes of the device's memory."""
        ...

    def warm_up(self, rows: int) -> Floats:
        """The scores of `rows` empty inputs; may measure `resident_bytes` on the way.

        Of a network that has no classes, their features.
        """
        ...

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities. May raise `Cancelled`; `DeviceLost` ends the process."""
        ...


@runtime_checkable
class Explains(Protocol):
    """A network that reads its rows itself, and so knows what is wrong with one that it cannot read."""

    def fault_of(self, row: bytes) -> str | None:
        """Why it has no scores for `row`, in words for whoever sent it; None for a row it can read."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A network that holds more than memory."""

    def close(self) -> None:
        """Lets go of it. No pass is under way, and none comes."""
        ...


@runtime_checkable
class ReportsFaults(Protocol):
    """A network that may have no answer for some rows, and knows why."""

    def take_faults(self) -> Mapping[int, RowFault]:
        """By row of the calling thread's last pass, why it has no answer."""
        ...


@runtime_checkable
class TakesEncoded(Protocol):
    """A network that may take pictures as they are encoded, where others take pixels."""

    @property
    def takes_encoded(self) -> bool:
        """Whether it does; fixed once it is loaded."""
        ...


@runtime_checkable
class GivesFeatures(Protocol):
    """A network that can say what it saw, before it was asked for a class."""

    @property
    def features_width(self) -> int:
        """Numbers of a row's features; 0 where it has none after all."""
        ...

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of what `scores` takes, and raises as it does."""
        ...


@runtime_checkable
class ChoosesPrecision(Protocol):
    """A network that may compute in less than float32."""

    @property
    def precision(self) -> str:
        """In which it computes, and how its answers compare with float32's; "" = nothing was to choose."""
        ...


@runtime_checkable
class TimesPasses(Protocol):
    """A network on a device that works beside the threads: a clock would count their waiting too."""

    def pass_s(self) -> float | None:
        """How long the device computed for the calling thread's last pass; None where it does not say."""
        ...


def width_of(network: Network, reads: Reads, classes: int) -> int:
    """Numbers that a network gives for a row; 0 where it does not give what is read of it."""
    if reads == "scores":
        return classes
    return network.features_width if isinstance(network, GivesFeatures) else 0


def reading(network: Network, reads: Reads) -> Callable[[Inputs, IsCancelled], Floats]:
    """That of a network's outputs which a task is made of; for networks whose `width_of` it is not 0."""
    return network.scores if reads == "scores" else cast("GivesFeatures", network).features


def check(is_cancelled: IsCancelled) -> None:
    """Raises `Cancelled` when the caller has taken the request back."""
    if is_cancelled():
        raise Cancelled("the request was cancelled")


def pixel_line(spec: InputSpec) -> tuple[Floats, Floats]:
    """scale and shift, each [W · 3], so that line · scale + shift is (line · the input's scale − mean) / std.

    For one line of pixels as they lie in memory. Over three channels at a time, which is all that
    broadcasting sees otherwise, the same sum takes seven times as long (0.75 against 0.1 ms a piece).
    """
    std = np.asarray(spec.std, np.float64)
    scale, shift = spec.preprocess.scale / std, -np.asarray(spec.mean, np.float64) / std
    return np.tile(scale, spec.width).astype(np.float32), np.tile(shift, spec.width).astype(np.float32)


def softmax(logits: Floats) -> Floats:
    """Row-wise softmax of [n, classes]."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return result
