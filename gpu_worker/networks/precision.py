"""In which precision a model runs on a device: the fastest that answers as float32 does, found by trying.

A narrower number is up to some times as fast on a GPU, and for one model in a while it answers wrongly. So
each is compared with float32 on seeded pictures or texts before the model serves, and the verdict is kept.
Knows arrays; runs nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gpu_worker.networks.network import Floats

__all__ = [
    "PRECISIONS",
    "Precision",
    "Read",
    "Verdict",
    "chosen",
    "compared",
    "pictures",
    "token_lists",
]

Precision = Literal["float32", "tf32", "bfloat16", "float16"]
# The fastest first, by an H100 at 1, 64 and 1,024 rows of five architectures: with weights of float16 a pass
# takes .35 to .76 of float32's time, in TF32 .45 to .83; bfloat16 is level with float16, or behind it.
PRECISIONS: Final[tuple[Precision, ...]] = ("float16", "bfloat16", "tf32", "float32")

Read = Sequence[tuple[Floats, bool]]  # numbers [n, …] of the same pictures, each with whether it is features

_MOST_DIFFERENCE: Final = 0.01  # of a probability; of features, of their largest number
_ROWS: Final = 64
_MOST_BYTES: Final = 64 << 20  # of the pictures


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the answers in one precision compare with float32's.

    agreement: of the rows whose two likeliest classes are further apart than may be, the share with the same
    likeliest one. difference: the largest of any number.
    """

    precision: Precision
    agreement: float = 1.0
    difference: float = 0.0

    def to_json(self) -> list[Any]:
        """For a file."""
        return [self.precision, self.agreement, self.difference]

    @classmethod
    def from_json(cls, told: Sequence[Any]) -> Verdict:
        """What `to_json` said. Raises `ValueError` where it is none."""
        try:
            precision, agreement, difference = told
        except (TypeError, ValueError):
            raise ValueError(f"{told!r:.100} is no verdict on a precision") from None
        if precision not in PRECISIONS:
            raise ValueError(f"the precision {precision!r:.100} is not known")
        return cls(precision, float(agreement), float(difference))

    @property
    def is_good(self) -> bool:
        """Whether the model may run so."""
        return self.agreement == 1.0 and self.difference <= _MOST_DIFFERENCE

    def __str__(self) -> str:
        if self.precision == "float32":
            return "float32"
        return f"{self.precision} (agreement {self.agreement:.4f}, largest difference {self.difference:.4f})"


def pictures(height: int, width: int) -> NDArray[np.uint8]:
    """[n, H, W, 3], 64 of them unless they are large: half of them noise, half of them coarse patches.

    The same ones every time.
    """
    random = np.random.default_rng(0)
    half = max(1, min(_ROWS, _MOST_BYTES // (3 * height * width)) // 2)
    noise = random.integers(0, 256, (half, height, width, 3), np.uint8)
    coarse = random.integers(0, 256, (half, 8, 8, 3), np.uint8)
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    return np.concatenate([noise, coarse[:, rows][:, :, columns]])


def token_lists(vocabulary: int, longest: int) -> list[list[int]]:
    """64 texts as numbers of tokens, short ones and long ones, none longer than `longest`.

    The same ones every time.
    """
    random = np.random.default_rng(0)
    lengths = np.geomspace(1, max(1, longest), _ROWS).astype(int)
    return [random.integers(0, vocabulary, length).tolist() for length in lengths]


def compared(precision: Precision, reference: Floats, found: Floats, *, features: bool = False) -> Verdict:
    """What `found`, [n, numbers], is worth beside float32's `reference`.

    features: the numbers are no probabilities: only how far they are apart counts.
    """
    if found.shape != reference.shape or not np.isfinite(found).all():
        return Verdict(precision, 0.0, float("inf"))
    difference = float(np.abs(found - reference).max(initial=0.0))
    if features:
        return Verdict(precision, 1.0, difference / max(float(np.abs(reference).max(initial=0.0)), 1e-12))
    if reference.shape[1] < 2:
        return Verdict(precision, 1.0, difference)
    second, first = np.partition(reference, -2, axis=1)[:, -2:].T
    clear = first - second > 2 * _MOST_DIFFERENCE
    same = reference.argmax(axis=1) == found.argmax(axis=1)
    return Verdict(precision, float(same[clear].mean()) if clear.any() else 1.0, difference)


def chosen(
    candidates: Sequence[Precision], reference: Read, read_in: Callable[[Precision], Read]
) -> tuple[Verdict, list[Verdict]]:
    """The first candidate that is good, else float32; and the verdicts on those that are not.

    reference: what is read of the pictures in float32. read_in: the same in that precision; what it raises
    rules its precision out.
    """
    refused: list[Verdict] = []
    for precision in candidates:
        if precision == "float32":
            break
        try:
            found = read_in(precision)
        except (RuntimeError, NotImplementedError, TypeError):  # a layer that this precision lacks
            refused.append(Verdict(precision, 0.0, float("inf")))
            continue
        each = [
            compared(precision, expected, numbers, features=features)
            for (expected, features), (numbers, _) in zip(reference, found, strict=True)
        ]
        agreement = min((one.agreement for one in each), default=1.0)
        verdict = Verdict(precision, agreement, max((one.difference for one in each), default=0.0))
        if verdict.is_good:
            return verdict, refused
        refused.append(verdict)
    return Verdict("float32"), refused
