"""A config.json of transformers, which comes from anybody: what is built of it, and how long texts may be.

Beside its architecture such a file may name code of its own, kernels of other repositories, and weights that
lie elsewhere. None of that is followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpu_worker.errors import ModelUnusable

__all__ = ["most_positions", "safe_config"]

# Where code lies, and how it is computed, which the installed transformers chooses itself.
_LEFT_OUT: Final = frozenset(
    (
        *("auto_map", "custom_pipelines"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    )
)
_REFUSED: Final[Mapping[str, str]] = {
    "backbone": "takes a part of itself from elsewhere",
    "backbone_kwargs": "takes a part of itself from elsewhere",
    "use_pretrained_backbone": "takes a part of itself from elsewhere",
    "quantization_config": "is quantised, and is computed in float32 here: save it without",
}
_OF_TIMM: Final = "timm_"  # such model types hand their options on to timm
_NAMES: Final = ("id2label", "label2id")  # of classes: any word may stand there
_DEEPEST: Final = 16


def safe_config(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same without what would fetch code. Raises `ModelUnusable` where nothing safe would be left."""
    return _safe(said, where, 0)


def _safe(said: Mapping[str, Any], where: str, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise ModelUnusable(f"{where} is nested more than {_DEEPEST} deep")
    for name, reason in _REFUSED.items():
        if said.get(name):
            raise ModelUnusable(f"{where} says {name!r}: the model {reason}")
    if str(said.get("model_type")).startswith(_OF_TIMM):
        raise ModelUnusable(
            f"{where} is of the type {said['model_type']!r}: import the checkpoint as timm has it, a folder "
            "whose config.json names its 'architecture'"
        )
    return {
        name: _safe(value, where, depth + 1) if isinstance(value, Mapping) and name not in _NAMES else value
        for name, value in said.items()
        if name not in _LEFT_OUT
    }


def most_positions(config: Mapping[str, Any]) -> int:
    """Tokens of a text at most, 0 where it says none. RoBERTa and its like number them from behind the
    padding's own on.
    """
    most = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(most, int):
        return 0
    kind = str(config.get("model_type"))
    padding = config.get("pad_token_id")
    is_like_roberta = "roberta" in kind or kind in (
        *("camembert", "data2vec-text", "esm", "longformer", "mpnet"),
    )
    if is_like_roberta and "deberta" not in kind:
        most -= (int(padding) if isinstance(padding, int) else 1) + 1
    return max(0, most)
