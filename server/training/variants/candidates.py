"""Which variants a model can have, and which are asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_worker.model_files.parity_spec import ENCODERS, MOST_K, TILES
from gpu_worker.model_files.run_spec import MOST_THREADS
from gpu_worker.tasks import task_named
from server.catalog.functions import ModelVersion
from server.catalog.variants import is_parity, is_variant, parity_variant
from server.errors import BadOption

__all__ = ["Candidate", "VariantWishes", "candidates_of", "why_none", "wishes_from"]

ONNX: Final = "onnx"
# By runtime, what is worth trying; those with threads of their own first.
_BY_RUNTIME: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("onnx", "int8", "bf16"),
    "onnx": ("int8",),
    "timm": ("traced",),
}
_WITH_THREADS: Final = ("onnx", "int8")
# What is made where it is asked for, and never unasked: it takes minutes, and serves `late_rows` alone.
_PARITIES: Final = tuple(
    parity_variant(k) + ("" if encoder == TILES else f"-{encoder}")
    for k in range(2, MOST_K + 1)
    for encoder in ENCODERS
)
# They may answer otherwise than their original: how often must be seen.
_LOSSY: Final = ("int8", "bf16")
_FIELDS: Final = {"only", "max_accuracy_loss", "threads", "dataset", "version"}
_MAX_LOSS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Candidate:
    """name: of the variant · recipe: by which a worker makes it"""

    name: str
    recipe: str
    threads: int = 1

    @property
    def is_lossy(self) -> bool:
        """Whether it may answer otherwise than its original."""
        return self.recipe in _LOSSY

    @property
    def is_parity(self) -> bool:
        """Whether it is a parity model, which never answers alone."""
        return is_parity(self.name)


@dataclass(frozen=True, slots=True)
class VariantWishes:
    """only: names; () = all that are worth trying · dataset: by whose rows; "" = those that the model was
    trained on · version: of the model; None = the newest
    """

    only: tuple[str, ...] = ()
    max_accuracy_loss: float = _MAX_LOSS
    threads: tuple[int, ...] = (1,)
    dataset: str = ""
    version: int | None = None


def wishes_from(body: Mapping[str, Any]) -> VariantWishes:
    """Those of a request. Raises `BadOption` with the field."""
    unknown = sorted(body.keys() - _FIELDS)
    if unknown:
        raise BadOption(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    only, threads = body.get("only") or [], body.get("threads") or [1]
    if not isinstance(only, list) or not all(isinstance(name, str) for name in only):
        raise BadOption("'only' must be a list of variants' names, such as [\"int8\"]")
    if (
        not isinstance(threads, list)
        or not all(type(count) is int and 1 <= count <= MOST_THREADS for count in threads)
        or len(threads) > MOST_THREADS
    ):
        raise BadOption(f"'threads' must be a list of whole numbers from 1 to {MOST_THREADS}")
    loss = body.get("max_accuracy_loss", _MAX_LOSS)
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not 0 <= loss <= 1:
        raise BadOption(f"'max_accuracy_loss' must be a number from 0 to 1, not {loss!r}")
    dataset, version = body.get("dataset") or "", body.get("version")
    if not isinstance(dataset, str):
        raise BadOption("'dataset' must be the name of a dataset")
    if version is not None and (type(version) is not int or version < 1):
        raise BadOption("'version' must be a whole number from 1")
    return VariantWishes(tuple(only), float(loss), tuple(sorted(set(threads))), dataset, version)


def why_none(model: ModelVersion) -> str:
    """Why a model has no variants; "" where it may have some."""
    if is_variant(model.name):
        return f"{model.name} is a variant itself; name its model"
    if not task_named(model.task).picks_one or not model.input.row_bytes:
        return (
            f"variants are made of models that name the class of a picture, and {model.name} does "
            f"{model.task} on rows of form {model.input.form}"
        )
    if model.runtime not in _BY_RUNTIME or model.architecture == "hashing":
        runtime = model.architecture if model.architecture == "hashing" else model.runtime
        return f"no variants are made of models of {runtime}; of {', '.join(_BY_RUNTIME)} there are"
    return ""


def candidates_of(model: ModelVersion, wishes: VariantWishes) -> tuple[Candidate, ...]:
    """What to try. Raises `BadOption` where there is nothing, or what is asked for is none of it."""
    if why := why_none(model):
        raise BadOption(why)
    found: list[Candidate] = []
    for threads in wishes.threads:
        end = "" if threads == 1 else f"-{threads}t"
        for recipe in _BY_RUNTIME[model.runtime]:
            if threads == 1 or recipe in _WITH_THREADS:
                found.append(Candidate(f"{recipe}{end}", recipe, threads))
        if model.runtime == ONNX and threads > 1:
            found.append(Candidate(f"onnx{end}", "same", threads))
    if not wishes.only:
        return tuple(found)
    if model.runtime == "torch":
        found += [Candidate(name, name) for name in _PARITIES]
    known = {each.name: each for each in found}
    for name in wishes.only:
        if name not in known:
            raise BadOption(
                f"{model.name} has no variant {name!r}; of {model.runtime} with threads "
                f"{', '.join(map(str, wishes.threads))} there can be {_listed(found)}"
            )
    return tuple(known[name] for name in dict.fromkeys(wishes.only))


def _listed(found: Sequence[Candidate]) -> str:
    return ", ".join(each.name for each in found) or "none"
