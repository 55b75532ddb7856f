"""Stamps of files: the same while a file is, another once it is not, none where none can be had."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpu_worker.pipeline.file_stamp import stamp_of
from gpu_worker.pipeline.media import MediaRoots
from server.cache.files import FileStamps
from tests.waiting import until

LATER_NS = 10_000_000_000


def stamp(path: Path) -> bytes:
    return stamp_of(path.stat(), time.time_ns() + LATER_NS)


def stamps(roots: list[Path], paths: list[Path | str], *narrowed: tuple[str, ...] | None) -> list[bytes]:
    async def asked() -> list[bytes]:
        made = FileStamps([str(root) for root in roots], patience_s=10.0)
        try:
            first, second = (*narrowed, None, None)[:2]
            return await made.of([str(path).encode() for path in paths], first, second)
        finally:
            made.close()

    time.sleep(0.15)  # until a file that was just made has a stamp
    return asyncio.run(asked())


@pytest.mark.parametrize("change", ["content", "restored time", "another file", "rights"])
def test_a_changed_file_has_another_stamp(tmp_path: Path, change: str) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"before")
    before, told = stamp(file), file.stat()
    assert stamp(file) == before
    time.sleep(0.05)
    if change == "another file":
        (tmp_path / "b").write_bytes(b"before")
        (tmp_path / "b").rename(file)
    elif change == "rights":
        file.chmod(0o600)
        file.chmod(0o640)
    else:
        file.write_bytes(b"behind")
        if change == "restored time":
            os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
            assert file.stat().st_mtime_ns == told.st_mtime_ns
    assert stamp(file) != before


@pytest.mark.parametrize(
    ("changed_ns", "asked_ns", "is_known"),
    [
        (1_000_000_001, 1_050_000_000, False),  # it may change within the same tick, and look the same
        (1_000_000_001, 1_200_000_000, True),
        (1_000_000_000, 1_200_000_000, False),  # whole seconds: a filesystem that counts in two of them
        (1_000_000_000, 3_200_000_000, True),
        (9_000_000_001, 3_200_000_000, False),  # by another machine's clock
    ],
)
def test_a_file_that_has_just_changed_has_no_stamp(changed_ns: int, asked_ns: int, is_known: bool) -> None:
    found = SimpleNamespace(st_dev=1, st_ino=2, st_size=3, st_mtime_ns=4, st_ctime_ns=changed_ns)
    assert bool(stamp_of(cast(os.stat_result, found), asked_ns)) == is_known


def test_two_names_of_a_file_have_one_stamp_and_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").write_bytes(b"x")
    file = tmp_path / "in" / "a"
    file.write_bytes(b"x")
    (tmp_path / "in" / "hard").hardlink_to(file)
    (tmp_path / "in" / "soft").symlink_to(file)
    (tmp_path / "in" / "escape").symlink_to(tmp_path / "out")
    names: list[Path | str] = [tmp_path / "in" / name for name in ("a", "hard", "soft", "escape", "gone", "")]
    one, hard, soft, escape, gone, folder = stamps([tmp_path / "in"], names)
    assert one == hard == soft != b""
    assert escape == gone == folder == b""
    assert stamps([tmp_path / "in"], ["a", "../out", "a\0b"]) == [one, b"", b""]


def test_a_function_and_a_caller_each_narrow_what_has_a_stamp(tmp_path: Path) -> None:
    for folder in ("both", "one"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_bytes(b"x")
    names: list[Path | str] = [tmp_path / "both" / "a", tmp_path / "one" / "a"]
    both, one = (str(tmp_path / "both"),), (str(tmp_path / "both"), str(tmp_path / "one"))
    assert [bool(each) for each in stamps([tmp_path], names, one, both)] == [True, False]
    assert [bool(each) for each in stamps([tmp_path], names, both, one)] == [True, False]
    assert [bool(each) for each in stamps([tmp_path], names, None, ())] == [False, False]


def open_below(folder: Path) -> list[str]:
    """Of what this process holds open; other tests' files may be closed meanwhile."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in found if path.startswith(str(folder)))


def test_files_of_many_folders_some_of_them_links_have_stamps_and_no_folder_stays_open(
    tmp_path: Path,
) -> None:
    for number in range(70):  # more than are held open at once
        folder = tmp_path / "in" / f"{number}"
        folder.mkdir(parents=True)
        for name in ("a", "b"):
            (folder / name).write_bytes(b"x")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "in" / "0")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_bytes(b"x")
    (tmp_path / "in" / "way out").symlink_to(tmp_path / "out")
    time.sleep(0.15)
    media = MediaRoots([str(tmp_path / "in")])
    paths = [f"{tmp_path}/in/{number}/{name}" for number in range(70) for name in ("a", "b")]
    more = ["link/a", "way out/a", "none/a", "0/a/b", "0/..", "0//a"]
    rows = [path.encode() for path in [*paths, *(f"{tmp_path}/in/{path}" for path in more)]]
    open_before = open_below(tmp_path)
    found = media.files(rows)
    assert open_below(tmp_path) == open_before
    inodes = [each and each.st_ino for each in found]
    assert inodes[:140] == [os.stat(path).st_ino for path in paths]
    assert inodes[140:] == [inodes[0], None, None, None, None, inodes[0]]


def test_a_file_server_that_hangs_keeps_nobody_waiting_and_piles_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    looked: list[bytes] = []

    def hang(self: MediaRoots, rows: Sequence[bytes]) -> list[None]:
        looked.extend(rows)
        goes_on.wait(20)
        return [None] * len(rows)

    monkeypatch.setattr(MediaRoots, "files", hang)

    async def scenario() -> None:
        made = FileStamps([str(tmp_path)], patience_s=0.01)
        for _ in range(80):
            assert await made.of([b"a", b"b"], None, None) == [b"", b""]
        assert len(looked) == 4  # two pages: its two threads are at it still
        goes_on.set()
        await until(lambda: len(looked) == 128)  # 64 pages of two rows waited, and no more
        made.close()

    asyncio.run(scenario())
