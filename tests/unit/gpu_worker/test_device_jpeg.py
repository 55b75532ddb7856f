"""A device decodes the JPEGs that it can; every other row is the CPU's, with its answer or its fault.

The device is a decoder that sees the whole picture at once, as nvJPEG does; tests/gpu has the real one.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from gpu_worker.model_files.preprocess import Frame
from gpu_worker.pipeline.decode import Pixels, decode_image
from gpu_worker.pipeline.device_jpeg import Offered, _resized, _turned, checked, decoded_by, offered
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.piece import Piece
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from tests.unit.gpu_worker.pictures import noise

MOST = 1 << 20


class Decoder:
    """Decodes as torchvision would, on the CPU; `fails` at files of these bytes."""

    def __init__(self, *fails: bytes, off: int = 0) -> None:
        self.fails, self.off, self.calls = fails, off, list[int]()

    def decode(self, files: Sequence[Offered], height: int, width: int) -> list[Pixels]:
        self.calls.append(len(files))
        if any(file.data in self.fails for file in files):
            raise RuntimeError("nvjpegDecode failed: 5")
        found = []
        for file in files:
            picture = torch.from_numpy(np.array(Image.open(io.BytesIO(file.data)).convert("RGB")))
            upright = _turned(picture.permute(2, 0, 1), file.orientation)
            pixels: Pixels = _resized(upright[None], height, width)[0].permute(1, 2, 0).numpy()
            pixels = pixels + np.uint8(self.off)
            found.append(pixels)
        return found


def jpeg(size: tuple[int, int] = (96, 64), orientation: int = 1, **options: object) -> bytes:
    picture = Image.open(io.BytesIO(noise(3, *size)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    encoded = io.BytesIO()
    picture.convert(str(options.pop("mode", "RGB"))).save(encoded, "JPEG", quality=95, exif=exif, **options)
    return encoded.getvalue()


def png() -> bytes:
    encoded = io.BytesIO()
    Image.open(io.BytesIO(noise(4))).save(encoded, "PNG")
    return encoded.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"no picture", png(), jpeg(progressive=True), jpeg(mode="CMYK"), jpeg()[:40]]
)
def test_what_the_cpu_must_judge_is_not_offered(data: bytes) -> None:
    assert offered(data, MOST) is None


def test_a_jpeg_of_one_scan_is_offered_unless_it_is_too_large() -> None:
    assert offered(jpeg(), 96 * 64) is not None
    assert offered(jpeg(mode="L"), MOST) is not None
    assert offered(jpeg(), 96 * 64 - 1) is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright_as_on_the_cpu(orientation: int) -> None:
    data = jpeg(orientation=orientation)
    file = offered(data, MOST)
    assert file is not None
    (found,) = Decoder().decode([file], 48, 40)
    expected = decode_image(data, 48, 40, max_pixels=MOST)
    assert np.abs(found.astype(int) - expected.astype(int)).mean() < 4


def test_a_file_that_the_decoder_fails_at_costs_no_other_its_place() -> None:
    good, bad = offered(jpeg(), MOST), offered(jpeg((32, 48)), MOST)
    assert good is not None
    assert bad is not None
    found = decoded_by(Decoder(bad.data), [good, None, bad, good], 16, 16)
    assert [one is not None for one in found] == [True, False, False, True]


def test_a_decoder_that_sees_other_pixels_or_fails_is_not_used() -> None:
    assert checked(Decoder()) is not None
    assert checked(Decoder(off=20)) is None

    class Broken:
        def decode(self, files: Sequence[Offered], height: int, width: int) -> list[Pixels]:
            raise ImportError("libnvjpeg.so")

    assert checked(Broken()) is None


@pytest.mark.parametrize("form", ["image", "path"])
def test_a_piece_is_decoded_by_both_with_the_same_faults_as_by_the_cpu_alone(
    form: str, tmp_path: object
) -> None:
    bad = jpeg((40, 40))
    files = [jpeg(), png(), b"no picture", bad, jpeg(progressive=True), b"x" * 5000, jpeg((128, 128))]
    rows = list(files)
    settings = Settings(device="cpu", media_roots=(str(tmp_path),), max_input_bytes=30_000)
    if form == "path":
        for number, data in enumerate(files):
            with open(f"{tmp_path}/{number}.jpg", "wb") as file:
                file.write(data)
        rows = [f"{tmp_path}/{number}.jpg".encode() for number in range(len(files))]
        rows.append(b"missing.jpg")
    threads = Threads(1, "test")
    stripped = offered(bad, MOST)
    assert stripped is not None
    decoder = Decoder(stripped.data)
    pieces = []
    for jpegs in (decoder, None):
        intake = Intake(settings, threads, pinned=False, jpegs=jpegs)
        piece = Piece(0, rows)
        intake.decode_here(piece, form, [Frame(32, 32), Frame(24, 40)], lambda: False)
        assert piece.bug is None
        pieces.append(piece)
    on_device, on_cpu = pieces
    assert decoder.calls
    told = [[(fault.index, fault.code, fault.message) for fault in piece.faults] for piece in pieces]
    assert told[0] == told[1]
    good = [index for index in range(len(rows)) if index not in {fault.index for fault in on_cpu.faults}]
    assert good == [0, 1, 3, 4, 6]
    for frame in on_cpu.pixels:
        found, expected = (piece.pixels[frame][good].astype(int) for piece in (on_device, on_cpu))
        assert np.abs(found - expected).mean(axis=(1, 2, 3)).max() < 4
    threads.close()
