"""Small pictures: only of photos below the media roots, whatever a row of a dataset says."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from PIL import Image

from server.dashboard.thumbnails import LARGE, Thumbnails, file_below
from server.errors import UnknownFunction


def _photo(path: Path, size: tuple[int, int] = (640, 480), **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 30, 30)).save(path, **more)  # type: ignore[arg-type]  # of Pillow's options
    return path


def _made(path: str, *roots: Path) -> Image.Image:
    made = asyncio.run(Thumbnails().of(path, [os.path.realpath(root) for root in roots]))
    return Image.open(io.BytesIO(made))


def _refused(path: str, *roots: Path) -> None:
    with pytest.raises(UnknownFunction):
        _made(path, *roots)


def test_a_photo_becomes_a_small_jpeg_of_its_shape(tmp_path: Path):
    _photo(tmp_path / "roots" / "a.png")
    made = _made("a.png", tmp_path / "roots")
    assert (made.format, made.size) == ("JPEG", (192, 144))


@pytest.mark.security
def test_a_format_that_pillow_runs_a_program_for_is_not_read(tmp_path: Path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.eps")
    _refused("a.eps", tmp_path)


def test_what_is_kept_is_bounded(tmp_path: Path):
    async def asked() -> None:
        kept = Thumbnails()
        for number in range(60):
            noise = Image.effect_noise((1024, 1024), 120)
            noise.save(tmp_path / f"{number}.jpg", quality=60)
            assert await kept.of(f"{number}.jpg", [str(tmp_path)], LARGE)
        assert kept.kept_bytes <= 16 << 20

    asyncio.run(asked())


def test_a_photo_is_shown_the_right_way_up(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    _photo(tmp_path / "a.jpg", exif=exif)
    assert _made("a.jpg", tmp_path).size == (144, 192)


def test_a_relative_path_is_looked_for_below_each_root(tmp_path: Path):
    _photo(tmp_path / "second" / "a.png")
    (tmp_path / "first").mkdir()
    assert _made("a.png", tmp_path / "first", tmp_path / "second").size == (192, 144)


@pytest.mark.security
@pytest.mark.parametrize(
    "path",
    ["../secret.png", "/etc/passwd", "link.png", "folder/../../secret.png", "a\0.png", "", ".", "pipe"],
)
def test_nothing_outside_the_roots_is_read(tmp_path: Path, path: str):
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    _photo(tmp_path / "secret.png")
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(root / "pipe")
    _refused(path, root)
    _refused(str(tmp_path / "secret.png"), root)


@pytest.mark.security
def test_a_root_is_no_prefix_of_names(tmp_path: Path):
    (tmp_path / "root").mkdir()
    _photo(tmp_path / "root-of-others" / "a.png")
    assert file_below(str(tmp_path / "root-of-others" / "a.png"), [str(tmp_path / "root")]) is None


@pytest.mark.security
def test_without_roots_nothing_is_read(tmp_path: Path):
    _refused(str(_photo(tmp_path / "a.png")))


@pytest.mark.security
def test_a_file_that_is_no_picture_shows_nothing(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"root:x:0:0\n" * 100)
    _refused("a.png", tmp_path)


@pytest.mark.security
def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path):
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    _refused("bomb.png", tmp_path)


def test_one_that_lies_elsewhere_for_the_next_caller_is_not_given_from_what_was_kept(tmp_path: Path):
    photo = _photo(tmp_path / "mine" / "a.png")

    async def asked() -> None:
        kept = Thumbnails()
        await kept.of(str(photo), [str(tmp_path / "mine")])
        with pytest.raises(UnknownFunction):
            await kept.of(str(photo), [str(tmp_path / "theirs")])

    asyncio.run(asked())
