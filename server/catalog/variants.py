"""The ways to run a model version, and what was measured of each (INFaaS, ATC 2021, §3).

A variant is a model version of its own: that `int8` of `food/3` is registered as `food~int8`, version 3, with
its own folder and key, so that placement, l̂, scheduling and workers treat it as any other model. What relates
the two stands here, with what was found of it beside the model as it was registered (`ORIGINAL`).

Immutable and plain; knows no database, no worker, no files' contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_worker.model_files.file_list import ModelFile

__all__ = [
    "MARK",
    "ORIGINAL",
    "HeldOutAccuracy",
    "Variant",
    "Variants",
    "base_of",
    "is_parity",
    "is_variant",
    "parity_variant",
    "variant_model",
    "variant_of",
]

MARK: Final = "~"
ORIGINAL: Final = "original"
"""The variant that a model is as it was registered: its name is the model's own."""

_VARIANT: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def variant_model(model: str, variant: str) -> str:
    """The name under which a variant is registered. Raises `ValueError` for what names none."""
    if variant == ORIGINAL:
        return model
    if not _VARIANT.fullmatch(variant):
        raise ValueError(f"{variant!r} names no variant")
    return f"{model}{MARK}{variant}"


def base_of(name: str) -> str:
    """The model whose variant a name is; the name itself where it is none."""
    return name.partition(MARK)[0]


def variant_of(name: str) -> str:
    """Which variant of its model a name is."""
    return name.partition(MARK)[2] or ORIGINAL


def is_variant(name: str) -> bool:
    """Whether a model's name is that of another's variant."""
    return MARK in name


def parity_variant(k: int) -> str:
    """The variant that is a parity model of groups of k rows."""
    return f"parity-{k}"


def is_parity(variant: str) -> bool:
    """Whether a variant is a parity model: it answers no row alone."""
    return variant.startswith("parity-")


@dataclass(frozen=True, slots=True)
class HeldOutAccuracy:
    """How often a variant is right on rows that its model was not taught.

    rows: how many · low, high: the 95 % interval of `accuracy` (Wilson) · agreement: the share of them to
    which it answers what the original answers · dataset, snapshot, split: whose rows they are
    """

    accuracy: float
    rows: int
    low: float
    high: float
    agreement: float = 1.0
    dataset: str = ""
    snapshot: str = ""
    split: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the registry keeps it, and who asks is told."""
        return {
            "accuracy": self.accuracy,
            "rows": self.rows,
            "low": self.low,
            "high": self.high,
            "agreement": self.agreement,
            "dataset": self.dataset,
            "snapshot": self.snapshot,
            "split": self.split,
        }


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a model version.

    threads: cores that one pass computes on · nbytes: of its files; resident_bytes: of a device, as its load
    showed · load_s: of its first load on a worker · profile_s: kind of device → rows of a batch → seconds, of
    the passes alone · held_out: None where no labelled rows show it · refused: why it is not offered; ""
    where it is · measured_at: Unix time
    """

    model: str
    version: int
    name: str
    runtime: str
    precision: str = "float32"
    threads: int = 1
    files: tuple[ModelFile, ...] = ()
    nbytes: int = 0
    resident_bytes: int = 0
    load_s: float = 0.0
    profile_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict, hash=False)
    held_out: HeldOutAccuracy | None = None
    refused: str = ""
    measured_at: float = 0.0

    @property
    def is_offered(self) -> bool:
        """Whether functions may run it."""
        return not self.refused and not is_parity(self.name)

    @property
    def key(self) -> str:
        """Its name on the workers, and by which a function names it: that of a model version."""
        return f"{variant_model(self.model, self.name)}/{self.version}"

    def batch_s(self, rows: int, device: str) -> float | None:
        """Seconds of a batch on a kind of device, as a line between measured sizes; None if unmeasured."""
        points = sorted(self.profile_s.get(device, {}).items())
        if not points:
            return None
        below = max((p for p in points if p[0] <= rows), default=points[0])
        above = min((p for p in points if p[0] >= rows), default=points[-1])
        if below[0] == above[0]:
            return below[1] * max(1.0, rows / below[0])
        share = (rows - below[0]) / (above[0] - below[0])
        return below[1] + share * (above[1] - below[1])


class Variants:
    """All that are known, in memory: by the model version that they are of. A shell fills it.

    epoch: another one as soon as anything is, for whoever keeps what it decided by them.
    """

    def __init__(self, known: Iterable[Variant] = ()) -> None:
        self._known: dict[tuple[str, int], dict[str, Variant]] = {}
        self.epoch = 0
        self.replace(known)

    def replace(self, known: Iterable[Variant]) -> None:
        """Take these for all that there are."""
        found: dict[tuple[str, int], dict[str, Variant]] = {}
        for variant in known:
            found.setdefault((variant.model, variant.version), {})[variant.name] = variant
        if found != self._known:
            self._known = found
            self.epoch += 1

    def keep(self, variant: Variant) -> None:
        """Take over one."""
        self._known.setdefault((variant.model, variant.version), {})[variant.name] = variant
        self.epoch += 1

    def of(self, model: str, version: int) -> tuple[Variant, ...]:
        """Those of a model version, refused ones too: the original first, then by name; () = none."""
        found = self._known.get((model, version), {}).values()
        return tuple(sorted(found, key=lambda variant: (variant.name != ORIGINAL, variant.name)))

    def offered(self, model: str, version: int) -> tuple[Variant, ...]:
        """Those that functions may run."""
        return tuple(variant for variant in self.of(model, version) if variant.is_offered)

    def named(self, key: str) -> Variant | None:
        """By the key of the model version that it is, `food~int8/3`; None where nothing is known of it."""
        name, _, version = key.rpartition("/")
        if not version.isdecimal():
            return None
        return self._known.get((base_of(name), int(version)), {}).get(variant_of(name))

    def all(self) -> tuple[Variant, ...]:
        """Every one, by model, version and name."""
        return tuple(variant for model, version in sorted(self._known) for variant in self.of(model, version))
