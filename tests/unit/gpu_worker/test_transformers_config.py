"""A config.json comes from anybody: nothing that it names beside its architecture is fetched or run."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.transformers_config import most_positions, safe_config


@pytest.mark.security
def test_code_and_kernels_of_others_are_left_out_at_any_depth() -> None:
    said = {
        "model_type": "clip",
        "auto_map": {"AutoModel": "evil.Model"},
        "attn_implementation": "evil/kernel",
        "text_config": {"hidden_size": 8, "_attn_implementation": "evil/kernel", "auto_map": {}},
        "id2label": {"0": "auto_map"},
        "label2id": {"backbone": 1},
    }
    assert safe_config(said, "c") == {
        "model_type": "clip",
        "text_config": {"hidden_size": 8},
        "id2label": {"0": "auto_map"},
        "label2id": {"backbone": 1},
    }


@pytest.mark.security
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "/x.pth"}}, "as timm has it"),
        ({"vision_config": {"model_type": "timm_backbone"}}, "as timm has it"),
        ({"backbone": "resnet50"}, "from elsewhere"),
        ({"vision_config": {"backbone_kwargs": {"checkpoint_path": "/x.pth"}}}, "from elsewhere"),
        ({"quantization_config": {"quant_method": "awq"}}, "is quantised"),
    ],
)
def test_what_takes_weights_from_elsewhere_is_refused(said: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelUnusable, match=reason):
        safe_config(said, "config.json")


@pytest.mark.security
def test_a_config_of_any_depth_is_no_end_of_the_process() -> None:
    said: dict[str, Any] = {}
    for _ in range(900):
        said = {"text_config": said}
    with pytest.raises(ModelUnusable, match="nested more than 16 deep"):
        safe_config(said, "config.json")


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "deberta-v2", "max_position_embeddings": 512}, 512),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "xlnet", "max_position_embeddings": -1}, 0),
        ({"model_type": "t5"}, 0),
    ],
)
def test_the_longest_text_is_what_the_model_has_places_for(config: dict[str, Any], tokens: int) -> None:
    assert most_positions(config) == tokens
