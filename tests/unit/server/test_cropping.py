"""Who is asked to cut pictures, and what becomes of a worker that will not, or dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from gpu_worker.wire.protocol import Cropped, Failed, Message
from server.errors import BadOption, Overloaded, ServiceError, WorkerLost
from server.serving.pipelines.cropping import Cropper, Pieces, message_of
from server.workers.pool import OnReply, Worker, WorkerInfo

BOXES = [[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 2.0, 2.0]], []]


class Cutter:
    """A worker that answers with each of these in turn; with nothing left it says nothing."""

    def __init__(self, name: str, *replies: Message, device: str = "cpu") -> None:
        self.name = name
        self.info = WorkerInfo(device, device, 0)
        self.replies = list(replies)
        self.asked: list[Message] = []
        self.cancelled: list[int] = []

    def send(self, message: Message, on_reply: OnReply) -> int:
        self.asked.append(message)
        if self.replies:
            asyncio.get_running_loop().call_soon(on_reply, self.replies.pop(0))
        return len(self.asked)

    def cancel(self, message_id: int) -> None:
        self.cancelled.append(message_id)


def cropper_of(*workers: Cutter) -> Cropper:
    return Cropper(lambda: cast("list[Worker]", list(workers)))


def cut(*workers: Cutter) -> Pieces:
    asked = message_of("path", [b"a", b"b"], BOXES, 0.1, ["/photos"], ["/photos/team"])
    return asyncio.run(cropper_of(*workers).cut(asked))


def sound() -> Cropped:
    return Cropped(0, [b"1", b"2"], [2, 0], [{"index": 1, "code": "input_not_found", "message": "gone"}])


def test_pieces_come_by_row_with_the_rows_at_fault() -> None:
    worker = Cutter("w", sound())
    found = cut(worker)
    assert found.by_row == [[b"1", b"2"], []]
    assert found.errors[1].code == "input_not_found"
    assert found.later == []
    (asked,) = worker.asked
    assert (asked.media_roots, asked.narrowed) == (["/photos"], [(0, ["/photos/team"])])  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["overloaded", "worker_lost", "cancelled"])
def test_who_cannot_cut_now_is_not_the_end_of_it(code: str) -> None:
    assert cut(Cutter("w", Failed(0, code, "not now"), sound())).by_row[0] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ([Failed(0, "worker_lost", "it died")] * 2, WorkerLost),
        ([Failed(0, "bad_option", "no box")], BadOption),
        ([Failed(0, "internal", "a bug")], ServiceError),
        ([Cropped(0, [b"1"], [2, 0], [])], ServiceError),
        ([Cropped(0, [], [0, 0], [], 0.0, [0, 1])], ServiceError),  # it would never end
    ],
)
def test_what_cannot_be_mended_is_raised(replies: list[Message], error: type[ServiceError]) -> None:
    with pytest.raises(error):
        cut(Cutter("w", *replies))


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_worker_that_has_no_room_for_long_is_the_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.serving.pipelines.cropping._WAIT_S", 0.0)
    with pytest.raises(Overloaded, match="no worker has room"):
        cut(Cutter("w", *[Failed(0, "overloaded", "not now")] * 20))


def test_pictures_wait_until_a_worker_is_up_however_long_and_none_for_models_elsewhere_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.serving.pipelines.cropping._WAIT_S", 0.0)

    async def run() -> None:
        elsewhere = Cutter("remote", sound(), device="remote")
        there = [elsewhere]
        cropper = Cropper(lambda: cast("list[Worker]", there))
        asked = message_of("path", [b"a", b"b"], BOXES, 0.0, None, None)
        waiting = asyncio.create_task(cropper.cut(asked))
        for _ in range(100):  # times that somebody looked for one
            await asyncio.sleep(0)
        assert not waiting.done()
        there.append(Cutter("w", sound()))
        assert (await waiting).by_row == [[b"1", b"2"], []]
        assert elsewhere.asked == []

    in_loop(run)


def test_the_one_with_the_fewest_pictures_is_asked_and_who_leaves_takes_them_back() -> None:
    async def run() -> None:
        busy, idle = Cutter("a"), Cutter("b")
        cropper = cropper_of(busy, idle)
        asked = message_of("path", [b"a", b"b"], BOXES, 0.0, None, None)
        first = asyncio.create_task(cropper.cut(asked))
        await asyncio.sleep(0)
        second = asyncio.create_task(cropper.cut(asked))
        await asyncio.sleep(0)
        assert [len(busy.asked), len(idle.asked)] == [1, 1]
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert (busy.cancelled, idle.cancelled) == ([1], [1])

    in_loop(run)
