"""What the worker answers for each task that has more to say than one class."""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gpu_worker.device import find_device
from gpu_worker.engine import Engine
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.build import build_module
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Network, reading, sigmoid, width_of
from gpu_worker.settings import Settings
from gpu_worker.tasks import task_named
from gpu_worker.wire.columns import Column
from gpu_worker.wire.protocol import Answer
from tests.models import write_manifest
from tests.task_models import (
    boxes_model,
    brightness_model,
    colours_model,
    generation_model,
    price_model,
    tags_model,
    text_value_model,
)


def png(*quadrants: tuple[int, int, int], size: tuple[int, int] = (64, 32)) -> bytes:
    """A picture (width, height) whose quadrants, from the upper left, have these colours, or all one."""
    pixels = np.array([quadrants * 4] if len(quadrants) == 1 else [quadrants], np.uint8).reshape(2, 2, 3)
    picture = Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
    held = io.BytesIO()
    picture.save(held, "PNG")
    return held.getvalue()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine(Settings(device="cpu", threads=1))
    yield made
    made.close()


@pytest.fixture
def ask(engine: Engine, tmp_path: Path) -> Callable[..., Answer]:
    def answer(folder: Path, form: str, rows: list[bytes], *outputs: str) -> Answer:
        key = f"{folder.parent.name}/{tmp_path.name}"
        engine.load(key, str(folder))
        try:
            batch = engine.begin([key], form, rows, outputs=outputs)
            return engine.answer(batch, lambda: False)
        finally:
            engine.unload(key)

    return answer


def columns_of(answer: Answer) -> dict[str, Column]:
    return {column.name: column for column in answer.members[0].columns}


def listed(column: Column) -> list[Any]:
    return [json.loads(text) for text in column.values]


def test_a_value_has_no_more_digits_than_its_network_gave(ask: Callable[..., Answer], tmp_path: Path) -> None:
    rows = [png((51, 51, 51)), png((255, 255, 255)), png((0, 0, 0))]
    found = columns_of(ask(brightness_model(tmp_path), "image", rows))
    assert found["value"].values.tolist() == [20.0, 100.0, 0.0]  # type: ignore[attr-defined]  # a memoryview
    assert (found["value"].datatype, found["value"].shape, found["value"].content) == ("FP64", (), "")
    assert list(found) == ["value"]


@pytest.mark.parametrize("interval", [5.0, None])
def test_an_interval_is_answered_to_who_asks_and_none_is_no_number(
    interval: float | None, ask: Callable[..., Answer], tmp_path: Path
) -> None:
    model = brightness_model(tmp_path, interval=interval)
    found = columns_of(ask(model, "image", [png((51, 51, 51))], "value", "low", "high"))
    told = [found[name].values[0] for name in ("value", "low", "high")]
    assert told[0] == 20.0
    assert told[1:] == [15.0, 25.0] if interval else all(map(math.isnan, told[1:]))


