"""Arrays of a snapshot are made once, mapped by all, bounded on disk, and their owner's alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.train.array_store import ArrayStore, ArrayWriter


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "abc.parquet"
    path.write_bytes(b"rows")
    return str(path)


def numbers(count: int, made: list[int]):
    def write(arrays: ArrayWriter) -> None:
        made.append(count)
        for start in range(0, count, 100):
            arrays.append("numbers", np.arange(start, min(start + 100, count), dtype=np.int64))
        arrays.append("none", np.zeros((0, 3), np.float32))
        arrays.facts["count"] = count

    return write


def test_arrays_are_made_once_for_each_key_whoever_asks(snapshot: str):
    made: list[int] = []
    for _ in range(2):
        for key, count in (("a", 250), ("b", 10)):
            arrays, facts = ArrayStore(snapshot).open(key, numbers(count, made))
            assert arrays["numbers"].tolist() == list(range(count))
            assert arrays["none"].shape == (0, 3)
            assert facts == {"count": count}
    assert made == [250, 10]


def test_another_file_in_the_snapshots_place_has_arrays_of_its_own(snapshot: str):
    made: list[int] = []
    ArrayStore(snapshot).open("a", numbers(5, made))
    Path(snapshot).write_bytes(b"other rows")
    ArrayStore(snapshot).open("a", numbers(6, made))
    assert made == [5, 6]


def test_what_was_opened_least_lately_goes_and_who_has_it_mapped_keeps_it(snapshot: str):
    made: list[int] = []
    store = ArrayStore(snapshot, most_bytes=20_000)
    first, _ = store.open("first", numbers(1_000, made))
    second, _ = store.open("second", numbers(1_000, made))
    folders = {folder: folder.stat().st_mtime for folder in (Path(snapshot).parent / ".arrays").iterdir()}
    for age, folder in enumerate(sorted(folders, key=folders.__getitem__)):
        os.utime(folder, (age, age))
    store.open("first", numbers(1_000, made))
    store.open("third", numbers(1_000, made))
    assert second["numbers"].sum() == first["numbers"].sum() == 499_500
    store.open("first", numbers(1_000, made))
    assert made == [1_000] * 3
    store.open("second", numbers(1_000, made))
    assert made == [1_000] * 4, "it was thrown away, and made again"


def test_a_writer_that_fails_leaves_nothing(snapshot: str):
    def fails(arrays: ArrayWriter) -> None:
        arrays.append("numbers", np.arange(3))
        raise ValueError("a row is at fault")

    with pytest.raises(ValueError, match="at fault"):
        ArrayStore(snapshot).open("a", fails)
    assert list((Path(snapshot).parent / ".arrays").iterdir()) == []


def test_mapped_arrays_are_read_only_and_count_for_no_limit_of_memory(snapshot: str):
    def write(arrays: ArrayWriter) -> None:
        arrays.append("numbers", np.zeros(8 << 20))

    ArrayStore(snapshot).open("a", write)
    before = data_bytes()
    arrays, _ = ArrayStore(snapshot).open("a", write)
    assert arrays["numbers"].sum() == 0.0
    assert not arrays["numbers"].flags.writeable
    assert data_bytes() - before < 8 << 20, "64 MiB are mapped"


def data_bytes() -> int:
    """What RLIMIT_DATA counts."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.security
def test_arrays_are_their_owners_alone(snapshot: str):
    ArrayStore(snapshot).open("a", numbers(5, []))
    folder = Path(snapshot).parent / ".arrays"
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_a_killed_process_left_goes_after_a_day(snapshot: str):
    folder = Path(snapshot).parent / ".arrays"
    for name, age_s in ((".coming-old", 90_000), (".coming-now", 60)):
        (folder / name).mkdir(parents=True)
        (folder / name / "numbers").write_bytes(b"half")
        written = time.time() - age_s
        for path in (folder / name / "numbers", folder / name):
            os.utime(path, (written, written))
    ArrayStore(snapshot).open("a", numbers(5, []))
    assert sorted(path.name for path in folder.glob(".coming-*")) == [".coming-now"]
