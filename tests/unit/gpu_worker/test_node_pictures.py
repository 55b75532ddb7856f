"""Photos that a training process does not see: the server's bytes, once a node, and its rows' own errors."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_worker.errors import BadRequest, Cancelled, RowFault
from gpu_worker.model_files.fetched import FetchedModels
from gpu_worker.model_files.kept_pictures import KeptPictures
from gpu_worker.pipeline.media import MediaRoots, read_piece
from gpu_worker.train.asked_pictures import AskedPictures
from gpu_worker.train.node_pictures import NodePictures, PictureDesk
from gpu_worker.wire.pieces import Pieces
from gpu_worker.wire.protocol import FilePiece, Message, WantPiece
from tests.waiting import wait_until

PATIENCE_S = 60.0
LARGE = bytes(range(256)) * 2048  # four pieces
MOST_BYTES = 1 << 20


class Server:
    """Answers by the files below its media root, as `server.workers.offered_pictures` does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.media = MediaRoots([str(folder)])
        self.asked: list[WantPiece] = []
        self.sent = 0  # bytes
        self.holds = False
        self.refuses = ""
        self.lock = threading.Lock()

    def answer(self, want: WantPiece) -> FilePiece | None:
        with self.lock:
            self.asked.append(want)
        if self.holds:
            return None
        if self.refuses:
            return FilePiece(want.id, [b""], 0, self.refuses)
        piece = read_piece(self.media, want, max_bytes=MOST_BYTES)
        with self.lock:
            self.sent += len(piece.data[0])
        return piece

    def photo(self, name: str, data: bytes) -> bytes:
        place = self.folder / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
        return name.encode()


class Node:
    """A worker of a node with a training process; both ends of their socket are here."""

    def __init__(self, server: Server, folder: Path, most_bytes: int = 0) -> None:
        self.server = server
        self.folder = folder
        self.pieces = Pieces(self._put)
        files = FetchedModels(str(folder), most_bytes)
        self.pictures = NodePictures(KeptPictures(files), self.pieces)
        ours, theirs = socket.socketpair()
        self.theirs = theirs
        self.desk = PictureDesk(ours, self.pictures)
        self.process = AskedPictures(theirs)

    def _put(self, message: Message) -> None:
        assert isinstance(message, WantPiece)
        piece = self.server.answer(message)
        if piece is not None:
            self.pieces.came(piece)

    def read(self, row: bytes) -> bytes:
        return self.process.read(row, 7)

    def kept(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("pictures/*/*/*") if path.is_file())

    def close(self) -> None:
        self.desk.close()
        with contextlib.suppress(OSError):
            self.theirs.shutdown(socket.SHUT_RDWR)
        self.theirs.close()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "photos")


@pytest.fixture
def node(server: Server, tmp_path: Path) -> Iterator[Node]:
    made = Node(server, tmp_path / "node")
    yield made
    made.close()


def test_a_photo_is_the_servers_and_travels_once_a_node(server: Server, node: Node, tmp_path: Path) -> None:
    row = server.photo("a", LARGE)
    assert node.read(row) == LARGE
    assert len(server.asked) == 4, "in pieces"
    assert {want.target for want in server.asked} == {7}
    assert node.read(row) == LARGE
    other = Node(server, tmp_path / "node")
    assert other.read(row) == LARGE
    other.close()
    assert server.sent == len(LARGE)
    assert len(node.kept()) == 1, "and nothing is left beside it"


