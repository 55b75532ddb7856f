"""Graphs of tokens, as exporters of transformers write them, answer as the library itself does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.errors import ModelUnusable
from gpu_worker.importing import checked, recognised, staged
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import reading
from gpu_worker.tasks import task_named
from tests.unit.gpu_worker import test_transformers as hugging_face
from tests.unit.gpu_worker.recognising import CPU

transformers = pytest.importorskip("transformers", reason="pip install 'ml_udf[transformers]'")

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
ROWS = [text.encode() for text in hugging_face.TEXTS if text]


def exported(folder: Path, of: str, output: str, *, fixed: bool = False, place: str = "model.onnx") -> Path:
    """Adds the graph of a folder's model to it, and takes its safetensors away."""
    module = getattr(transformers, of).from_pretrained(folder, attn_implementation="eager").eval()

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module.requires_grad_(False)

        def forward(self, tokens: Any, mask: Any, segments: Any) -> Any:
            found = self.module(input_ids=tokens, attention_mask=mask, token_type_ids=segments)
            return getattr(found, output)

    (folder / place).parent.mkdir(exist_ok=True)
    axes = {name: {0: "n", 1: "length"} for name in INPUTS} | {output: {0: "n"}}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Graph(),
            tuple(torch.ones(2, 8, dtype=torch.int64) for _ in INPUTS),
            str(folder / place),
            input_names=list(INPUTS),
            output_names=[output],
            dynamic_axes=None if fixed else axes,
            opset_version=17,
            dynamo=False,
        )
    (folder / "model.safetensors").unlink()
    return folder


def answers(folder: Path, target: Path, **wishes: Any) -> tuple[Any, Any]:
    target.mkdir()
    found = recognised(folder, wishes)
    manifest = staged(found, "model", target)
    checked(manifest, found)
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    return manifest, reading(network, task_named(manifest.task).reads)(ROWS, lambda: False)


def test_texts_are_classified_as_by_transformers(tmp_path: Path) -> None:
    labels = {0: "bad", 1: "so-so", 2: "good"}
    folder = hugging_face._bert(tmp_path / "source", id2label=labels)
    reference = recognised(folder, {}).reference
    assert reference is not None
    expected = reference(ROWS)
    exported(folder, "BertForSequenceClassification", "logits", place="onnx/model.onnx")
    manifest, found = answers(folder, tmp_path / "m")
    assert (manifest.runtime, manifest.task) == ("onnx", "text-classification")
    assert manifest.classes == ("bad", "so-so", "good")
    assert found == pytest.approx(expected, abs=1e-4)
    assert np.ptp(expected, axis=0).max() > 0.01  # it tells texts apart


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentences_are_embedded_with_their_pooling(tmp_path: Path, pooling: str) -> None:
    rules = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    folder = hugging_face._sentence_transformer(tmp_path / "source", rules)
    _, expected = answers(folder, tmp_path / "torch")
    exported(folder, "BertModel", "last_hidden_state")
    manifest, found = answers(folder, tmp_path / "m")
    assert (manifest.runtime, manifest.task, manifest.features.width) == ("onnx", "text-embedding", 16)
    assert manifest.input.preprocess.length == 20
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_graph_that_pools_itself_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = hugging_face._bert(tmp_path / "source", "BertModel")
    module = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    exported(folder, "BertModel", "pooler_output")
    _, found = answers(folder, tmp_path / "m")
    for text, vector in zip(ROWS, found, strict=True):
        with torch.inference_mode():
            told = module(**tokenizer(text.decode(), truncation=True, max_length=32, return_tensors="pt"))
        assert vector == pytest.approx(told.pooler_output[0].numpy(), abs=1e-4)


def test_safetensors_are_preferred_unless_the_graph_is_asked_for(tmp_path: Path) -> None:
    folder = hugging_face._bert(tmp_path / "source", num_labels=2)
    weights = (folder / "model.safetensors").read_bytes()
    exported(folder, "BertForSequenceClassification", "logits")
    (folder / "model.safetensors").write_bytes(weights)
    assert recognised(folder, {}).manifest["runtime"] == "transformers"
    assert recognised(folder, {"runtime": "onnx"}).manifest["runtime"] == "onnx"


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    fixed = hugging_face._bert(tmp_path / "fixed", num_labels=2)
    exported(fixed, "BertForSequenceClassification", "logits", fixed=True)
    with pytest.raises(ModelUnusable, match="export it with dynamic axes"):
        answers(fixed, tmp_path / "a")
    folder = hugging_face._bert(tmp_path / "source", num_labels=2)
    exported(folder, "BertForSequenceClassification", "logits")
    with pytest.raises(ModelUnusable, match=r"has the outputs logits; say which gives the scores"):
        answers(folder, tmp_path / "b", outputs={"scores": "none"})
    with pytest.raises(ModelUnusable, match=r"answers \[1, 2\] for 1 rows, and model\.json names 3 classes"):
        answers(folder, tmp_path / "c", classes=["a", "b", "c"])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnusable, match=r"no tokenizer\.json"):
        recognised(folder, {})
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ModelUnusable, match="a graph of pictures"):
        recognised(folder, {})
