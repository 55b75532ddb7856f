"""The detector that is learnt here: what its grid says, what that costs, that it finds what it was shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.exporting import exported
from gpu_worker.model_files.manifest import InputSpec, read_manifest
from gpu_worker.networks.build import build_module
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import GivesBoxes
from gpu_worker.tasks.average_precision import NO_BOX
from gpu_worker.train.augment import Augment
from gpu_worker.train.boxed_images import BoxedImages, read_boxed
from gpu_worker.train.detection_loss import detection_loss
from gpu_worker.train.detector_learner import DetectorLearner, detector_evaluated
from gpu_worker.train.learner import Objective
from gpu_worker.train.loop import TrainingStopped
from gpu_worker.train.spec import TrainSpec
from gpu_worker.zoo.grid_detector import GridDetector, peaks
from tests.models import write_manifest

SIDE = 64
CLASSES = ("dark", "light")
OBJECTIVE = Objective.of("object-detection", CLASSES)
STILL = Augment(flip=False, shift=0.0, zoom=0.0, colour=0.0)
SPEC = TrainSpec(
    "grid_detector",
    epochs=12,
    architecture_options={"width": 8},
    input=InputSpec("path", SIDE, SIDE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    batch_rows=8,
    learning_rate=1e-2,
    schedule="cool_down",
    cool_from=8,
    augment=Augment(flip=True, shift=0.1, zoom=0.1, colour=0.1),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a training process has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def squares(count: int, seed: int = 0, boxes: int = 2) -> BoxedImages:
    """Grey pictures with up to so many squares, dark ones and light ones, side by side."""
    random = np.random.default_rng(seed)
    pixels = np.full((count, SIDE, SIDE, 3), 128, np.uint8)
    corners = np.zeros((count, boxes, 4), np.float32)
    labels = np.full((count, boxes), NO_BOX, np.int64)
    for row in range(count):
        for at in range(int(random.integers(0, boxes + 1))):
            side, label = int(random.integers(14, 26)), int(random.integers(2))
            x, y = at * 32 + int(random.integers(0, 32 - side)), int(random.integers(0, SIDE - side))
            pixels[row, y : y + side, x : x + side] = 255 * label
            corners[row, at], labels[row, at] = (x, y, x + side, y + side), label
    return BoxedImages(torch.from_numpy(pixels), torch.from_numpy(corners), torch.from_numpy(labels), CLASSES)


def learner(spec: TrainSpec = SPEC, start: str = "", start_epoch: int = 0, rows: int = 48) -> DetectorLearner:
    return DetectorLearner(
        spec,
        OBJECTIVE,
        squares(rows),
        squares(24, seed=1),
        skipped=0,
        start=start,
        start_epoch=start_epoch,
        device="cpu",
    )


def grid_of(*boxes: tuple[int, int, int, float]) -> Tensor:
    """[1, 3 + 4, 8, 8] of a picture of 64 × 64; boxes: (class, row, column, logit), each 16 × 16 pixels."""
    found = torch.full((1, 7, 8, 8), -9.0)
    found[:, 3:] = 0.0  # e^0 cells to every side
    for label, row, column, logit in boxes:
        found[0, label, row, column] = logit
    return found


def told(found: Tensor) -> list[list[float]]:
    return [box for box in found.reshape(-1, 6).tolist() if box[4] > 0.01]


def test_a_box_is_read_at_each_peak_in_pixels_of_the_picture() -> None:
    found = told(peaks(grid_of((1, 3, 5, 2.0), (2, 0, 0, 0.0)), 3, SIDE, SIDE))
    assert found[0][:4] == [36, 20, 52, 36]
    assert found[0][4:] == pytest.approx([1 / (1 + np.exp(-2.0)), 1])
    assert found[1] == [0, 0, 12, 12, 0.5, 2]  # no box leaves its picture


def test_a_neighbour_of_a_peak_is_no_box_and_one_of_another_class_is() -> None:
    grid = grid_of((1, 3, 4, 1.0), (1, 3, 5, 2.0), (0, 3, 4, 1.5))
    assert [(box[5], round(box[4], 3)) for box in told(peaks(grid, 3, SIDE, SIDE))] == [
        (1, 0.881),
        (0, 0.818),
    ]


def test_of_two_boxes_of_a_class_on_one_thing_the_surer_one_is_kept() -> None:
    grid = grid_of((1, 3, 3, 1.0), (1, 3, 5, 2.0), (0, 3, 1, 0.5))
    grid[:, 3:] = 1.4  # four cells to every side: both cover much of the same
    assert [box[5] for box in told(peaks(grid, 3, SIDE, SIDE))] == [1, 0]


def test_a_grid_with_fewer_places_than_boxes_answers_as_many_numbers() -> None:
    module = GridDetector(1, width=4).eval()
    assert module(torch.zeros(2, 3, 16, 16)).shape == (2, 600)
    assert module.train()(torch.zeros(2, 3, 100, 60)).shape == (2, 5, 13, 8)


@pytest.mark.parametrize("options", [{"width": 0}, {"blocks": 0}, {"width": 1 << 20}, {"deep": 3}])
def test_options_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ModelUnusable, match="cannot be built"):
        build_module("grid_detector", 2, options)


def test_the_loss_falls_as_the_grid_comes_to_say_where_things_are() -> None:
    boxes, labels = torch.tensor([[[36.0, 20.0, 52.0, 36.0]]]), torch.tensor([[1]])
    wrong = detection_loss(grid_of((2, 3, 5, 9.0)), boxes, labels, SIDE, SIDE)
    nothing = detection_loss(grid_of(), boxes, labels, SIDE, SIDE)
    right = detection_loss(grid_of((1, 3, 5, 9.0)), boxes, labels, SIDE, SIDE)
    assert float(right) < 0.01 < float(nothing) < float(wrong)
    off = grid_of((1, 3, 5, 9.0))
    off[:, 3:] = 1.0
    assert float(right) + 1 < float(detection_loss(off, boxes, labels, SIDE, SIDE))


@pytest.mark.parametrize("count", [0, 1000])
def test_pictures_without_boxes_and_with_a_thousand_teach_finite_weights(count: int) -> None:
    random = torch.Generator().manual_seed(3)
    low = torch.rand((2, max(count, 1), 2), generator=random) * 40
    boxes = torch.cat([low, low + 1 + torch.rand(low.shape, generator=random) * 20], dim=2)
    labels = torch.zeros((2, max(count, 1)), dtype=torch.int64) if count else torch.full((2, 1), NO_BOX)
    found = torch.randn((2, 6, 8, 8), generator=random).requires_grad_()
    detection_loss(found, boxes, labels, SIDE, SIDE).backward()
    assert found.grad is not None
    assert bool(found.grad.isfinite().all())
    assert float(found.grad.abs().sum()) > 0


def test_a_box_moves_with_its_thing() -> None:
    pixels, corners = np.zeros((40, SIDE, SIDE, 3), np.uint8), torch.zeros((40, 1, 4))
    pixels[:, 20:44, 12:40] = 255
    corners[:, 0] = torch.tensor([12.0, 20.0, 40.0, 44.0])
    varied, moved, labels = Augment(flip=True, shift=0.1, zoom=0.2, colour=0.0).apply_with_boxes(
        torch.from_numpy(pixels),
        corners,
        torch.zeros((40, 1), dtype=torch.int64),
        torch.Generator().manual_seed(1),
    )
    assert bool((labels == 0).all())
    for picture, box in zip(varied[..., 0].numpy() > 128, moved[:, 0].tolist(), strict=True):
        rows, columns = np.nonzero(picture)
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert seen == pytest.approx(box, abs=1.6)


def test_a_thing_that_has_left_the_picture_is_no_box_any_more() -> None:
    corners = torch.tensor([[[0.0, 0.0, 4.0, 64.0], [30.0, 30.0, 40.0, 40.0]]]).repeat(64, 1, 1)
    _, _, labels = Augment(flip=False, shift=0.3, zoom=0.0, colour=0.0).apply_with_boxes(
        torch.zeros((64, SIDE, SIDE, 3), dtype=torch.uint8),
        corners,
        torch.zeros((64, 2), dtype=torch.int64),
        torch.Generator().manual_seed(1),
    )
    assert 0.2 < float((labels[:, 0] == NO_BOX).float().mean()) < 0.8
    assert bool((labels[:, 1] == 0).all())


def test_it_finds_what_it_was_shown() -> None:
    taught = learner()
    scores = [taught.learn(lambda: False).score for _ in range(SPEC.epochs)]
    assert scores[-1].metric == "map_50"
    assert scores[-1].value > 0.8 > scores[0].value


def test_a_trial_that_was_paused_ends_with_the_same_weights(tmp_path: Path) -> None:
    short = dataclasses.replace(SPEC, epochs=2, cool_from=1)
    whole, first = learner(short, rows=16), learner(short, rows=16)
    for _ in range(2):
        whole.learn(lambda: False)
    first.learn(lambda: False)
    first.write(str(tmp_path / "1.safetensors"), best=False)
    first.write_state(str(tmp_path / "1.safetensors"))
    second = learner(short, str(tmp_path / "1.safetensors"), 1, rows=16)
    second.learn(lambda: False)
    for trial, name in ((whole, "a"), (second, "b")):
        trial.write(str(tmp_path / name), best=False)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    answered = detector_evaluated(short, squares(5), str(tmp_path / "b"), device="cpu")
    assert answered.predictions.shape == (5, 600)
    assert answered.row_s > 0


def test_it_stops_between_two_steps_when_it_is_asked_to() -> None:
    with pytest.raises(TrainingStopped, match="epoch 1 of 12"):
        learner(rows=16).learn(lambda: True)


def test_rows_without_any_box_are_refused() -> None:
    nothing = squares(8, boxes=2)
    nothing.labels.fill_(NO_BOX)
    with pytest.raises(ValueError, match="the validation pictures have no box to find"):
        DetectorLearner(
            SPEC, OBJECTIVE, squares(8), nothing, skipped=0, start="", start_epoch=0, device="cpu"
        )


def test_boxes_are_read_in_pixels_of_the_networks_input(tmp_path: Path) -> None:
    sideways = Image.Exif()
    sideways[0x0112] = 6  # stored on its side: 40 wide and 80 high as it is shown
    Image.new("RGB", (80, 40)).save(tmp_path / "turned.jpg", exif=sideways)
    Image.new("RGB", (128, 32)).save(tmp_path / "wide.png")
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8 no more")
    boxes = '[{"label":"dark","box":[10,20,40,80]},{"label":"other","box":[0,0,40,8]}]'
    table = {
        "input": [str(tmp_path / name) for name in ("turned.jpg", "wide.png", "damaged.jpg")],
        "target": [boxes, "[]", "[]"],
        "split": ["train", "validation", "train"],
    }
    pq.write_table(pa.table(table), tmp_path / "s.parquet")
    found = read_boxed(
        str(tmp_path / "s.parquet"),
        CLASSES,
        height=SIDE,
        width=SIDE,
        read=lambda path: Path(path.decode()).read_bytes(),
        max_pixels=1_000_000,
    )
    train, validation = found.examples("train"), found.examples("validation")
    assert train.boxes.tolist() == [[[16, 16, 64, 64], [0, 0, 64, pytest.approx(6.4)]]]
    assert train.labels.tolist() == [[0, NO_BOX]]
    assert (len(validation), validation.boxes.shape[1], len(found.examples("test"))) == (1, 0, 0)
    both = found.examples("train", "validation")
    assert both.labels.tolist() == [[0, NO_BOX], [NO_BOX, NO_BOX]]
    assert both.targets().shape == (2, 2, 5)
    assert [path.partition(": ")[0] for path in found.skipped] == [str(tmp_path / "damaged.jpg")]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A detector that has learnt a little, as a folder."""
    taught = learner(dataclasses.replace(SPEC, epochs=5, cool_from=3))
    for _ in range(5):
        taught.learn(lambda: False)
    folder = write_manifest(
        tmp_path,
        "detector",
        task="object-detection",
        architecture="grid_detector",
        architecture_options={"width": 8},
        classes=list(CLASSES),
        input={"form": "path", "height": SIDE, "width": SIDE, "mean": [0.5] * 3, "std": [0.25] * 3},
        weights="model.safetensors",
    )
    taught.write(str(folder / "model.safetensors"), best=True)
    return folder


def test_what_is_served_and_what_is_exported_answer_as_the_checkpoint(stored: Path, tmp_path: Path) -> None:
    device = Device("cpu", "", 0, 1)
    pictures = squares(6, seed=4)
    own = detector_evaluated(SPEC, pictures, str(stored / "model.safetensors"), device="cpu").predictions
    written = exported(stored, tmp_path / "onnx")
    assert written.difference is not None
    for folder in (stored, tmp_path / "onnx"):
        manifest = read_manifest(str(folder))
        network = load_network(manifest, device)
        warm_up(network, manifest)
        assert isinstance(network, GivesBoxes)
        assert network.boxes_width == 600
        found = network.boxes(pictures.pixels.numpy(), lambda: False)
        ours, theirs = (each.reshape(6, -1, 6)[:, :2] for each in (own, found))
        assert np.allclose(ours[:, :, 4], theirs[:, :, 4], atol=1e-4)
        sure = ours[:, :, 4] > 0.2  # of the rest any may be the second
        assert sure.any()
        assert np.allclose(ours[sure], theirs[sure], atol=0.02)
    assert json.loads((tmp_path / "onnx" / "model.json").read_text())["outputs"] == {"boxes": ["boxes"]}
