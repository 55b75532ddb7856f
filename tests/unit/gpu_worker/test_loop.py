"""A real worker process over a socketpair: what it answers, what it survives, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.wire.protocol import (
    MAX_FRAME_BYTES,
    Answer,
    Cancel,
    Done,
    Failed,
    Infer,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    Unload,
    encode,
)
from gpu_worker.wire.shared_rows import SharedRows
from tests.answers import SCORED, labels_of, scores_of
from tests.models import CLASSES, hashing_model, label_of
from tests.unit.gpu_worker.pictures import huge_png, noise
from tests.unit.gpu_worker.worker_process import WorkerProcess, by_id

Workers = Callable[..., WorkerProcess]

THEIR_CODE = """
import torch


class Touchy(torch.nn.Module):
    '''Answers black images (the warm-up); fails on others.'''

    def __init__(self, classes, error):
        super().__init__()
        self.head = torch.nn.Linear(3, classes)
        self.error = {"bug": RuntimeError, "device": torch.AcceleratorError}[error]

    def forward(self, x):
        if x.amax() > x.amin():
            raise self.error("it broke")
        return self.head(x.mean(dim=(2, 3)))
"""


def failed(reply: Message | None, code: str) -> str:
    assert isinstance(reply, Failed), reply
    assert reply.code == code
    return reply.message


def answered(reply: Message | None) -> Answer:
    assert isinstance(reply, Answer), reply
    return reply


@pytest.fixture(scope="module")
def long_lived(media: Path) -> Iterator[WorkerProcess]:
    """One process for the tests that neither end their worker nor need flags of their own."""
    with WorkerProcess("--media-root", str(media)) as running:
        yield running


@pytest.fixture
def worker(long_lived: WorkerProcess) -> Iterator[WorkerProcess]:
    """The long-lived worker, without a model before and after each test."""
    yield long_lived
    resident = long_lived.ask(Ping(990))
    assert isinstance(resident, Pong)
    for model in resident.resident:
        assert isinstance(long_lived.ask(Unload(991, model)), Done)


@pytest.fixture
def touchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A user's own architecture that fails in its forward pass."""
    (tmp_path / "touchy.py").write_text(THEIR_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(error: str) -> Path:
        folder = tmp_path / error
        folder.mkdir()
        save_file(torch.nn.Linear(3, 2).state_dict(prefix="head."), folder / "model.safetensors")
        manifest = {
            "format": 1,
            "name": error,
            "version": 1,
            "task": "image-classification",
            "runtime": "torch",
            "architecture": "touchy:Touchy",
            "architecture_options": {"error": error},
            "classes": ["a", "b"],
            "weights": "model.safetensors",
            "input": {"form": "image", "height": 8, "width": 8},
        }
        (folder / "model.json").write_text(json.dumps(manifest))
        return folder

    return make


def test_it_says_what_it_runs_on_and_what_is_resident(worker: WorkerProcess, hashing: Path) -> None:
    first = worker.ask(Ping(1))
    assert isinstance(first, Pong)
    assert first.device == "cpu"
    assert first.device_name
    assert first.capacity_bytes > 1 << 20
    assert first.resident == []
    worker.load(h=hashing)
    second = worker.ask(Ping(2))
    assert isinstance(second, Pong)
    assert second.resident == ["h"]


def test_images_are_answered_by_path_and_by_bytes(
    worker: WorkerProcess, media: Path, paths: list[bytes], vgg: Path, resnet: Path
) -> None:
    worker.load(vgg=vgg, resnet=resnet)
    rows = [*paths, b"/etc/passwd"]
    by_path = answered(worker.ask(Infer(1, ["vgg", "resnet"], "path", rows, outputs=SCORED)))
    images = [Path(os.fsdecode(path)).read_bytes() for path in paths]
    by_image = answered(worker.ask(Infer(2, ["vgg", "resnet"], "image", images)))
    assert [member.model for member in by_path.members] == ["vgg", "resnet"]
    for one, other in zip(by_path.members, by_image.members, strict=True):
        assert labels_of(one) == [*labels_of(other), ""]
        assert set(labels_of(one)[:-1]) <= set(CLASSES)
        assert len(scores_of(one)) == 4 * len(rows) * len(CLASSES)
        assert scores_of(other) == b""
    assert [(error.index, error.code) for error in by_path.errors] == [(len(paths), "input_forbidden")]


def test_photos_in_shared_memory_are_answered_as_those_that_came_by_the_socket(
    paths: list[bytes], vgg: Path, hashing: Path
) -> None:
    images = [Path(os.fsdecode(path)).read_bytes() for path in paths]
    asked = [Infer(number, [key], "image", images, outputs=SCORED) for number, key in enumerate(("vgg", "h"))]
    answers = []
    shared = SharedRows()
    for memory in (shared, None):
        with WorkerProcess(shared=memory) as worker:
            worker.load(vgg=vgg, h=hashing)
            answers.append([answered(worker.ask(one)).members for one in asked])
    assert shared.taken_bytes == 2 * sum(map(len, images))  # by whose replies they are free is the channel's
    shared.close()
    assert answers[0] == answers[1]
    assert len(set(labels_of(answers[0][1][0]))) > 1


def test_batches_in_flight_are_all_answered_each_under_its_id(worker: WorkerProcess, hashing: Path) -> None:
    worker.load(h=hashing)
    worker.send(*(Infer(number, ["h"], "text", [f"{number}".encode()] * number) for number in range(40)))
    replies = by_id([worker.receive() for _ in range(40)])
    for number in range(40):
        expected = [label_of(f"{number}")] * number
        assert labels_of(answered(replies[number]).members[0]) == expected


def test_no_bad_request_ends_the_loop(worker: WorkerProcess, hashing: Path, tmp_path: Path) -> None:
    worker.load(h=hashing)
    assert "'x'" in failed(worker.ask(Infer(1, ["x"], "text", [b"a"])), "unknown_function")
    assert "'tensor'" in failed(worker.ask(Infer(2, ["h"], "tensor", [b"a"])), "bad_option")
    assert "'video'" in failed(worker.ask(Infer(3, ["h"], "video", [b"a"])), "bad_option")
    assert "no model" in failed(worker.ask(Infer(4, [], "text", [b"a"])), "bad_option")
    assert "model.json" in failed(worker.ask(Load(5, "y", str(tmp_path))), "bad_option")
    assert "'y'" in failed(worker.ask(Unload(6, "y")), "unknown_function")
    worker.send(Cancel(7, 99))  # names nothing; has no reply
    assert labels_of(answered(worker.ask(Infer(8, ["h"], "text", [b"a"]))).members[0]) == [label_of("a")]
    assert isinstance(worker.ask(Unload(9, "h")), Done)
    failed(worker.ask(Infer(10, ["h"], "text", [b"a"])), "unknown_function")


def test_a_bug_is_internal_with_its_traceback_in_the_log(
    workers: Workers, hashing: Path, touchy: Callable[[str], Path]
) -> None:
    worker = workers("--allow-import")
    worker.load(h=hashing, touchy=touchy("bug"))
    assert "RuntimeError: it broke" in failed(
        worker.ask(Infer(1, ["touchy"], "image", [noise(1)])), "internal"
    )
    answered(worker.ask(Infer(2, ["h"], "text", [b"a"])))
    worker.socket.close()
    assert "Traceback" in worker.errors()


def test_a_lost_device_ends_the_worker_without_answers_so_that_another_gets_the_rows(
    workers: Workers, touchy: Callable[[str], Path], slow: Path
) -> None:
    worker = workers("--allow-import")
    worker.load(touchy=touchy("device"), slow=slow)
    worker.send(Infer(1, ["slow"], "text", [b"a"]), Infer(2, ["touchy"], "image", [noise(1)]))
    assert worker.receive() is None
    assert worker.wait() == 70
    assert "it broke" in worker.errors()


def test_a_batch_is_cancelled_while_it_runs_and_while_it_waits(
    worker: WorkerProcess, slow: Path, hashing: Path
) -> None:
    worker.load(slow=slow, h=hashing)
    worker.send(*(Infer(number, ["slow"] * 25, "text", [b"a"]) for number in range(1, 6)))
    worker.ask(Ping(99))  # what was sent before has been taken in
    began_s = time.monotonic()
    worker.send(*(Cancel(100 + number, number) for number in range(1, 6)))
    replies = by_id([worker.receive() for _ in range(5)])
    assert sorted(replies) == [1, 2, 3, 4, 5]
    for reply in replies.values():
        failed(reply, "cancelled")
    answered(worker.ask(Infer(9, ["h"], "text", [b"a"])))
    assert time.monotonic() - began_s < 5, "50 s of work were under way"


def test_what_is_answered_already_cannot_be_cancelled(worker: WorkerProcess, hashing: Path) -> None:
    worker.load(h=hashing)
    answered(worker.ask(Infer(1, ["h"], "text", [b"a"])))
    worker.send(Cancel(2, 1))
    assert isinstance(worker.ask(Ping(3)), Pong)


def test_pings_and_loads_are_answered_while_a_batch_runs(
    worker: WorkerProcess, slow: Path, hashing: Path
) -> None:
    worker.load(slow=slow)
    worker.send(Infer(1, ["slow"] * 3, "text", [b"a"]), Ping(2), Load(3, "h", str(hashing)))
    kinds = [type(worker.receive()) for _ in range(3)]
    assert kinds == [Pong, Loaded, Answer]


def test_unloading_waits_for_the_batch_under_way(worker: WorkerProcess, slow: Path) -> None:
    worker.load(slow=slow)
    worker.send(Infer(1, ["slow"], "text", [b"a"]), Unload(2, "slow"), Infer(3, ["slow"], "text", [b"a"]))
    replies = [worker.receive() for _ in range(3)]
    assert [reply.id for reply in replies if reply is not None] in ([3, 1, 2], [1, 2, 3], [1, 3, 2])
    assert isinstance(by_id(replies)[1], Answer)


def test_more_batches_than_may_wait_are_refused(worker: WorkerProcess, slow: Path) -> None:
    worker.load(slow=slow)
    worker.send(*(Infer(number, ["slow"], "text", [b"a"]) for number in range(1, 67)))
    for number, reply in by_id([worker.receive() for _ in range(2)]).items():
        assert number > 64
        failed(reply, "overloaded")
    worker.send(*(Cancel(100 + number, number) for number in range(1, 65)))
    replies = by_id([worker.receive() for _ in range(64)])
    assert set(replies) == set(range(1, 65))


def test_a_load_without_room_is_refused_with_what_it_needs(workers: Workers, tmp_path: Path) -> None:
    worker = workers("--resident-models", "1")
    worker.load(a=hashing_model(tmp_path, "a"))
    load_b = Load(1, "b", str(hashing_model(tmp_path, "b")))
    reply = worker.ask(load_b)
    failed(reply, "overloaded")
    assert isinstance(reply, Failed)
    assert reply.wanted_bytes == 1024
    assert isinstance(worker.ask(Unload(2, "a")), Done)
    assert isinstance(worker.ask(load_b), Loaded)


def test_a_model_over_the_bound_is_refused(workers: Workers, vgg: Path) -> None:
    worker = workers("--resident-bytes", "10000")
    assert "10000" in failed(worker.ask(Load(1, "vgg", str(vgg))), "bad_option")


def simulated_worker(workers: Workers) -> WorkerProcess:
    """With a link over which 16 MiB take 1.7 s."""
    return workers("--device", "sim:64MiB,0.01")


def weighty(folder: Path, name: str, mib: int) -> str:
    return str(hashing_model(folder, name, weight_bytes=mib << 20))


def test_a_load_is_cancelled_by_its_id_and_leaves_nothing(workers: Workers, tmp_path: Path) -> None:
    worker = simulated_worker(workers)
    worker.send(Load(1, "m", weighty(tmp_path, "m", 32)), Load(2, "n", weighty(tmp_path, "n", 16)), Ping(3))
    pong = worker.receive()
    assert isinstance(pong, Pong)
    assert pong.resident == []
    began_s = time.monotonic()
    worker.send(Cancel(4, 1), Cancel(5, 2))
    replies = by_id([worker.receive() for _ in range(2)])
    assert time.monotonic() - began_s < 2.0, "the loads take 5 s"
    failed(replies[1], "cancelled")
    failed(replies[2], "cancelled")
    pong = worker.ask(Ping(6))
    assert isinstance(pong, Pong)
    assert (pong.resident, pong.loading, pong.used_bytes) == ([], [], 0)


def test_orders_of_one_model_are_carried_out_in_the_order_they_came(workers: Workers, tmp_path: Path) -> None:
    worker = simulated_worker(workers)
    folder = weighty(tmp_path, "m", 1)
    worker.send(
        Load(1, "m", folder), Unload(2, "m"), Load(3, "m", folder), Unload(4, "m"), Load(5, "m", folder)
    )
    worker.send(Cancel(6, 5))
    replies = [worker.receive() for _ in range(5)]
    in_turn = [reply.id for reply in replies if reply is not None and reply.id != 5]
    assert in_turn == [1, 2, 3, 4]
    failed(by_id(replies)[5], "cancelled")
    assert isinstance(worker.ask(Load(7, "m", folder)), Loaded)


def test_a_load_says_what_its_time_went_into(workers: Workers, tmp_path: Path) -> None:
    worker = simulated_worker(workers)
    reply = worker.ask(Load(1, "m", weighty(tmp_path, "m", 1)))
    assert isinstance(reply, Loaded)
    assert reply.copy_s >= (1 << 20) / 0.01e9
    assert reply.load_s >= reply.copy_s
    pong = worker.ask(Ping(2))
    assert isinstance(pong, Pong)
    assert (pong.device, pong.used_bytes) == ("sim:64MiB,0.01", reply.resident_bytes)


def test_a_load_waits_for_no_eviction_of_another(worker: WorkerProcess, slow: Path, hashing: Path) -> None:
    worker.load(slow=slow)
    worker.send(Infer(1, ["slow"] * 3, "text", [b"a"]), Unload(2, "slow"), Load(3, "h", str(hashing)))
    kinds = [type(worker.receive()) for _ in range(3)]
    assert kinds[0] is Loaded
    assert set(kinds) == {Loaded, Answer, Done}


def test_it_ends_soon_when_the_socket_closes_under_a_load(workers: Workers, tmp_path: Path) -> None:
    worker = simulated_worker(workers)
    worker.send(Load(1, "m", weighty(tmp_path, "m", 60)), Ping(2))
    assert isinstance(worker.receive(), Pong)
    began_s = time.monotonic()
    worker.socket.close()
    assert worker.wait() == 0
    assert time.monotonic() - began_s < 5.0, "the load takes 6 s"


def test_a_worker_killed_in_the_middle_of_a_load_leaves_files_that_the_next_one_can_use(
    workers: Workers, tmp_path: Path, squeezenet: Path
) -> None:
    folder = tmp_path / "prepared"
    for _ in range(2):
        worker = workers("--device", "sim:64MiB,0.0001", "--prepared", str(folder))
        worker.send(Load(1, "m", str(squeezenet)), Ping(2))
        assert isinstance(worker.receive(), Pong)
        deadline_s = time.monotonic() + 60
        while not list(folder.glob("*")) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        worker.process.kill()
        assert worker.wait() == -signal.SIGKILL
    worker = workers("--device", "sim:64MiB,1", "--prepared", str(folder))
    assert isinstance(worker.ask(Load(1, "m", str(squeezenet))), Loaded)
    answered(worker.ask(Infer(2, ["m"], "image", [noise(1)])))


def test_a_decompression_bomb_costs_no_memory(workers: Workers, tmp_path: Path, vgg: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(huge_png())
    (tmp_path / "good.jpg").write_bytes(noise(1))
    worker = workers("--media-root", str(tmp_path))
    worker.load(vgg=vgg)
    answered(worker.ask(Infer(1, ["vgg"], "path", [b"good.jpg"] * 50)))
    before = worker.peak_bytes()
    answer = answered(worker.ask(Infer(2, ["vgg"], "path", [b"bomb.png"] * 50 + [b"good.jpg"])))
    assert {error.code for error in answer.errors} == {"input_too_large"}
    assert len(answer.errors) == 50
    assert labels_of(answer.members[0])[50]
    assert worker.peak_bytes() - before < 100 << 20, "decoded, it would take 2.7 GB"


def test_it_ends_when_the_socket_closes(workers: Workers) -> None:
    worker = workers()
    worker.ask(Ping(1))
    worker.socket.close()
    assert worker.wait() == 0


def test_it_ends_soon_when_the_socket_closes_under_a_long_batch(workers: Workers, tmp_path: Path) -> None:
    worker = workers()
    worker.load(h=hashing_model(tmp_path, "h", delay_ms=60_000))
    worker.send(*(Infer(number, ["h"], "text", [b"a"]) for number in range(5)))
    worker.ask(Ping(99))  # what was sent before has been taken in
    worker.socket.close()
    assert worker.wait() == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
        struct.pack("<II", 4, 0),
        struct.pack("<II", MAX_FRAME_BYTES + 1, 0),
        struct.pack("<II", 20, 12) + b"not json at ",
        struct.pack("<II", 10, 2) + b"{}",
        struct.pack("<II", 24, 16) + b'{"kind":"strike"',
        encode(Pong(1, "cpu", "", 0)),
    ],
)
def test_bytes_that_are_no_request_end_it_with_a_reason(workers: Workers, garbage: bytes) -> None:
    worker = workers()
    worker.ask(Ping(1))
    worker.socket.sendall(garbage)
    assert worker.receive() is None
    assert worker.wait() == 76
    assert "no further use" in worker.errors()


