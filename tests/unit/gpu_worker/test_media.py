"""A path is read below the media roots and nowhere else, and only if it names a regular file."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from gpu_worker.errors import RowFault
from gpu_worker.pipeline.media import MediaRoots

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "media"
    (root / "meals").mkdir(parents=True)
    (root / "meals" / "a.jpg").write_bytes(b"inside")
    (tmp_path / "secret.jpg").write_bytes(b"outside")
    return root


def read(root: Path, path: str | bytes | Path, limit: int = LIMIT) -> bytes:
    row = path if isinstance(path, bytes) else os.fsencode(path)
    return MediaRoots([str(root)]).read(row, max_bytes=limit)


def fault(root: Path, path: str | bytes | Path, limit: int = LIMIT) -> RowFault:
    with pytest.raises(RowFault) as caught:
        read(root, path, limit)
    return caught.value


def test_an_absolute_and_a_relative_path_name_the_same_file(root: Path) -> None:
    assert read(root, root / "meals" / "a.jpg") == read(root, "meals/a.jpg") == b"inside"


def test_a_relative_path_is_looked_for_below_each_root_in_order(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "b.jpg").write_bytes(b"second")
    roots = MediaRoots([str(root), str(second)])
    assert roots.read(b"meals/a.jpg", max_bytes=LIMIT) == b"inside"
    assert roots.read(b"b.jpg", max_bytes=LIMIT) == b"second"


def test_a_missing_file_is_not_found(root: Path) -> None:
    assert fault(root, "meals/none.jpg").code == "input_not_found"
    assert fault(root, root / "none" / "a.jpg").code == "input_not_found"
    assert fault(root, "meals/a.jpg/b.jpg").code == "input_not_found"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../secret.jpg", "meals/../../secret.jpg", "/", "..", "meals/../..", "//etc/passwd"],
)
def test_a_path_outside_the_roots_is_forbidden(root: Path, path: str) -> None:
    assert fault(root, path).code == "input_forbidden"


def test_a_refusal_does_not_tell_whether_the_file_outside_exists(root: Path, tmp_path: Path) -> None:
    there, missing = fault(root, tmp_path / "secret.jpg"), fault(root, tmp_path / "absent.jpg")
    assert there.code == missing.code == "input_forbidden"
    assert there.message.replace("secret", "absent") == missing.message


def test_dots_that_stay_inside_are_fine(root: Path) -> None:
    assert read(root, "meals/../meals/./a.jpg") == b"inside"


def test_a_symlink_that_leaves_the_roots_is_forbidden(root: Path, tmp_path: Path) -> None:
    (root / "file").symlink_to(tmp_path / "secret.jpg")
    (root / "folder").symlink_to(tmp_path)
    (root / "dangling").symlink_to(tmp_path / "absent")
    (root / "relative").symlink_to("../secret.jpg")
    (root / "chain").symlink_to("file")
    for path in ("file", "folder/secret.jpg", "dangling", "relative", "chain"):
        refusal = fault(root, path)
        assert refusal.code == "input_forbidden"
        assert "secret" not in refusal.message.replace(path, ""), "it must not tell where the link leads"


def test_dots_after_a_symlinked_folder_are_taken_where_the_link_leads(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "deep"
    elsewhere.mkdir(parents=True)
    (elsewhere.parent / "a.jpg").write_bytes(b"outside")
    (root / "meals" / "link").symlink_to(elsewhere)
    # By its letters this is meals/a.jpg; the kernel would open elsewhere/a.jpg.
    assert fault(root, "meals/link/../a.jpg").code == "input_forbidden"


def test_a_symlink_that_stays_inside_is_followed(root: Path) -> None:
    (root / "file.jpg").symlink_to(root / "meals" / "a.jpg")
    (root / "album").symlink_to("meals")
    assert read(root, "file.jpg") == read(root, "album/a.jpg") == b"inside"


def test_a_root_that_is_itself_a_symlink_is_taken_where_it_leads(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert read(tmp_path / "alias", tmp_path / "alias" / "meals" / "a.jpg") == b"inside"
    assert read(tmp_path / "alias", root / "meals" / "a.jpg") == b"inside"


def test_a_folder_whose_name_begins_like_a_root_is_outside(root: Path) -> None:
    neighbour = root.with_name("media-private")
    neighbour.mkdir()
    (neighbour / "a.jpg").write_bytes(b"outside")
    assert fault(root, neighbour / "a.jpg").code == "input_forbidden"


def test_folders_fifos_sockets_and_devices_are_refused_without_waiting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(root / "fifo.jpg")
    (root / "tty.jpg").symlink_to("/dev/tty")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)  # the name of a socket may be no longer than 108 bytes
        listener.bind("socket.jpg")
        seen: dict[str, str] = {}

        def ask() -> None:
            for name in ("meals", ".", "meals/", "fifo.jpg", "socket.jpg"):
                seen[name] = fault(root, name).code

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(10)
        assert not asking.is_alive(), f"reading hangs after {seen}"
    assert set(seen.values()) == {"input_invalid"}
    assert fault(root, "tty.jpg").code == "input_forbidden"


def test_a_symlink_loop_is_invalid(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert fault(root, "a").code in ("input_invalid", "input_not_found")


def test_a_file_of_too_many_bytes_is_refused_before_it_is_read(root: Path) -> None:
    with open(root / "big.jpg", "wb") as file:
        file.truncate(100 << 30)  # sparse: reading it would take all memory
    refusal = fault(root, "big.jpg")
    assert refusal.code == "input_too_large"
    assert str(100 << 30) in refusal.message
    assert str(LIMIT) in refusal.message


def test_the_limit_itself_is_allowed(root: Path) -> None:
    (root / "full.jpg").write_bytes(b"x" * LIMIT)
    assert len(read(root, "full.jpg")) == LIMIT


def test_a_file_that_does_not_say_its_size_is_read_to_the_limit(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")  # its size is given as 0
    if not maps.exists():
        pytest.skip("no /proc on this system")
    assert len(read(maps.parent, "maps", limit=1 << 20)) > 0
    assert fault(maps.parent, "maps", limit=10).code == "input_too_large"


@pytest.mark.parametrize("row", [b"", b"meals/\xff\xfe.jpg", b"meals/a.jpg\0.png"])
def test_bytes_that_are_no_path_are_invalid(root: Path, row: bytes) -> None:
    assert fault(root, row).code == "input_invalid"


def test_a_name_longer_than_the_file_system_allows_is_invalid(root: Path) -> None:
    refusal = fault(root, "x" * 5000)
    assert refusal.code == "input_invalid"
    assert len(refusal.message) < 500


def test_an_accented_name_is_found(root: Path) -> None:
    (root / "crêpe 🥞.jpg").write_bytes(b"sweet")
    assert read(root, "crêpe 🥞.jpg") == b"sweet"


def test_without_roots_every_path_is_forbidden(root: Path) -> None:
    with pytest.raises(RowFault) as caught:
        MediaRoots([]).read(os.fsencode(root / "meals" / "a.jpg"), max_bytes=LIMIT)
    assert caught.value.code == "input_forbidden"


def test_no_file_stays_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("meals/a.jpg", "meals", "none", "../secret.jpg"):
        try:
            read(root, path)
        except RowFault:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_resolved_folders_are_remembered_for_one_batch_only(root: Path, tmp_path: Path) -> None:
    roots, folders = MediaRoots([str(root)]), dict[str, str]()
    (root / "album").symlink_to("meals")
    assert roots.read(b"album/a.jpg", max_bytes=LIMIT, folders=folders) == b"inside"
    (root / "album").unlink()
    (root / "album").symlink_to(tmp_path)
    with pytest.raises(RowFault) as caught:
        roots.read(b"album/secret.jpg", max_bytes=LIMIT)
    assert caught.value.code == "input_forbidden"


def test_a_folder_swapped_after_it_was_resolved_does_not_let_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "meals").mkdir()
    (tmp_path / "meals" / "a.jpg").write_bytes(b"outside")
    roots, folders = MediaRoots([str(root)]), dict[str, str]()
    assert roots.read(b"meals/a.jpg", max_bytes=LIMIT, folders=folders) == b"inside"
    (root / "meals").rename(root / "old")
    (root / "meals").symlink_to(tmp_path / "meals")
    with pytest.raises(RowFault) as caught:
        roots.read(b"meals/a.jpg", max_bytes=LIMIT, folders=folders)
    assert caught.value.code == "input_forbidden"


@pytest.mark.security
def test_of_a_batch_only_its_own_part_of_the_roots_is_read(root: Path, tmp_path: Path) -> None:
    (root / "other_team").mkdir()
    (root / "other_team" / "x.jpg").write_bytes(b"theirs")
    (root / "meals" / "away").symlink_to(root / "other_team" / "x.jpg")
    ours = MediaRoots([str(root)]).only([str(root / "meals")])
    assert ours.read(os.fsencode(root / "meals" / "a.jpg"), max_bytes=LIMIT) == b"inside"
    assert ours.read(b"a.jpg", max_bytes=LIMIT) == b"inside"
    for path in (root / "other_team" / "x.jpg", Path("../other_team/x.jpg"), Path("away"), root, Path("/")):
        with pytest.raises(RowFault) as refused:
            ours.read(os.fsencode(path), max_bytes=LIMIT)
        assert refused.value.code == "input_forbidden"


@pytest.mark.security
@pytest.mark.parametrize("roots", [[], ["/"], ["/etc"], [".."], ["/nowhere"]])
def test_no_roots_of_a_batch_open_more_than_the_workers_own(root: Path, roots: list[str]) -> None:
    media = MediaRoots([str(root)]).only(roots)
    for path in ("/etc/passwd", "passwd", "/etc", str(root / ".." / "secret.jpg"), "/nowhere/x"):
        with pytest.raises(RowFault) as refused:
            media.read(path.encode(), max_bytes=LIMIT)
        assert refused.value.code == "input_forbidden"
