"""Batches through one or several models: right answers, faults kept to their rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.device import find_device
from gpu_worker.engine import Engine
from gpu_worker.errors import BadRequest, UnknownModel
from gpu_worker.model_cache import Resident
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.loader import load_network
from gpu_worker.pipeline.decode import decode_image, decode_picture
from gpu_worker.wire.protocol import Answer, AskStep
from tests.answers import SCORED, confidences_of, labels_of, scores_of
from tests.models import CLASSES, hashing_model, image_model, label_of
from tests.task_models import price_model
from tests.unit.gpu_worker.pictures import encoded, huge_png, noise, picture

Engines = Callable[..., Engine]


def score_matrix(answer: Answer, member: int = 0) -> np.ndarray:
    return np.frombuffer(scores_of(answer.members[member]), np.float32).reshape(-1, len(CLASSES))


def direct_scores(model: Path, images: list[bytes]) -> np.ndarray:
    """The naive way: decode one by one, one pass, no threads, no pieces."""
    manifest = read_manifest(str(model))
    network = load_network(manifest, find_device("cpu", threads=1))
    pixels = np.stack([decode_image(data, 64, 64, max_pixels=1 << 26) for data in images])
    return network.scores(pixels, lambda: False)


def test_paths_images_and_the_naive_way_agree(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    images = [Path(os.fsdecode(path)).read_bytes() for path in paths]
    by_path = engine.infer(["vgg"], "path", paths, outputs=SCORED)
    by_image = engine.infer(["vgg"], "image", images, outputs=SCORED)
    expected = direct_scores(vgg, images)
    for answer in (by_path, by_image):
        np.testing.assert_allclose(score_matrix(answer), expected, atol=1e-5)
        assert labels_of(answer.members[0]) == [CLASSES[best] for best in expected.argmax(axis=1)]
        np.testing.assert_allclose(confidences_of(answer.members[0]), expected.max(axis=1), atol=1e-5)
        assert answer.errors == []
        assert answer.forward_s > 0
        assert answer.decode_s > 0


def test_a_batch_much_longer_than_a_piece_keeps_its_order(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    once = engine.infer(["vgg"], "path", paths, outputs=SCORED)
    many = engine.infer(["vgg"], "path", paths * 40, outputs=SCORED)
    assert labels_of(many.members[0]) == labels_of(once.members[0]) * 40
    np.testing.assert_allclose(score_matrix(many), np.tile(score_matrix(once), (40, 1)), atol=1e-5)


@pytest.mark.parametrize(
    ("row_s", "rows", "others", "pieces"),
    [
        (1e-5, 256, 0, {128}),
        (1e-5, 256, 1, {256}),
        (1e-5, 2000, 0, {256, 208}),
        (1e-3, 200, 0, {50}),
        (4.5e-3, 200, 0, {17, 13}),
    ],
)
def test_rows_of_a_table_run_many_at_once_unless_a_pass_takes_long(
    engines: Engines,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row_s: float,
    rows: int,
    others: int,
    pieces: set[int],
) -> None:
    engine = engines(threads=2)
    engine.load("price", str(price_model(tmp_path)))
    passed: list[int] = []
    monkeypatch.setattr(Resident, "observe", lambda _, rows, took_s, core_s: passed.append(rows))
    (resident,) = engine.residents()
    resident.row_s, resident.users = row_s, others  # batches under way
    row = json.dumps({"grams": 100.0, "fat": 2.0}).encode()
    assert engine.infer(["price"], "row", [row] * rows).errors == []
    assert set(passed) == pieces
    assert sum(passed) == rows


def test_scores_come_only_when_asked_for(engines: Engines, hashing: Path) -> None:
    engine = engines()
    engine.load("h", str(hashing))
    assert scores_of(engine.infer(["h"], "text", [b"a"]).members[0]) == b""
    assert score_matrix(engine.infer(["h"], "text", [b"a"], outputs=SCORED)).tolist() == [
        [float(name == label_of("a")) for name in CLASSES]
    ]


def test_members_answer_in_the_order_asked_and_share_the_decoding(
    engines: Engines,
    media: Path,
    paths: list[bytes],
    vgg: Path,
    resnet: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = []

    def counting(data: bytes, frame: Frame, *, max_pixels: int) -> np.ndarray:
        decoded.append(frame)
        return decode_picture(data, frame, max_pixels=max_pixels)

    monkeypatch.setattr("gpu_worker.pipeline.intake.decode_picture", counting)
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    engine.load("resnet", str(resnet))
    both = engine.infer(["resnet", "vgg"], "path", paths, outputs=SCORED)
    assert [member.model for member in both.members] == ["resnet", "vgg"]
    assert len(decoded) == len(paths)
    for member, alone in enumerate(("resnet", "vgg")):
        one = engine.infer([alone], "path", paths, outputs=SCORED)
        np.testing.assert_allclose(score_matrix(both, member), score_matrix(one), atol=1e-5)


def test_rows_that_the_first_member_is_sure_of_are_asked_of_no_other(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, resnet: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    engine.load("resnet", str(resnet))
    both = engine.infer(["resnet", "vgg"], "path", paths, outputs=SCORED)
    sure = score_matrix(both, 1).max(axis=1)
    edge = float(np.median(sure))
    steps = [AskStep(0, [], [], [1]), AskStep(0b10, [0.0, 1.0], [edge], [0, -1])]
    answer = engine.answer(engine.begin(["resnet", "vgg"], "path", paths, outputs=SCORED, steps=steps))
    unsure = sure < edge
    assert 0 < unsure.sum() < len(paths)
    assert answer.answered == [0b11 if each else 0b10 for each in unsure]
    np.testing.assert_allclose(score_matrix(answer, 1), score_matrix(both, 1), atol=1e-5)
    asked = np.where(unsure[:, None], score_matrix(both, 0), 0)
    np.testing.assert_allclose(score_matrix(answer, 0), asked, atol=1e-5)


def test_the_work_of_each_member_is_told_apart_and_all_of_it_adds_up(
    engines: Engines, tmp_path: Path
) -> None:
    engine = engines(threads=2)
    for name, delay_ms in (("quick", 20), ("slow", 60)):
        engine.load(name, str(hashing_model(tmp_path, name, delay_ms=delay_ms)))
    answer = engine.infer(["slow", "quick"], "text", [b"a"])
    (slow_s, shared_s), (quick_s, also_s) = answer.members_s
    assert 0.06 <= slow_s < answer.work_s - 0.02
    assert 0.02 <= quick_s < answer.work_s - 0.06
    assert shared_s == also_s
    assert slow_s + quick_s + shared_s == pytest.approx(answer.work_s)


def test_a_member_is_charged_with_the_decoding_for_its_own_size_alone(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, tmp_path: Path
) -> None:
    large = image_model(tmp_path, "large")
    manifest = large / "model.json"
    manifest.write_text(
        manifest.read_text().replace('"height": 64, "width": 64', '"height": 256, "width": 256')
    )
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("small", str(vgg))
    engine.load("large", str(large))
    answer = engine.infer(["small", "large"], "path", paths)
    (small_s, small_decoding_s), (large_s, large_decoding_s) = answer.members_s
    decoding_s = answer.work_s - small_s - large_s
    assert 0 < small_decoding_s < large_decoding_s < decoding_s


def test_models_of_different_input_sizes_run_in_one_batch(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, tmp_path: Path
) -> None:
    small = image_model(tmp_path, "small", "vgg")
    manifest = small / "model.json"
    manifest.write_text(
        manifest.read_text().replace('"height": 64, "width": 64', '"height": 32, "width": 48')
    )
    engine = engines(media_roots=(str(media),))
    engine.load("vgg", str(vgg))
    engine.load("small", str(small))
    both = engine.infer(["vgg", "small"], "path", paths, outputs=SCORED)
    for member, alone in enumerate(("vgg", "small")):
        one = engine.infer([alone], "path", paths, outputs=SCORED)
        np.testing.assert_allclose(score_matrix(both, member), score_matrix(one), atol=1e-5)


def test_tensor_rows_skip_decoding(engines: Engines, vgg: Path) -> None:
    engine = engines()
    engine.load("vgg", str(vgg))
    pixels = decode_image(noise(1), 64, 64, max_pixels=1 << 26)
    tensor = ((pixels / 255 - 0.5) / 0.25).astype(np.float32).transpose(2, 0, 1)
    rows = [tensor.tobytes(), tensor.tobytes()[:-4], np.full_like(tensor, np.nan).tobytes(), b""]
    answer = engine.infer(["vgg"], "tensor", rows, outputs=SCORED)
    np.testing.assert_allclose(score_matrix(answer)[:1], direct_scores(vgg, [noise(1)]), atol=1e-4)
    assert [(error.index, error.code) for error in answer.errors] == [(i, "input_invalid") for i in (1, 2, 3)]


def test_every_bad_row_has_its_own_error_and_spoils_no_other(
    engines: Engines, tmp_path: Path, vgg: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    good = root / "good.jpg"
    good.write_bytes(noise(1))
    (root / "text.jpg").write_text("this is no image")
    (root / "cut.jpg").write_bytes(noise(2, 800, 600)[:9000])
    (root / "bomb.png").write_bytes(huge_png())
    (root / "empty.jpg").touch()
    (root / "big.jpg").write_bytes(bytes(3_000_000))
    (root / "out.jpg").symlink_to("/etc/hostname")
    os.mkfifo(root / "fifo.jpg")
    expected = {
        "missing.jpg": "input_not_found",
        "/etc/hostname": "input_forbidden",
        "../x.jpg": "input_forbidden",
        "out.jpg": "input_forbidden",
        "text.jpg": "input_undecodable",
        "cut.jpg": "input_undecodable",
        "empty.jpg": "input_undecodable",
        "bomb.png": "input_too_large",
        "big.jpg": "input_too_large",
        "fifo.jpg": "input_invalid",
        ".": "input_invalid",
        "": "input_invalid",
        "bad\udcff.jpg": "input_invalid",
    }
    rows = [row for name in expected for row in (os.fsencode(name), b"good.jpg")]
    engine = engines(media_roots=(str(root),), max_input_bytes=2_000_000)
    engine.load("vgg", str(vgg))
    answer = engine.infer(["vgg"], "path", rows, outputs=SCORED)
    assert [(error.index, error.code) for error in answer.errors] == [
        (2 * index, code) for index, code in enumerate(expected.values())
    ]
    assert all(error.message for error in answer.errors)
    labels, confidences = labels_of(answer.members[0]), confidences_of(answer.members[0])
    assert set(labels[::2]) == {""}
    assert set(confidences[::2]) == {0.0}
    assert not score_matrix(answer)[::2].any()
    (right,) = labels_of(engine.infer(["vgg"], "path", [b"good.jpg"]).members[0])
    assert set(labels[1::2]) == {right}


def test_a_batch_of_nothing_but_bad_rows_and_one_of_no_rows_are_answered(
    engines: Engines, media: Path, vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),))
    engine.load("vgg", str(vgg))
    bad = engine.infer(["vgg"], "path", [b"none.jpg"] * 100)
    assert len(bad.errors) == 100
    none = engine.infer(["vgg"], "path", [], outputs=SCORED)
    assert labels_of(none.members[0]) == []
    assert scores_of(none.members[0]) == b""


@pytest.mark.parametrize("form", ["text", "image", "path"])
def test_raw_rows_are_looked_over_without_being_opened(engines: Engines, hashing: Path, form: str) -> None:
    engine = engines(max_input_bytes=100)
    engine.load("h", str(hashing))
    rows = [b"/no/such/file", b"\xff\xfe", b"x" * 101, b""]
    answer = engine.infer(["h"], form, rows)
    codes = {error.index: error.code for error in answer.errors}
    invalid = "input_invalid"
    assert (
        codes
        == {
            "text": {1: invalid, 2: "input_too_large"},
            "image": {2: "input_too_large"},
            "path": {1: invalid, 2: "input_too_large", 3: invalid},
        }[form]
    )
    assert labels_of(answer.members[0])[0] == label_of("/no/such/file")


def test_a_value_of_a_hundred_megabytes_is_refused(engines: Engines, vgg: Path) -> None:
    engine = engines()
    engine.load("vgg", str(vgg))
    answer = engine.infer(["vgg"], "image", [bytes(100 << 20), encoded(picture())])
    assert [(error.index, error.code) for error in answer.errors] == [(0, "input_too_large")]
    assert labels_of(answer.members[0])[1]


def test_requests_that_cannot_be_carried_out_say_why(engines: Engines, hashing: Path, vgg: Path) -> None:
    engine = engines()
    engine.load("h", str(hashing))
    engine.load("vgg", str(vgg))
    with pytest.raises(UnknownModel, match="'x', 'y'"):
        engine.infer(["x", "h", "y"], "text", [b"a"])
    with pytest.raises(BadRequest, match="'vgg' takes image, path, tensor, not 'text'"):
        engine.infer(["vgg"], "text", [b"a"])
    with pytest.raises(BadRequest, match="'video' is not known"):
        engine.infer(["h"], "video", [b"a"])
    with pytest.raises(BadRequest, match="no model"):
        engine.infer([], "text", [b"a"])
    with pytest.raises(BadRequest, match="asked of first"):
        engine.begin(["h"], "text", [b"a"], steps=[AskStep(1, [1.0], [], [-1])])
    engine.unload("h")
    engine.unload("vgg")
    assert engine.resident() == [], "refused requests keep no lease"
