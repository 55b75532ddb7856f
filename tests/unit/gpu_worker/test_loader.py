"""A model's folder is loaded as it says, or refused with the file and the reason."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable, NoRoom
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.regular import file_sha256
from gpu_worker.networks.build import build_module
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Network
from gpu_worker.networks.torch_network import TorchNetwork
from gpu_worker.zoo import ARCHITECTURES, IMPORTED

CPU = find_device("cpu", threads=1)
Change = Callable[[dict[str, Any]], object]


def load(directory: Path, **options: bool) -> Network:
    manifest = read_manifest(str(directory))
    network = load_network(manifest, CPU, **options)
    warm_up(network, manifest)
    return network


@pytest.fixture
def model(vgg: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(vgg, tmp_path / "model"))


def change(directory: Path, how: Change) -> Path:
    path = directory / "model.json"
    content = json.loads(path.read_text())
    how(content)
    path.write_text(json.dumps(content))
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(ModelUnusable) as caught:
        load(directory)
    return str(caught.value)


def test_a_loaded_network_answers_as_the_module_it_was_saved_from(vgg: Path) -> None:
    manifest = read_manifest(str(vgg))
    module = build_module("vgg", len(manifest.classes), {}).eval()
    module.load_state_dict(load_file(manifest.path_of_weights()))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), np.uint8)
    with torch.no_grad():
        normalised = (torch.from_numpy(pixels).float() / 255 - 0.5) / 0.25
        expected = torch.softmax(module(normalised.permute(0, 3, 1, 2).contiguous()), 1).numpy()
    np.testing.assert_allclose(load(vgg).scores(pixels, lambda: False), expected, atol=1e-5)


def test_pixels_and_the_same_pixels_as_tensor_get_the_same_scores(vgg: Path) -> None:
    network = load(vgg)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), np.uint8)
    tensor = ((pixels / 255 - 0.5) / 0.25).astype(np.float32).transpose(0, 3, 1, 2).copy()
    np.testing.assert_allclose(
        network.scores(pixels, lambda: False), network.scores(tensor, lambda: False), atol=1e-5
    )


def test_a_batch_that_does_not_fit_the_devices_memory_is_halved_until_it_does(
    vgg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = load(vgg)
    pixels = np.random.default_rng(0).integers(0, 256, (13, 64, 64, 3), np.uint8)
    expected = network.scores(pixels, lambda: False)
    assert isinstance(network, TorchNetwork)
    forward, room = network._run, 4

    def cramped(x: torch.Tensor) -> torch.Tensor:
        if len(x) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(x)

    monkeypatch.setattr(network, "_run", cramped)
    np.testing.assert_allclose(network.scores(pixels, lambda: False), expected, atol=1e-5)
    room = 0
    with pytest.raises(NoRoom, match="no memory left for a single row"):
        network.scores(pixels, lambda: False)


def test_the_resident_size_covers_weights_and_activations(vgg: Path) -> None:
    weights = load_file(vgg / "model.safetensors")
    weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    assert load(vgg).resident_bytes > weight_bytes * 0.9  # batch norms were folded away


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda m: m.update(format=2), "'format' is 2"),
        (lambda m: m.pop("name"), "'name' is missing"),
        (lambda m: m.pop("classes"), "'classes' is missing"),
        (lambda m: m.update(classes=[]), "'classes' is empty"),
        (lambda m: m.update(classes=["one"]), "do not fit"),
        (lambda m: m.update(runtime="pickle"), "'runtime' is 'pickle'"),
        (lambda m: m.update(architecture="alexnet"), "'alexnet' is not known"),
        (lambda m: m.update(architecture="resnet"), "do not fit 'resnet'"),
        (lambda m: m.update(architecture_options={"depth": 3}), "cannot be built"),
        (lambda m: m.update(architecture_options=[1]), "not an object"),
        (lambda m: m.update(weights="../../model.safetensors"), "must name a file beside it"),
        (lambda m: m.update(weights="/etc/passwd"), "must name a file beside it"),
        (lambda m: m.update(weights=None), "'weights' is missing"),
        (lambda m: m.update(weights="absent.safetensors"), "cannot be read"),
        (lambda m: m.update(sha256="0" * 64), "SHA-256"),
        (lambda m: m["input"].update(height=0), "needs 'height' and 'width'"),
        (lambda m: m["input"].update(height=100_000), "4096"),
        (lambda m: m["input"].update(std=[0, 1, 1]), "zero"),
        (lambda m: m["input"].update(mean=[0.5]), "three numbers"),
        (lambda m: m["input"].update(form="video"), "'video'"),
        (lambda m: m.update(input=7), "not a model manifest"),
        (lambda m: m.update(version=float("inf")), "not a model manifest"),
        (lambda m: m["input"].update(width=float("inf")), "not a model manifest"),
        (lambda m: m["input"].update(mean=[0, 0, float("nan")]), "three numbers"),
        (lambda m: m.update(sha256=7), "'sha256' must be 64"),
        (lambda m: m.update(weights=7), "must name a file beside it"),
        (lambda m: m.update(weights="a\0b"), "must name a file beside it"),
        (lambda m: m.update(architecture_options={"width": 10**9}), "'width' must be from 0 to 4096"),
        (lambda m: m.update(architecture_options={"width": 4096}), "do not fit"),
        (lambda m: m.update(architecture_options={"width": -1}), "'width' must be"),
    ],
)
def test_a_manifest_that_cannot_be_served_is_refused_with_the_reason(
    model: Path, how: Change, reason: str
) -> None:
    message = refusal(change(model, how))
    assert reason in message
    assert str(model) in message or "architecture" in message


def test_a_folder_without_manifest_or_with_something_else_is_refused(tmp_path: Path) -> None:
    assert "model.json cannot be read" in refusal(tmp_path / "absent")
    (tmp_path / "model.json").write_text("not json")
    assert "not JSON" in refusal(tmp_path)
    (tmp_path / "model.json").write_text("[1, 2]")
    assert "not a JSON object" in refusal(tmp_path)


def no_file(path: Path, kind: str) -> None:
    """Puts something that is no regular file in the place of `path`."""
    kept = path.rename(path.with_name("kept"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        # The path of a socket may have a hundred bytes at most: bound from its own folder.
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
            bound.bind(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kept)


@pytest.mark.security
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder", "link"])
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_only_a_regular_file_is_opened_and_nobody_waits_for_it(model: Path, name: str, kind: str) -> None:
    no_file(model / name, kind)
    assert "not a regular file" in refusal(model)


@pytest.mark.security
def test_a_manifest_of_deep_brackets_or_many_bytes_is_refused(model: Path) -> None:
    (model / "model.json").write_text("[" * 100_000)
    assert "is not JSON" in refusal(model)
    (model / "model.json").write_text(" " * (9 << 20))
    assert "too large" in refusal(model)


def test_weights_that_were_damaged_are_refused_by_their_hash(model: Path) -> None:
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert "damaged" in refusal(model)


def test_weights_that_are_not_safetensors_are_refused(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(b"\x80\x04pickle")
    change(model, lambda m: m.update(sha256=file_sha256(str(weights))))
    assert "do not fit" in refusal(model)


def test_weights_that_are_not_numbers_are_refused_when_warming_up(model: Path) -> None:
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    tensors["head.3.weight"].fill_(float("nan"))
    save_file(tensors, weights)
    change(model, lambda m: m.update(sha256=file_sha256(str(weights))))
    assert "not finite" in refusal(model)


def test_a_model_without_a_hash_is_loaded(model: Path) -> None:
    load(change(model, lambda m: m.pop("sha256")))


def test_an_import_path_runs_no_code_unless_the_operator_allows_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_code.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'it-ran')!r}).touch()\n"
        "from gpu_worker.zoo.vgg import Vgg as Their\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    change(model, lambda m: m.update(architecture="their_code:Their"))
    assert "--allow-import" in refusal(model)
    assert not (tmp_path / "it-ran").exists()
    load(model, allow_import=True)
    assert (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("size", [32, 64, 96])
def test_every_architecture_takes_any_input_size_and_gives_one_logit_a_class(
    architecture: str, size: int
) -> None:
    module = build_module(architecture, 7, {}).eval()
    assert module(torch.randn(2, 3, size, size)).shape == (2, 7)
    is_small = sum(parameter.numel() for parameter in module.parameters()) < 300_000
    assert is_small or architecture in IMPORTED, "what is trained here is trained on a CPU"


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_architecture_takes_a_width(architecture: str) -> None:
    narrow, wide = (build_module(architecture, 3, {"width": width}) for width in (16, 32))
    assert sum(p.numel() for p in narrow.parameters()) < sum(p.numel() for p in wide.parameters())


@pytest.mark.security
def test_a_model_of_very_large_pictures_takes_few_of_them_at_once(model: Path) -> None:
    change(model, lambda m: m["input"].update(height=4096, width=4096))
    manifest = read_manifest(str(model))
    network = Counting(load_network(manifest, CPU).pixels, len(manifest.classes))
    warm_up(network, manifest)  # type: ignore[arg-type]  # all that a warm-up needs
    assert network.asked == [1, 1, 1]


@pytest.mark.parametrize(("row_s", "last"), [(0.001, 64), (0.1, 5), (1.0, 2)])
def test_the_longer_a_row_takes_the_fewer_a_warm_up_asks(
    model: Path, monkeypatch: pytest.MonkeyPatch, row_s: float, last: int
) -> None:
    manifest = read_manifest(str(model))
    network = Counting((32, 32), len(manifest.classes), row_s)
    monkeypatch.setattr("gpu_worker.networks.loader.time", SimpleNamespace(monotonic=lambda: network.now_s))
    warm_up(network, manifest)  # type: ignore[arg-type]  # all that a warm-up needs
    assert network.asked == [1, 1, last]


def test_where_a_warm_up_tells_what_memory_rows_take_it_asks_as_many_as_run_together(model: Path) -> None:
    manifest = read_manifest(str(model))
    network = Counting((32, 32), len(manifest.classes), 1.0, measures=True)
    warm_up(network, manifest)  # type: ignore[arg-type]  # all that a warm-up needs
    assert network.asked == [1, 1, 64]
    slow = load_network(manifest, CPU)
    warm_up(slow, manifest)
    assert slow.resident_bytes > 64 * 3 * 32 * 32 * 4, "the rows of a whole piece"


class Counting:
    """A network that counts what it is asked; each row takes `row_s`."""

    def __init__(
        self,
        pixels: tuple[int, int] | None,
        classes: int,
        row_s: float = 0.0,
        *,
        measures: bool = False,
    ) -> None:
        self.pixels = pixels
        self.resident_bytes = 1000
        self._measures = measures
        self.asked: list[int] = []
        self.now_s = 0.0
        self._classes, self._row_s = classes, row_s

    def warm_up(self, rows: int) -> np.ndarray:
        self.asked.append(rows)
        self.now_s += rows * self._row_s
        self.resident_bytes += rows * self._measures
        return np.full((rows, self._classes), 0.25, np.float32)
