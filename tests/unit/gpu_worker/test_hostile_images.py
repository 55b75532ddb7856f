"""An image made to cost its reader: it is refused or decoded in bounded time and memory."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpu_worker.errors import RowFault
from gpu_worker.pipeline import decode as decode_module
from gpu_worker.pipeline import turbo_jpeg
from gpu_worker.pipeline.decode import decode_image
from gpu_worker.pipeline.image_file import look_over
from tests.unit.gpu_worker.pictures import encoded, noise, picture

pytestmark = pytest.mark.security

LIMIT = 64_000_000
EXIF_UPSIDE_DOWN = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x0112, 3, 1, 3, 0) + b"\0" * 4


def segment(code: int, content: bytes) -> bytes:
    return bytes([0xFF, code]) + struct.pack(">H", len(content) + 2) + content


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_chunks(png: bytes, *chunks: bytes) -> bytes:
    return png[:33] + b"".join(chunks) + png[33:]  # behind the header


def scanned(image: Image.Image, scans: int) -> bytes:
    """A progressive JPEG with so many scans: the last one, again and again."""
    data = encoded(image, progressive=True)
    last = data.rindex(b"\xff\xda")
    there = data.count(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - there + 1) + data[-2:]


def grey(side: int) -> Image.Image:
    return Image.new("L", (side, side), 128)


def refusal(data: bytes, max_pixels: int = LIMIT) -> RowFault:
    with pytest.raises(RowFault) as caught:
        decode_image(data, 32, 48, max_pixels=max_pixels)
    return caught.value


def test_a_small_jpeg_of_many_scans_is_refused_before_it_is_decoded() -> None:
    data = scanned(grey(2048), 400)
    assert len(data) < 1 << 20
    begin_s = time.thread_time()
    assert "400 scans" in refusal(data).message
    assert time.thread_time() - begin_s < 0.05


def test_scans_are_counted_behind_other_segments_restarts_and_fill_bytes() -> None:
    data = scanned(grey(64), 150)
    last = data.rindex(b"\xff\xda")
    tables = segment(0xFE, b"\xff\xd9\xff\xd9")  # a comment that looks like the end
    for hidden in (tables, b"\xff\xd0", b"\xff\xff", b"\0\0"):
        tricky = data[:last] + hidden + data[last:-2] * 20 + data[-2:]
        assert look_over(tricky).scans >= 150
        assert refusal(tricky).code == "input_too_large"


def test_what_is_dropped_leaves_no_new_marker_behind() -> None:
    """A fill byte, a segment that is dropped, and a byte that makes a scan's marker of the two."""
    hidden = segment(0xE0, b"\xff\xda" * 500)  # scans that nobody would have counted
    data = with_segments(noise(1), b"\xff" + segment(0xE1, b"x"), b"\xda\0\0", hidden)
    kept = look_over(data).data
    assert look_over(kept).data == kept
    assert kept.count(b"\xff\xda") == hidden.count(b"\xff\xda") + 1
    assert refusal(data).code == "input_undecodable"  # Pillow takes no bytes between segments


def test_the_largest_pictures_may_have_as_many_scans_as_encoders_write() -> None:
    data = encoded(picture(), progressive=True)
    scans = look_over(data).scans
    assert 6 <= scans <= 16
    assert decode_image(data, 8, 8, max_pixels=96 * 64).shape == (8, 8, 3)
    many = scanned(picture(), 40)
    assert decode_image(many, 8, 8, max_pixels=LIMIT).shape == (8, 8, 3)
    assert "40 scans" in refusal(many, max_pixels=96 * 64).message


def test_what_looks_like_a_scan_in_a_photos_other_parts_does_not_count() -> None:
    noise_bytes = np.random.default_rng(1).integers(0, 256, 60_000, np.uint8).tobytes()
    thumbnails = [segment(0xE2, b"MPF\0" + b"\xff\xda" * 500), segment(0xE1, b"http" + noise_bytes)]
    film = b"\xff\xda" * 500  # phones append one behind the picture
    data = with_segments(noise(1), *thumbnails) + film
    np.testing.assert_array_equal(
        decode_image(data, 32, 48, max_pixels=LIMIT), decode_image(noise(1), 32, 48, max_pixels=LIMIT)
    )


def test_decoding_one_image_has_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "_MOST_S", 0.002)
    monkeypatch.setattr(turbo_jpeg, "_MOST_SCANNED", 0)
    data = encoded(Image.open(io.BytesIO(noise(1, 3000, 2000))), progressive=True)
    begin_s = time.thread_time()
    assert "longer than" in refusal(data).message
    assert time.thread_time() - begin_s < 2


