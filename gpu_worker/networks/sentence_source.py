"""What a folder of sentence-transformers says of its embeddings: modules, pooling, length, prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.regular import read_regular
from gpu_worker.networks.recognised import json_of

__all__ = ["MODULES_FILE", "dense_folders", "sentence_modules", "sentence_rules"]

MODULES_FILE = "modules.json"
_OWN = "sentence_transformers."
_MOST_BYTES = 1 << 20

# Its words for a pooling → ours (`sequence_network.POOLINGS`).
_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_WORDS = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}


def dense_folders(path: Path) -> list[Path]:
    """Those of its Dense modules, in their order. Raises `ModelUnusable`."""
    return [path / folder for kind, folder in sentence_modules(path) if kind == "Dense"]


def sentence_rules(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`input.preprocess` and `architecture_options`. Raises `ModelUnusable` for other modules."""
    modules = sentence_modules(path)
    kinds = [kind for kind, _ in modules]
    rest = [kind for kind in kinds[2:] if kind != "Dense"]
    is_in_order = rest == [] or (rest == ["Normalize"] and kinds[-1] == "Normalize")
    if kinds[:2] != ["Transformer", "Pooling"] or not is_in_order:
        raise ModelUnusable(
            f"{path} is made of {', '.join(kinds)}; a Transformer, a Pooling, then Dense layers and a "
            "Normalize can be served"
        )
    rules: dict[str, Any] = {}
    own = path / modules[0][1] / "sentence_bert_config.json"
    if own.is_file():
        said = json_of(own)
        if isinstance(said.get("max_seq_length"), int):
            rules["length"] = said["max_seq_length"]
        if said.get("do_lower_case") is True:
            rules["lower_case"] = True
    prompt = _prompt(path)
    if prompt:
        rules["prefix"] = prompt
    pooling = _pooling(path / modules[1][1] / "config.json")
    return rules, {"pooling": pooling, "normalise": "Normalize" in kinds}


def _pooling(path: Path) -> str:
    said = json_of(path)
    mode = said.get("pooling_mode")
    if isinstance(mode, str) and mode in _WORDS:
        return _WORDS[mode]
    chosen = [name for name, on in said.items() if name.startswith("pooling_mode_") and on is True]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise ModelUnusable(
            f"{path} pools by {', '.join(chosen) or mode or 'nothing'}; "
            f"one of {', '.join(_WORDS)} can be served"
        )
    return _POOLINGS[chosen[0]]


def _prompt(path: Path) -> str:
    """The one that is put before each text where nobody says another."""
    config = path / "config_sentence_transformers.json"
    if not config.is_file():
        return ""
    said = json_of(config)
    prompts: Mapping[str, Any] = said.get("prompts") or {}
    return str(prompts.get(str(said.get("default_prompt_name")), ""))


def sentence_modules(path: Path) -> list[tuple[str, str]]:
    """(kind, folder) of each module of a folder. Raises `ModelUnusable`.

    Only for modules of sentence-transformers itself: any other type is code, which it would look for in the
    folder and run.
    """
    file = path / MODULES_FILE
    try:
        listed = json.loads(read_regular(file.resolve(), _MOST_BYTES))
        modules = [(str(module["type"]), str(module["path"])) for module in listed]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ModelUnusable(f"{file} lists no modules: {exc!r}") from exc
    for kind, _ in modules:
        if not kind.startswith(_OWN):
            raise ModelUnusable(f"{file} names {kind[:100]!r}: code that comes with a model is never run")
    return [(kind.rpartition(".")[2], folder) for kind, folder in modules]
