"""One tiny album, drawn once for all tests of the food log."""

from pathlib import Path

import pytest

from examples.foodlog.draw import Album, draw_album

ALBUM = Album(images=60, rows=3_000, size_px=32, seed=3)


@pytest.fixture(scope="session")
def album_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    assert draw_album(folder, ALBUM)
    return folder
