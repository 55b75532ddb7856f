"""What a file or folder turned out to be: the manifest that can be made of it, and how to check that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.regular import read_json
from gpu_worker.networks.network import Floats

__all__ = ["Recognised", "as_wished", "json_of"]


@dataclass(slots=True)
class Recognised:
    """A model as its owner has it.

    manifest: fields of model.json, but for name, version and files. files: name beside model.json → (where it
    lies now, or what it holds; its role), the weights first. guesses: what nobody said, in words. reference:
    what the source's own library gives for rows of the manifest's form, float32 as `Task.reads` has it; None
    where the library is not here, or there is nothing to compare with. bound: the largest difference that is
    still called equal. samples: rows to compare on; empty: ones are drawn.
    """

    manifest: dict[str, Any]
    files: Mapping[str, tuple[Path | bytes, str]]
    guesses: list[str] = field(default_factory=list)
    reference: Callable[[Sequence[bytes]], Floats] | None = None
    bound: float = 1e-3
    samples: Sequence[bytes] = ()


def as_wished(own: Mapping[str, Any], wishes: Mapping[str, Any]) -> dict[str, Any]:
    """`input` as a source says it, but for what its owner says otherwise."""
    said = dict(wishes.get("input") or {})
    preprocess = {**(own.get("preprocess") or {}), **(said.pop("preprocess", None) or {})}
    return {**own, **said, **({"preprocess": preprocess} if preprocess else {})}


def json_of(path: Path) -> dict[str, Any]:
    """The JSON object of a file of a source. Raises `ModelUnusable`, which names the file.

    Links are followed, as in a download of the Hugging Face hub: a source is read with its owner's rights.
    """
    try:
        return read_json(path.resolve())
    except ValueError as exc:
        raise ModelUnusable(str(exc)) from exc
