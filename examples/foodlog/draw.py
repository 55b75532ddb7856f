"""Draws the food log's photos, all cores at work: `python -m examples.foodlog.draw --out FOLDER`.

Owns the folder of JPEG files and the note beside them that says how they were drawn, so that a second call
with the same arguments draws nothing. `labels` decides which dish a photo shows, `photo` how it looks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from examples.foodlog.dishes import DISHES
from examples.foodlog.foodlog import keep_log, write_log
from examples.foodlog.labels import Label, choose_labels, write_labels
from examples.foodlog.photo import take_photo
from examples.foodlog.progress import bar
from examples.foodlog.scales import weigh, write_scales
from examples.foodlog.trays import Tray, lay_trays, take_tray, write_trays

__all__ = ["Album", "draw_album", "is_drawn", "main"]

_NOTE = "album.json"
_STYLE = 7  # raise it when photos or tables of the same arguments come out differently
_CHUNK = 16
_PHOTOS_PER_TRAY = 5
_TRAY_PX = 1.25  # a tray's photo is larger than a plate's


@dataclass(frozen=True, slots=True)
class Album:
    """What to draw: how many photos, their side in pixels, how many rows of the log refer to them; to every
    five of them a tray.
    """

    images: int = 2_000
    rows: int = 20_000
    size_px: int = 128
    seed: int = 7

    @property
    def trays(self) -> int:
        """How many there are."""
        return self.images // _PHOTOS_PER_TRAY


def draw_album(folder: Path, album: Album, on_photo: Callable[[], None] = lambda: None) -> bool:
    """Draw the photos into `folder/images` and write the tables' CSV files beside them.

    Calls `on_photo` after each photo, of trays too. Answers False, having done nothing, where this very album
    already is. Raises FileExistsError where `folder/images` is somebody else's.
    """
    if is_drawn(folder, album):
        return False
    _make_room(folder)
    labels = choose_labels(album.images, tuple(DISHES), album.seed)
    users, meals = keep_log(labels, album.rows, album.seed)
    trays = _draw_photos(
        folder / "images", labels, lay_trays(album.trays, users, album.seed), album, on_photo
    )
    write_labels(folder / "labels.csv", labels)
    write_trays(folder, trays)
    write_log(folder, users, meals)
    write_scales(folder, *weigh(labels, album.seed))
    (folder / _NOTE).write_text(_note_of(album))  # last: a run that was stopped before is not taken for whole
    return True


def is_drawn(folder: Path, album: Album) -> bool:
    """Whether `folder` holds this very album, whole."""
    return _read_note(folder) == _note_of(album)


def _note_of(album: Album) -> str:
    return json.dumps({"style": _STYLE, **asdict(album)})


def _read_note(folder: Path) -> str | None:
    path = folder / _NOTE
    return path.read_text() if path.is_file() else None


def _make_room(folder: Path) -> None:
    """Remove the photos of another album; never a folder `images` that is none of ours."""
    images = folder / "images"
    if images.exists():
        if _read_note(folder) is None:
            raise FileExistsError(f"{images} exists and was not drawn here: choose another folder with --out")
        shutil.rmtree(images)
    images.mkdir(parents=True)
    (folder / _NOTE).write_text("unfinished")


def _draw_photos(
    folder: Path,
    labels: Sequence[Label],
    laid: Sequence[tuple[Tray, tuple[str, ...]]],
    album: Album,
    on_photo: Callable[[], None],
) -> list[Tray]:
    """The trays, with where their dishes are."""
    paths = [*(label.image_path for label in labels), *(tray.image_path for tray, _ in laid)]
    for parent in sorted({(folder / path).parent for path in paths}):
        parent.mkdir(parents=True, exist_ok=True)
    draw_one = partial(_draw_photo, folder, album.size_px, album.seed)
    draw_tray = partial(_draw_tray, folder, round(album.size_px * _TRAY_PX), album.seed)
    trays = []
    # Ctrl-C is for the parent, which ends them; theirs would print a traceback each.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), signal.signal, ignore) as pool:
        for _ in pool.imap_unordered(draw_one, enumerate(labels), _CHUNK):
            on_photo()
        for tray in pool.imap(draw_tray, enumerate(laid), _CHUNK):
            trays.append(tray)
            on_photo()
    return trays


def _draw_tray(
    folder: Path, size_px: int, seed: int, numbered: tuple[int, tuple[Tray, tuple[str, ...]]]
) -> Tray:
    number, (tray, on_it) = numbered
    photo, dishes = take_tray(on_it, size_px, seed, number)
    (folder / tray.image_path).write_bytes(photo)
    return replace(tray, dishes=dishes)


def _draw_photo(folder: Path, size_px: int, seed: int, numbered: tuple[int, Label]) -> None:
    number, label = numbered
    (folder / label.image_path).write_bytes(take_photo(label.food_name, size_px, seed, number))


def main() -> None:
    """Draw from the command line, with a progress bar."""
    default = Album()
    parser = argparse.ArgumentParser(prog="python -m examples.foodlog.draw", description="Draw a food log.")
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="folder to fill (default .demo)")
    parser.add_argument("--images", type=int, default=default.images, help="photos to draw")
    parser.add_argument("--rows", type=int, default=default.rows, help="rows of the food log")
    parser.add_argument("--size", type=int, default=default.size_px, help="side of a photo in pixels")
    parser.add_argument("--seed", type=int, default=default.seed)
    args = parser.parse_args()
    album = Album(args.images, args.rows, args.size, args.seed)
    with bar("Drawing photos", album.images + album.trays) as advance:
        drawn = draw_album(args.out, album, advance)
    print(f"{args.out}: {album.images} photos, {album.rows} rows" + ("" if drawn else " (already there)"))


if __name__ == "__main__":
    main()
