"""Functions and models in memory, for tests that need no files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.catalog.functions import Form, Function, InputShape, ModelVersion

CLASSES = ("laksa", "pizza", "satay")
NORMAL = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def text_model(name: str = "net", version: int = 1, accuracy: float = 0.9, **fields: Any) -> ModelVersion:
    """A text model."""
    return ModelVersion(
        name=name,
        version=version,
        task="text-classification",
        classes=CLASSES,
        input=InputShape("text"),
        accuracy=accuracy,
        directory=Path("/models") / name / str(version),
        **fields,
    )


def image_model(name: str = "photo", side: int = 2, accuracy: float = 0.9) -> ModelVersion:
    """An image model of side × side pixels."""
    return ModelVersion(
        name=name,
        version=1,
        task="image-classification",
        classes=CLASSES,
        input=InputShape("path", side, side, *NORMAL),
        accuracy=accuracy,
        directory=Path("/models") / name / "1",
    )


def function(*members: ModelVersion, name: str = "f", version: int = 1, **fields: Any) -> Function:
    """A function of these members, or of one text model."""
    members = members or (text_model(),)
    form: Form = fields.pop("form", members[0].input.form)
    return Function(name, version, members, form, batch_sizes=fields.pop("batch_sizes", (1, 4, 64)), **fields)
