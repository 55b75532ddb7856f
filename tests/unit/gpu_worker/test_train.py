"""Training learns what is on the pictures, repeats itself to the bit, stops and goes on."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from gpu_worker.engine import Engine
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.train.augment import Augment
from gpu_worker.train.examples import read_examples, split_of
from gpu_worker.train.images import ImageExamples, decode_examples
from gpu_worker.train.loop import Epoch, Trained, TrainingStopped, accuracy_of, train
from gpu_worker.train.spec import TrainSpec
from tests.answers import labels_of
from tests.unit.gpu_worker.worker_process import REPOSITORY

SHAPES = ("disc", "frame", "stripes")
SPEC = TrainSpec(
    "resnet",
    epochs=6,
    input=InputSpec("path", 32, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    architecture_options={"width": 8},
    batch_rows=16,
)


def draw(shape: str, rng: random.Random) -> Image.Image:
    ground, colour = (tuple(rng.randrange(low, low + 100) for _ in range(3)) for low in (0, 150))
    image = Image.new("RGB", (48, 48), ground)
    pen = ImageDraw.Draw(image)
    x, y, r = rng.randrange(16, 32), rng.randrange(16, 32), rng.randrange(9, 15)
    if shape == "disc":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "frame":
        pen.rectangle((x - r, y - r, x + r, y + r), outline=colour, width=3)
    else:
        for row in range(0, 48, 8):
            pen.line((0, row, 48, row), fill=colour, width=3)
    return image


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """labels.csv beside 240 drawn images."""
    folder, rng = tmp_path_factory.mktemp("shapes"), random.Random(5)
    with open(folder / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label"))
        for number in range(240):
            shape = SHAPES[number % len(SHAPES)]
            draw(shape, rng).save(folder / f"{number}.jpg", quality=85)
            writer.writerow((f"{number}.jpg", shape))
    return folder / "labels.csv"


@pytest.fixture(scope="module")
def parts(labels: Path) -> dict[Any, ImageExamples]:
    return decode_examples(read_examples(str(labels)), 32, 32)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(trained: Trained) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in trained.module.state_dict().values()]


def test_it_learns_and_reports_every_epoch(parts: dict[Any, ImageExamples]) -> None:
    epochs: list[Epoch] = []
    trained = train(SPEC, parts["train"], parts["validation"], on_epoch=epochs.append)
    assert [epoch.epoch for epoch in epochs] == list(range(1, SPEC.epochs + 1))
    assert epochs[-1].train_loss < epochs[0].train_loss
    assert trained.validation_accuracy == max(epoch.validation_accuracy for epoch in epochs)
    assert accuracy_of(trained.module, parts["test"], SPEC) > 0.8, "chance is 0.33"


def test_the_same_seed_gives_the_same_weights_and_another_one_others(parts: dict[Any, ImageExamples]) -> None:
    spec = replace(SPEC, epochs=2)
    random_state = torch.get_rng_state()
    runs = [train(each, parts["train"], parts["validation"]) for each in (spec, spec, replace(spec, seed=1))]
    assert weights(runs[0]) == weights(runs[1])
    assert weights(runs[0]) != weights(runs[2])
    assert torch.equal(torch.get_rng_state(), random_state), "the caller's own randomness is left alone"


@pytest.mark.parametrize("schedule", ["one_cycle", "constant"])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(
    parts: dict[Any, ImageExamples], tmp_path: Path, schedule: Any
) -> None:
    spec = replace(SPEC, epochs=3, schedule=schedule)
    whole = train(spec, parts["train"], parts["validation"])
    file, epochs = str(tmp_path / "run.safetensors"), list[int]()

    def note(epoch: Epoch) -> None:
        epochs.append(epoch.epoch)

    for steps in (17, 9):  # in the second and in the third epoch, after a resumption

        def should_stop(left: list[int] = [steps]) -> bool:  # noqa: B006 (counts this run's steps)
            left[0] -= 1
            return left[0] < 0

        with pytest.raises(TrainingStopped):
            train(
                spec,
                parts["train"],
                parts["validation"],
                checkpoint=file,
                on_epoch=note,
                should_stop=should_stop,
            )
    resumed = train(spec, parts["train"], parts["validation"], checkpoint=file, on_epoch=note)
    assert epochs == [1, 2, 3]
    assert weights(resumed) == weights(whole)
    assert resumed.epoch == whole.epoch
    assert resumed.validation_accuracy == whole.validation_accuracy


def test_a_finished_run_is_not_trained_again(parts: dict[Any, ImageExamples], tmp_path: Path) -> None:
    spec, file = replace(SPEC, epochs=1), str(tmp_path / "run.safetensors")
    first = train(spec, parts["train"], parts["validation"], checkpoint=file)
    again = train(spec, parts["train"], parts["validation"], checkpoint=file, should_stop=lambda: True)
    assert weights(first) == weights(again)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(
    parts: dict[Any, ImageExamples], tmp_path: Path
) -> None:
    spec, file = replace(SPEC, epochs=1), tmp_path / "run.safetensors"
    train(spec, parts["train"], parts["validation"], checkpoint=str(file))
    for other in (replace(spec, seed=9), replace(spec, learning_rate=1e-5)):
        with pytest.raises(ValueError, match="another run"):
            train(other, parts["train"], parts["validation"], checkpoint=str(file))
    with pytest.raises(ValueError, match="another run"):
        train(spec, parts["validation"], parts["validation"], checkpoint=str(file))
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="damaged"):
        train(spec, parts["train"], parts["validation"], checkpoint=str(file))


def test_unknown_architectures_and_nonsense_are_refused(parts: dict[Any, ImageExamples]) -> None:
    with pytest.raises(ModelUnusable, match="alexnet"):
        train(replace(SPEC, architecture="alexnet"), parts["train"], parts["validation"])
    for nonsense in (
        {"epochs": 0},
        {"batch_rows": 1},
        {"learning_rate": 0.0},
        {"warm_up": 1.0},
        {"label_smoothing": 1.0},
    ):
        with pytest.raises(ValueError, match=r"must|needs|share"):
            replace(SPEC, **nonsense)


def test_the_learning_rate_rises_and_falls_as_the_schedule_says() -> None:
    rates = [SPEC.learning_rate_at(step / 100) for step in range(101)]
    assert max(rates) == rates[25] == SPEC.learning_rate
    assert rates[:26] == sorted(rates[:26])
    assert rates[25:] == sorted(rates[25:], reverse=True)
    assert rates[100] < 1e-9
    cosine = replace(SPEC, schedule="cosine")
    assert cosine.learning_rate_at(0) == SPEC.learning_rate
    assert replace(SPEC, schedule="constant").learning_rate_at(0.9) == SPEC.learning_rate


def test_augmentation_varies_each_image_and_without_any_changes_nothing() -> None:
    pixels = torch.randint(0, 256, (8, 12, 16, 3), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(1)
    same = Augment(flip=False, shift=0, zoom=0, colour=0).apply(pixels, generator)
    assert torch.equal(same, pixels.float())
    flipped = Augment(flip=True, shift=0, zoom=0, colour=0).apply(pixels, generator)
    for one, source in zip(flipped, pixels.float(), strict=True):
        assert torch.equal(one, source) or torch.equal(one, source.flip(1))
    twin = pixels[:1].expand(8, -1, -1, -1)
    varied = Augment().apply(twin, generator)
    assert varied.shape == twin.shape
    assert 0 <= varied.min() <= varied.max() <= 255
    assert len({image.numpy().tobytes() for image in varied}) == 8
    with pytest.raises(ValueError, match="shares"):
        Augment(shift=1.5)


def test_the_split_depends_on_the_path_alone_and_has_the_promised_shares() -> None:
    keys = [f"meals/{number}.jpg" for number in range(4000)]
    splits = [split_of(key) for key in keys]
    assert splits == [split_of(key) for key in keys]
    for split, share in (("train", 0.7), ("validation", 0.15), ("test", 0.15)):
        assert abs(splits.count(split) / len(keys) - share) < 0.03  # type: ignore[arg-type]  # one of the three


def write_csv(folder: Path, *rows: str) -> str:
    (folder / "labels.csv").write_text("\n".join(rows))
    return str(folder / "labels.csv")


def test_columns_roots_and_given_splits_are_honoured(tmp_path: Path) -> None:
    file = write_csv(
        tmp_path, "food,split,photo", "pizza,train,a.jpg", "sushi,holdout,/b.jpg", "pizza,,c.jpg"
    )
    examples = read_examples(file, path_column="photo", label_column="food", root="/photos")
    assert [(e.path, e.label) for e in examples] == [
        ("/photos/a.jpg", "pizza"),
        ("/b.jpg", "sushi"),
        ("/photos/c.jpg", "pizza"),
    ]
    assert [e.split for e in examples] == ["train", "test", split_of("c.jpg")]
    by_default = read_examples(write_csv(tmp_path, "path,label", "a.jpg,x", "a.jpg,x"))
    assert [e.path for e in by_default] == [str(tmp_path / "a.jpg")]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (("path,label", "a.jpg,x", "a.jpg,y"), "twice"),
        (("path,label", "a.jpg,"), "empty"),
        (("path",), "no column label"),
        (("path,label,split", "a.jpg,x,sometimes"), "'sometimes'"),
    ],
)
def test_labels_that_make_no_sense_are_refused(tmp_path: Path, rows: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_examples(write_csv(tmp_path, *rows))


def test_images_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no image")
    Image.new("RGB", (9, 9)).save(tmp_path / "good.jpg")
    file = write_csv(tmp_path, "path,label,split", "bad.jpg,x,train", "good.jpg,y,train")
    with pytest.raises(ValueError, match=r"bad\.jpg.*not a JPEG"):
        decode_examples(read_examples(file), 32, 32)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (("path,label,split", "good.jpg,x,train"), "at least 2"),
        (("path,label,split", "good.jpg,x,train", "a.jpg,y,train", "b.jpg,z,test"), "labelled z"),
    ],
)
def test_classes_that_cannot_be_learned_are_refused(
    tmp_path: Path, rows: tuple[str, ...], reason: str
) -> None:
    for name in ("good", "a", "b"):
        Image.new("RGB", (9, 9)).save(tmp_path / f"{name}.jpg")
    with pytest.raises(ValueError, match=reason):
        decode_examples(read_examples(write_csv(tmp_path, *rows)), 32, 32)


def command(labels: Path, out: Path, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "gpu_worker.train", "--images", str(labels), "--out", str(out)),
        *("--architecture", "resnet", "--option", "width=8", "--size", "32", "--name", "shapes"),
        *("--batch-rows", "16", "--epochs", "6", "--device", "cpu", *flags),
    ]


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_command_trains_a_model_that_the_worker_serves(
    labels: Path, tmp_path: Path, engines: Callable[..., Engine]
) -> None:
    done = subprocess.run(
        command(labels, tmp_path), cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    data, *epochs, saved = events(done.stdout)
    assert data["classes"] == list(SHAPES)
    assert data["train"] + data["validation"] + data["test"] == 240
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert saved["event"] == "saved"
    assert saved["measured_on"] == "test"
    manifest = json.loads((tmp_path / "shapes" / "1" / "model.json").read_text())
    assert manifest["accuracy"] == pytest.approx(saved["accuracy"], abs=1e-5)
    assert os.stat(tmp_path / "shapes" / "1" / "model.safetensors").st_mode & 0o777 == 0o600

    engine = engines(media_roots=(str(labels.parent),))
    engine.load("shapes", saved["directory"])
    tests = [example for example in read_examples(str(labels)) if example.split == "test"]
    answer = engine.infer(["shapes"], "path", [os.fsencode(example.path) for example in tests])
    right = np.mean([a == e.label for a, e in zip(labels_of(answer.members[0]), tests, strict=True)])
    assert right == pytest.approx(saved["accuracy"], abs=1e-6), "served as it was measured"

    again = subprocess.run(
        command(labels, tmp_path), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert again.returncode == 65
    assert "exists" in again.stderr


def test_the_command_stops_when_told_and_goes_on_where_it_was(labels: Path, tmp_path: Path) -> None:
    flags = ("--checkpoint", str(tmp_path / "run.safetensors"), "--epochs", "40")
    with subprocess.Popen(
        command(labels, tmp_path, *flags), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        seen = [json.loads(first.stdout.readline()) for _ in range(3)]
        first.send_signal(signal.SIGTERM)
        rest = events(first.stdout.read())
    assert first.returncode == 130
    assert rest[-1]["event"] == "stopped"
    assert not (tmp_path / "shapes").exists()
    last = max(line["epoch"] for line in (*seen, *rest) if line["event"] == "epoch")
    with subprocess.Popen(
        command(labels, tmp_path, *flags), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None
        json.loads(second.stdout.readline())
        assert json.loads(second.stdout.readline())["epoch"] == last + 1
        second.kill()


def test_the_command_says_what_is_wrong_with_its_input(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "absent.csv", tmp_path),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 65
    assert "absent.csv" in done.stderr
    assert "Traceback" not in done.stderr