def hostile_exif(size: int) -> bytes:
    """A directory of thousands of entries, each of which says that it is nearly the whole block."""
    entries = min(65_535, (size - 14) // 12)
    exif = b"II*\0\x08\0\0\0" + struct.pack("<H", entries)
    exif += b"".join(struct.pack("<HHII", tag, 7, size - 8, 8) for tag in range(entries))
    return exif.ljust(size, b"\0")


MEASURED = """
import resource, sys
from gpu_worker.pipeline.decode import decode_image
from gpu_worker.errors import RowFault
data = sys.stdin.buffer.read()
decode_image(open(sys.argv[1], "rb").read(), 32, 48, max_pixels=64_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode_image(data, 32, 48, max_pixels=64_000_000)
except RowFault:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(
    "kind", ["exif in a jpeg", "much exif in a jpeg", "exif in a png", "packed profile", "packed text"]
)
def test_what_stands_beside_the_pixels_costs_no_memory(kind: str, tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(noise(1))
    packed = zlib.compress(bytes(50 << 20))
    png = encoded(picture(), "PNG")
    whole = hostile_exif(1_000_000)
    data = {
        "exif in a jpeg": with_segments(noise(1), segment(0xE1, b"Exif\0\0" + hostile_exif(65_000))),
        "much exif in a jpeg": with_segments(
            noise(1),
            *(segment(0xE1, b"Exif\0\0" + whole[at : at + 65_000]) for at in range(0, 10**6, 65_000)),
        ),
        "exif in a png": with_chunks(png, chunk(b"eXIf", hostile_exif(100_000))),
        "packed profile": with_chunks(png, chunk(b"iCCP", b"p\0\0" + packed)),
        "packed text": with_chunks(png, *[chunk(b"zTXt", b"t\0\0" + zlib.compress(bytes(1 << 20)))] * 60),
    }[kind]
    kilobytes = subprocess.run(
        [sys.executable, "-c", MEASURED, str(ordinary)],
        input=data,
        capture_output=True,
        check=True,
        timeout=300,
        preexec_fn=_bound_memory,
    ).stdout
    assert int(kilobytes) << 10 < (8 << 20) + 4 * len(data)


def _bound_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


def test_exif_of_sixty_kilobytes_still_turns_the_picture() -> None:
    upside_down = picture().transpose(Image.Transpose.ROTATE_180)
    exif = EXIF_UPSIDE_DOWN.ljust(60_000, b"\xff")
    expected = decode_image(encoded(picture(), "PNG"), 32, 48, max_pixels=LIMIT)
    png = encoded(upside_down, "PNG")
    for turned in (
        with_chunks(png, chunk(b"eXIf", exif)),
        png[:-12] + chunk(b"eXIf", exif) + png[-12:],  # behind the pixels
        with_segments(encoded(upside_down, quality=100), segment(0xE1, b"Exif\0\0" + exif)),
    ):
        pixels = decode_image(turned, 32, 48, max_pixels=LIMIT)
        assert np.abs(pixels.astype(int) - expected).mean() < 2


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x0112, 3, 1 << 31, 8),
        b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x0112, 12, 1, 8),
        b"II*\0\0\0\0\0" * 1000,
    ],
)
def test_exif_that_cannot_be_read_is_ignored(exif: bytes) -> None:
    upright = decode_image(noise(1), 32, 48, max_pixels=LIMIT)
    data = with_segments(noise(1), segment(0xE1, b"Exif\0\0" + exif))
    np.testing.assert_array_equal(decode_image(data, 32, 48, max_pixels=LIMIT), upright)


def test_of_an_animation_only_the_picture_is_decoded() -> None:
    frames = [Image.new("RGB", (640, 480), (index, 0, 0)) for index in range(40)]
    file = io.BytesIO()
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:])
    kept = look_over(file.getvalue()).data
    assert b"acTL" not in kept
    assert b"fdAT" not in kept
    assert (decode_image(file.getvalue(), 8, 8, max_pixels=LIMIT) == 0).all()


def test_profiles_do_not_change_the_pixels_and_inverted_cmyk_keeps_its_look() -> None:
    plain = decode_image(noise(1), 32, 48, max_pixels=LIMIT)
    profile = [
        segment(0xE2, b"ICC_PROFILE\0" + bytes([number, 200]) + bytes(60_000)) for number in range(200)
    ]
    np.testing.assert_array_equal(
        decode_image(with_segments(noise(1), *profile), 32, 48, max_pixels=LIMIT), plain
    )
    cmyk = encoded(picture().convert("CMYK"), icc_profile=bytes(100))
    assert b"Adobe" in look_over(cmyk).data
    expected = decode_image(encoded(picture(), "PNG"), 32, 48, max_pixels=LIMIT)
    pixels = decode_image(cmyk, 32, 48, max_pixels=LIMIT)
    assert np.abs(pixels.astype(int) - expected).mean() < 12


@pytest.mark.parametrize(
    "data",
    [
        with_segments(noise(1), *[segment(0xE1, b"")] * 200_000),
        with_segments(noise(1), *[segment(0xDB, b"")] * 200_000),
        with_chunks(encoded(picture(), "PNG"), *[chunk(b"tEXt", b"")] * 200_000),
        encoded(picture(), "PNG").replace(b"IDAT", b"IDAT")[:33] + chunk(b"IDAT", b"") * 200_000,
    ],
    ids=["metadata segments", "table segments", "text chunks", "empty pixel chunks"],
)
def test_endless_small_parts_are_refused_soon(data: bytes) -> None:
    begin_s = time.thread_time()
    assert refusal(data).code == "input_undecodable"
    assert time.thread_time() - begin_s < 2


def test_what_follows_the_one_pass_of_a_sequential_jpeg_costs_nothing() -> None:
    data = encoded(Image.effect_noise((512, 512), 64).convert("RGB"), quality=90)
    scan = data[data.rindex(b"\xff\xda") : -2]
    assert look_over(data).scans == look_over(data[:-2] + scan * 200 + data[-2:]).scans == 1
    seconds = []
    for file in (data, data[:-2] + scan * 200 + data[-2:]):
        begin_s = time.thread_time()
        with contextlib.suppress(RowFault):  # the decoder may say that the end is missing
            decode_image(file, 32, 48, max_pixels=LIMIT)
        seconds.append(time.thread_time() - begin_s)
    assert seconds[1] < 5 * seconds[0] + 0.1


def test_scans_of_a_sequential_jpeg_that_comes_component_by_component_are_counted() -> None:
    data = encoded(picture(), quality=90)
    first = data.rindex(b"\xff\xda")
    alone = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    split = data[:first] + alone * 150 + b"\xff\xd9"
    assert look_over(split).scans == 150
    assert refusal(split).code == "input_too_large"
