"""What simplejpeg decodes has the pixels that Pillow gives it, to the last bit; the rest is Pillow's."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from gpu_worker.errors import RowFault
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline import turbo_jpeg
from gpu_worker.pipeline.decode import decode_picture, decode_whole
from gpu_worker.pipeline.image_file import look_over
from gpu_worker.pipeline.turbo_jpeg import NotDecoded, opened

MOST = 1 << 22

pytest.importorskip("simplejpeg")


def jpeg(columns: int, rows: int, seed: int = 0, mode: str = "RGB", **how: Any) -> bytes:
    """Coarse noise, made smooth: it has edges, and no two pixels alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    image = Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC).convert(mode)
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", **how)
    return encoded.getvalue()


def by_pillow(data: bytes, frame: Frame | None, max_pixels: int = MOST) -> np.ndarray | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turbo_jpeg, "decode_jpeg", None)
        return as_shipped(data, frame, max_pixels)


def as_shipped(data: bytes, frame: Frame | None, max_pixels: int = MOST) -> np.ndarray | str:
    """frame: None for the whole picture. A row's fault is its message."""
    try:
        if frame is None:
            return np.asarray(decode_whole(data, max_pixels=max_pixels))
        return decode_picture(data, frame, max_pixels=max_pixels)
    except RowFault as fault:
        return fault.message


FRAMES = [
    None,
    Frame(64, 64),
    Frame(48, 80),
    Frame(64, 64, resize="short_side", interpolation="bicubic"),
    Frame(64, 64, resize="long_side", channels="bgr", fill=(1, 2, 3)),
    Frame(32, 32, channels="grey"),
]


@settings(max_examples=150, deadline=None)
@given(
    columns=st.integers(1, 700),
    rows=st.integers(1, 700),
    quality=st.integers(1, 100),
    colours=st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "rgb"]),
    progressive=st.booleans(),
    frame=st.sampled_from(FRAMES),
)
@example(columns=64, rows=64, quality=75, colours="4:2:0", progressive=False, frame=Frame(64, 64))
@example(columns=513, rows=511, quality=75, colours="4:2:0", progressive=False, frame=Frame(64, 64))
@example(columns=17, rows=16, quality=75, colours="4:2:0", progressive=False, frame=Frame(8, 8))
def test_pixels_are_pillows(
    columns: int, rows: int, quality: int, colours: str, progressive: bool, frame: Frame | None
) -> None:
    how: dict[str, Any] = {"keep_rgb": True} if colours == "rgb" else {"subsampling": colours}
    data = jpeg(columns, rows, columns, quality=quality, progressive=progressive, **how)
    np.testing.assert_array_equal(as_shipped(data, frame), by_pillow(data, frame))


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("frame", FRAMES)
def test_pictures_are_turned_upright(orientation: int, frame: Frame | None) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(200, 120, exif=exif)
    np.testing.assert_array_equal(as_shipped(data, frame), by_pillow(data, frame))


@pytest.mark.parametrize(
    "data",
    [
        jpeg(200, 120, mode="L"),
        jpeg(200, 120, mode="CMYK"),
        jpeg(15, 200),
        jpeg(200, 120)[:-40],
        jpeg(200, 120).replace(b"\xff\xda", b"\xff\xda", 1)[:700],
        b"",
        b"\xff\xd8\xff\xd9",
    ],
    ids=["grey", "cmyk", "narrow", "cut off", "cut in its first rows", "empty", "no frame"],
)
@pytest.mark.parametrize("frame", FRAMES)
def test_what_it_is_not_given_or_fails_at_is_pillows(data: bytes, frame: Frame | None) -> None:
    shipped, pillow = as_shipped(data, frame), by_pillow(data, frame)
    assert type(shipped) is type(pillow)
    np.testing.assert_array_equal(shipped, pillow)


def test_a_picture_with_too_many_pixels_is_refused_in_the_same_words() -> None:
    data = jpeg(200, 120)
    assert as_shipped(data, Frame(64, 64), 200 * 119) == by_pillow(data, Frame(64, 64), 200 * 119)
    assert "the limit is 23800" in str(as_shipped(data, Frame(64, 64), 200 * 119))


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 2000), byte=st.integers(0, 255), seed=st.integers(0, 3))
def test_a_byte_that_is_another_changes_both_alike(at: int, byte: int, seed: int) -> None:
    data = bytearray(jpeg(64, 48, seed))
    data[at % len(data)] = byte
    shipped, pillow = as_shipped(bytes(data), Frame(32, 32)), by_pillow(bytes(data), Frame(32, 32))
    assert type(shipped) is type(pillow)
    np.testing.assert_array_equal(shipped, pillow)


def test_a_picture_of_many_scans_or_much_to_decode_is_pillows_who_looks_at_the_clock() -> None:
    few = look_over(jpeg(200, 120, progressive=True))
    assert 1 < few.scans <= 16
    assert opened(few, MOST) is not None
    for scans, frame in ((17, (120, 200, 3)), (10, (6_000, 6_000, 3))):
        few.scans, few.frame = scans, frame
        assert opened(few, 1 << 30) is None


def test_a_file_whose_pixels_do_not_fit_its_header_takes_no_more_memory_than_that() -> None:
    """The frame that was read is not the one that the library would go by."""
    data = jpeg(400, 300)
    at = data.index(b"\xff\xc0")
    taller = data[: at + 5] + struct.pack(">HH", 30_000, 30_000) + data[at + 9 :]
    file = look_over(data)
    file.data = taller
    picture = opened(file, MOST)
    assert picture is not None
    with pytest.raises(NotDecoded):
        picture.pixels()
