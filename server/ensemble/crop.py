"""Which boxes are cut out of a picture, between the stages of a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Crop"]


@dataclass(frozen=True, slots=True)
class Crop:
    """margin: by what part of its size a box grows to each side · min_score: of the boxes that are cut ·
    labels: the same; () = all · most: so many a picture, the surest; 0 = all.

    What is not cut out is not answered.
    """

    margin: float = 0.0
    min_score: float = 0.0
    labels: tuple[str, ...] = ()
    most: int = 0

    def cuts(self, boxes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The boxes of a picture that are cut out of it, in their order: the surest first."""
        kept = [
            box
            for box in boxes
            if box["score"] >= self.min_score and (not self.labels or box["label"] in self.labels)
        ]
        return kept[: self.most] if self.most else kept

    def to_json(self) -> dict[str, Any]:
        """As a specification has it, without what is as by default."""
        told = {"margin": self.margin, "min_score": self.min_score, "labels": list(self.labels)}
        return {name: value for name, value in {**told, "most": self.most}.items() if value}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Crop:
        """Reads what `to_json` wrote. Raises ValueError, TypeError."""
        return cls(
            float(told.get("margin", 0.0)),
            float(told.get("min_score", 0.0)),
            tuple(map(str, told.get("labels", ()))),
            int(told.get("most", 0)),
        )
