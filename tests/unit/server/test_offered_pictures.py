"""A worker that does not see the media roots has the photos that it is taught by, and no others."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_worker.wire.protocol import (
    CheckpointStored,
    FilePiece,
    Inspect,
    Message,
    StoreCheckpoint,
    TrainEpoch,
    WantPiece,
)
from server.workers.offered_pictures import OfferedPictures, PictureFiles
from server.workers.ray import FarFiles
from tests.waiting import until

MOST_BYTES = 1_000


@dataclass
class Home:
    """Photos below a media root, a snapshot that names some of them, and what lies beside the root."""

    folder: Path
    files: PictureFiles

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    def epoch(self, *names: str) -> TrainEpoch:
        rows = self.folder / "rows.parquet"
        pq.write_table(pa.table({"input": list(names)}), rows)
        return TrainEpoch(7, "t", {}, str(rows), ["a"], "", 0, 1)

    def answers(self, offered: OfferedPictures, *wants: WantPiece) -> list[FilePiece]:
        told: list[Message] = []

        async def scenario() -> None:
            for want in wants:
                offered.wanted(want, told.append)
            await until(lambda: len(told) == len(wants))

        asyncio.run(scenario())
        pieces = [piece for piece in told if isinstance(piece, FilePiece)]
        return sorted(pieces, key=lambda piece: -piece.id)

    def answer(self, offered: OfferedPictures, file: str, at: int = 0, known: str = "") -> FilePiece:
        (piece,) = self.answers(offered, want(file, at, known=known))
        return piece


def want(file: str, at: int = 0, nbytes: int = 400, known: str = "", number: int = -1) -> WantPiece:
    return WantPiece(number, 7, file, at, nbytes, is_picture=True, known=known)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    (tmp_path / "photos").mkdir()
    for name in "abc":
        (tmp_path / "photos" / name).write_bytes(name.encode() * 500)
    (tmp_path / "photos" / "large").write_bytes(b"x" * (MOST_BYTES + 1))
    (tmp_path / "secret").write_bytes(b"no photo")
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "secret")
    made = Home(tmp_path, PictureFiles([str(tmp_path / "photos")], MOST_BYTES))
    yield made
    made.files.close()


def test_pieces_of_the_photos_of_a_snapshot_with_their_hash(home: Home) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch("a", str(home.photos / "b")))
    sha256 = hashlib.sha256(b"a" * 500).hexdigest()
    assert home.answer(offered, "a") == FilePiece(-1, [b"a" * 400], 500, sha256=sha256)
    assert home.answer(offered, "a", at=400) == FilePiece(-1, [b"a" * 100], 500)
    assert home.answer(offered, str(home.photos / "b")).data == [b"b" * 400]


def test_what_a_worker_has_already_is_not_sent_again_until_it_changes(home: Home) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch("a"))
    sha256 = home.answer(offered, "a").sha256
    assert home.answer(offered, "a", known=sha256) == FilePiece(-1, [b""], 500, sha256=sha256)
    (home.photos / "a").write_bytes(b"A" * 500)
    assert home.answer(offered, "a", known=sha256).data == [b"A" * 400]


@pytest.mark.security
def test_a_photo_that_no_row_names_is_not_sent(home: Home) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch("a"))
    piece = home.answer(offered, "c")
    assert (piece.data, piece.code) == ([b""], "")
    assert "no row that it is asked about names 'c'" in piece.error
    offered.over(7)
    assert "nothing is under way" in home.answer(offered, "a").error


@pytest.mark.security
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("gone", "input_not_found"),
        ("../secret", "input_forbidden"),
        ("/etc/passwd", "input_forbidden"),
        ("link", "input_forbidden"),
        (".", "input_invalid"),
        ("", "input_invalid"),
        ("a\0b", "input_invalid"),
        ("\udcff", "input_invalid"),
    ],
)
def test_a_row_at_fault_has_the_error_that_it_has_at_home(home: Home, name: str, code: str, at: int) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(Inspect(7, [name.encode("utf-8", "surrogateescape")]))
    piece = home.answer(offered, name, at)
    assert (piece.data, piece.code) == ([b""], code), piece
    assert "no photo" not in piece.error


def test_a_photo_that_is_too_large_is_not_read(home: Home) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch("large"))
    piece = home.answer(offered, "large")
    assert piece.code == "input_too_large"
    assert f"more than the limit of {MOST_BYTES} bytes" in piece.error


@pytest.mark.security
def test_whoever_may_see_less_is_shown_less(home: Home) -> None:
    (home.photos / "theirs").mkdir()
    (home.photos / "theirs" / "d").write_bytes(b"d")
    offered = OfferedPictures(home.files)
    ours = str(home.photos / "a")
    offered.begun(Inspect(7, [ours.encode(), b"d"], [str(home.photos / "theirs")]))
    assert home.answer(offered, ours).code == "input_forbidden"
    assert home.answer(offered, "d").data == [b"d"]


@pytest.mark.parametrize("wrong", [want("a", -1), want("a", 0, 0), want("a", 0, 1 << 30)])
def test_there_are_no_such_pieces(home: Home, wrong: WantPiece) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch("a"))
    (piece,) = home.answers(offered, wrong)
    assert "there is no such piece of 'a'" in piece.error


def test_a_worker_that_asks_without_end_is_refused(home: Home) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch("a"))
    pieces = home.answers(offered, *(want("a", number=-number) for number in range(1, 30)))
    assert sum("on their way already" in piece.error for piece in pieces) == 29 - 16


def test_a_snapshot_that_is_gone_is_no_rows_fault(home: Home) -> None:
    offered = OfferedPictures(home.files)
    message = home.epoch("a")
    offered.begun(message)
    Path(message.snapshot).unlink()
    piece = home.answer(offered, "a")
    assert (piece.code, "cannot be read" in piece.error) == ("", True)
    Path(message.snapshot).write_bytes(b"no parquet")
    piece = home.answer(offered, "a")
    assert (piece.code, "cannot be read" in piece.error) == ("", True)


def test_a_snapshot_of_many_rows_names_each_of_them(home: Home) -> None:
    offered = OfferedPictures(home.files)
    offered.begun(home.epoch(*(f"photo {number}" for number in range(10_000)), "a"))
    assert home.answer(offered, "a").size == 500
    assert home.answer(offered, "photo 9999").code == "input_not_found"
    assert "no row" in home.answer(offered, "photo 10000").error


@pytest.mark.security
def test_who_sees_the_home_alone_is_given_photos_alone(home: Home) -> None:
    far = FarFiles(home.files, sees_home=True)
    told: list[Message] = []
    message = home.epoch("a")

    async def scenario() -> None:
        far.begun(message)
        far.moved(WantPiece(-1, 7, message.snapshot, 0, 10), told.append)
        far.moved(want("a", number=-2), told.append)
        await until(lambda: len(told) == 2)

    asyncio.run(scenario())
    pieces = [piece for piece in told if isinstance(piece, FilePiece)]
    files, photo = sorted(pieces, key=lambda piece: -piece.id)
    assert "no load of it is under way" in files.error
    assert photo.data == [b"a" * 400]
    stored = CheckpointStored(8, "0" * 64, 10)
    far.begun(StoreCheckpoint(8, "t", str(home.folder)))
    assert far.over(stored) is stored, "it lies where the server sees it"


@pytest.mark.security
def test_who_sees_the_photos_is_sent_none(home: Home) -> None:
    told: list[Message] = []
    far = FarFiles()
    far.begun(home.epoch("a"))
    far.moved(want("a"), told.append)
    assert told == [FilePiece(-1, [b""], 0, "it sees the photos that it asks for")]
