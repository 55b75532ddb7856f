"""A worker that does not see this machine's files has those of what it is to load, or to be taught by."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from gpu_worker.wire.protocol import FilePiece, Load, Message, TrainEpoch, WantPiece
from server.workers.offered_files import OfferedFiles
from tests.waiting import until


def answers(offered: OfferedFiles, *wants: WantPiece) -> list[FilePiece]:
    told: list[Message] = []

    async def scenario() -> None:
        for want in wants:
            offered.wanted(want, told.append)
        await until(lambda: len(told) == len(wants))

    asyncio.run(scenario())
    pieces = [piece for piece in told if isinstance(piece, FilePiece)]
    assert len(pieces) == len(wants)
    return sorted(pieces, key=lambda piece: -piece.id)


@pytest.fixture
def food(tmp_path: Path) -> Path:
    """The folder of a version; another lies beside it, and a secret above both."""
    for name in ("food", "base"):
        folder = tmp_path / "models" / name / "1"
        folder.mkdir(parents=True)
        (folder / "w").write_bytes(name.encode() * 100)
    (tmp_path / "secret").write_text("no model's")
    return tmp_path / "models" / "food" / "1"


def test_pieces_of_a_version_that_is_being_loaded_and_of_its_neighbours(food: Path) -> None:
    offered = OfferedFiles()
    offered.begun(Load(7, "food/1", str(food)))
    wanted = (
        WantPiece(-1, 7, "w", 0, 10),
        WantPiece(-2, 7, "w", 396, 10),
        WantPiece(-3, 7, "w", 400, 10),
        WantPiece(-4, 7, "w", 0, 4, "base/1"),
    )
    assert answers(offered, *wanted) == [
        FilePiece(-1, [b"foodfoodfo"], 400),
        FilePiece(-2, [b"food"], 400),
        FilePiece(-3, [b""], 400),
        FilePiece(-4, [b"base"], 400),
    ]


@pytest.mark.security
@pytest.mark.parametrize(
    ("want", "said"),
    [
        (WantPiece(-1, 8, "w", 0, 10), "no load of it is under way"),
        (WantPiece(-1, 7, "../../../secret", 0, 10), "no such piece"),
        (WantPiece(-1, 7, "/etc/passwd", 0, 10), "no such piece"),
        (WantPiece(-1, 7, "..", 0, 10), "no such piece"),
        (WantPiece(-1, 7, "link", 0, 10), "cannot read"),
        (WantPiece(-1, 7, "none", 0, 10), "No such file"),
        (WantPiece(-1, 7, "w", -1, 10), "no such piece"),
        (WantPiece(-1, 7, "w", 0, 1 << 30), "no such piece"),
        (WantPiece(-1, 7, "w", 0, 10, "../1"), "no model's name and version"),
        (WantPiece(-1, 7, "w", 0, 10, "base/../.."), "no model's name and version"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_nothing_else(food: Path, want: WantPiece, said: str) -> None:
    (food / "link").symlink_to(food.parents[2] / "secret")
    offered = OfferedFiles()
    offered.begun(Load(7, "food/1", str(food)))
    (piece,) = answers(offered, want)
    assert (piece.data, said in piece.error) == ([b""], True), piece


def test_nothing_more_once_the_load_is_answered(food: Path) -> None:
    offered = OfferedFiles()
    offered.begun(Load(7, "food/1", str(food)))
    offered.over(7)
    (piece,) = answers(offered, WantPiece(-1, 7, "w", 0, 10))
    assert "no load of it is under way" in piece.error


def test_a_worker_that_asks_without_end_is_refused(food: Path) -> None:
    offered = OfferedFiles()
    offered.begun(Load(7, "food/1", str(food)))
    pieces = answers(offered, *(WantPiece(-number, 7, "w", 0, 10) for number in range(1, 80)))
    assert sum("on their way already" in piece.error for piece in pieces) == 79 - 64


@pytest.fixture
def taught(tmp_path: Path) -> TrainEpoch:
    """A message of a trial that begins with a checkpoint; another lies beside it."""
    for name in ("rows.parquet", "a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(name.encode())
    rows, start = str(tmp_path / "rows.parquet"), str(tmp_path / "a.safetensors")
    return TrainEpoch(7, "t", {}, rows, [], start, 0, 1)


def test_a_message_of_training_offers_what_it_names_by_path_and_hash(taught: TrainEpoch) -> None:
    offered = OfferedFiles()
    offered.begun(taught)
    wanted = (WantPiece(-1, 7, taught.snapshot, 5, 3), WantPiece(-2, 7, taught.start, 0, 0))
    assert answers(offered, *wanted) == [
        FilePiece(-1, [b"par"], 12),
        FilePiece(-2, [b""], 13, sha256=hashlib.sha256(b"a.safetensors").hexdigest()),
    ]


def test_a_file_that_is_not_there_has_no_hash(taught: TrainEpoch) -> None:
    offered = OfferedFiles()
    offered.begun(taught)
    assert answers(offered, WantPiece(-1, 7, f"{taught.start}.optimiser", 0, 0)) == [FilePiece(-1, [b""], -1)]


def test_a_file_that_changes_is_hashed_anew(taught: TrainEpoch) -> None:
    offered = OfferedFiles()
    offered.begun(taught)
    ask = WantPiece(-1, 7, taught.start, 0, 0)
    (before,) = answers(offered, ask)
    Path(taught.start).write_bytes(b"longer than it was")
    (after,) = answers(offered, ask)
    assert (before.sha256, after.sha256) == (
        hashlib.sha256(b"a.safetensors").hexdigest(),
        hashlib.sha256(b"longer than it was").hexdigest(),
    )


@pytest.mark.security
def test_and_nothing_that_lies_beside_it(taught: TrainEpoch) -> None:
    offered = OfferedFiles()
    offered.begun(taught)
    beside = str(Path(taught.start).with_name("b.safetensors"))
    wanted = [
        WantPiece(-number, 7, file, 0, 1, below)
        for number, (file, below) in enumerate(((beside, ""), ("w", ""), ("w", "base/1"), ("", "")), 1)
    ]
    for piece in answers(offered, *wanted):
        assert (piece.data, "no such piece" in piece.error) == ([b""], True), piece
