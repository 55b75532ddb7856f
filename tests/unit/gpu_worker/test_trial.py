"""Training by message: a real worker process, its training process behind it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_worker.pipeline.media import MediaRoots, read_piece
from gpu_worker.wire.protocol import (
    Cancel,
    CheckpointStored,
    Done,
    EndTraining,
    EpochTrained,
    Evaluate,
    Evaluated,
    Failed,
    ForgetTrial,
    Inspect,
    Inspected,
    Message,
    Ping,
    Pong,
    ProbeTraining,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
    WantPiece,
)
from tests.training_data import CLASSES, draw_photos
from tests.unit.gpu_worker.worker_process import WorkerProcess
from tests.waiting import wait_until

SPEC: dict[str, Any] = {
    "architecture": "resnet",
    "epochs": 3,
    "size": 32,
    "batch_rows": 16,
    "learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="module")
def snapshot(photos: Path) -> Path:
    rows = draw_photos(photos, 60)
    splits = ["train", "train", "train", "validation", "test"]
    table = pa.table(
        {
            "input": [path for path, _ in rows],
            "target": [label for _, label in rows],
            "split": [splits[number // 2 % 5] for number in range(len(rows))],
        }
    )
    pq.write_table(table, photos / "snapshot.parquet")
    return photos / "snapshot.parquet"


@pytest.fixture(scope="module")
def worker(photos: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(f"--media-root={photos}") as running:
        yield running


def train(trial: str, epoch: int, snapshot: Path, **more: Any) -> TrainEpoch:
    fields: dict[str, Any] = {"start": "", "start_epoch": 0, "spec": SPEC, **more}
    return TrainEpoch(0, trial=trial, snapshot=str(snapshot), classes=list(CLASSES), epoch=epoch, **fields)


def trained(reply: Message) -> EpochTrained:
    assert isinstance(reply, EpochTrained), reply
    return reply


def kept(reply: Message) -> CheckpointStored:
    assert isinstance(reply, CheckpointStored), reply
    return reply


def refused(reply: Message) -> str:
    assert isinstance(reply, Failed), reply
    return reply.message


def test_inspecting_tells_equal_files_and_unreadable_ones(
    worker: WorkerProcess, photos: Path, snapshot: Path
):
    (photos / "twin.png").write_bytes((photos / "0.png").read_bytes())
    (photos / "text.png").write_text("no image")
    rows = [b"0.png", b"1.png", b"twin.png", b"text.png", b"gone.png", b"/etc/passwd"]
    reply = worker.ask(Inspect(1, rows))
    assert isinstance(reply, Inspected)
    assert reply.digests[0] == reply.digests[2] != reply.digests[1]
    found = [(error["index"], error["code"]) for error in reply.errors]
    assert found == [(3, "input_undecodable"), (4, "input_not_found"), (5, "input_forbidden")]


def test_inspecting_does_not_wait_behind_an_epoch(worker: WorkerProcess, photos: Path, snapshot: Path):
    message = train("busy", 1, snapshot, spec={**SPEC, "batch_rows": 2})
    message.id = 30
    worker.send(message, Inspect(31, [b"0.png"]))
    assert isinstance(worker.receive(), Inspected)
    over = worker.receive()
    assert isinstance(over, EpochTrained)
    assert over.id == 30


def test_a_trial_learns_and_its_best_epoch_can_be_kept_and_evaluated(
    worker: WorkerProcess, snapshot: Path, tmp_path: Path
):
    scores = [trained(worker.ask(train("learns", epoch, snapshot))).score for epoch in (1, 2, 3)]
    checkpoint = kept(worker.ask(StoreCheckpoint(4, "learns", str(tmp_path), best=True)))
    worker.ask(ForgetTrial(5, "learns"))
    file = tmp_path / f"{checkpoint.checkpoint}.safetensors"
    assert file.stat().st_size == checkpoint.nbytes
    reply = worker.ask(Evaluate(6, SPEC, str(snapshot), list(CLASSES), str(file), "validation"))
    assert isinstance(reply, Evaluated)
    probabilities = np.array([np.frombuffer(row, np.float32) for row in reply.predictions])
    accuracy = (probabilities.argmax(axis=1) == np.array(reply.targets)).mean()
    assert accuracy == pytest.approx(max(scores))
    assert probabilities.sum(axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_paused_trial_ends_with_the_very_weights_of_one_that_was_not(
    worker: WorkerProcess, snapshot: Path, tmp_path: Path
):
    for epoch in (1, 2, 3):
        trained(worker.ask(train("straight", epoch, snapshot)))
    straight = kept(worker.ask(StoreCheckpoint(4, "straight", str(tmp_path))))
    for epoch in (1, 2):
        trained(worker.ask(train("paused", epoch, snapshot)))
    paused = kept(worker.ask(StoreCheckpoint(5, "paused", str(tmp_path), paused=True)))
    worker.ask(ForgetTrial(6, "paused"))
    start = str(tmp_path / f"{paused.checkpoint}.safetensors")
    trained(worker.ask(train("paused", 3, snapshot, start=start, start_epoch=2)))
    assert kept(worker.ask(StoreCheckpoint(7, "paused", str(tmp_path)))).checkpoint == straight.checkpoint


def test_a_trial_that_begins_warm_takes_the_tensors_that_fit(
    worker: WorkerProcess, snapshot: Path, tmp_path: Path
):
    for epoch in (1, 2, 3):
        cold = trained(worker.ask(train("parent", epoch, snapshot)))
    parent = kept(worker.ask(StoreCheckpoint(4, "parent", str(tmp_path))))
    start = str(tmp_path / f"{parent.checkpoint}.safetensors")
    gentle = {**SPEC, "learning_rate": 1e-5, "schedule": "constant"}
    warm = trained(worker.ask(train("child", 1, snapshot, start=start, spec=gentle)))
    assert warm.score == pytest.approx(cold.score, abs=0.1)
    alone = trained(worker.ask(train("orphan", 1, snapshot, spec=gentle)))
    assert warm.loss < alone.loss
    # Another architecture shares no tensors; the trial begins all the same.
    other = {**SPEC, "architecture": "squeezenet"}
    assert trained(worker.ask(train("other", 1, snapshot, start=start, spec=other))).epoch == 1


@pytest.mark.parametrize(
    ("epoch", "more", "message"),
    [
        (2, {}, "not here at epoch 1"),
        (1, {"spec": {**SPEC, "architecture": "alexnet"}}, "alexnet"),
        (1, {"spec": {**SPEC, "momentum": 0.9}}, "no knob 'momentum'"),
        (1, {"spec": {**SPEC, "learning_rate": -1.0}}, "learning_rate"),
        (1, {"start": "/gone.safetensors"}, "gone.safetensors"),
    ],
)
def test_a_trial_that_cannot_be_is_refused_by_name(
    worker: WorkerProcess, snapshot: Path, epoch: int, more: dict[str, Any], message: str
):
    assert message in refused(worker.ask(train("bad", epoch, snapshot, **more)))


def test_a_cancelled_epoch_stops_before_its_next_step(worker: WorkerProcess, snapshot: Path):
    message = train("long", 1, snapshot, spec={**SPEC, "batch_rows": 2})
    message.id = 10
    worker.send(message, Cancel(11, 10))
    reply = worker.receive()
    assert isinstance(reply, Failed)
    assert reply.code == "cancelled"


def test_a_training_process_that_dies_is_told_and_another_takes_its_place(
    worker: WorkerProcess, snapshot: Path
):
    trained(worker.ask(train("before", 1, snapshot)))
    (victim,) = children(worker)
    message = train("killed", 1, snapshot, spec={**SPEC, "batch_rows": 2})
    message.id = 20
    os.kill(victim, signal.SIGSTOP)  # so that it cannot have answered before it dies
    worker.send(message)
    assert isinstance(worker.ask(Ping(21)), Pong)  # messages are taken in their order: the process has it
    os.kill(victim, signal.SIGKILL)
    reply = worker.receive()
    assert isinstance(reply, Failed)
    assert reply.code == "worker_lost"
    trained(worker.ask(train("after", 1, snapshot)))


def test_the_training_process_ends_with_its_worker(photos: Path, snapshot: Path):
    with WorkerProcess(f"--media-root={photos}") as worker:
        worker.ask(Inspect(1, [b"0.png"]))
        (child,) = children(worker)
        os.kill(child, signal.SIGSTOP)  # a stopped process sees no closed socket
        worker.process.kill()
        worker.wait()
        wait_until(lambda: not is_alive(child))


def children(worker: WorkerProcess) -> list[int]:
    pid = worker.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


# ── how far it is ─────────────────────────────────────────────────────────────────────────────────


def test_a_look_is_answered_in_the_middle_of_an_epoch_and_its_steps_rise(
    worker: WorkerProcess, snapshot: Path
) -> None:
    slow = {**SPEC, "size": 128, "batch_rows": 2}
    trained(worker.ask(train("looked at", 1, snapshot, spec=slow)))
    message = train("looked at", 2, snapshot, spec=slow)
    message.id = 500
    worker.send(message)
    steps: list[int] = []
    number = 501
    reply = worker.ask_beside(ProbeTraining(number))
    while isinstance(reply, TrainingProbed):
        steps.append(reply.steps)
        number += 1
        reply = worker.ask_beside(ProbeTraining(number))
    trained(reply or message)
    assert isinstance(worker.receive(), TrainingProbed), "of the last look"
    assert len(set(steps)) > 3
    assert steps == sorted(steps)


def test_a_training_process_that_hangs_is_ended_and_the_next_message_has_another(
    photos: Path, snapshot: Path
):
    with WorkerProcess(f"--media-root={photos}") as worker:
        assert isinstance(worker.ask(ProbeTraining(1)), Failed), "there is none yet"
        trained(worker.ask(train("hung", 1, snapshot)))
        (process,) = children(worker)
        os.kill(process, signal.SIGSTOP)
        message = train("hung", 2, snapshot)
        message.id = 7
        worker.send(message)
        replies = {
            reply.id: reply for reply in (worker.ask_beside(EndTraining(8)), worker.receive()) if reply
        }
        assert isinstance(replies[8], Done)
        lost = replies[7]
        assert isinstance(lost, Failed)
        assert lost.code == "worker_lost"
        trained(worker.ask(train("again", 1, snapshot)))


def test_a_trial_that_was_cancelled_still_gives_its_best_epoch(
    worker: WorkerProcess, snapshot: Path, tmp_path: Path
) -> None:
    trained(worker.ask(train("cancelled", 1, snapshot)))
    message = train("cancelled", 2, snapshot, spec={**SPEC, "size": 96, "batch_rows": 2})
    message.id = 21
    worker.send(Cancel(22, 21), message)
    reply = worker.receive()
    if isinstance(reply, Failed):
        assert reply.code == "cancelled"
    kept(worker.ask(StoreCheckpoint(23, "cancelled", str(tmp_path), best=True)))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_a_checkpoint_that_finds_no_space_is_told_so_and_leaves_nothing(
    worker: WorkerProcess, snapshot: Path
) -> None:
    full = Path("/dev/shm") / f"ml_udf-full-{os.getpid()}"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True, check=False
    )
    if mounted.returncode:
        full.rmdir()
        pytest.skip(f"no filesystem may be mounted here: {mounted.stderr.decode()}")
    try:
        trained(worker.ask(train("full", 1, snapshot)))
        for best, paused in ((False, True), (True, False)):
            reply = worker.ask(StoreCheckpoint(31, "full", str(full), best=best, paused=paused))
            assert isinstance(reply, Failed)
            assert (reply.code, list(full.iterdir())) == ("no_space", [])
        subprocess.run(["mount", "-o", "remount,size=64m", str(full)], check=True)
        kept(worker.ask(StoreCheckpoint(32, "full", str(full))))
    finally:
        subprocess.run(["umount", str(full)], check=True)
        full.rmdir()


# ── photos that it does not see ───────────────────────────────────────────────────────────────────


class Far:
    """A worker that sees no photo, and the server at the other end of its socket, which sends them."""

    def __init__(self, worker: WorkerProcess, photos: Path) -> None:
        self.worker = worker
        self.media = MediaRoots([str(photos)])
        self.sent = 0

    def answer(self, want: WantPiece) -> None:
        assert want.is_picture
        piece = read_piece(self.media, want, max_bytes=1 << 20)
        self.sent += len(piece.data[0])
        self.worker.send(piece)

    def reply(self, on_want: Callable[[WantPiece], object] | None = None) -> Message:
        """What is said next but for photos that are wanted."""
        while isinstance(message := self.worker.receive(), WantPiece):
            (on_want or self.answer)(message)
        assert message is not None
        return message

    def ask(self, message: Message) -> Message:
        self.worker.send(message)
        return self.reply()


@pytest.fixture(scope="module")
def far(photos: Path, snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    node = tmp_path_factory.mktemp("node")
    with WorkerProcess(f"--fetched-pictures={node}") as running:
        yield Far(running, photos)


def test_what_is_inspected_far_away_is_told_as_at_home(worker: WorkerProcess, far: Far, photos: Path) -> None:
    (photos / "words.png").write_text("no image")
    message = Inspect(1, [b"0.png", b"words.png", b"gone.png", b"/etc/passwd", b"0.png", b""])
    assert far.ask(message) == worker.ask(message)


def test_a_trial_far_away_ends_with_the_very_weights_of_one_at_home_and_its_photos_come_once(
    worker: WorkerProcess, far: Far, photos: Path, snapshot: Path, tmp_path: Path
) -> None:
    other_size = {**SPEC, "size": 24}
    told = []
    far.sent = 0
    for ask in (worker.ask, far.ask):
        for epoch in (1, 2):
            trained(ask(train("far", epoch, snapshot)))
        told.append(kept(ask(StoreCheckpoint(3, "far", str(tmp_path)))).checkpoint)
        trained(ask(train("again", 1, snapshot, spec=other_size)))
    assert told[0] == told[1]
    once = sum((photos / f"{number}.png").stat().st_size for number in range(60))
    assert once - (photos / "0.png").stat().st_size <= far.sent <= once, "0.png may be there already"


def test_a_photo_that_does_not_come_is_a_wait_that_is_told_and_can_be_given_up(
    far: Far, snapshot: Path
) -> None:
    message = train("waits", 1, snapshot, spec={**SPEC, "size": 16})
    message.id = 600
    wanted: list[WantPiece] = []
    far.worker.send(message)
    first = far.worker.receive()
    assert isinstance(first, WantPiece)
    assert first.target == 600
    far.worker.send(ProbeTraining(601))
    looked = far.reply(wanted.append)
    assert isinstance(looked, TrainingProbed)
    assert (looked.on, looked.steps <= 0) == (600, True), "its waiting is no step of the process"
    far.worker.send(Cancel(602, 600))
    over = far.reply(wanted.append)
    assert isinstance(over, Failed)
    assert (over.id, over.code) == (600, "cancelled")
    for want in [first, *wanted]:
        far.answer(want)
    message.id = 603
    assert isinstance(far.ask(message), EpochTrained)


def test_photos_that_wait_for_a_process_that_is_killed_keep_the_next_from_nothing(
    far: Far, snapshot: Path
) -> None:
    message = train("killed", 1, snapshot, spec={**SPEC, "size": 20})
    message.id = 700
    far.worker.send(message)
    first = far.worker.receive()
    assert isinstance(first, WantPiece)
    far.worker.send(EndTraining(701))
    replies = {reply.id: reply for reply in (far.reply(lambda want: None), far.reply(lambda want: None))}
    assert isinstance(replies[701], Done)
    lost = replies[700]
    assert isinstance(lost, Failed)
    assert lost.code == "worker_lost"
    message.id = 702
    assert isinstance(far.ask(message), EpochTrained)
