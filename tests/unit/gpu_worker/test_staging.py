"""Training whose files are the server's: fetched before, given back before the answer, nothing half."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_worker.model_files.fetched import PIECE_BYTES, FetchedModels
from gpu_worker.train.staging import StagedTrainer
from gpu_worker.train.trainer import Trainer
from gpu_worker.wire.pieces import Pieces
from gpu_worker.wire.protocol import (
    Cancel,
    CheckpointStored,
    Done,
    EpochTrained,
    Failed,
    FilePiece,
    ForgetTrial,
    GivePiece,
    Message,
    PieceTaken,
    ProbeTraining,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
    WantPiece,
)
from tests.waiting import wait_until

PATIENCE_S = 60.0
LARGE = bytes(range(256)) * 2048  # two pieces
WEIGHTS = hashlib.sha256(LARGE).hexdigest()


class Process:
    """A training process that notes what it is told, and the files that it then sees."""

    def __init__(self, reply: Callable[[Message], None]) -> None:
        self.reply = reply
        self.told: list[Message] = []
        self.seen: list[dict[str, bytes]] = []
        self.cancelled: list[int] = []
        self.stores = {f"{WEIGHTS}.safetensors": LARGE, f"{WEIGHTS}.safetensors.optimiser": b"state"}
        self.fails: list[Failed] = []
        self.hangs = False

    def send(self, message: Message) -> None:
        self.told.append(message)
        if self.hangs:
            return
        if self.fails:
            self.reply(self.fails.pop())
        elif isinstance(message, TrainEpoch):
            folders = {
                Path(path).parent for path in (message.snapshot, message.start) if Path(path).is_file()
            }
            self.seen.append({path.name: path.read_bytes() for each in folders for path in each.iterdir()})
            self.reply(EpochTrained(message.id, message.epoch, 0.1, 0.9, 0.1))
        elif isinstance(message, StoreCheckpoint):
            for name, data in self.stores.items():
                (Path(message.directory) / name).write_bytes(data)
            self.reply(CheckpointStored(message.id, WEIGHTS, len(LARGE)))
        else:
            self.reply(Done(message.id))

    def probe(self, message: ProbeTraining) -> None:
        self.reply(TrainingProbed(message.id, 5, 0))

    def cancel(self, message: Cancel) -> None:
        self.cancelled.append(message.target)

    def end(self) -> None:
        if self.told and self.hangs:
            self.reply(Failed(self.told[-1].id, "worker_lost", "ended"))

    def close(self) -> None:
        self.end()


class Far:
    """A trainer on a node, and the server at the other end of its connection."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.node = tmp_path / "home", tmp_path / "node"
        self.home.mkdir()
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.asked: list[WantPiece] = []
        self.given: list[GivePiece] = []
        self.taken = PieceTaken(0)
        self.holds = False
        self.files = FetchedModels(str(self.node))
        self.pieces = Pieces(self._put)
        self.trainer = StagedTrainer(self._process, self.replies.put, self.files, self.pieces)

    def _process(self, reply: Callable[[Message], None]) -> Trainer:
        self.process = Process(reply)
        return cast("Trainer", self.process)

    def _put(self, message: Message) -> None:
        if isinstance(message, GivePiece):
            self.given.append(message)
            if not self.holds:
                answer = PieceTaken(message.id, self.taken.error, self.taken.code)
                self.pieces.taken(answer)
            return
        assert isinstance(message, WantPiece)
        self.asked.append(message)
        if self.holds:
            return
        path = Path(message.file)
        if not path.exists():
            self.pieces.came(FilePiece(message.id, [b""], -1))
            return
        data = path.read_bytes()
        sha256 = "" if message.nbytes else hashlib.sha256(data).hexdigest()
        part = data[message.at : message.at + message.nbytes]
        self.pieces.came(FilePiece(message.id, [part], len(data), sha256=sha256))

    def file(self, name: str, data: bytes) -> str:
        (self.home / name).write_bytes(data)
        return str(self.home / name)

    def reply(self) -> Message:
        return self.replies.get(timeout=PATIENCE_S)

    def ask(self, message: Message) -> Message:
        self.trainer.send(message)
        return self.reply()

    def stored(self) -> list[Path]:
        return list((self.node / "training" / "stored").glob("*"))


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    made = Far(tmp_path)
    yield made
    made.trainer.close()


def epoch(number: int, far: Far, **more: Any) -> TrainEpoch:
    fields: dict[str, Any] = {"start": "", "start_epoch": 0, "epoch": 1, **more}
    return TrainEpoch(number, "t", {}, far.file("rows.parquet", LARGE), ["a", "b"], **fields)


def test_a_trial_finds_its_files_on_the_node_and_they_come_once(far: Far) -> None:
    start = far.file("w.safetensors", b"weights")
    far.file("w.safetensors.optimiser", b"state")
    assert isinstance(far.ask(epoch(1, far, start=start)), EpochTrained)
    assert far.process.seen[0].keys() >= {"rows.parquet", "w.safetensors"}
    assert "w.safetensors.optimiser" not in far.process.seen[0], "its weights alone are begun with"
    assert far.process.seen[0]["rows.parquet"] == LARGE
    assert [want.at for want in far.asked if want.file.endswith(".parquet") and want.nbytes] == [
        0,
        PIECE_BYTES,
    ]
    far.asked.clear()
    assert isinstance(far.ask(epoch(2, far, start=start, epoch=2)), EpochTrained)
    assert [want.nbytes for want in far.asked] == [0], "its hash alone; where it began is over"