def test_a_row_of_a_table_has_its_value_and_a_bad_one_its_error(
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    answer = ask(price_model(tmp_path), "row", [b"[10, 1]", b'["much", 1]', b"[0, 0.5]"])
    values = columns_of(answer)["value"].values
    assert (values[0], values[2]) == (21.0, 0.5)
    assert math.isnan(values[1]), "0 would be a value"
    assert [error.index for error in answer.errors] == [1]
    assert answer.errors[0].code == "input_invalid"


def test_labels_are_those_whose_probability_reaches_their_threshold(
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    rows = [png((255, 0, 0)), png((255, 255, 255)), png((0, 0, 0)), png((140, 0, 0))]
    plain = columns_of(ask(colours_model(tmp_path), "image", rows))
    assert listed(plain["labels"]) == [["red"], ["red", "green", "blue"], [], ["red"]]
    assert (plain["labels"].datatype, plain["labels"].content) == ("BYTES", "labels")
    strict = colours_model(tmp_path, "strict", thresholds={"red": 0.999})
    found = columns_of(ask(strict, "image", rows, "labels", "scores"))
    assert listed(found["labels"]) == [["red"], ["red", "green", "blue"], [], []]
    scores = np.frombuffer(found["scores"].data, np.float32).reshape(4, 3)  # type: ignore[arg-type]  # numbers
    np.testing.assert_allclose(scores[1], [1, 1, 1], atol=1e-6)
    assert 0.5 < scores[3, 0] < 0.999


def test_labels_of_a_tables_row(ask: Callable[..., Answer], tmp_path: Path) -> None:
    found = columns_of(ask(tags_model(tmp_path), "row", [b"[100, 9]", b"[99, 10]", b"[100, 10]", b"[0, 0]"]))
    assert listed(found["labels"]) == [["heavy"], ["fat"], ["heavy", "fat"], []]


def test_boxes_lie_in_the_picture_as_it_was_sent(ask: Callable[..., Answer], tmp_path: Path) -> None:
    rows = [png((0, 0, 0), (255, 255, 255), (51, 51, 51), (0, 0, 0)), png((0, 0, 0)), b"no picture"]
    answer = ask(boxes_model(tmp_path), "image", rows)
    column = columns_of(answer)["boxes"]
    assert (column.datatype, column.shape, column.content) == ("BYTES", (), "boxes")
    told = json.loads(column.values[0])
    assert [(box["label"], box["box"]) for box in told[:2]] == [
        ("upper right", [32.0, 0.0, 64.0, 16.0]),
        ("lower left", [0.0, 16.0, 32.0, 32.0]),
    ], "the surest first"
    # Resizing blends a little of the neighbours.
    assert [box["score"] for box in told] == pytest.approx([1, 0.2, 0, 0], abs=0.05)
    assert column.values[1] == "[]", "what scores 0 is none"
    assert [error.index for error in answer.errors] == [2]
    assert column.values[2] == ""


def test_boxes_of_a_photo_on_its_side_lie_in_it_as_it_is_seen(
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    picture = Image.open(io.BytesIO(png((255, 255, 255), size=(40, 20))))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90 degrees
    held = io.BytesIO()
    picture.convert("RGB").save(held, "JPEG", exif=exif)
    found = columns_of(ask(boxes_model(tmp_path), "image", [held.getvalue()]))
    corners = {box["label"]: box["box"] for box in json.loads(found["boxes"].values[0])}
    assert corners["lower right"] == [10.0, 20.0, 20.0, 40.0]


@pytest.mark.parametrize(
    ("resize", "upper_left", "lower_right"),
    [
        # Of 64 × 32 pixels the frame holds all, with bars above and below; or the middle half alone.
        ("long_side", [0, 0, 32, 16], [32, 16, 64, 32]),
        ("short_side", [16, 0, 32, 16], [32, 16, 48, 32]),
    ],
)
def test_boxes_lie_in_the_picture_however_it_was_put_into_the_frame(
    resize: str, upper_left: list[int], lower_right: list[int], ask: Callable[..., Answer], tmp_path: Path
) -> None:
    form = {"form": "path", "height": 16, "width": 16, "mean": [0, 0, 0], "std": [1, 1, 1]}
    model = boxes_model(tmp_path, input={**form, "preprocess": {"resize": resize}})
    found = columns_of(ask(model, "image", [png((255, 255, 255))]))
    corners = {box["label"]: box["box"] for box in json.loads(found["boxes"].values[0])}
    assert (corners["upper left"], corners["lower right"]) == (upper_left, lower_right)


def test_boxes_of_pixels_that_were_sent_as_such_are_in_those(
    ask: Callable[..., Answer], tmp_path: Path
) -> None:
    tensor = np.ones((3, 16, 16), np.float32).tobytes()
    found = columns_of(ask(boxes_model(tmp_path), "tensor", [tensor]))
    assert json.loads(found["boxes"].values[0])[0]["box"] == [0.0, 0.0, 8.0, 8.0]


def test_a_box_below_its_classs_threshold_is_none(ask: Callable[..., Answer], tmp_path: Path) -> None:
    picked = boxes_model(tmp_path, thresholds={"upper left": 0.5, "upper right": 0.1})
    found = columns_of(ask(picked, "image", [png((51, 51, 51))]))
    assert [box["label"] for box in json.loads(found["boxes"].values[0])] == [
        "upper right",
        "lower left",
        "lower right",
    ]


def test_texts_are_answered_as_they_were_written(ask: Callable[..., Answer], tmp_path: Path) -> None:
    told = [f'"{zlib.crc32(row):08x}"' for row in (b"one", b"two")]
    plain = columns_of(ask(generation_model(tmp_path), "text", [b"one", b"two"]))["text"]
    assert (plain.values, plain.content) == (told, "")
    as_json = generation_model(tmp_path, "by_schema", content="json")
    assert columns_of(ask(as_json, "text", [b"one"]))["text"].content == "json"


def test_texts_have_values_too(ask: Callable[..., Answer], tmp_path: Path) -> None:
    found = columns_of(ask(text_value_model(tmp_path), "text", [b"one"], "value", "low", "high"))
    value = np.float32(zlib.crc32(b"one", 0) / (1 << 32))
    assert found["value"].values[0] == float(str(value))
    assert found["low"].values[0] < found["value"].values[0] < found["high"].values[0]


@pytest.mark.parametrize("make", [brightness_model, colours_model, boxes_model])
def test_an_empty_batch_has_empty_columns(
    make: Callable[[Path], Path], ask: Callable[..., Answer], tmp_path: Path
) -> None:
    answer = ask(make(tmp_path), "image", [])
    assert [column.rows for column in answer.members[0].columns] == [0]
    assert answer.errors == []


def test_what_is_no_number_is_the_rows_error(ask: Callable[..., Answer], tmp_path: Path) -> None:
    rows = [png((0, 0, 0)), png((255, 255, 255)), png((51, 51, 51))]
    answer = ask(brightness_model(tmp_path, dazzled=True), "image", rows)
    assert [(error.index, error.code) for error in answer.errors] == [(1, "internal")]
    values = columns_of(answer)["value"].values
    assert (values[0], values[2]) == (0.0, 20.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: colours_model(folder, classes=["red"]), r"answers \[1, 3\] for 1 rows"),
        (lambda folder: boxes_model(folder, task="image-regression"), "gives 24 values a row"),
        (lambda folder: colours_model(folder, task="object-detection"), "gives 3 numbers a row"),
        (
            lambda folder: write_manifest(
                folder,
                "hash",
                task="text-generation",
                architecture="hashing",
                input={"form": "text"},
            ),
            "has no texts, of which text-generation is made",
        ),
    ],
)
def test_a_model_that_does_not_give_what_its_task_is_made_of_is_refused(
    make: Callable[[Path], Path], said: str, engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnusable, match=said):
        engine.load("wrong", str(make(tmp_path)))


def test_more_boxes_than_a_row_may_have_are_refused(engine: Engine, tmp_path: Path) -> None:
    folder = write_manifest(
        tmp_path,
        "many",
        task="object-detection",
        architecture="hashing",
        architecture_options={"boxes": 1001},
        input={"form": "path"},
    )
    with pytest.raises(ModelUnusable, match="boxes a whole number to 1000"):
        engine.load("many", str(folder))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"thresholds": {"white": 0.5}}, "'thresholds' names 'white', which is no class of it"),
        ({"thresholds": {"red": 2}}, "'thresholds' of 'red' must be a number from 0 to 1, not 2"),
        ({"content": "xml"}, "'content' must be 'json' or left out"),
        ({"classes": []}, "'classes' is empty"),
    ],
)
def test_a_manifest_says_which_of_its_words_is_wrong(
    fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnusable, match=said):
        read_manifest(str(colours_model(tmp_path, **fields)))


