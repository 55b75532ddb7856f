"""Models that come from a server to a folder of this machine's own: whole, hashed, once, within a bound."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from gpu_worker.errors import Cancelled, ModelUnusable, NoSpace
from gpu_worker.model_files import fetched
from gpu_worker.model_files.fetched import PIECE_BYTES, FetchedModels
from gpu_worker.wire.protocol import FilePiece
from tests.waiting import wait_until

LARGE = os.urandom(3 * PIECE_BYTES + 17)


def stored(home: Path, name: str, files: Mapping[str, bytes], **more: object) -> str:
    """A version as a server stores it."""
    folder = home / "models" / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    listed = [{"name": file, "sha256": hashlib.sha256(data).hexdigest()} for file, data in files.items()]
    for each in listed[1:]:
        each["role"] = "other"
    (folder / "model.json").write_text(json.dumps({"name": name, "files": listed, **more}))
    return str(folder)


class Server:
    """Answers for pieces at once. asked: (file, at) of each. hold: futures that it leaves open."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self.asked: list[tuple[str, int]] = []
        self.hold: Callable[[str, int], bool] = lambda file, at: False

    def __call__(self, beside: str, file: str, at: int, nbytes: int) -> Future[FilePiece]:
        self.asked.append((file, at))
        coming: Future[FilePiece] = Future()
        if self.hold(file, at):
            return coming
        folder = self._directory.parent.parent / beside if beside else self._directory
        try:
            data = (folder / file).read_bytes()
        except OSError as exc:
            coming.set_result(FilePiece(-1, [b""], 0, str(exc.strerror)))
        else:
            coming.set_result(FilePiece(-1, [data[at : at + nbytes]], len(data)))
        return coming

    def pieces_of(self, file: str) -> list[int]:
        return [at for name, at in self.asked if name == file]


def never() -> bool:
    return False


def files_in(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def parts_below(folder: Path) -> list[Path]:
    return list(folder.rglob(".coming-*"))


def test_a_version_comes_once_and_is_what_the_server_has(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w.safetensors": LARGE, "words.txt": b"a b", "empty": b""})
    server, models = Server(directory), FetchedModels(str(tmp_path / "node"))
    with models.lent(directory, server, never) as here:
        assert here.nbytes == len(LARGE) + 3
        assert files_in(here.directory) == files_in(directory)
        assert Path(here.directory).parts[-2:] == ("food", "1"), "as heads find what they stand on"
        assert tmp_path / "node" in Path(here.directory).parents
    assert server.pieces_of("w.safetensors") == [0, *(n * PIECE_BYTES for n in range(1, 4))]
    server.asked.clear()
    with FetchedModels(str(tmp_path / "node")).lent(directory, server, never) as here:
        assert here.nbytes == 0
    assert server.asked == [("model.json", 0)]


def test_what_a_head_stands_on_comes_along(tmp_path: Path) -> None:
    stored(tmp_path, "base", {"base.onnx": b"below"})
    below = {"name": "base", "version": 1, "sha256": "0" * 64}
    directory = stored(tmp_path, "head", {"head.onnx": b"above"}, runtime="head", backbone=below)
    with FetchedModels(str(tmp_path / "node")).lent(directory, Server(directory), never) as here:
        assert (Path(here.directory).parent.parent / "base" / "1" / "base.onnx").read_bytes() == b"below"


def test_a_transfer_that_was_cut_goes_on_where_it_ended(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE})
    server, models = Server(directory), FetchedModels(str(tmp_path / "node"))
    server.hold = lambda file, at: at >= 2 * PIECE_BYTES
    with pytest.raises(Cancelled), models.lent(directory, server, lambda: len(server.asked) > 3):
        pass
    (part,) = parts_below(tmp_path / "node")
    has = part.stat().st_size
    assert 0 < has < len(LARGE)
    again = Server(directory)
    with models.lent(directory, again, never) as here:
        assert files_in(here.directory) == files_in(directory)
    assert min(again.pieces_of("w")) == has
    assert parts_below(tmp_path / "node") == []


@pytest.mark.parametrize("there", [b"other bytes", LARGE + b"and more"], ids=["other", "longer"])
def test_a_part_that_is_not_the_files_beginning_is_thrown_away(tmp_path: Path, there: bytes) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE})
    models = FetchedModels(str(tmp_path / "node"))
    with models.lent(directory, Server(directory), never) as here:
        place = Path(here.directory)
    (place / "model.json").unlink()
    (place / "w").unlink()
    (place / f".coming-{hashlib.sha256(LARGE).hexdigest()}").write_bytes(there)
    with models.lent(directory, Server(directory), never) as here:
        assert files_in(here.directory) == files_in(directory)