@pytest.mark.parametrize("has_state", [True, False])
def test_a_trial_that_was_paused_has_its_state_if_it_has_one(far: Far, has_state: bool) -> None:
    start = far.file("w.safetensors", b"weights")
    if has_state:
        far.file("w.safetensors.optimiser", b"state")
    assert isinstance(far.ask(epoch(1, far, start=start, start_epoch=3, epoch=4)), EpochTrained)
    assert ("w.safetensors.optimiser" in far.process.seen[0]) == has_state


def test_a_snapshot_that_was_replaced_comes_anew(far: Far) -> None:
    far.ask(epoch(1, far))
    message = epoch(2, far)
    (far.home / "rows.parquet").write_bytes(b"other rows")
    far.ask(message)
    assert far.process.seen[1]["rows.parquet"] == b"other rows"


def test_a_checkpoint_is_answered_for_once_the_server_has_it_and_leaves_the_node(far: Far) -> None:
    reply = far.ask(StoreCheckpoint(1, "t", "/server/job-1", paused=True))
    assert reply == CheckpointStored(1, WEIGHTS, len(LARGE))
    assert [given.file for given in far.given] == [
        f"{WEIGHTS}.safetensors.optimiser",
        *[f"{WEIGHTS}.safetensors"] * 2,
    ]
    assert b"".join(given.data[0] for given in far.given[1:]) == LARGE
    assert {given.sha256 for given in far.given[1:]} == {WEIGHTS}
    assert far.stored() == []


@pytest.mark.parametrize(("code", "told"), [("no_space", "no_space"), ("internal", "bad_option")])
def test_what_the_server_does_not_take_is_not_stored(far: Far, code: str, told: str) -> None:
    far.taken = PieceTaken(0, "the disk is full", code)
    reply = far.ask(StoreCheckpoint(1, "t", "/server/job-1"))
    assert isinstance(reply, Failed)
    assert (reply.code, "the disk is full" in reply.message) == (told, True)
    assert len(far.given) == 1, "nothing after it"
    assert far.stored() == []


def test_on_a_full_disk_of_the_node_what_was_fetched_leaves_for_a_checkpoint(far: Far) -> None:
    far.ask(epoch(1, far))
    far.process.fails = [Failed(2, "no_space", "no space is left")]
    assert isinstance(far.ask(StoreCheckpoint(2, "t", "/server/job-1")), CheckpointStored)
    assert list((far.node / "training" / "files").glob("*")) == []
    far.process.fails = [Failed(3, "no_space", "no space is left")]
    reply = far.ask(StoreCheckpoint(3, "t", "/server/job-1"))
    assert isinstance(reply, Failed)
    assert reply.code == "no_space"


def test_a_file_that_is_on_its_way_counts_as_steps_and_can_be_given_up(far: Far) -> None:
    far.holds = True
    far.trainer.send(epoch(1, far))
    wait_until(lambda: far.asked)
    far.trainer.probe(ProbeTraining(2))
    assert far.reply() == TrainingProbed(2, -1, 1)
    far.trainer.send(epoch(3, far))
    far.trainer.cancel(Cancel(4, 3))
    far.trainer.cancel(Cancel(5, 1))
    told = [far.reply(), far.reply()]
    assert [(reply.id, cast("Failed", reply).code) for reply in told] == [(1, "cancelled"), (3, "cancelled")]
    assert far.process.told == []


def test_a_file_that_does_not_come_is_ended_as_a_process_that_hangs_is(far: Far) -> None:
    far.holds = True
    far.trainer.send(StoreCheckpoint(1, "t", "/server/job-1"))
    wait_until(lambda: far.given)
    far.trainer.end()
    reply = far.reply()
    assert isinstance(reply, Failed)
    assert reply.code == "worker_lost"
    assert far.stored() == []
    assert far.ask(ForgetTrial(2, "t")) == Done(2)


def test_a_server_that_goes_ends_what_is_on_its_way(far: Far) -> None:
    far.holds = True
    far.trainer.send(StoreCheckpoint(1, "t", "/server/job-1"))
    wait_until(lambda: far.given)
    far.pieces.close()
    reply = far.reply()
    assert isinstance(reply, Failed)
    assert "the server went" in reply.message
    assert far.stored() == []


def test_a_process_that_dies_fails_its_message_and_the_next_is_taken(far: Far) -> None:
    far.process.hangs = True
    far.trainer.send(epoch(1, far))
    wait_until(lambda: far.process.told)
    far.trainer.probe(ProbeTraining(2))
    assert far.reply() == TrainingProbed(2, 5, 0)
    far.trainer.cancel(Cancel(3, 1))
    assert far.process.cancelled == [1]
    far.process.end()
    assert far.reply() == Failed(1, "worker_lost", "ended")
    far.process.hangs = False
    assert far.ask(ForgetTrial(4, "t")) == Done(4)


def test_what_a_worker_that_was_killed_has_written_goes(far: Far) -> None:
    left = far.node / "training" / "stored" / "left"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    os.utime(left, (0, 0))
    with far.files.stored() as folder:
        assert [str(path) for path in far.stored()] == [folder]


def test_closing_ends_whatever_is_under_way(tmp_path: Path) -> None:
    far = Far(tmp_path)
    far.process.hangs = True
    far.trainer.send(epoch(1, far))
    wait_until(lambda: far.process.told)
    closing = threading.Thread(target=far.trainer.close)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert not isinstance(far.reply(), EpochTrained)


def test_pieces_that_are_given_to_nobody_are_cancelled() -> None:
    put: list[Message] = []
    pieces = Pieces(put.append)
    first = pieces.give(1, "w", 0, b"a", 1, "0" * 64)
    pieces.close()
    second: Future[PieceTaken] = pieces.give(1, "w", 0, b"a", 1, "0" * 64)
    assert (first.cancelled(), second.cancelled(), len(put)) == (True, True, 1)
