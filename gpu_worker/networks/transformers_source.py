"""Hugging Face directories as people have them → the manifest that serves them.

config.json               the architecture, its classes, what kind of problem it solves
model.safetensors         weights; or several files, and model.safetensors.index.json
tokenizer.json            of texts; tokenizer_config.json: how long they may be
preprocessor_config.json  of pictures: size, crop, mean, std
modules.json              sentence-transformers: pooling, dense layers, normalised, length, prompts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.network import Floats
from gpu_worker.networks.picture_rules import picture_input
from gpu_worker.networks.recognised import Recognised, as_wished, json_of
from gpu_worker.networks.sentence_source import dense_folders, sentence_rules
from gpu_worker.networks.transformers_config import most_positions, safe_config
from gpu_worker.tasks import OBJECT_DETECTION

__all__ = ["recognise_token_graph", "recognise_transformers"]

_BOUND = 1e-4
DETECTION = "detection"
_LEAST_SCORE = 0.5  # of a box, as transformers' pipelines have it; queries do not overlap
_TEXTS = (
    "The service was slow, and the laksa was worth the wait.",
    "ok",
    "Ein längerer Satz mit Umlauten, Zahlen (42) und einem ☃.",
    "word " * 700,
)
_GRAPHS = ("model.onnx", "onnx/model.onnx")
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_SANE_LENGTH = 1 << 20  # tokenizers say 10^30 where they know of none


def recognise_transformers(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """A folder with a config.json that names a model_type. Raises `ModelUnusable`, with what is missing."""
    config = _config(path)
    if config is None:
        return None
    files = _weights(path) | {"config.json": (path / "config.json", "config")}
    return _recognised(path, config, wishes, files, "transformers")


def recognise_token_graph(path: Path, wishes: Mapping[str, Any]) -> Recognised | None:
    """Such a folder whose weights are an ONNX graph, or have one beside them where that runtime is asked for.

    Raises `ModelUnusable`, with what is missing.
    """
    graph = next((path / name for name in _GRAPHS if (path / name).is_file()), None)
    has_others = any((path / name).is_file() for name in _SAFETENSORS)
    if graph is None or (has_others and wishes.get("runtime") != "onnx"):
        return None
    config = _config(path)
    if config is None:
        return None
    if (path / "preprocessor_config.json").is_file():
        raise ModelUnusable(f"{path} holds a graph of pictures: import {graph} itself")
    return _recognised(path, config, wishes, {"model.onnx": (graph, "weights")}, "onnx")


def _config(path: Path) -> dict[str, Any] | None:
    """That of a folder of transformers, without what would fetch code. Raises `ModelUnusable`."""
    if not (path / "config.json").is_file():
        return None
    config = json_of(path / "config.json")
    if not isinstance(config.get("model_type"), str) or config["model_type"] == "model2vec":
        return None
    return safe_config(config, str(path / "config.json"))


def _recognised(
    path: Path,
    config: Mapping[str, Any],
    wishes: Mapping[str, Any],
    files: dict[str, tuple[Path | bytes, str]],
    runtime: str,
) -> Recognised:
    architecture = str((config.get("architectures") or [""])[0])
    guesses: list[str] = []
    is_picture = (path / "preprocessor_config.json").is_file()
    kind = _kind(architecture, config, path)
    manifest: dict[str, Any] = {
        "runtime": runtime,
        "architecture": architecture or config["model_type"],
    }
    options: dict[str, Any] = {}
    if is_picture:
        rules = json_of(path / "preprocessor_config.json")
        own = picture_input(rules, guesses, finds_boxes=kind == DETECTION)
        manifest["input"] = as_wished(own, wishes)
        manifest["task"] = OBJECT_DETECTION.name if kind == DETECTION else f"image-{kind}"
        if kind == DETECTION:
            manifest["outputs"] = {"threshold": _LEAST_SCORE, "overlap": 1, **(wishes.get("outputs") or {})}
    else:
        rules, options = _text_rules(path, config, kind, guesses)
        if not (path / "tokenizer.json").is_file():
            raise ModelUnusable(
                f"{path} has no tokenizer.json, of which its texts become tokens: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it"
            )
        files["tokenizer.json"] = (path / "tokenizer.json", "tokenizer")
        own = {"form": "text", "preprocess": {"tokenizer": "tokenizer.json", **rules}}
        manifest["input"] = as_wished(own, wishes)
        manifest["task"] = f"text-{kind}"
    width = 0
    if kind == "embedding" and not is_picture and (path / "modules.json").is_file():
        folders = dense_folders(path)
        if folders:
            from gpu_worker.networks.dense_layers import gathered

            content, options["dense"], width = gathered(folders)
            files["dense.safetensors"] = (content, "dense")
    options |= wishes.get("architecture_options") or {}
    if options:
        manifest["architecture_options"] = options
    if kind == "embedding":
        manifest["features"] = {
            "width": width or int(config.get("hidden_size") or (config.get("hidden_sizes") or [0])[-1])
        }
    elif kind != "regression":
        manifest["classes"] = _classes(config, wishes, guesses)
    if runtime == "onnx" and wishes.get("outputs"):
        manifest["outputs"] = dict(wishes["outputs"])
    has_reference = runtime == "transformers" and not is_picture
    reference = _reference(path, manifest) if has_reference else None
    samples = [] if is_picture else [text.encode() for text in _TEXTS]
    return Recognised(manifest, files, guesses, reference, _BOUND, samples)


def _kind(architecture: str, config: Mapping[str, Any], path: Path) -> str:
    """What its task is, of texts or pictures. Raises `ModelUnusable`."""
    if architecture.endswith(("ForSequenceClassification", "ForImageClassification")):
        problem = config.get("problem_type")
        if problem == "multi_label_classification":
            return "multilabel"
        labels = len(config.get("id2label") or {0: "", 1: ""})
        if problem == "regression" or (problem is None and labels == 1):
            if labels != 1:
                raise ModelUnusable(f"{path} answers {labels} values a row, and a regression has one")
            return "regression"
        return "classification"
    if architecture.endswith("ForObjectDetection"):
        return DETECTION
    what = "its answers are no classes, boxes, value or embedding"
    writes = architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    is_bare = architecture.endswith("Model") or not architecture
    if (path / "modules.json").is_file() or (is_bare and not writes):
        return "embedding"
    if writes:
        what = "it writes texts: serve it behind an OpenAI-compatible server, and register that"
    raise ModelUnusable(f"{path} is a {architecture}, which cannot be served: {what}")


def _text_rules(
    path: Path, config: Mapping[str, Any], kind: str, guesses: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`input.preprocess` but for the tokenizer, and `architecture_options`."""
    lengths: list[Any] = [most_positions(config)]
    if (path / "tokenizer_config.json").is_file():
        lengths.append(json_of(path / "tokenizer_config.json").get("model_max_length"))
    rules: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if kind == "embedding":
        if (path / "modules.json").is_file():
            rules, options = sentence_rules(path)
            lengths.append(rules.pop("length", None))
        else:
            guesses.append(
                "nothing says how an embedding is made of the tokens' vectors: their mean is taken"
            )
            options = {"pooling": "mean", "normalise": False}
    known = [
        int(length) for length in lengths if isinstance(length, int | float) and 0 < length < _SANE_LENGTH
    ]
    if known:
        rules["length"] = min(known)
    return rules, options