def test_a_file_that_is_not_what_its_hash_says_is_refused_and_not_kept(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE})
    (Path(directory) / "w").write_bytes(LARGE[:-1] + b"?")
    models = FetchedModels(str(tmp_path / "node"))
    with (
        pytest.raises(ModelUnusable, match=r"the file w of .* came from the server with SHA-256"),
        models.lent(directory, Server(directory), never),
    ):
        pass
    assert [path.name for path in (tmp_path / "node").rglob("*") if path.is_file()] == []


def test_a_file_that_the_server_has_not_says_so(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE})
    (Path(directory) / "w").unlink()
    models = FetchedModels(str(tmp_path / "node"))
    with (
        pytest.raises(ModelUnusable, match="w cannot be fetched: No such file"),
        models.lent(directory, Server(directory), never),
    ):
        pass


def test_a_version_that_was_replaced_comes_anew_and_one_that_was_forgotten_is_hashed(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE, "old": b"x"})
    models = FetchedModels(str(tmp_path / "node"))
    with models.lent(directory, Server(directory), never) as here:
        place = Path(here.directory)
    stored(tmp_path, "food", {"w": b"new"})
    with models.lent(directory, Server(directory), never) as here:
        assert (place / "w").read_bytes() == b"new"
        assert not (place / "old").exists()
    (place / "w").write_bytes(b"bad")
    models.forget(directory)
    with models.lent(directory, Server(directory), never) as here:
        assert (place / "w").read_bytes() == b"new"
        assert here.nbytes == 3


def test_two_workers_of_a_node_that_want_the_same_file_bring_it_once(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE})
    servers = [Server(directory), Server(directory)]
    go_on = threading.Event()
    servers[0].hold = lambda file, at: file == "w" and not go_on.wait(60.0)
    came: list[int] = []

    def load(server: Server) -> None:
        with FetchedModels(str(tmp_path / "node")).lent(directory, server, never) as here:
            assert files_in(here.directory) == files_in(directory)
            came.append(here.nbytes)

    first = threading.Thread(target=load, args=[servers[0]])
    first.start()
    wait_until(lambda: servers[0].pieces_of("w"))
    second = threading.Thread(target=load, args=[servers[1]])
    second.start()
    wait_until(lambda: servers[1].asked)
    go_on.set()
    first.join()
    second.join()
    assert sorted(came) == [0, len(LARGE)]
    assert servers[1].pieces_of("w") == []


def test_two_workers_load_one_version_at_once(tmp_path: Path) -> None:
    """As heads of one backbone do, each of which lends what they stand on."""
    directory = stored(tmp_path, "food", {"w": LARGE})
    with FetchedModels(str(tmp_path / "node")).lent(directory, Server(directory), never) as first:
        other = FetchedModels(str(tmp_path / "node"))
        with other.lent(directory, Server(directory), never) as second:
            assert (second.directory, second.nbytes) == (first.directory, 0)


