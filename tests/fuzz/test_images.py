"""Images at random: decoded or refused, in bounded time, whatever their bytes say."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from gpu_worker.errors import RowFault
from gpu_worker.pipeline.decode import Pixels, decode_image
from gpu_worker.pipeline.image_file import look_over
from tests.fuzz.budget import rounds
from tests.unit.gpu_worker.pictures import encoded, noise, picture

pytestmark = pytest.mark.security

MAX_PIXELS = 4_000_000
MOST_S = 3.0
MARKERS = (0xC0, 0xC1, 0xC2, 0xC4, 0xD0, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xE2, 0xEE, 0xFE)
CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf", b"iCCP", b"zTXt", b"acTL", b"fcTL", b"fdAT")


def seeds() -> list[bytes]:
    animated = io.BytesIO()
    frames = [Image.new("RGB", (40, 30), (shade, 0, 0)) for shade in (0, 90, 200)]
    frames[0].save(animated, "PNG", save_all=True, append_images=frames[1:])
    exif = Image.Exif()
    exif[0x0112] = 6
    sixteen = Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64))
    return [
        noise(1),
        encoded(picture(), progressive=True, exif=exif),
        encoded(picture().convert("CMYK"), icc_profile=bytes(300)),
        encoded(picture().convert("L")),
        encoded(picture(), "PNG", exif=exif),
        encoded(picture().quantize(16), "PNG", transparency=0),
        encoded(sixteen, "PNG"),
        animated.getvalue(),
    ]


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four changes, of bytes and of the format's own parts."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) or 1)
        change = rng.randrange(8)
        if change == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif change == 1:
            del out[at:]
        elif change == 2:
            out[at : at + rng.randrange(1, 200)] = rng.randbytes(rng.randrange(64))
        elif change == 3:
            other = rng.choice(others)
            out[at:] = other[rng.randrange(len(other)) :]
        elif change == 4:
            length = rng.choice((0, 1, 2, 3, 17, 65_535))
            part = bytes([0xFF, rng.choice(MARKERS)]) + struct.pack(">H", length)
            out[at:at] = part + rng.randbytes(min(length, 40))
        elif change == 5:
            content = rng.randbytes(rng.choice((0, 4, 13, 26)))
            kind = rng.choice(CHUNKS)
            checksum = struct.pack(">I", zlib.crc32(kind + content))
            out[at:at] = struct.pack(">I", len(content)) + kind + content + checksum
        elif change == 6:
            # A size in the header, with a checksum that is right.
            if out[:4] == b"\x89PNG" and len(out) > 33:
                sizes = (0, 1, 300, 2000, 30_000, 2**31 - 1, 2**32 - 1)
                out[16:24] = struct.pack(">II", rng.choice(sizes), rng.choice(sizes))
                out[29:33] = struct.pack(">I", zlib.crc32(out[12:29]))
            elif (frame := max(out.find(b"\xff\xc0"), out.find(b"\xff\xc2"))) >= 0 and len(out) > frame + 9:
                out[frame + 5 : frame + 9] = struct.pack(">HH", *rng.choices((0, 1, 500, 2000, 65_535), k=2))
        else:
            begin = rng.randrange(len(out) or 1)
            out[at:at] = bytes(out[begin : begin + rng.randrange(300)]) * rng.choice((1, 2, 50))
    return bytes(out)


def decoded_or_refused(data: bytes) -> Pixels | RowFault:
    try:
        return decode_image(data, 24, 32, max_pixels=MAX_PIXELS)
    except RowFault as fault:
        return fault


def test_any_bytes_are_decoded_or_refused_in_bounded_time() -> None:
    images = seeds()
    decoded = refused = 0
    for seed in rounds(400):
        rng = random.Random(seed)
        data = mutated(rng, rng.choice(images), images)
        begin_s = time.thread_time()
        found = decoded_or_refused(data)
        if isinstance(found, RowFault):
            assert found.code in ("input_undecodable", "input_too_large"), (seed, found.code)
            assert len(found.message) < 1000, seed
            refused += 1
        else:
            assert found.shape == (24, 32, 3), seed
            assert found.dtype == np.uint8, seed
            decoded += 1
        took_s = time.thread_time() - begin_s
        assert took_s < MOST_S, f"seed {seed} took {took_s:.1f} s"
    assert decoded > 20, "the fuzzer still finds images"
    assert refused > 20


def test_what_is_kept_of_a_file_is_never_more_than_it_had() -> None:
    images = seeds()
    for seed in rounds(400):
        rng = random.Random(seed)
        data = mutated(rng, rng.choice(images), images)
        with contextlib.suppress(RowFault):
            file = look_over(data)
            assert len(file.data) <= len(data), seed
            assert file.scans >= 1, seed
            assert look_over(file.data).data == file.data, f"seed {seed}: looked over twice, it changes again"