def _classes(config: Mapping[str, Any], wishes: Mapping[str, Any], guesses: list[str]) -> list[str]:
    named = wishes.get("classes")
    if named:
        return list(map(str, named))
    labels = config.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}  # transformers' own default
    found = [str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]
    if all(label.startswith("LABEL_") for label in found):
        guesses.append(f"nobody has named its classes: they are called {found[0]} to {found[-1]}")
    return found


def _weights(path: Path) -> dict[str, tuple[Path | bytes, str]]:
    """The weights' files by their names. Raises `ModelUnusable` where none is safe to read."""
    whole = path / "model.safetensors"
    if whole.is_file():
        return {whole.name: (whole, "weights")}
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set((json_of(index).get("weight_map") or {}).values()))
        parts = [path / str(name) for name in names if Path(str(name)).name == name]
        if not parts or not all(part.is_file() for part in parts):
            raise ModelUnusable(f"{index} names files that are not there")
        found: dict[str, tuple[Path | bytes, str]] = {part.name: (part, "weights") for part in parts}
        return found | {index.name: (index, "index")}
    pickled = next((name for name in ("pytorch_model.bin", "tf_model.h5") if (path / name).exists()), None)
    raise ModelUnusable(
        f"{path} has no model.safetensors"
        + (f", and {pickled} may hold code: it is not read. Save it with save_pretrained" if pickled else "")
    )


def _reference(path: Path, manifest: Mapping[str, Any]) -> Callable[[Sequence[bytes]], Floats] | None:
    """The answers of transformers itself, or of sentence-transformers, where they are there."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
    kind = str(manifest["task"]).partition("-")[2]
    if kind == "embedding":
        return _by_sentence_transformers(path)

    def reference(rows: Sequence[bytes]) -> Floats:
        # trust_remote_code: where it is not said, transformers asks at the terminal.
        said = {"local_files_only": True, "trust_remote_code": False}
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **said)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            path, use_safetensors=True, dtype=torch.float32, **said
        ).eval()
        length = manifest["input"]["preprocess"].get("length")
        found = []
        for row in rows:  # one by one: nothing is padded
            encoded = tokenizer(row.decode(), truncation=True, max_length=length, return_tensors="pt")
            with torch.inference_mode():
                logits = model(**encoded).logits
            if kind == "classification":
                logits = torch.softmax(logits, dim=1)
            elif kind == "multilabel":
                logits = torch.sigmoid(logits)
            found.append(logits.numpy())
        return np.concatenate(found).astype(np.float32)

    return reference


def _by_sentence_transformers(path: Path) -> Callable[[Sequence[bytes]], Floats] | None:
    if not (path / "modules.json").is_file():
        return None
    try:
        import sentence_transformers
    except ImportError:
        return None

    def reference(rows: Sequence[bytes]) -> Floats:
        model = sentence_transformers.SentenceTransformer(
            str(path), device="cpu", local_files_only=True, trust_remote_code=False
        )
        return np.asarray(model.encode([row.decode() for row in rows]), np.float32)

    return reference
