import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from examples.foodlog.draw import Album, draw_album
from tests.unit.foodlog.conftest import ALBUM


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def labelled(folder: Path) -> list[str]:
    """The labelled photos' paths."""
    with (folder / "labels.csv").open(newline="") as file:
        return [row["image_path"] for row in csv.DictReader(file)]


def test_two_drawings_of_one_album_are_equal_byte_by_byte(album_folder: Path, tmp_path: Path) -> None:
    draw_album(tmp_path, ALBUM)
    assert contents(tmp_path) == contents(album_folder)


def test_every_label_has_its_photo_and_every_photo_its_label(album_folder: Path) -> None:
    paths = labelled(album_folder)
    images = album_folder / "images"
    assert len(paths) == ALBUM.images
    assert {images / path for path in paths} == set((images / "meals").rglob("*.jpg"))
    for path in paths:
        with Image.open(images / path) as image:
            image.load()
            assert image.size == (ALBUM.size_px, ALBUM.size_px)


def test_an_album_that_is_already_there_is_not_drawn_again(tmp_path: Path) -> None:
    album = Album(images=10, rows=20, size_px=16, seed=1)
    drawn: list[int] = []
    assert draw_album(tmp_path, album, lambda: drawn.append(1))
    assert not draw_album(tmp_path, album, lambda: drawn.append(1))
    assert len(drawn) == 10 + 2  # and a tray for every five


def test_other_arguments_draw_another_album(tmp_path: Path) -> None:
    album = Album(images=10, rows=20, size_px=16, seed=1)
    draw_album(tmp_path, album)
    before = contents(tmp_path / "images")
    assert draw_album(tmp_path, replace(album, seed=2))
    assert contents(tmp_path / "images") != before


def test_a_smaller_album_leaves_no_photo_of_the_larger_one(tmp_path: Path) -> None:
    draw_album(tmp_path, Album(images=12, rows=20, size_px=16, seed=1))
    draw_album(tmp_path, Album(images=10, rows=20, size_px=16, seed=1))
    assert len(list((tmp_path / "images" / "meals").rglob("*.jpg"))) == 10


def test_a_run_that_was_stopped_is_drawn_again(tmp_path: Path) -> None:
    album = Album(images=10, rows=20, size_px=16, seed=1)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_album(tmp_path, album, stop)
    assert draw_album(tmp_path, album)
    assert len(labelled(tmp_path)) == 10


def test_somebody_elses_folder_of_images_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "wedding.jpg").write_bytes(b"dear")
    with pytest.raises(FileExistsError, match="--out"):
        draw_album(tmp_path, Album(images=10, rows=20, size_px=16, seed=1))
    assert (tmp_path / "images" / "wedding.jpg").read_bytes() == b"dear"


def test_the_command_line_draws_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.foodlog.draw", "--out", str(tmp_path)]
    options = ["--images", "10", "--rows", "30", "--size", "16"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert "10 photos, 30 rows" in done.stdout
    assert len(list(tmp_path.rglob("*.jpg"))) == 10 + 2
