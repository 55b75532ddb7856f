"""Networks that are not of pictures, or not ours, answer on a CUDA device as on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.device import Device, find_device
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.networks.cuda_streams import computing_in
from gpu_worker.networks.loader import import_runtime, load_network, warm_up
from gpu_worker.networks.network import Floats, Network, reading
from gpu_worker.tasks import task_named
from gpu_worker.zoo import TEXT_ARCHITECTURES
from tests.models import CLASSES, write_manifest
from tests.unit.gpu_worker import recognising
from tests.unit.gpu_worker import test_transformers as hugging_face

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"NO CUDA DEVICE (torch {torch.__version__}): nothing was tested on it",
    ),
]

TEXTS = [text.encode() for text in hugging_face.TEXTS]


def on_both(directory: Path, task: str, rows: Any) -> tuple[Floats, Floats]:
    """What the model answers on the CUDA device, and on the CPU."""
    manifest = read_manifest(str(directory))

    def answered(device: Device) -> Floats:
        import_runtime(manifest)
        network = load_network(manifest, device)
        warm_up(network, manifest)
        return np.asarray(reading(network, task_named(task).reads)(rows, lambda: False), np.float32)

    return answered(find_device("cuda:0")), answered(find_device("cpu", threads=1))


@pytest.mark.parametrize("architecture", sorted(set(TEXT_ARCHITECTURES) - {"tfidf_linear"}))
def test_texts_of_our_own_networks(architecture: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from gpu_worker.networks.build import build_module

    torch.manual_seed(0)
    folder = write_manifest(
        tmp_path,
        architecture,
        task="text-classification",
        architecture=architecture,
        input={"form": "text"},
        weights="model.safetensors",
    )
    save_file(build_module(architecture, len(CLASSES), {}).state_dict(), folder / "model.safetensors")
    rows = [*TEXTS, *(b"word " * number for number in range(1, 80))]
    on_cuda, on_cpu = on_both(folder, "text-classification", rows)
    np.testing.assert_allclose(on_cuda, on_cpu, atol=1e-3)


def stored(tmp_path: Path, source: Path) -> Path:
    return recognising.stored(hugging_face._recognised(source), tmp_path, "model")


def test_texts_that_transformers_classifies(tmp_path: Path) -> None:
    folder = stored(tmp_path, hugging_face._bert(tmp_path / "source", num_labels=3))
    on_cuda, on_cpu = on_both(folder, "text-classification", TEXTS * 40)
    np.testing.assert_allclose(on_cuda, on_cpu, atol=2e-2)  # float16, where that was found to be good


def test_texts_that_transformers_embeds(tmp_path: Path) -> None:
    source = hugging_face._sentence_transformer(tmp_path / "source", {"pooling_mode_mean_tokens": True})
    on_cuda, on_cpu = on_both(stored(tmp_path, source), "text-embedding", TEXTS * 40)
    np.testing.assert_allclose(on_cuda, on_cpu, atol=1e-2)


@pytest.mark.parametrize("of", ["ViT", "Yolos", "Detr"])
def test_pictures_of_transformers(of: str, tmp_path: Path) -> None:
    transformers: Any = hugging_face.transformers
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**hugging_face.SIZES, "patch_size": 8, "initializer_range": 0.5}
    classes = {0: "pizza", 1: "sushi"}
    if of == "ViT":
        config = transformers.ViTConfig(image_size=32, id2label=classes, **sizes)
        module, task = transformers.ViTForImageClassification(config), "image-classification"
    elif of == "Yolos":
        config = transformers.YolosConfig(
            image_size=[32, 32], num_detection_tokens=5, id2label=classes, **sizes
        )
        module, task = transformers.YolosForObjectDetection(config), "object-detection"
    else:
        backbone = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
        )
        config = transformers.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            num_queries=5,
            id2label=classes,
        )
        module, task = transformers.DetrForObjectDetection(config), "object-detection"
    source = tmp_path / "source"
    module.eval().save_pretrained(source)
    rules = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (source / "preprocessor_config.json").write_text(json.dumps(rules))
    pixels = np.random.default_rng(0).integers(0, 256, (70, 32, 32, 3), np.uint8)
    on_cuda, on_cpu = on_both(stored(tmp_path, source), task, pixels)
    np.testing.assert_allclose(on_cuda, on_cpu, atol=2e-2)


def test_pictures_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="pip install 'ml_udf[timm]'", exc_type=ImportError)
    from safetensors.torch import save_file

    torch.manual_seed(0)
    folder = write_manifest(
        tmp_path,
        "timm",
        runtime="timm",
        task="image-classification",
        architecture="resnet18",
        input={"form": "path", "height": 64, "width": 64, "mean": [0.5] * 3, "std": [0.25] * 3},
        weights="model.safetensors",
    )
    module = timm.create_model("resnet18", pretrained=False, num_classes=len(CLASSES))
    save_file(module.state_dict(), folder / "model.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (70, 64, 64, 3), np.uint8)
    on_cuda, on_cpu = on_both(folder, "image-classification", pixels)
    np.testing.assert_allclose(on_cuda, on_cpu, atol=2e-2)


def test_the_answers_of_one_network_do_not_depend_on_the_precision_of_another(tmp_path: Path) -> None:
    """What torch computes in is said process-wide: who runs float32 says so itself."""
    folder = stored(tmp_path, hugging_face._bert(tmp_path / "source", num_labels=3))
    device = replace(find_device("cuda:0"), precision="float32")
    manifest: Manifest = read_manifest(str(folder))
    import_runtime(manifest)
    network: Network = load_network(manifest, device)
    warm_up(network, manifest)
    plain = network.scores(TEXTS * 40, lambda: False)
    computing_in("tf32", lambda batch: batch, torch.zeros(1, device=device.name))
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    np.testing.assert_array_equal(network.scores(TEXTS * 40, lambda: False), plain)
