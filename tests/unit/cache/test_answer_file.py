"""Kept answers in a file: what was written is read, and nothing else is taken for it."""

from __future__ import annotations

import fcntl
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from server.cache.answer_file import AnswerFile, AnswerFileError, KeptAnswers, KeptSource
from server.cache.entry import ColumnKind, PackedAnswers
from server.cache.keying import BLAKE2, Keying

SOURCES = [
    KeptSource(b"\x01\0\0\0", "udf/3", (ColumnKind("label", "BYTES", ()),), "net", has_told=False),
    KeptSource(b"\x02\0\0\0", "é/1", (ColumnKind("scores", "FP32", (2,), "x"),), "a,b", has_told=True),
]
KEYS = [b"key", b"another key", b""]
ROWS = [b"\x01\0\0\0ramen", b"\x02\0\0\0", b"\x01\0\0\0"]
KEYING = Keying("siphash-2-4-128", bytes(range(16)))
KEPT = KeptAnswers(KEYING, SOURCES, [PackedAnswers.of(zip(KEYS, ROWS, strict=True))])


@pytest.fixture
def file(tmp_path: Path) -> AnswerFile:
    return AnswerFile(tmp_path / "answers", "1.0")


def test_what_was_written_is_read(file: AnswerFile) -> None:
    assert file.write(KEPT) == file.path.stat().st_size
    assert file.read() == KEPT
    pairs = list(zip(KEYS, ROWS, strict=True))
    file.write(KeptAnswers(KEYING, SOURCES, [PackedAnswers.of(pairs[:1]), PackedAnswers.of(pairs[1:])]))
    assert file.read() == KEPT
    file.write(KeptAnswers(BLAKE2, [], []))
    found = file.read()
    assert found is not None
    assert (found.keying, found.sources, *map(len, found.answers)) == (BLAKE2, [], 0)
    assert [each.name for each in file.path.parent.iterdir()] == ["answers"]


def test_nobody_else_may_read_it(file: AnswerFile) -> None:
    file.write(KEPT)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_no_file_is_nothing_kept(file: AnswerFile) -> None:
    assert file.read() is None


def test_how_its_keys_were_made_is_known_before_it_is_read(file: AnswerFile) -> None:
    assert file.keying() is None
    file.write(KEPT)
    assert file.keying() == KEYING
    assert KEYING.secret.hex() not in repr(KEYING), "nor is it told in a log"
    whole = file.path.read_bytes()
    for at in range(0, len(whole), 5):
        for hurt in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            file.path.write_bytes(hurt)
            file.keying()  # whatever it says: a store takes none that it cannot use, `read` what is not whole


def test_a_file_of_before_keys_had_a_secret_is_refused_and_says_so(file: AnswerFile) -> None:
    file.path.write_bytes(b"ml_udf answers 1" + bytes(100))
    assert file.keying() is None
    with pytest.raises(AnswerFileError, match="an older release"):
        file.read()


def test_a_file_that_is_not_whole_is_refused_wherever_it_ends_or_is_hurt(file: AnswerFile) -> None:
    file.write(KEPT)
    whole = file.path.read_bytes()
    for at in range(len(whole)):
        for hurt in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            file.path.write_bytes(hurt)
            with pytest.raises(AnswerFileError, match=r"not a whole file|an older release"):
                file.read()


def test_answers_of_another_release_are_not_read(file: AnswerFile) -> None:
    file.write(KEPT)
    with pytest.raises(AnswerFileError, match=r"ml_udf 1\.0"):
        AnswerFile(file.path, "1.1").read()


def test_a_write_that_fails_leaves_what_was_there_and_nothing_half_written(file: AnswerFile) -> None:
    file.write(KEPT)
    with pytest.raises(TypeError):
        file.write(replace(KEPT, answers=[replace(KEPT.answers[0], rows="no bytes")]))  # type: ignore[arg-type]
    assert file.read() == KEPT
    assert len(list(file.path.parent.iterdir())) == 1


def test_what_a_killed_server_had_half_written_is_removed_and_what_another_writes_is_not(
    file: AnswerFile,
) -> None:
    left, written, other = (
        file.path.with_name(f".{file.path.name}-{end}") for end in ("abcdefgh", "ijklmnop", "x")
    )
    for path in (left, written, other):
        path.write_bytes(b"half")
    with written.open("rb") as under_way:
        fcntl.flock(under_way, fcntl.LOCK_EX)
        file.write(KEPT)
    assert [path.exists() for path in (left, written, other)] == [False, True, True]
