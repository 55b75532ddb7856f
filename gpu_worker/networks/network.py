"""What every loaded model looks like to the worker, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import Cancelled, RowFault
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.networks.piece_sizes import LARGEST_PIECE_ROWS
from gpu_worker.tasks.task import Activation, Reads

__all__ = [
    "Abilities",
    "BelowHeads",
    "ChoosesPrecision",
    "Closes",
    "Explains",
    "Floats",
    "GivesBoxes",
    "GivesFeatures",
    "GivesTexts",
    "GivesValues",
    "Inputs",
    "IsCancelled",
    "Network",
    "Outputs",
    "ReportsFaults",
    "StandsOnBackbone",
    "TakesEncoded",
    "TakesFiles",
    "TakesManyRows",
    "TakesViews",
    "Texts",
    "TimesPasses",
    "UntilDeadline",
    "activated",
    "check",
    "normalised",
    "pixel_line",
    "reading",
    "sigmoid",
    "softmax",
    "width_of",
]

Floats = NDArray[np.float32]

# uint8 pixels [n, H, W, 3] · float32 normalised pixels [n, 3, H, W] · n raw rows
Inputs = NDArray[np.uint8] | Floats | Sequence[bytes]

Texts = NDArray[np.object_]  # [n], of each row what was written about it

Outputs = Floats | Texts

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
    """A model that is resident: a batch goes in, what its task is made of comes out.

    What that may be is named by `Reads`: `scores`, or one of the protocols below, each of which is a method
    of that name and its width. A width is 0 where a network does not give it after all, and a network that
    has no classes is never asked for scores. Its properties are fixed once it is warm. The methods may be
    called by several threads at once.
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
        """The scores of `rows` empty inputs, [rows, classes]; may measure `resident_bytes` on the way.

        Of a network that has no classes, what its own task is made of, [rows, width] (zeros for texts).
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
class TakesFiles(Protocol):
    """A network whose rows may be any files: of each it is given the two ends."""

    @property
    def file_ends(self) -> tuple[int, int] | None:
        """Bytes of the beginning and of the end that it reads; None where it takes no files after all."""
        ...


@runtime_checkable
class TakesViews(Protocol):
    """A network that reads its rows as any memory, where others are given `bytes`, and keeps none of them."""

    takes_views: ClassVar[Literal[True]]


@runtime_checkable
class TakesManyRows(Protocol):
    """A network of which a CPU may pass more rows at once than of others, and no more memory is needed."""

    @property
    def largest_piece(self) -> int:
        """Rows of a piece at most, a power of two; fixed once it is loaded."""
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


class BelowHeads(GivesFeatures, Protocol):
    """A network whose features others read."""

    @property
    def identity(self) -> Hashable:
        """Of its weights and its device: what it sees in a row is the same wherever this is."""
        ...


@runtime_checkable
class StandsOnBackbone(Protocol):
    """A network that reads the features of another one, which other networks may read too."""

    @property
    def backbone(self) -> BelowHeads:
        """The same object for all that stand on it."""
        ...

    def of_features(self, features: Floats, reads: Reads) -> Floats:
        """What is read of it, of rows whose features [n, width] its backbone gave."""
        ...


@runtime_checkable
class GivesValues(Protocol):
    """A network that says a number of a row, and perhaps between which it expects it."""

    @property
    def values_width(self) -> int:
        """1 for a value; 3 for a value, and the low and the high end of its interval."""
        ...

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of what `scores` takes; may be float64."""
        ...


@runtime_checkable
class GivesBoxes(Protocol):
    """A network that says what is where in a picture."""

    @property
    def boxes_width(self) -> int:
        """6 numbers for each of the boxes that a row may have at most."""
        ...

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width]: of each box x0, y0, x1, y1, score and number of its class; score 0 for no box.

        In pixels of the network's input; of a network that reads pictures itself, of the picture.
        """
        ...


@runtime_checkable
class GivesTexts(Protocol):
    """A network that writes about a row."""

    @property
    def texts_width(self) -> int:
        """1."""
        ...

    def texts(self, inputs: Inputs, is_cancelled: IsCancelled) -> Texts:
        """n texts, as an array of objects; "" for rows that have none (`ReportsFaults` says why)."""
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


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a network does beside the least, by the protocols above; a protocol's field is the network itself.

    Found once a model is resident: to ask an object for a protocol takes ten microseconds, and a batch of one
    row may take a hundred.
    """

    reports_faults: ReportsFaults | None
    stands_on_backbone: StandsOnBackbone | None
    times_passes: TimesPasses | None
    takes_encoded: bool
    takes_views: bool
    file_ends: tuple[int, int] | None
    largest_piece: int

    @classmethod
    def of(cls, network: object) -> Abilities:
        """Those of a network that is warm."""
        return cls(
            network if isinstance(network, ReportsFaults) else None,
            network if isinstance(network, StandsOnBackbone) else None,
            network if isinstance(network, TimesPasses) else None,
            isinstance(network, TakesEncoded) and network.takes_encoded,
            isinstance(network, TakesViews),
            network.file_ends if isinstance(network, TakesFiles) else None,
            network.largest_piece if isinstance(network, TakesManyRows) else LARGEST_PIECE_ROWS,
        )


def width_of(network: Network, reads: Reads, classes: int) -> int:
    """Numbers that a network gives for a row; 0 where it does not give what is read of it."""
    return classes if reads == "scores" else int(getattr(network, f"{reads}_width", 0))


def reading(network: Network, reads: Reads) -> Callable[[Inputs, IsCancelled], Outputs]:
    """That of a network's outputs which a task is made of; for networks whose `width_of` it is not 0."""
    return cast("Callable[[Inputs, IsCancelled], Outputs]", getattr(network, reads))


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


def normalised(pixels: NDArray[Any], line: tuple[Floats, Floats]) -> Floats:
    """float32 [n, H, W, 3] of uint8 pixels of that shape, as the network sees them; line: of `pixel_line`."""
    scale, shift = line
    found: Floats = (pixels.reshape(-1, len(scale)) * scale + shift).reshape(pixels.shape)
    return found


def activated(logits: Floats, activation: Activation) -> Floats:
    """What a last layer's numbers [n, width] are read as."""
    if activation == "softmax":
        return softmax(logits)
    return sigmoid(logits) if activation == "sigmoid" else logits


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + e^−x) of each number; no overflow, however far it is from 0, and small ones stay apart."""
    result: Floats = np.exp(-np.logaddexp(logits.dtype.type(0), -logits))
    return result


def softmax(logits: Floats) -> Floats:
    """Row-wise softmax of [n, classes]."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return result
