"""What a manifest says of its inputs and files is what happens, and what it may not say is named."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_worker.errors import RowFault
from gpu_worker.model_files.file_list import ModelFile, files_from
from gpu_worker.model_files.outputs import OutputSpec, outputs_from
from gpu_worker.model_files.preprocess import PLAIN, Frame, Preprocess, preprocess_from
from gpu_worker.pipeline.decode import decode_image, decode_picture

LIMIT = 1 << 24


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def picture() -> np.ndarray:
    coarse = np.random.default_rng(3).integers(0, 256, (9, 12, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((96, 64), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("how", ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"])
def test_the_short_side_is_resized_as_it_is_said_and_the_centre_cropped(
    picture: np.ndarray, how: str
) -> None:
    frame = Frame(28, 24, "short_side", 32, how)
    resized = Image.fromarray(picture).resize((48, 32), Image.Resampling[how.upper()])
    expected = np.asarray(resized)[2:30, 12:36]
    np.testing.assert_array_equal(decode_picture(png(picture), frame, max_pixels=LIMIT), expected)


@pytest.mark.parametrize(
    ("place", "where"), [("centre", slice(8, 40)), ("corner", slice(0, 32))], ids=["centre", "corner"]
)
def test_the_long_side_fits_and_the_rest_is_filled(picture: np.ndarray, place: str, where: slice) -> None:
    frame = Frame(48, 48, "long_side", 0, "bicubic", fill=(114, 7, 9), place=place)
    found = decode_picture(png(picture), frame, max_pixels=LIMIT)
    expected = np.full((48, 48, 3), (114, 7, 9), np.uint8)
    expected[where] = np.asarray(Image.fromarray(picture).resize((48, 32), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.security
@pytest.mark.parametrize("sides", [(1, 30_000), (30_000, 1)])
def test_a_line_of_pixels_does_not_become_gigabytes(sides: tuple[int, int]) -> None:
    line = png(np.zeros((*sides, 3), np.uint8))
    with pytest.raises(RowFault, match="resized, ") as fault:
        decode_picture(line, Frame(224, 224, "short_side", 256), max_pixels=LIMIT)
    assert fault.value.code == "input_too_large"
    assert decode_picture(line, Frame(224, 224), max_pixels=LIMIT).shape == (224, 224, 3)


def test_a_crop_that_is_larger_than_the_picture_is_filled_up(picture: np.ndarray) -> None:
    frame = Frame(40, 40, "short_side", 20, "box", fill=(1, 2, 3))
    found = decode_picture(png(picture), frame, max_pixels=LIMIT)
    assert (found[:10] == (1, 2, 3)).all()
    assert (found[30:] == (1, 2, 3)).all()
    np.testing.assert_array_equal(
        found[10:30, 5:35], np.asarray(Image.fromarray(picture).resize((30, 20), Image.Resampling.BOX))
    )


def test_channels_come_in_the_order_that_is_said(picture: np.ndarray) -> None:
    rgb, bgr, grey = (
        decode_picture(png(picture), Frame(32, 32, channels=order), max_pixels=LIMIT)
        for order in ("rgb", "bgr", "grey")
    )
    np.testing.assert_array_equal(bgr, rgb[:, :, ::-1])
    np.testing.assert_array_equal(grey[:, :, 0], np.asarray(Image.fromarray(rgb).convert("L")))
    assert (grey == grey[:, :, :1]).all()


def test_nothing_said_is_what_it_was(picture: np.ndarray) -> None:
    frame = PLAIN.frame(20, 24)
    assert frame.is_plain
    np.testing.assert_array_equal(
        decode_picture(png(picture), frame, max_pixels=LIMIT),
        decode_image(png(picture), 20, 24, max_pixels=LIMIT),
    )


@pytest.mark.parametrize("turn", [1, 3, 6, 8])
@pytest.mark.parametrize("resize", ["short_side", "long_side"])
def test_a_turned_photo_is_framed_upright(picture: np.ndarray, turn: int, resize: str) -> None:
    upright = Image.fromarray(picture)
    stored = (
        upright.transpose(
            {
                3: Image.Transpose.ROTATE_180,
                6: Image.Transpose.ROTATE_90,
                8: Image.Transpose.ROTATE_270,
            }[turn]
        )
        if turn != 1
        else upright
    )
    exif = Image.Exif()
    exif[0x0112] = turn
    file = io.BytesIO()
    stored.save(file, "PNG", exif=exif)
    frame = Frame(30, 40, resize, 40, "nearest")
    np.testing.assert_allclose(
        decode_picture(file.getvalue(), frame, max_pixels=LIMIT).astype(int).mean(),
        decode_picture(png(picture), frame, max_pixels=LIMIT).astype(int).mean(),
        atol=1,
    )


def test_a_large_jpeg_is_shrunk_by_the_interpolation_that_was_asked_for() -> None:
    coarse = np.random.default_rng(5).integers(0, 256, (24, 32, 3), np.uint8)
    large = Image.fromarray(coarse).resize((1600, 1200), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    large.save(file, "JPEG", quality=95)
    frame = Frame(100, 100, "short_side", 110, "bicubic")
    found = decode_picture(file.getvalue(), frame, max_pixels=LIMIT).astype(int)
    whole = Image.open(io.BytesIO(file.getvalue())).resize((146, 110), Image.Resampling.BICUBIC)
    expected = np.asarray(whole)[5:105, 23:123].astype(int)
    assert np.abs(found - expected).mean() < 0.6  # levels of 255


@pytest.mark.parametrize(
    ("frame", "corner", "came_from"),
    [
        (Frame(100, 50), (50, 100), (200.0, 100.0)),
        (Frame(100, 100, "long_side"), (0, 25), (0.0, 0.0)),
        (Frame(100, 100, "long_side", place="corner"), (100, 50), (200.0, 100.0)),
        (Frame(80, 80, "short_side", 100), (0, 0), (60.0, 10.0)),
    ],
)
def test_places_of_the_frame_are_found_again_in_the_picture(
    frame: Frame, corner: tuple[int, int], came_from: tuple[float, float]
) -> None:
    across, down, left, top = frame.back(200, 100)
    assert ((corner[0] - left) * across, (corner[1] - top) * down) == pytest.approx(came_from)


def test_what_is_said_is_written_and_read_again() -> None:
    told = Preprocess("short_side", 256, "bicubic", "bgr", (1, 2, 3), "corner", 1.0, "t.json", 7, True, "q: ")
    assert preprocess_from(told.to_json()) == told
    assert PLAIN.to_json() == {}
    spec = OutputSpec("logits", "pooled", "", ("boxes", "scores"), "none", "separate", 0.5, 1.0)
    assert outputs_from(spec.to_json()) == spec
    assert OutputSpec().to_json() == {}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"resize": "crop"}, "'input.preprocess.resize' must be one of stretch, short_side, long_side"),
        ({"interpolation": "sinc"}, "interpolation"),
        ({"size": -1}, "size"),
        ({"size": 1.5}, "size"),
        ({"size": 100_000}, "4096"),
        ({"channels": "cmyk"}, "channels"),
        ({"fill": [0, 0]}, "three levels"),
        ({"fill": [0, 0, 256]}, "three levels"),
        ({"scale": 0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"prefix": "x" * 5000}, "prefix"),
        ({"lower_case": 1}, "lower_case"),
        ({"crop": 224}, "has no 'crop'"),
        ([], "not an object"),
    ],
)
def test_preprocessing_that_cannot_be_done_is_named(said: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        preprocess_from(said)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"activation": "relu"}, "activation"),
        ({"layout": "voc"}, "layout"),
        ({"threshold": 2}, "threshold"),
        ({"boxes": 7}, "boxes"),
        ({"logits": "x"}, "has no 'logits'"),
    ],
)
def test_outputs_that_cannot_be_read_are_named(said: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        outputs_from(said)


SHA = "ab" * 32


def test_one_file_is_named_in_short_and_several_are_listed() -> None:
    assert files_from({}) == ()
    assert files_from({"weights": "w.onnx", "sha256": SHA}) == (ModelFile("w.onnx", SHA),)
    listed = [{"name": "w.onnx"}, {"name": "tokenizer.json", "sha256": SHA.upper(), "role": "tokenizer"}]
    assert files_from({"weights": "w.onnx", "sha256": SHA, "files": listed}) == (
        ModelFile("w.onnx", SHA),
        ModelFile("tokenizer.json", SHA, "tokenizer"),
    )


@pytest.mark.security
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"files": [{"name": "../x"}]}, "must name a file beside it"),
        ({"files": [{"name": "model.json"}]}, "must name a file beside it"),
        ({"files": [{"name": "a"}, {"name": "a"}]}, "twice"),
        ({"files": [{"name": "a"}], "weights": "b"}, "the first of 'files' is 'a'"),
        ({"files": [{"name": "a", "sha256": SHA}], "sha256": "cd" * 32}, "not that of the first"),
        ({"files": [{"name": "a", "sha256": "x"}]}, "64 hexadecimal digits"),
        ({"files": [{"name": "a", "role": "A B"}]}, "role"),
        ({"files": [{"name": f"f{number}"} for number in range(33)]}, "at most 32"),
        ({"files": ["a"]}, "must be an object"),
        *(({"weights": f"model{end}"}, "a pickle by its name") for end in (".pkl", ".pt", ".PTH", ".bin")),
    ],
)
def test_files_that_a_model_may_not_have_are_named(said: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        files_from(said)
