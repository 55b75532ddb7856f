"""Batches through one or several models: right answers, faults kept to their rows, cancelled at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.decode import decode_image
from gpu_worker.device import find_device
from gpu_worker.engine import Engine
from gpu_worker.errors import BadRequest, Cancelled, ModelUnusable, UnknownModel, WorkerError
from gpu_worker.loader import load_network
from gpu_worker.manifest import read_manifest
from gpu_worker.protocol import Answer
from tests.models import CLASSES, hashing_model, image_model, label_of
from tests.unit.gpu_worker.pictures import encoded, huge_png, noise, picture

Engines = Callable[..., Engine]


def scores_of(answer: Answer, member: int = 0) -> np.ndarray:
    return np.frombuffer(answer.members[member].scores, np.float32).reshape(-1, len(CLASSES))


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
    by_path = engine.infer(["vgg"], "path", paths, scores=True)
    by_image = engine.infer(["vgg"], "image", images, scores=True)
    expected = direct_scores(vgg, images)
    for answer in (by_path, by_image):
        np.testing.assert_allclose(scores_of(answer), expected, atol=1e-5)
        assert answer.members[0].labels == [CLASSES[best] for best in expected.argmax(axis=1)]
        np.testing.assert_allclose(answer.members[0].confidences, expected.max(axis=1), atol=1e-5)
        assert answer.errors == []
        assert answer.forward_s > 0
        assert answer.decode_s > 0


def test_a_batch_much_longer_than_a_piece_keeps_its_order(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    once = engine.infer(["vgg"], "path", paths, scores=True)
    many = engine.infer(["vgg"], "path", paths * 40, scores=True)
    assert many.members[0].labels == once.members[0].labels * 40
    np.testing.assert_allclose(scores_of(many), np.tile(scores_of(once), (40, 1)), atol=1e-5)


def test_scores_come_only_when_asked_for(engines: Engines, hashing: Path) -> None:
    engine = engines()
    engine.load("h", str(hashing))
    assert engine.infer(["h"], "text", [b"a"]).members[0].scores == b""
    assert scores_of(engine.infer(["h"], "text", [b"a"], scores=True)).tolist() == [
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

    def counting(data: bytes, height: int, width: int, *, max_pixels: int) -> np.ndarray:
        decoded.append((height, width))
        return decode_image(data, height, width, max_pixels=max_pixels)

    monkeypatch.setattr("gpu_worker.intake.decode_image", counting)
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    engine.load("resnet", str(resnet))
    both = engine.infer(["resnet", "vgg"], "path", paths, scores=True)
    assert [member.model for member in both.members] == ["resnet", "vgg"]
    assert len(decoded) == len(paths)
    for member, alone in enumerate(("resnet", "vgg")):
        one = engine.infer([alone], "path", paths, scores=True)
        np.testing.assert_allclose(scores_of(both, member), scores_of(one), atol=1e-5)


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
    both = engine.infer(["vgg", "small"], "path", paths, scores=True)
    for member, alone in enumerate(("vgg", "small")):
        one = engine.infer([alone], "path", paths, scores=True)
        np.testing.assert_allclose(scores_of(both, member), scores_of(one), atol=1e-5)


def test_tensor_rows_skip_decoding(engines: Engines, vgg: Path) -> None:
    engine = engines()
    engine.load("vgg", str(vgg))
    pixels = decode_image(noise(1), 64, 64, max_pixels=1 << 26)
    tensor = ((pixels / 255 - 0.5) / 0.25).astype(np.float32).transpose(2, 0, 1)
    rows = [tensor.tobytes(), tensor.tobytes()[:-4], np.full_like(tensor, np.nan).tobytes(), b""]
    answer = engine.infer(["vgg"], "tensor", rows, scores=True)
    np.testing.assert_allclose(scores_of(answer)[:1], direct_scores(vgg, [noise(1)]), atol=1e-4)
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
    answer = engine.infer(["vgg"], "path", rows, scores=True)
    assert [(error.index, error.code) for error in answer.errors] == [
        (2 * index, code) for index, code in enumerate(expected.values())
    ]
    assert all(error.message for error in answer.errors)
    labels, confidences = answer.members[0].labels, answer.members[0].confidences
    assert set(labels[::2]) == {""}
    assert set(confidences[::2]) == {0.0}
    assert not scores_of(answer)[::2].any()
    (right,) = engine.infer(["vgg"], "path", [b"good.jpg"]).members[0].labels
    assert set(labels[1::2]) == {right}


def test_a_batch_of_nothing_but_bad_rows_and_one_of_no_rows_are_answered(
    engines: Engines, media: Path, vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),))
    engine.load("vgg", str(vgg))
    bad = engine.infer(["vgg"], "path", [b"none.jpg"] * 100)
    assert len(bad.errors) == 100
    none = engine.infer(["vgg"], "path", [], scores=True)
    assert none.members[0].labels == []
    assert none.members[0].scores == b""


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
    assert answer.members[0].labels[0] == label_of("/no/such/file")


def test_a_value_of_a_hundred_megabytes_is_refused(engines: Engines, vgg: Path) -> None:
    engine = engines()
    engine.load("vgg", str(vgg))
    answer = engine.infer(["vgg"], "image", [bytes(100 << 20), encoded(picture())])
    assert [(error.index, error.code) for error in answer.errors] == [(0, "input_too_large")]
    assert answer.members[0].labels[1]


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
    engine.unload("h")
    engine.unload("vgg")
    assert engine.resident() == [], "refused requests keep no lease"


def test_a_cancelled_batch_returns_at_once_and_the_next_one_is_answered(
    engines: Engines, slow: Path, hashing: Path
) -> None:
    engine = engines()
    engine.load("slow", str(slow))
    engine.load("h", str(hashing))
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        engine.infer(["slow"] * 50, "text", [b"a"], cancelled=cancelled.is_set)
    assert time.monotonic() - began_s < 5, "20 s of work were under way"
    assert engine.infer(["h"], "text", [b"a"]).members[0].labels == [label_of("a")]
    engine.unload("slow")


def test_what_the_callers_own_check_raises_comes_through_and_ends_the_batch(
    engines: Engines, slow: Path
) -> None:
    class StatementCancelled(Exception):
        pass

    calls = []

    def interrupted() -> bool:
        calls.append(threading.current_thread())
        if len(calls) == 3:
            raise StatementCancelled
        return False

    engine = engines()
    engine.load("slow", str(slow))
    with pytest.raises(StatementCancelled):
        engine.infer(["slow"], "text", [b"a"], cancelled=interrupted)
    assert set(calls) == {threading.current_thread()}
    engine.unload("slow")


def test_a_cancel_stops_a_long_batch_of_images_between_pieces(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        engine.infer(["vgg"], "path", paths * 4000, cancelled=lambda: time.monotonic() - began_s > 0.3)
    assert time.monotonic() - began_s < 10, "about 96,000 images were asked for"
    began_s = time.monotonic()
    engine.unload("vgg")
    assert time.monotonic() - began_s < 10, "what was under way ended soon"


def test_rows_of_a_long_batch_are_not_all_decoded_ahead(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    gate, decoded = threading.Event(), []

    def counting(data: bytes, height: int, width: int, *, max_pixels: int) -> np.ndarray:
        decoded.append(1)
        return decode_image(data, height, width, max_pixels=max_pixels)

    def blocked(*_: object) -> None:
        assert gate.wait(30)
        raise WorkerError("enough")

    monkeypatch.setattr("gpu_worker.intake.decode_image", counting)
    monkeypatch.setattr("gpu_worker.forward.Tally.add", blocked)
    batch = engine.begin(["vgg"], "path", paths * 100)
    time.sleep(1.0)
    seen = len(decoded)
    gate.set()
    with pytest.raises(WorkerError, match="enough"):
        batch.answer.result(30)
    assert 0 < seen <= 64 * 5, "memory does not grow with the batch"


def test_many_callers_at_once_each_get_their_own_answers(
    engines: Engines, media: Path, paths: list[bytes], vgg: Path, hashing: Path
) -> None:
    engine = engines(media_roots=(str(media),), threads=2)
    engine.load("vgg", str(vgg))
    engine.load("h", str(hashing))
    expected = engine.infer(["vgg"], "path", paths).members[0].labels
    wrong: list[str] = []

    def ask(number: int) -> None:
        for turn in range(6):
            at = (number + turn) % len(paths)
            rows = paths[at:] + paths[:at]
            if engine.infer(["vgg"], "path", rows).members[0].labels != expected[at:] + expected[:at]:
                wrong.append(f"images {number}/{turn}")
            texts = [f"{number}/{turn}/{row}" for row in range(20)]
            answer = engine.infer(["h"], "text", [text.encode() for text in texts])
            if answer.members[0].labels != list(map(label_of, texts)):
                wrong.append(f"text {number}/{turn}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_hashing_model_takes_the_time_it_was_told_and_one_batch_at_a_time(
    engines: Engines, tmp_path: Path
) -> None:
    engine = engines(threads=2)
    engine.load("h", str(hashing_model(tmp_path, "h", delay_ms=100, row_delay_ms=10)))
    began_s = time.monotonic()
    batches = [engine.begin(["h"], "text", [b"a"] * 10) for _ in range(3)]
    answers = [batch.answer.result(30) for batch in batches]
    assert time.monotonic() - began_s >= 3 * 0.2
    assert all(0.2 <= answer.forward_s < 1.0 for answer in answers)


def test_bad_options_of_a_hashing_model_are_refused(engines: Engines, tmp_path: Path) -> None:
    engine = engines()
    for options in ({"delay_ms": -1}, {"delay_ms": "soon"}, {"speed": 3}):
        with pytest.raises(ModelUnusable, match="hashing"):
            engine.load("h", str(hashing_model(tmp_path, "h", **options)))


def test_models_are_evicted_for_others_but_not_while_their_rows_are_in_flight(
    engines: Engines, tmp_path: Path, slow: Path
) -> None:
    engine = engines(resident_models=2)
    engine.load("slow", str(slow))
    engine.load("a", str(hashing_model(tmp_path, "a")))
    batch = engine.begin(["slow"], "text", [b"x"])
    assert engine.load("b", str(hashing_model(tmp_path, "b"))).evicted == ["a"]
    assert batch.answer.result(30).members[0].labels == [label_of("x")]
    assert engine.load("c", str(hashing_model(tmp_path, "c"))).evicted == ["slow"]
    assert engine.resident() == ["b", "c"]


def test_a_closed_engine_leaves_no_caller_waiting(engines: Engines, slow: Path) -> None:
    engine = engines()
    engine.load("slow", str(slow))
    for _ in range(5):
        engine.begin(["slow"], "text", [b"a"])
    threading.Timer(0.2, engine.close).start()
    with pytest.raises(WorkerError, match="closed"):
        engine.infer(["slow"], "text", [b"a"])


def test_the_callers_own_torch_threads_are_left_as_they_were(engines: Engines, vgg: Path) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        engine = engines(threads=2)
        engine.load("vgg", str(vgg))
        engine.infer(["vgg"], "image", [noise(1)] * 20)
        assert torch.get_num_threads() == 3
        in_a_new_thread: list[int] = []
        thread = threading.Thread(target=lambda: in_a_new_thread.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert in_a_new_thread == [3]
    finally:
        torch.set_num_threads(before)