def test_a_manifest_is_written_as_it_was_read(tmp_path: Path) -> None:
    manifest = read_manifest(str(colours_model(tmp_path, thresholds=0.25, content="json")))
    told = manifest.to_json()
    assert (told["thresholds"], told["content"]) == ({"red": 0.25, "green": 0.25, "blue": 0.25}, "json")


@pytest.mark.parametrize(
    ("task", "classes"),
    [("text-multilabel", ["a", "b", "c"]), ("text-regression", []), ("text-classification", ["a"])],
)
def test_a_torch_module_of_texts_is_read_as_its_task_says(
    task: str, classes: list[str], tmp_path: Path
) -> None:
    network, module = of_torch(
        tmp_path, task, classes, "fasttext", {"width": 8, "buckets": 512, "subword": 2}
    )
    rows = [b"one", b"two words"]
    with torch.no_grad():
        logits = module(module.encode([row.decode() for row in rows])).float()
    check_read(network, task, rows, logits)


@pytest.mark.parametrize(
    ("task", "classes"), [("image-multilabel", ["a", "b", "c"]), ("image-regression", [])]
)
def test_a_torch_module_of_pictures_is_read_as_its_task_says(
    task: str, classes: list[str], tmp_path: Path
) -> None:
    network, module = of_torch(tmp_path, task, classes, "squeezenet", {})
    pixels = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
    with torch.no_grad():
        logits = module(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
    check_read(network, task, pixels, logits)


def of_torch(
    folder: Path, task: str, classes: list[str], architecture: str, options: dict[str, Any]
) -> tuple[Network, Any]:
    """A warm network of an untrained module of the zoo, and the module."""
    torch.manual_seed(5)
    module = build_module(architecture, len(classes) or 1, options).eval()
    form = {"form": "text"} if task.startswith("text") else {"form": "path", "height": 32, "width": 32}
    written = write_manifest(
        folder,
        "net",
        task=task,
        classes=classes,
        architecture=architecture,
        architecture_options=options,
        weights="model.safetensors",
        input=form,
    )
    save_file(
        {name: held.contiguous() for name, held in module.state_dict().items()}, written / "model.safetensors"
    )
    manifest = read_manifest(str(written))
    network = load_network(manifest, find_device("cpu", threads=1))
    warm_up(network, manifest)
    return network, module


def test_small_probabilities_of_a_sigmoid_stay_apart() -> None:
    found = sigmoid(np.array([-100, -25, -20, 0, 20, 1000], np.float32))
    assert found.dtype == np.float32
    assert found == pytest.approx([np.exp(-100), np.exp(-25), np.exp(-20), 0.5, 1, 1], rel=1e-5)


def check_read(network: Network, task: str, rows: Any, logits: torch.Tensor) -> None:
    asked = task_named(task)
    expected = {"sigmoid": torch.sigmoid, "softmax": lambda x: torch.softmax(x, 1), "none": lambda x: x}
    found = reading(network, asked.reads)(rows, lambda: False)
    np.testing.assert_allclose(found, expected[asked.activation](logits).numpy(), atol=1e-5)
    assert width_of(network, asked.reads, logits.shape[1]) == logits.shape[1]