def test_a_frame_that_breaks_off_is_the_end_of_the_stream(workers: Workers) -> None:
    worker = workers()
    worker.socket.sendall(encode(Ping(1))[:-3])
    worker.socket.close()
    assert worker.wait() == 0


def test_sigterm_answers_what_was_asked_and_ends(workers: Workers, slow: Path) -> None:
    worker = workers()
    worker.load(slow=slow)
    worker.send(Infer(1, ["slow"], "text", [b"a"]), Infer(2, ["slow"], "text", [b"b"]), Ping(3))
    assert isinstance(worker.receive(), Pong)
    worker.process.send_signal(signal.SIGTERM)
    replies = by_id([worker.receive() for _ in range(2)])
    assert labels_of(answered(replies[1]).members[0]) == [label_of("a")]
    assert labels_of(answered(replies[2]).members[0]) == [label_of("b")]
    assert worker.receive() is None
    assert worker.wait() == 0


def test_sigint_is_left_to_the_parent(worker: WorkerProcess) -> None:
    worker.ask(Ping(1))
    worker.process.send_signal(signal.SIGINT)
    assert isinstance(worker.ask(Ping(2)), Pong)


def test_a_worker_killed_in_the_middle_of_a_batch_is_noticed_at_once(workers: Workers, slow: Path) -> None:
    worker = workers()
    worker.load(slow=slow)
    worker.send(Infer(1, ["slow"] * 75, "text", [b"a"]))
    worker.ask(Ping(99))  # what was sent before has been taken in
    worker.process.kill()
    assert worker.receive() is None
    assert worker.wait() == -signal.SIGKILL


def test_a_device_that_is_not_there_is_an_error_at_the_start(workers: Workers) -> None:
    for device in ("cuda:7", "abacus"):
        worker = workers("--device", device)
        assert worker.wait() == 78
        assert device in worker.errors()


def test_a_slow_reader_of_answers_holds_up_no_cancel(
    worker: WorkerProcess, hashing: Path, slow: Path
) -> None:
    """Answers of more bytes than the socket holds wait for the reader; requests are still taken."""
    worker.load(h=hashing, slow=slow)
    worker.send(Infer(1, ["slow"] * 50, "text", [b"a"]))
    worker.send(*(Infer(number, ["h"], "text", [b"a"] * 20_000, outputs=SCORED) for number in range(2, 8)))
    worker.send(Cancel(100, 1))
    replies = by_id([worker.receive() for _ in range(7)])
    failed(replies[1], "cancelled")
    assert all(isinstance(replies[number], Answer) for number in range(2, 8))
