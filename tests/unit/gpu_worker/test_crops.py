"""Pieces of pictures: what is cut out, of what, and what is said where it cannot be."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpu_worker.engine import Engine
from gpu_worker.errors import BadRequest, Cancelled, RowFault
from gpu_worker.pipeline.crops import Cropping, crops_of, grown
from gpu_worker.pipeline.media import MediaRoots
from gpu_worker.settings import Settings
from gpu_worker.wire.protocol import Crop, Cropped, decode, encode

PIXELS = np.arange(20 * 30 * 3, dtype=np.uint32).reshape(20, 30, 3).astype(np.uint8)


def encoded(pixels: np.ndarray = PIXELS, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("box", "margin", "expected"),
    [
        ([5, 4, 15, 14], 0.0, (5, 4, 15, 14)),
        ([5.6, 4.6, 14.2, 13.2], 0.0, (5, 4, 15, 14)),  # whole pixels, none of it lost
        ([10, 5, 20, 15], 0.1, (9, 4, 21, 16)),
        ([0, 0, 30, 20], 0.5, (0, 0, 30, 20)),  # never out of the picture
        ([7, 7, 7, 7], 0.1, (7, 7, 8, 8)),  # an empty box is a pixel
        ([30, 20, 30, 20], 0.0, (29, 19, 30, 20)),
        ([-9, -9, -5, -5], 0.0, (0, 0, 1, 1)),
    ],
)
def test_a_box_grows_by_its_margin_and_stays_in_its_picture(
    box: list[float], margin: float, expected: tuple[int, ...]
) -> None:
    assert grown(box, margin, 30, 20) == expected


@pytest.mark.parametrize("box", [[1, 2, 3], [1, 2, 3, float("nan")], [0, 0, float("inf"), 1]])
def test_what_is_no_box_is_refused(box: list[float]) -> None:
    with pytest.raises(BadRequest, match="no box"):
        grown(box, 0.0, 30, 20)


def test_pieces_have_the_pixels_of_their_picture() -> None:
    first, second = crops_of(encoded(), [[5, 4, 15, 14], [0, 0, 30, 20]], 0.0, max_pixels=10_000)
    assert np.array_equal(pixels_of(first), PIXELS[4:14, 5:15])
    assert np.array_equal(pixels_of(second), PIXELS)


def test_boxes_are_of_the_picture_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter
    (piece,) = crops_of(encoded(exif=exif), [[0, 0, 20, 10]], 0.0, max_pixels=10_000)
    assert np.array_equal(pixels_of(piece), np.rot90(PIXELS, -1)[:10, :20])


def test_a_picture_without_boxes_is_not_looked_at() -> None:
    assert crops_of(b"no picture", [], 0.0, max_pixels=1) == []


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"", "input_undecodable"), (b"no", "input_undecodable"), (encoded(), "input_too_large")],
)
def test_a_picture_that_cannot_be_decoded_is_its_rows_fault(data: bytes, code: str) -> None:
    with pytest.raises(RowFault) as caught:
        crops_of(data, [[0, 0, 1, 1]], 0.0, max_pixels=500)
    assert caught.value.code == code


def test_boxes_hold_no_more_pixels_together_than_a_picture_may_have() -> None:
    whole = [0, 0, 30, 20]
    assert len(crops_of(encoded(), [whole] * 2, 0.0, max_pixels=1200)) == 2
    with pytest.raises(RowFault, match="its 3 boxes hold 1800 pixels; the limit is 1200"):
        crops_of(encoded(), [whole] * 3, 0.0, max_pixels=1200)


class Over:
    """Waits for what comes of a request."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self.outcomes: list[Cropped | Exception] = []

    def __call__(self, outcome: Cropped | Exception) -> None:
        self.outcomes.append(outcome)
        self._there.set()

    def outcome(self) -> Cropped | Exception:
        assert self._there.wait(30)
        (outcome,) = self.outcomes
        return outcome


def cut(engine: Engine, asked: Crop) -> Cropped:
    over = Over()
    engine.crop(asked, over)
    outcome = over.outcome()
    assert isinstance(outcome, Cropped), outcome
    return outcome


def test_an_engine_cuts_what_lies_below_its_media_roots(tmp_path: Path) -> None:
    seen, hidden = tmp_path / "seen", tmp_path / "hidden"
    for folder in (seen, hidden):
        folder.mkdir()
        (folder / "a.png").write_bytes(encoded())
    engine = Engine(Settings(media_roots=(str(tmp_path),), threads=2))
    try:
        rows = [str(folder / "a.png").encode() for folder in (seen, hidden, seen, seen)]
        boxes: list[list[list[float]]] = [[[0, 0, 5, 5], [5, 5, 9, 9]], [[0, 0, 5, 5]], [], [[1, 2, 3, 4]]]
        found = cut(engine, Crop(7, rows, "path", boxes, narrowed=[(0, [str(seen)])]))
        assert found.counts == [2, 0, 0, 1]
        assert [(each["index"], each["code"]) for each in found.errors] == [(1, "input_forbidden")]
        assert [pixels_of(piece).shape for piece in found.crops] == [(5, 5, 3), (4, 4, 3), (2, 2, 3)]
        assert decode(encode(found)) == found
    finally:
        engine.close()


def test_pictures_whose_pieces_find_no_room_are_for_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = encoded()
    whole, part = [0.0, 0.0, 30.0, 20.0], [0.0, 0.0, 2.0, 2.0]
    (piece,) = crops_of(picture, [whole], 0.0, max_pixels=10_000)
    monkeypatch.setattr("gpu_worker.pipeline.crops.MOST_BYTES", len(piece) * 2)
    engine = Engine(Settings(threads=1))
    try:
        boxes = [[], [whole] * 3, [whole], [], [part]]
        first = cut(engine, Crop(1, [picture] * 5, "image", boxes))
        # One picture has its pieces however large they are; one without boxes is never put off.
        assert (first.counts, first.later, first.errors) == ([0, 3, 0, 0, 0], [2, 4], [])
        second = cut(engine, Crop(2, [picture] * 2, "image", [boxes[row] for row in first.later]))
        assert (second.counts, second.later) == ([1, 1], [])
        assert decode(encode(first)) == first
    finally:
        engine.close()


def test_a_cancelled_request_skips_what_is_left() -> None:
    over = Over()
    waiting: list[Callable[[], object]] = []
    cropping = Cropping(
        Crop(3, [encoded(), encoded()], "image", [[[0, 0, 5, 5]]] * 2),
        MediaRoots(()),
        max_pixels=10_000,
        max_bytes=1 << 20,
        over=over,
    )
    cropping.begin(waiting.append)
    waiting[0]()
    cropping.cancel()
    assert over.outcomes == []  # something of it is still there
    waiting[1]()
    assert isinstance(over.outcome(), Cancelled)


@pytest.mark.parametrize(
    "asked",
    [
        Crop(1, [b"x"], "text", [[]]),
        Crop(1, [b"x"], "image", []),
        Crop(1, [b"x"], "image", [[]], margin=-1.0),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(asked: Crop) -> None:
    with pytest.raises(BadRequest):
        Cropping(asked, MediaRoots(()), max_pixels=1, max_bytes=1, over=lambda _: None)