def test_while_one_version_comes_another_is_lent(tmp_path: Path) -> None:
    """As when something is deployed meanwhile."""
    slow, quick = stored(tmp_path, "slow", {"w": LARGE}), stored(tmp_path, "quick", {"w": b"small"})
    server, models = Server(slow), FetchedModels(str(tmp_path / "node"))
    go_on = threading.Event()
    server.hold = lambda file, at: at > 0 and not go_on.wait(60.0)
    whole: list[bytes] = []

    def load() -> None:
        with models.lent(slow, server, never) as here:
            whole.append(files_in(here.directory)["w"])

    loading = threading.Thread(target=load)
    loading.start()
    wait_until(lambda: len(server.pieces_of("w")) > 1)
    with models.lent(quick, Server(quick), never) as here:
        assert files_in(here.directory)["w"] == b"small"
    go_on.set()
    loading.join()
    assert whole == [LARGE]


def test_within_its_bound_the_version_leaves_that_was_not_used_for_longest(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    directories = {name: stored(tmp_path, name, {"w": os.urandom(1000)}) for name in names}
    models = FetchedModels(str(tmp_path / "node"), 3000)
    places = {}
    for age, name in enumerate(["a", "b"]):
        with models.lent(directories[name], Server(directories[name]), never) as here:
            places[name] = Path(here.directory)
        os.utime(places[name], (1000.0 - age, 1000.0 - age))  # b is the older
    with models.lent(directories["c"], Server(directories["c"]), never):
        assert (places["a"] / "w").exists()
        assert not places["b"].exists()


def test_what_is_lent_does_not_leave_and_a_model_over_the_bound_says_so(tmp_path: Path) -> None:
    held, other = stored(tmp_path, "held", {"w": LARGE}), stored(tmp_path, "other", {"w": LARGE})
    models = FetchedModels(str(tmp_path / "node"), len(LARGE) + 5000)
    with models.lent(held, Server(held), never) as here:
        with (
            pytest.raises(NoSpace, match=r"may hold \d+ bytes of models"),
            models.lent(other, Server(other), never),
        ):
            pass
        assert files_in(here.directory) == files_in(held)
    with models.lent(other, Server(other), never) as here:
        assert files_in(here.directory) == files_in(other)


def full_disk(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[], bool]) -> None:
    write = fetched._write_all

    def writing(descriptor: int, data: memoryview, at: int) -> None:
        if is_full():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, data, at)

    monkeypatch.setattr(fetched, "_write_all", writing)


def test_on_a_full_disk_another_version_leaves_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = stored(tmp_path, "old", {"w": LARGE}), stored(tmp_path, "new", {"w": LARGE})
    models = FetchedModels(str(tmp_path / "node"))
    with models.lent(old, Server(old), never) as here:
        place = Path(here.directory)
    full_disk(monkeypatch, place.exists)
    with models.lent(new, Server(new), never) as here:
        assert files_in(here.directory) == files_in(new)
    assert not place.exists()


def test_a_disk_that_is_full_of_other_things_says_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stored(tmp_path, "food", {"w": LARGE})
    full_disk(monkeypatch, lambda: True)
    models = FetchedModels(str(tmp_path / "node"))
    with (
        pytest.raises(NoSpace, match=r"the disk of .* is full: \d+ bytes are free .* --node-folder"),
        models.lent(directory, Server(directory), never),
    ):
        pass
    assert [path.name for path in (tmp_path / "node").rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": b"x"})
    (tmp_path / "node").write_text("a file")
    with (
        pytest.raises(ModelUnusable, match=r"cannot be written: .* give a --node-folder that can"),
        FetchedModels(str(tmp_path / "node")).lent(directory, Server(directory), never),
    ):
        pass


def test_a_server_that_goes_ends_the_load(tmp_path: Path) -> None:
    directory = stored(tmp_path, "food", {"w": b"x"})

    def gone(beside: str, file: str, at: int, nbytes: int) -> Future[FilePiece]:
        coming: Future[FilePiece] = Future()
        coming.cancel()
        return coming

    with (
        pytest.raises(Cancelled, match="the server went"),
        FetchedModels(str(tmp_path / "node")).lent(directory, gone, never),
    ):
        pass
