"""Every kind of JPEG and PNG comes out upright and in colour; everything else is refused."""

from __future__ import annotations

import contextlib
import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gpu_worker.errors import RowFault
from gpu_worker.pipeline.decode import Pixels, decode_image
from tests.unit.gpu_worker.pictures import LEFT, RIGHT, encoded, huge_png, noise, picture

LIMIT = 64_000_000


def decode(data: bytes, height: int = 32, width: int = 48) -> Pixels:
    pixels = decode_image(data, height, width, max_pixels=LIMIT)
    assert pixels.shape == (height, width, 3)
    assert pixels.dtype == np.uint8
    return pixels


def fault(data: bytes, max_pixels: int = LIMIT) -> RowFault:
    with pytest.raises(RowFault) as caught:
        decode_image(data, 32, 48, max_pixels=max_pixels)
    return caught.value


def assert_upright(pixels: Pixels, tolerance: int = 30) -> None:
    height, width, _ = pixels.shape
    for column, colour in ((width // 4, LEFT), (3 * width // 4, RIGHT)):
        assert np.abs(pixels[3 * height // 4, column].astype(int) - colour).max() <= tolerance
        assert np.abs(pixels[height // 10, column].astype(int) - np.array(colour) // 2).max() <= tolerance


@pytest.mark.parametrize("size", [(96, 64), (960, 640), (3000, 2000), (20, 10), (48, 32)])
def test_a_jpeg_of_any_size_fills_the_input(size: tuple[int, int]) -> None:
    assert_upright(decode(encoded(picture(*size))))


def test_a_jpeg_decoded_at_a_fraction_looks_like_one_decoded_whole() -> None:
    data = noise(1, 640, 480)
    whole = Image.open(io.BytesIO(data)).convert("RGB").resize((48, 32), Image.Resampling.BILINEAR)
    assert np.abs(decode(data).astype(int) - np.asarray(whole).astype(int)).mean() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_exif_orientation_is_undone(orientation: int, form: str) -> None:
    # What a camera stores so that a viewer, applying the tag, shows `picture()`.
    stored = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = picture()
    if orientation in stored:
        image = image.transpose(stored[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert_upright(decode(encoded(image, form, exif=exif)))


@pytest.mark.parametrize("value", [0, 9, 77])
def test_an_orientation_that_does_not_exist_is_ignored(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    assert_upright(decode(encoded(picture(), exif=exif)))


def test_grayscale_becomes_three_equal_channels() -> None:
    for form in ("JPEG", "PNG"):
        pixels = decode(encoded(picture().convert("L"), form))
        assert (pixels[..., 0] == pixels[..., 1]).all()
        assert (pixels[..., 0] == pixels[..., 2]).all()
        assert np.ptp(pixels) > 20


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    ramp = np.tile(np.linspace(0, 65535, 96).astype(np.uint16), (64, 1))
    pixels = decode(encoded(Image.fromarray(ramp), "PNG")).astype(int)
    expected = np.linspace(0, 255, 96).reshape(48, 2).mean(axis=1)
    assert np.abs(pixels[16, :, 0] - expected).max() < 6


def test_cmyk_and_black_and_white_keep_their_look() -> None:
    assert_upright(decode(encoded(picture().convert("CMYK"))), tolerance=60)
    white = decode(encoded(Image.new("1", (96, 64), 1), "PNG"))
    assert (white == 255).all()


def test_a_palette_keeps_its_colours() -> None:
    assert_upright(decode(encoded(picture().quantize(16), "PNG")))


def test_what_is_transparent_is_white() -> None:
    image = picture().convert("RGBA")
    image.putalpha(0)
    assert (decode(encoded(image, "PNG")) == 255).all()
    grey = Image.merge("LA", (Image.new("L", (96, 64), 0), Image.new("L", (96, 64), 0)))
    assert (decode(encoded(grey, "PNG")) == 255).all()


def test_transparent_palettes_and_colour_keys_are_white_too() -> None:
    palette = Image.new("P", (96, 64), 0)
    palette.putpalette([200, 10, 10] + [0, 0, 0] * 255)
    assert (decode(encoded(palette, "PNG", transparency=0)) == 255).all()
    assert (
        decode(encoded(Image.new("RGB", (96, 64), (1, 2, 3)), "PNG", transparency=(1, 2, 3))) == 255
    ).all()


def test_an_opaque_alpha_changes_nothing() -> None:
    image = picture().convert("RGBA")
    assert_upright(decode(encoded(image, "PNG")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image, but named .jpg",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a" + bytes(100),
        bytes(1000),
    ],
)
def test_bytes_that_are_no_image_cannot_be_decoded(data: bytes) -> None:
    refusal = fault(data)
    assert refusal.code == "input_undecodable"
    assert refusal.message


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_image_cannot_be_decoded(form: str, keep: float) -> None:
    data = noise(3, 800, 600) if form == "JPEG" else encoded(Image.open(io.BytesIO(noise(3))), "PNG")
    assert fault(data[: int(len(data) * keep)]).code == "input_undecodable"


def test_an_image_in_another_format_is_refused_though_it_could_be_read() -> None:
    assert fault(encoded(picture(), "WEBP")).code == "input_undecodable"
    assert fault(encoded(picture(), "BMP")).code == "input_undecodable"


def test_a_png_of_thirty_thousand_pixels_a_side_is_refused_by_its_header() -> None:
    data = huge_png()
    tracemalloc.start()
    refusal = fault(data)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refusal.code == "input_too_large"
    assert "30000" in refusal.message or "too many" in refusal.message
    assert peak_bytes < 4 * len(data)


def test_the_limit_of_pixels_is_the_operators() -> None:
    data = encoded(picture(96, 64))
    assert decode_image(data, 8, 8, max_pixels=96 * 64).shape == (8, 8, 3)
    refusal = fault(data, max_pixels=96 * 64 - 1)
    assert refusal.code == "input_too_large"
    assert "96×64" in refusal.message


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 3000), st.sampled_from(["JPEG", "PNG"]))
def test_damaged_images_are_either_decoded_or_refused_never_worse(patch: bytes, at: int, form: str) -> None:
    data = bytearray(noise(5) if form == "JPEG" else encoded(picture(), "PNG"))
    at %= len(data)
    data[at : at + len(patch)] = patch
    with contextlib.suppress(RowFault):
        decode(bytes(data))
