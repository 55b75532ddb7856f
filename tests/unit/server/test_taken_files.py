"""What a worker stores that does not see this machine's files comes whole, by its hash, or not at all."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.wire.protocol import GivePiece, MakeVariant, Message, PieceTaken, StoreCheckpoint
from server.workers.taken_files import TakenFiles
from tests.waiting import until

DATA = os.urandom(3000)
SHA256 = hashlib.sha256(DATA).hexdigest()
NAME = f"{SHA256}.safetensors"


def piece(at: int, upto: int, **other: Any) -> GivePiece:
    told: dict[str, Any] = {"target": 7, "file": NAME, "size": len(DATA), "sha256": SHA256}
    return GivePiece(-1 - at, [DATA[at:upto]], at=at, **(told | other))


def answers(taken: TakenFiles, *pieces: GivePiece) -> list[PieceTaken]:
    """Each given once the one before is answered for."""
    told: list[Message] = []

    async def given(each: GivePiece, count: int) -> None:
        taken.given(each, told.append)
        await until(lambda: len(told) == count)

    async def scenario() -> None:
        for count, each in enumerate(pieces, 1):
            await given(each, count)

    asyncio.run(scenario())
    found = [answer for answer in told if isinstance(answer, PieceTaken)]
    assert len(found) == len(pieces)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "job-1"


@pytest.fixture
def taken(folder: Path) -> TakenFiles:
    made = TakenFiles()
    made.begun(StoreCheckpoint(7, "t", str(folder)))
    return made


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_there_with_its_last_piece_and_its_state_beside_it(
    taken: TakenFiles, folder: Path
) -> None:
    state = f"{NAME}.optimiser"
    given = [GivePiece(-1, [b"state"], 7, state, 0, 5, hashlib.sha256(b"state").hexdigest())]
    told = answers(taken, *given, piece(0, 1000), piece(1000, 2000))
    assert [answer.error for answer in told] == ["", "", ""]
    assert state in names_in(folder)
    assert NAME not in names_in(folder), "half of it is not taken for a checkpoint"
    assert answers(taken, piece(2000, 3000)) == [PieceTaken(-2001)]
    assert (folder / NAME).read_bytes() == DATA
    assert taken.over(7) == [state, NAME]
    assert names_in(folder) == [NAME, state]


def test_of_a_link_that_is_cut_nothing_is_left(taken: TakenFiles, folder: Path) -> None:
    answers(taken, piece(0, 1000))
    assert len(names_in(folder)) == 1
    assert taken.over(7) == []
    assert names_in(folder) == []


def test_a_link_that_is_cut_as_a_piece_is_written_leaves_nothing_either(
    taken: TakenFiles, folder: Path
) -> None:
    told: list[Message] = []

    async def scenario() -> None:
        taken.given(piece(0, 1000), told.append)
        assert taken.over(7) == []
        await until(lambda: folder.exists() and not names_in(folder))

    asyncio.run(scenario())
    assert told == []


def test_what_is_not_what_its_hash_says_is_not_stored(taken: TakenFiles, folder: Path) -> None:
    broken = piece(2000, 3000)
    broken.data = [bytes(1000)]
    *_, last = answers(taken, piece(0, 2000), broken)
    assert f"and should have {SHA256}" in last.error
    assert (taken.over(7), names_in(folder)) == ([], [])


def test_a_full_disk_says_so_and_keeps_nothing(
    taken: TakenFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("server.workers.taken_files.os.write", full)
        (told,) = answers(taken, piece(0, 1000))
    assert (told.code, "No space left" in told.error) == ("no_space", True)
    assert names_in(folder) == []
    again = answers(taken, piece(0, 3000))
    assert (again[0].error, names_in(folder)) == ("", [NAME])


def test_what_a_server_that_was_killed_has_left_goes_after_a_day(taken: TakenFiles, folder: Path) -> None:
    folder.mkdir()
    for name, age_s in ((".taken-old", 2 * 86_400), (".taken-new", 60)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    answers(taken, piece(0, 3000))
    assert names_in(folder) == [".taken-new", NAME]


def test_the_files_of_a_variant_have_names_of_their_own(tmp_path: Path) -> None:
    taken = TakenFiles()
    taken.begun(MakeVariant(7, "models/food/1", str(tmp_path), "food-int8", "int8"))
    empty = GivePiece(-9, [b""], 7, "words.txt", 0, 0, hashlib.sha256(b"").hexdigest())
    assert [answer.error for answer in answers(taken, piece(0, 3000, file="w.onnx"), empty)] == ["", ""]
    assert taken.over(7) == ["w.onnx", "words.txt"]
    assert names_in(tmp_path) == ["w.onnx", "words.txt"]


@pytest.mark.security
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (piece(0, 10, target=8), "nothing is being stored"),
        (piece(0, 10, file="../../secret"), "no such piece"),
        (piece(0, 10, file=".hidden"), "no such piece"),
        (piece(0, 10, size=-1), "no such piece"),
        (piece(0, 10, file="model.json"), "no checkpoint's name"),
        (piece(0, 10, file=f"{'0' * 64}.safetensors"), "no checkpoint's name"),
        (piece(0, 10, file=f"{NAME}.pkl"), "no checkpoint's name"),
        (piece(10, 20), "is not the next"),
        (piece(0, 0), "is not the next"),
        (piece(0, 100, size=50), "is not the next"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_nothing_else_is_taken(taken: TakenFiles, folder: Path, given: GivePiece, said: str) -> None:
    (told,) = answers(taken, given)
    assert said in told.error
    assert not folder.exists()


@pytest.mark.security
def test_a_file_is_not_begun_within_another_nor_left_out_of_order(taken: TakenFiles, folder: Path) -> None:
    told = answers(taken, piece(0, 1000), piece(0, 1000), piece(2000, 3000), piece(1000, 3000))
    assert ["is not the next" in answer.error for answer in told] == [False, True, True, False]
    assert (folder / NAME).read_bytes() == DATA
