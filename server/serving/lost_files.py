"""Files of a model version that are not where they were registered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server.catalog.functions import ModelVersion
from server.catalog.variants import base_of, is_variant, variant_of

__all__ = ["LostFile", "lost_file"]


@dataclass(frozen=True, slots=True)
class LostFile:
    """A file that is gone, and what to do about it."""

    path: Path
    remedy: str


def lost_file(model: ModelVersion) -> LostFile | None:
    """The first of its files that is not there; None where all are. Blocking."""
    for file in model.files:
        path = model.directory / file.name
        if not path.is_file():
            again = f"make it again: ml-udf variants {base_of(model.name)} --only {variant_of(model.name)}"
            return LostFile(
                path, again if is_variant(model.name) else "put it back, or register the model anew"
            )
    return None