def test_two_workers_of_a_node_that_want_the_same_bring_it_once(
    server: Server, node: Node, tmp_path: Path
) -> None:
    rows = [server.photo(f"{number}", b"%d" % number * 1_000) for number in range(40)]
    other = Node(server, tmp_path / "node")
    found: dict[str, list[bytes]] = {}

    def read(name: str, by: Node) -> None:
        by.process.ahead(rows, 7)
        found[name] = [by.read(row) for row in rows]

    threads = [threading.Thread(target=read, args=pair) for pair in (("a", node), ("b", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    other.close()
    whole = [(server.folder / row.decode()).read_bytes() for row in rows]
    assert found == {"a": whole, "b": whole}
    assert server.sent == sum(map(len, whole))


def test_a_photo_that_changed_is_read_as_it_is_now_and_one_that_is_gone_is_gone(
    server: Server, node: Node
) -> None:
    row = server.photo("a", b"old")
    assert node.read(row) == b"old"
    server.photo("a", b"new")
    assert node.read(row) == b"new"
    (server.folder / "a").unlink()
    with pytest.raises(RowFault, match="there is no file a on the inference host"):
        node.read(row)
    assert node.kept() == []


@pytest.mark.security
@pytest.mark.parametrize("row", [b"gone", b"../secret", b"/etc/passwd", b"", b"\xff", b"a\0b", b"large"])
def test_a_row_at_fault_has_the_error_that_it_has_at_home(server: Server, node: Node, row: bytes) -> None:
    server.photo("large", b"x" * (MOST_BYTES + 1))
    with pytest.raises(RowFault) as here:
        node.read(row)
    with pytest.raises(RowFault) as there:
        server.media.read(row, max_bytes=MOST_BYTES)
    assert (here.value.code, here.value.message) == (there.value.code, there.value.message)


def test_what_the_server_refuses_is_no_rows_fault(server: Server, node: Node) -> None:
    row = server.photo("a", b"a")
    server.refuses = "nothing is under way"
    with pytest.raises(BadRequest, match="a cannot be fetched: nothing is under way"):
        node.read(row)


def test_what_is_here_is_not_trusted(server: Server, node: Node) -> None:
    row = server.photo("a", LARGE)
    node.read(row)
    (place,) = node.kept()
    place.write_bytes(LARGE[:1000])
    assert node.read(row) == LARGE
    assert place.read_bytes() == LARGE


def test_a_photo_that_changes_as_it_comes_is_fetched_again_and_never_half_of_each(
    server: Server, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = server.photo("a", LARGE)
    answer, changes = server.answer, [LARGE[::-1], LARGE[:300_000]]

    def changing(want: WantPiece) -> FilePiece | None:
        if want.at and changes:
            server.photo("a", changes.pop(0))
        return answer(want)

    monkeypatch.setattr(server, "answer", changing)
    assert node.read(row) == LARGE[:300_000]


def test_a_photo_that_is_written_without_end_is_at_fault(
    server: Server, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = server.photo("a", LARGE)
    answer, writes = server.answer, iter(range(100))

    def changing(want: WantPiece) -> FilePiece | None:
        if want.at:
            server.photo("a", LARGE[:-1] + bytes([next(writes)]))
        return answer(want)

    monkeypatch.setattr(server, "answer", changing)
    with pytest.raises(RowFault, match="a is being written"):
        node.read(row)


def test_photos_are_asked_for_before_their_turn_a_few_at_a_time(server: Server, node: Node) -> None:
    rows = [server.photo(f"{number}", b"%d" % number) for number in range(100)]
    server.holds = True
    node.process.ahead(rows, 7)
    wait_until(lambda: len(server.asked) == 4)
    assert node.pictures.waiting() == {7}
    assert {want.file for want in server.asked} == {"0", "1", "2", "3"}
    assert len(node.process._plans[7].asked) == 8
    node.process.over(7)
    assert node.process._plans == {}


def test_rows_that_are_named_twice_or_not_before_are_read_all_the_same(server: Server, node: Node) -> None:
    one, two, three = (server.photo(name, name.encode()) for name in ("1", "2", "3"))
    node.process.ahead([one, one, two, one], 7)
    assert [node.read(row) for row in (one, one, two, one, three)] == [b"1", b"1", b"2", b"1", b"3"]
    node.process.ahead([three], 7)
    assert node.read(two) == b"2"


def test_what_does_not_come_can_be_given_up(server: Server, node: Node) -> None:
    row = server.photo("a", b"a")
    server.holds = True
    with pytest.raises(Cancelled):
        node.process.read(row, 7, lambda: bool(server.asked))


@pytest.mark.parametrize("which", ["process", "server"])
def test_where_one_of_both_goes_nobody_waits_for_it(server: Server, node: Node, which: str) -> None:
    row = server.photo("a", b"a")
    server.holds = True
    ended: list[Exception] = []

    def read() -> None:
        try:
            node.read(row)
        except Exception as exc:
            ended.append(exc)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: server.asked)
    if which == "process":
        node.desk.close()
    else:
        node.pieces.close()
    thread.join(PATIENCE_S)
    assert [type(exc) for exc in ended] == [Cancelled if which == "process" else BadRequest]
    wait_until(lambda: not node.pictures.waiting())
    assert node.kept() == []


def test_the_folder_is_bounded_and_a_set_of_photos_that_is_larger_is_read_all_the_same(
    server: Server, tmp_path: Path
) -> None:
    node = Node(server, tmp_path / "node", 50_000)
    rows = [server.photo(f"folder{number % 7}/{number}", bytes([number]) * 3_000) for number in range(60)]
    for _ in range(2):
        for number, row in enumerate(rows):
            assert node.read(row) == bytes([number]) * 3_000
            assert sum(path.stat().st_size for path in node.kept()) <= 50_000
    assert node.kept()
    node.close()


def test_a_disk_that_takes_nothing_keeps_none_from_training(server: Server, tmp_path: Path) -> None:
    (tmp_path / "node").write_text("a file, where the folder should be")
    node = Node(server, tmp_path / "node")
    row = server.photo("a", LARGE)
    assert node.read(row) == LARGE
    assert node.read(row) == LARGE
    node.close()


def test_an_empty_file_is_read_as_one(server: Server, node: Node) -> None:
    row = server.photo("a", b"")
    assert node.read(row) == b""
    assert node.read(row) == b""
