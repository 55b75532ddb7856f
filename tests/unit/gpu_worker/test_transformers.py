"""Hugging Face directories answer as their library does; tiny models with weights of a fixed seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Floats, Network, reading
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.runtimes import RUNTIMES
from gpu_worker.tasks import task_named
from tests.unit.gpu_worker.recognising import CPU, stored

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="pip install 'ml_udf[transformers]'")
tokenizers = pytest.importorskip("tokenizers", reason="pip install 'ml_udf[embeddings]'")

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "car",
    "runs",
    "fast",
    "the",
    "service",
    "was",
    "slow",
    "word",
]
TEXTS = ["a car runs fast", "the service was slow " * 3, "car", "", "word " * 60]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def _tokenizer(folder: Path) -> None:
    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.model_max_length = 32
    fast.save_pretrained(folder)


def _bert(folder: Path, of: str = "BertForSequenceClassification", **config: Any) -> Path:
    torch.manual_seed(0)
    settings = transformers.BertConfig(
        vocab_size=len(WORDS), max_position_embeddings=48, initializer_range=0.5, **SIZES, **config
    )
    getattr(transformers, of)(settings).save_pretrained(folder)
    _tokenizer(folder)
    return folder


def _recognised(path: Path, runtime: str = "transformers", **wishes: Any) -> Recognised:
    recognise = RUNTIMES[runtime].recognise
    assert recognise is not None
    found = recognise(path, wishes)
    assert found is not None
    return found


def _served(found: Recognised, directory: Path) -> Network:
    manifest = read_manifest(str(stored(found, directory, "model")))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    return network


def _answers(network: Network, task: str, rows: Any) -> Floats:
    found = reading(network, task_named(task).reads)(rows, lambda: False)
    return np.asarray(found, np.float32)


@pytest.mark.parametrize(
    ("config", "task", "width"),
    [
        ({"id2label": {0: "bad", 1: "so-so", 2: "good"}}, "text-classification", 3),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, "text-multilabel", 2),
        ({"num_labels": 1}, "text-regression", 1),
    ],
)
def test_texts_are_answered_as_by_transformers(
    tmp_path: Path, config: dict[str, Any], task: str, width: int
) -> None:
    found = _recognised(_bert(tmp_path / "source", **config))
    assert found.manifest["task"] == task
    network = _served(found, tmp_path)
    rows = [text.encode() for text in TEXTS]
    assert found.reference is not None
    expected = found.reference(rows)
    assert expected.shape == (len(rows), width)
    assert np.ptp(expected, axis=0).max() > 0.01  # it tells texts apart
    assert _answers(network, task, rows) == pytest.approx(expected, abs=1e-4)
    assert network.resident_bytes > 4 * len(WORDS) * 16


def test_classes_and_the_longest_text_are_read_of_the_directory(tmp_path: Path) -> None:
    named = _recognised(_bert(tmp_path / "named", id2label={0: "no", 1: "yes"}))
    assert named.manifest["classes"] == ["no", "yes"]
    assert named.manifest["input"]["preprocess"]["length"] == 32  # the tokenizer's, less than the positions
    assert not named.guesses
    unnamed = _recognised(_bert(tmp_path / "unnamed", num_labels=2))
    assert unnamed.manifest["classes"] == ["LABEL_0", "LABEL_1"]
    assert "nobody has named its classes" in unnamed.guesses[0]


def _sentence_transformer(folder: Path, pooling: dict[str, Any], **config: Any) -> Path:
    _bert(folder, "BertModel")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "max"}, "max"),
    ],
)
def test_sentences_are_embedded_as_by_their_own_modules(
    tmp_path: Path, pooling: dict[str, Any], name: str
) -> None:
    folder = _sentence_transformer(tmp_path / "source", pooling)
    found = _recognised(folder)
    assert found.manifest["architecture_options"] == {"pooling": name, "normalise": True}
    assert found.manifest["features"] == {"width": 16}
    network = _served(found, tmp_path)
    rows = [text.encode() for text in TEXTS]
    answers = _answers(network, "text-embedding", rows)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, answer in zip(TEXTS, answers, strict=True):
        encoded = tokenizer(text, truncation=True, max_length=20, return_tensors="pt")
        with torch.inference_mode():
            vectors = model(**encoded).last_hidden_state[0]
        vector = {"mean": vectors.mean(0), "cls": vectors[0], "max": vectors.amax(0)}[name]
        assert answer == pytest.approx((vector / vector.norm()).numpy(), abs=1e-4)


def _with_dense(folder: Path, *layers: tuple[int, int, str]) -> list[Any]:
    """Writes Dense modules between the pooling and the normalising of a folder; gives their tensors."""
    from safetensors.torch import save_file

    modules = json.loads((folder / "modules.json").read_text())
    found = []
    for place, (inputs, outputs, activation) in enumerate(layers, 2):
        own = folder / f"{place}_Dense"
        own.mkdir()
        tensors = {"linear.weight": torch.randn(outputs, inputs), "linear.bias": torch.randn(outputs)}
        save_file(tensors, own / "model.safetensors")
        config = {"in_features": inputs, "out_features": outputs, "bias": True}
        (own / "config.json").write_text(json.dumps(config | {"activation_function": activation}))
        kind = "sentence_transformers.models.Dense"
        modules.insert(-1, {"idx": place, "name": str(place), "path": own.name, "type": kind})
        found.append((tensors["linear.weight"], tensors["linear.bias"]))
    modules[-1] |= {"idx": len(modules) - 1, "name": str(len(modules) - 1)}
    (folder / "modules.json").write_text(json.dumps(modules))
    return found


def test_dense_layers_stand_between_pooling_and_normalising(tmp_path: Path) -> None:
    pooling = {"pooling_mode_mean_tokens": True}
    plain = _served(_recognised(_sentence_transformer(tmp_path / "plain", pooling)), tmp_path / "a")
    folder = _sentence_transformer(tmp_path / "source", pooling)
    (first, shift), (second, again) = _with_dense(
        folder,
        (16, 24, "torch.nn.modules.activation.Tanh"),
        (24, 8, "torch.nn.modules.linear.Identity"),
    )
    found = _recognised(folder)
    assert found.manifest["features"] == {"width": 8}
    assert found.manifest["architecture_options"]["dense"] == ["Tanh", "Identity"]
    network = _served(found, tmp_path / "b")
    rows = [text.encode() for text in TEXTS if text]
    plain._normalise = False  # type: ignore[attr-defined]  # what it pools, as it is
    pooled = torch.from_numpy(_answers(plain, "text-embedding", rows))
    expected = torch.tanh(pooled @ first.T + shift) @ second.T + again
    expected = expected / expected.norm(dim=1, keepdim=True)
    assert _answers(network, "text-embedding", rows) == pytest.approx(expected.numpy(), abs=1e-4)


@pytest.mark.security
@pytest.mark.parametrize(
    ("activation", "file", "reason"),
    [
        ("os.system", "model.safetensors", r"the activation 'os\.system'"),
        ("torch.nn.modules.activation.Tanh", "pytorch_model.bin", r"pytorch_model\.bin may hold code"),
    ],
)
def test_a_dense_layer_brings_no_code(tmp_path: Path, activation: str, file: str, reason: str) -> None:
    folder = _sentence_transformer(tmp_path / "source", {"pooling_mode_mean_tokens": True})
    _with_dense(folder, (16, 8, activation))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / file)
    with pytest.raises(ModelUnusable, match=reason):
        _recognised(folder)


def test_dense_layers_of_another_width_are_refused(tmp_path: Path) -> None:
    folder = _sentence_transformer(tmp_path / "source", {"pooling_mode_mean_tokens": True})
    _with_dense(folder, (12, 8, "torch.nn.modules.activation.Tanh"))
    with pytest.raises(ModelUnusable, match="dense layers take 12 numbers, and a text has 16"):
        _served(_recognised(folder), tmp_path)


def test_a_prompt_stands_before_each_text(tmp_path: Path) -> None:
    folder = _sentence_transformer(
        tmp_path / "source",
        {"pooling_mode_mean_tokens": True},
        prompts={"query": "the service ", "document": ""},
        default_prompt_name="query",
    )
    found = _recognised(folder)
    assert found.manifest["input"]["preprocess"]["prefix"] == "the service "
    plain = _recognised(folder, input={"preprocess": {"prefix": ""}})
    prompted = _answers(_served(found, tmp_path / "a"), "text-embedding", [b"was slow"])
    whole = _answers(_served(plain, tmp_path / "b"), "text-embedding", [b"the service was slow"])
    assert prompted == pytest.approx(whole, abs=1e-6)


def test_a_text_has_the_same_answer_whatever_stands_beside_it(tmp_path: Path) -> None:
    network = _served(_recognised(_bert(tmp_path / "source", num_labels=3)), tmp_path)
    rows = [text.encode() for text in TEXTS]
    alone = np.concatenate([_answers(network, "text-classification", [row]) for row in rows])
    assert _answers(network, "text-classification", rows) == pytest.approx(alone, abs=1e-5)


def test_pictures_are_classified_and_embedded_as_by_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, initializer_range=0.5, id2label={0: "pizza", 1: "sushi"}, **SIZES
    )
    module = transformers.ViTForImageClassification(config).eval()
    folder = tmp_path / "source"
    module.save_pretrained(folder)
    rules = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 32, "width": 32},
        "resample": 3,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    found = _recognised(folder)
    assert found.manifest["task"] == "image-classification"
    assert found.manifest["classes"] == ["pizza", "sushi"]
    assert found.manifest["input"]["preprocess"]["interpolation"] == "bicubic"
    network = _served(found, tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    shown = (pixels / 255 - np.array(rules["image_mean"])) / np.array(rules["image_std"])
    shown = torch.from_numpy(shown.transpose(0, 3, 1, 2).astype(np.float32))
    with torch.inference_mode():
        expected = torch.softmax(module(shown).logits, dim=1).numpy()
        hidden = module.vit(shown).last_hidden_state[:, 0].numpy()
    assert _answers(network, "image-classification", pixels) == pytest.approx(expected, abs=1e-4)
    assert _answers(network, "image-embedding", pixels) == pytest.approx(hidden, abs=1e-3)


def test_a_vision_model_without_a_head_gives_its_pooled_vector(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_channels=3)
    ).eval()
    module.save_pretrained(tmp_path / "source")
    rules = {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}, "do_center_crop": True}
    (tmp_path / "source" / "preprocessor_config.json").write_text(json.dumps(rules))
    found = _recognised(tmp_path / "source")
    assert found.manifest["task"] == "image-embedding"
    assert found.manifest["input"]["preprocess"]["resize"] == "short_side"
    network = _served(found, tmp_path)
    shown = np.random.default_rng(0).random((2, 3, 24, 24), np.float32)
    with torch.inference_mode():
        expected = module(torch.from_numpy(shown)).pooler_output.flatten(1).numpy()
    assert _answers(network, "image-embedding", shown) == pytest.approx(expected, abs=1e-4)


def test_a_missing_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    folder = _bert(tmp_path / "source")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnusable, match=r"no tokenizer\.json, of which its texts become tokens"):
        _recognised(folder)


def test_a_model_that_was_not_trained_to_classify_is_refused(tmp_path: Path) -> None:
    folder = _bert(tmp_path / "source", "BertModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"architectures": ["BertForSequenceClassification"]})
    )
    with pytest.raises(ModelUnusable, match=r"lack classifier\.bias, classifier\.weight"):
        _served(_recognised(folder), tmp_path)


@pytest.mark.security
def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = _bert(tmp_path / "bert")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    stored, config["vocab_size"] = config["vocab_size"], 7
    file.write_text(json.dumps(config))
    with pytest.raises(
        ModelUnusable, match=rf"word_embeddings\.weight of .* is \[{stored}, .*makes it \[7, "
    ):
        _served(_recognised(folder), tmp_path / "served")


def test_no_code_of_the_directory_is_run(tmp_path: Path) -> None:
    folder = _bert(tmp_path / "source")
    trap = tmp_path / "ran"
    (folder / "modeling_own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "modeling_own.C", "AutoModelForSequenceClassification": "modeling_own.M"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": own, "model_type": "own"}))
    found = _recognised(folder)
    with pytest.raises(ModelUnusable, match="code of the directory is never run"):
        _served(found, tmp_path)
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": own}))
    _served(_recognised(folder), tmp_path / "known")  # an architecture that transformers has itself
    assert not trap.exists()


@pytest.mark.security
def test_a_module_that_is_code_of_the_directory_is_refused(tmp_path: Path) -> None:
    folder = _sentence_transformer(tmp_path / "source", {"pooling_mode_mean_tokens": True})
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "evil.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelUnusable, match=r"names 'evil\.Transformer': code that comes with a model"):
        _recognised(folder)


@pytest.mark.security
def test_weights_come_of_the_models_own_files_alone(tmp_path: Path) -> None:
    own = stored(_recognised(_bert(tmp_path / "source")), tmp_path, "model")
    (own / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    manifest = json.loads((own / "model.json").read_text())
    manifest["files"] = [file for file in manifest["files"] if file["role"] != "weights"]
    (own / "model.json").write_text(json.dumps(manifest))
    index = {"weight_map": {"bert.pooler.dense.bias": "../../../elsewhere.safetensors"}}
    (own / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnusable, match="none of the model's files"):
        load_network(read_manifest(str(own)), CPU)
    (own / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/elsewhere"}))
    with pytest.raises(ModelUnusable, match="merge the two first"):
        load_network(read_manifest(str(own)), CPU)


def test_a_text_is_cut_where_the_model_has_no_more_places(tmp_path: Path) -> None:
    found = _recognised(_bert(tmp_path / "source"))
    for name, length in (("none", 0), ("more", 1_000)):
        found.manifest["input"]["preprocess"]["length"] = length
        network = _served(found, tmp_path / name)
        assert np.isfinite(_answers(network, "text-classification", [b"car " * 500])).all()


def test_a_folder_of_links_is_read_as_the_hub_lays_it_out(tmp_path: Path) -> None:
    blobs, snapshot = _bert(tmp_path / "blobs", num_labels=2), tmp_path / "snapshot"
    snapshot.mkdir()
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    _served(_recognised(snapshot), tmp_path)


@pytest.mark.security
def test_pickled_weights_are_refused_by_their_name(tmp_path: Path) -> None:
    folder = _bert(tmp_path / "source")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelUnusable, match=r"pytorch_model\.bin may hold code"):
        _recognised(folder)


def test_what_writes_texts_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = _bert(tmp_path / "source")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ModelUnusable, match="OpenAI-compatible server"):
        _recognised(folder)


def _detector(folder: Path, module: Any, **rules: Any) -> Path:
    module.save_pretrained(folder)
    own = {"size": {"height": 32, "width": 48}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(own | rules))
    return folder


def _yolos() -> Any:
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        image_size=[32, 48], patch_size=8, num_detection_tokens=7, initializer_range=0.5, **SIZES
    )
    config.id2label = {0: "laksa", 1: "pizza", 2: "satay"}
    return transformers.YolosForObjectDetection(config).eval()


def _rt_detr() -> Any:
    torch.manual_seed(1)
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic"
    )
    backbone.out_features = ["stage2", "stage3", "stage4"]
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        **dict.fromkeys(("encoder_hidden_dim", "d_model"), 16),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        num_queries=9,
        decoder_layers=2,
        encoder_in_channels=[16, 24, 32],
        decoder_in_channels=[16, 16, 16],
        num_denoising=0,
        id2label={0: "laksa", 1: "pizza"},
    )
    return transformers.RTDetrForObjectDetection(config).eval()


@pytest.mark.parametrize(
    ("make", "sides", "has_no_object"), [(_yolos, (32, 48), True), (_rt_detr, (64, 96), False)]
)
def test_objects_are_found_where_transformers_finds_them(
    tmp_path: Path, make: Any, sides: tuple[int, int], *, has_no_object: bool
) -> None:
    module = make()
    size = {"height": sides[0], "width": sides[1]}
    found = _recognised(_detector(tmp_path / "source", module, size=size), outputs={"threshold": 0.0})
    assert found.manifest["task"] == "object-detection"
    assert found.manifest["classes"][:2] == ["laksa", "pizza"]
    assert found.manifest["outputs"] == {"threshold": 0.0, "overlap": 1}
    network = _served(found, tmp_path)
    height, width = found.manifest["input"]["height"], found.manifest["input"]["width"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), np.uint8)
    shown = torch.from_numpy(((pixels / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).astype(np.float32))
    with torch.inference_mode():
        told = module(pixel_values=shown)
    scores = torch.softmax(told.logits, -1)[..., :-1] if has_no_object else torch.sigmoid(told.logits)
    answers = _answers(network, "object-detection", pixels).reshape(2, -1, 6)
    for row in range(2):
        best, label = scores[row].max(-1)
        order = torch.argsort(-best, stable=True)
        centre = told.pred_boxes[row][order] * torch.tensor([width, height, width, height])
        corners = torch.cat([centre[:, :2] - centre[:, 2:] / 2, centre[:, :2] + centre[:, 2:] / 2], 1)
        ours = answers[row][: len(order)]
        assert ours[:, 4] == pytest.approx(best[order].numpy(), abs=1e-4)
        assert ours[:, :4] == pytest.approx(corners.numpy(), abs=1e-2)  # in pixels
        assert ours[:, 5].tolist() == label[order].tolist()
        assert not answers[row][len(order) :].any()


def test_a_detectors_pictures_are_stretched_and_never_cropped(tmp_path: Path) -> None:
    size = {"shortest_edge": 40, "longest_edge": 66}
    folder = _detector(tmp_path / "source", _yolos(), size=size)
    found = _recognised(folder)
    assert (found.manifest["input"]["height"], found.manifest["input"]["width"]) == (40, 40)
    assert any("stretched to 40×40, and the boxes back" in guess for guess in found.guesses)
    assert found.manifest["outputs"] == {"threshold": 0.5, "overlap": 1}
    wished = _recognised(folder, input={"height": 24, "width": 32}, outputs={"threshold": 0.3})
    assert (wished.manifest["input"]["height"], wished.manifest["input"]["width"]) == (24, 32)
    _served(wished, tmp_path)


def test_a_detector_of_other_classes_is_refused(tmp_path: Path) -> None:
    folder = _detector(tmp_path / "source", _yolos())
    with pytest.raises(ModelUnusable, match=r"tells 4 classes apart.*names 2"):
        _served(_recognised(folder, classes=["a", "b"]), tmp_path)
