"""Static word embeddings as people have them → the manifest that serves them.

model2vec               model.safetensors ("embeddings")        tokenizer.json   config.json
sentence-transformers   [0_StaticEmbedding/]model.safetensors   tokenizer.json   modules.json
wordllama               weights/NAME_256.safetensors            tokenizers/NAME_tokenizer_config.json
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.extras import required
from gpu_worker.networks.network import Floats
from gpu_worker.networks.recognised import Recognised, json_of
from gpu_worker.networks.sentence_source import MODULES_FILE, sentence_modules

__all__ = ["recognise_static"]

_MOST_HEADER_BYTES = 1 << 20
_BOUND = 1e-3  # a table in half precision is averaged so by its library
_LENGTH = struct.Struct("<Q")
_MODEL2VEC_TOKENS = 512  # of a text, where its config does not say
_SAMPLES = tuple(
    text.encode()
    for text in (
        "I went to the car",
        "Introduction to neural networks",
        "a",
        "Ein Satz mit Umlauten: äöü, und ein ☃",
        "0123456789 " * 40,
    )
)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the files lie, and the table's name. config: of model2vec."""

    weights: Path
    tokenizer: Path
    tensor: str
    config: Path | None = None
    is_normalised: bool = False


def recognise_static(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """A folder, or wordllama's weights file. Raises `ModelUnusable` where a part of it is missing."""
    source = _source(path)
    if source is None:
        return None
    if not source.tokenizer.is_file():
        raise ModelUnusable(f"{path} has a table of tokens and no tokenizer: {source.tokenizer} is missing")
    shape = _tensors(source.weights)[source.tensor]["shape"]
    options: dict[str, Any] = {"tensor": source.tensor, "normalise": source.is_normalised}
    preprocess: dict[str, Any] = {"tokenizer": "tokenizer.json"}
    if source.config is not None:
        options, preprocess = _of_model2vec(source, options, preprocess)
    wished_options = wishes.get("architecture_options") or {}
    wished_preprocess = (wishes.get("input") or {}).get("preprocess") or {}
    is_as_it_was = not wished_options and not wished_preprocess
    options |= wished_options
    preprocess |= wished_preprocess
    manifest = {
        "runtime": "static",
        "architecture": "model2vec" if source.config is not None else "static-embedding",
        "architecture_options": options,
        "task": "text-embedding",
        "input": {"form": "text", "preprocess": preprocess},
        "features": {"width": int(shape[1])},
    }
    files = {
        "model.safetensors": (source.weights, "weights"),
        "tokenizer.json": (source.tokenizer, "tokenizer"),
    }
    reference = _reference(path, source) if is_as_it_was else None
    return Recognised(manifest, files, [], reference, _BOUND, _SAMPLES)


def _of_model2vec(
    source: _Source, options: dict[str, Any], preprocess: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What model2vec's StaticModel does beside the mean: it cuts texts, and leaves out unknown tokens."""
    assert source.config is not None
    config = json_of(source.config)
    tokens = config.get("max_length", _MODEL2VEC_TOKENS)
    tokenizer = required("tokenizers", "embeddings").Tokenizer.from_file(str(source.tokenizer))
    said = json.loads(tokenizer.to_str())["model"]
    unknown = said.get("unk_id")
    if unknown is None and said.get("unk_token") is not None:
        unknown = tokenizer.token_to_id(said["unk_token"])
    options = {**options, "normalise": config.get("normalize") is True, "skips": unknown}
    if tokens:
        length = int(median(map(len, tokenizer.get_vocab())))
        options["characters"] = int(tokens) * length
        preprocess = {**preprocess, "length": int(tokens)}
    return options, preprocess


def _source(path: Path) -> _Source | None:
    if path.is_file() and path.suffix == ".safetensors":
        return _wordllama(path)
    if not path.is_dir():
        return None
    for weights in sorted((path / "weights").glob("*.safetensors")):
        if (found := _wordllama(weights)) is not None:
            return found
    folder = path / "0_StaticEmbedding"
    if not (folder / "model.safetensors").is_file():
        folder = path
    weights = folder / "model.safetensors"
    tensors = _tensors(weights)
    if "embeddings" in tensors:
        return _Source(weights, path / "tokenizer.json", "embeddings", path / "config.json")
    if "embedding.weight" in tensors and (path / MODULES_FILE).is_file():
        kinds = [kind for kind, _ in sentence_modules(path)]
        if kinds[:1] == ["StaticEmbedding"]:
            return _Source(
                weights, folder / "tokenizer.json", "embedding.weight", None, "Normalize" in kinds[1:]
            )
    return None


def _wordllama(weights: Path) -> _Source | None:
    """NAME_256.safetensors, whose tokenizer lies in the folder beside its own."""
    tensors = _tensors(weights)
    if set(tensors) != {"embedding.weight"} or weights.parent.name != "weights":
        return None
    name = weights.stem.rpartition("_")[0]
    tokenizer = weights.parent.parent / "tokenizers" / f"{name}_tokenizer_config.json"
    return _Source(weights, tokenizer, "embedding.weight")


def _tensors(path: Path) -> Mapping[str, Any]:
    """The header of a safetensors file; {} of what is none."""
    try:
        with open(path, "rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > _MOST_HEADER_BYTES:
                return {}
            header = json.loads(file.read(length))
    except (OSError, ValueError, struct.error, RecursionError):
        return {}
    if not isinstance(header, dict):
        return {}
    return {name: said for name, said in header.items() if name != "__metadata__" and _is_tensor(said)}


def _is_tensor(said: object) -> bool:
    return isinstance(said, dict) and isinstance(said.get("shape"), list)


def _reference(path: Path, source: _Source) -> Callable[[Sequence[bytes]], Floats] | None:
    """The source's own library, where it is there."""
    ways = (_by_model2vec,) if source.config is not None else (_by_wordllama, _by_sentence_transformers)
    for way in ways:
        try:
            encode = way(path, source)
        except ImportError:
            continue
        if encode is not None:
            return functools.partial(_encoded, encode)
    return None


def _encoded(encode: Callable[[list[str]], Any], rows: Sequence[bytes]) -> Floats:
    return np.asarray(encode([row.decode() for row in rows]), np.float32)


def _by_model2vec(path: Path, _source: _Source) -> Callable[[list[str]], Any]:
    import model2vec

    encode: Callable[[list[str]], Any] = model2vec.StaticModel.from_pretrained(str(path)).encode
    return encode


def _by_wordllama(_path: Path, source: _Source) -> Callable[[list[str]], Any] | None:
    if source.weights.parent.name != "weights":
        return None
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    table = load_file(str(source.weights))[source.tensor]
    tokenizer = Tokenizer.from_file(str(source.tokenizer))
    encode: Callable[[list[str]], Any] = WordLlamaInference(table, tokenizer).embed
    return encode


def _by_sentence_transformers(path: Path, source: _Source) -> Callable[[list[str]], Any] | None:
    if source.weights.parent.name == "weights":
        return None
    import sentence_transformers

    encode: Callable[[list[str]], Any] = sentence_transformers.SentenceTransformer(
        str(path), device="cpu", local_files_only=True, trust_remote_code=False
    ).encode
    return encode
