"""model.json: each field that is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import BadOption
from server.store.manifest import model_from_manifest
from tests.unit.server.manifests import manifest


def test_a_valid_manifest_becomes_a_model() -> None:
    image = {"form": "path", "height": 32, "width": 48, "mean": [0.5] * 3, "std": [0.25] * 3}
    model = model_from_manifest(manifest(task="image-classification", input=image), Path("/m"))
    assert model.key == "net/1"
    assert model.input.row_bytes == 4 * 3 * 32 * 48
    assert model.input.std == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("format", None),
        ("name", 7),
        ("name", "../x"),
        ("version", 0),
        ("version", "1"),
        ("version", True),
        ("version", 2**31),
        ("runtime", "pickle"),
        ("task", ""),
        ("task", None),
        ("classes", []),
        ("classes", ["a", ""]),
        ("classes", ["a", "a"]),
        ("classes", "abc"),
        ("accuracy", 1.5),
        ("accuracy", "high"),
        ("accuracy", float("nan")),
        ("sha256", "abc"),
        ("input", None),
        ("input", {"form": "sound"}),
        ("input", {"form": "path", "height": -1}),
        ("input", {"form": "path", "height": "tall"}),
        ("input", {"form": "path", "mean": ["x"]}),
        ("input", {"form": "path", "std": [10**400]}),
    ],
)
def test_a_field_that_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(BadOption, match=field):
        model_from_manifest({**manifest(), field: value}, Path("/m"))
