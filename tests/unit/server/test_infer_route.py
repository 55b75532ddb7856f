"""The infer route: one path for every request; what takes long is done beside the event loop."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import math
import os
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

import server.routes.infer as infer_module
from gpu_worker.wire.protocol import Answer, RowError
from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    RequestedOutput,
    RequestTemplate,
    Tensor,
    decode_response,
    encode_request,
)
from server.access.caller import NOBODY, Caller, Shares
from server.catalog.catalog import Catalog
from server.errors import DeadlineExceeded
from server.http.application import WholeRequest
from server.http.large_json import LargeJson
from server.routes.codec import OWN_OUTPUTS, Codec
from server.routes.infer import InferRoute
from server.routes.reply_templates import ReplyTemplates
from server.serving.call_service import CallService
from server.serving.calls import Call, PendingReply
from server.serving.dispatcher import Dispatcher
from server.supervision import Tasks
from tests.answers import classified
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, text_model
from tests.waiting import until

PATH = "/v2/models/f/infer"


class Station:
    """The route over a house, and what it replied."""

    def __init__(self, worker: FakeWorker, *, rows: int = 200_000, max_rows: int = 100_000) -> None:
        self.house = House(worker, rows=rows)
        self.catalog = Catalog(lambda model: function(model))
        self.catalog.add_function(self.house.function, 2)
        self.large = LargeJson()
        self.replies: list[tuple[int, bytes, Mapping[str, str]]] = []
        self.calls = calls = CallService(self.house.dispatcher, self.house.metrics, max_rows=rows)
        codec = Codec(max_rows, lambda model, form: lambda rows: 0.001)
        self.route = InferRoute(self.catalog, calls, codec, self.house.metrics, self.large, Tasks(), 64 << 20)

    def ask(
        self,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        path: str = PATH,
        caller: Caller = NOBODY,
    ) -> Any:
        raw = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
        whole = WholeRequest(path, raw, body, asyncio.get_running_loop().time(), caller)
        return self.route.answer(whole, lambda *reply: self.replies.append(reply))

    def deploy(self, version: int) -> None:
        served = function(text_model(), version=version, max_batch=4, batch_sizes=(1, 4))
        self.house.dispatcher.configure(served)
        for retired in self.catalog.add_function(served, 2):
            self.house.dispatcher.remove(retired)

    async def replied(self, count: int = 1) -> None:
        await until(lambda: len(self.replies) >= count, 60)


def column(*rows: str, shape: list[int] | None = None) -> dict[str, object]:
    return {"name": "text", "datatype": "BYTES", "shape": shape or [len(rows)], "data": list(rows)}


def texts(*rows: str, outputs: tuple[str, ...] = (), **parameters: object) -> bytes:
    asked: dict[str, object] = {"inputs": [column(*rows)], "parameters": parameters}
    if outputs:
        asked["outputs"] = [{"name": name} for name in outputs]
    return json.dumps(asked).encode()


def run(scene: Callable[[Station, FakeWorker], Any], *, answers: bool = True, **fields: int) -> None:
    async def body() -> None:
        worker = FakeWorker(answers=answers)
        station = Station(worker, **fields)
        try:
            await settle()
            await scene(station, worker)
        finally:
            station.large.close()

    asyncio.run(body())


def pieces(*texts: bytes) -> list[bytes]:
    """A request's JSON around the size of its row, and around its deadline."""
    inputs = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":'
    return [inputs, b'}}],"parameters":{"binary_data_output":true,"timeout":', *texts, b"}}"]


def shaped(template: RequestTemplate, row: bytes, timeout_us: int, caller: Caller = NOBODY) -> WholeRequest:
    """A request of that template, as the native front reads it."""
    body = b"{}" + struct.pack("<I", len(row)) + row
    request = template.fill(body, 2, [len(row) + 4, timeout_us])
    return WholeRequest(PATH, {}, body, time.monotonic(), caller, request, template)


# ── requests that are alike ─────────────────────────────────────────────────────────────────────────


def test_requests_that_are_alike_are_checked_once_and_each_has_its_own_row_and_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    call_of = Codec.call_of

    def noted(codec: Codec, asked: Any, request: InferRequest, now_s: float, caller: Caller) -> Call:
        read.append(asked.key)
        return call_of(codec, asked, request, now_s, caller)

    monkeypatch.setattr(Codec, "call_of", noted)

    async def scene(station: Station, worker: FakeWorker) -> None:
        def replied(*reply: Any) -> None:
            station.replies.append(reply)

        template = RequestTemplate(pieces(), ["binary_data_size", "timeout"])
        begun: list[float] = []
        begin = Dispatcher.begin

        def beginning(dispatcher: Dispatcher, call: Call) -> PendingReply:
            begun.append(call.deadline_s - time.monotonic())
            return begin(dispatcher, call)

        monkeypatch.setattr(Dispatcher, "begin", beginning)
        for row, timeout_us in ((b"a", 9_000_000), (b"bc", 5_000_000), (b"", 0)):
            station.route.answer(shaped(template, row, timeout_us), replied)
        for row in (b"raw", b"r"):
            station.ask(row, {HEADER_LENGTH: "0"})
        await station.replied(5)
        said = [decode_response(body, headers.get(HEADER_LENGTH)) for _, body, headers in station.replies]
        labels = sorted(text for one in said for text in one.outputs[0].elements)
        assert labels == [b"", b"a", b"bc", b"r", b"raw"]
        assert begun[:2] == pytest.approx([9, 5], abs=1)
        assert begun[2:] == [math.inf] * 3
        assert read == ["f@1", "f@1"]  # one of each kind

        station.deploy(2)
        station.ask(b"new", {HEADER_LENGTH: "0"})
        other = Caller("other", "10.0.0.1", frozenset())
        station.ask(b"other", {HEADER_LENGTH: "0"}, caller=other)
        station.route.answer(shaped(template, b"x", 1, other), replied)
        await station.replied(8)
        assert read == ["f@1", "f@1", "f@2", "f@2", "f@2"]

    run(scene)


@pytest.mark.parametrize("hits", [0, 10])
def test_who_is_refused_for_a_while_has_its_likes_refused_unless_kept_answers_are_to_be_had(
    monkeypatch: pytest.MonkeyPatch, hits: int
) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        def refusing(_: Dispatcher, call: Call) -> PendingReply:
            error = DeadlineExceeded("too many wait")
            error.alike_s = 0.02
            raise error

        monkeypatch.setattr(Dispatcher, "begin", refusing)
        if hits:
            monkeypatch.setattr(station.calls, "_cached", station.house.dispatcher)
        stats = station.house.metrics.of(station.house.function)
        stats.cache.hits = hits
        shut: list[Any] = []
        whole = WholeRequest(PATH, {HEADER_LENGTH.lower().encode(): b"0"}, b"row", time.monotonic())
        whole.shut = lambda *told: shut.append(told)
        station.route.answer(whole, lambda *reply: station.replies.append(reply))
        (reply,) = station.replies
        assert reply[0] == 504
        if hits:
            assert not shut
            return
        ((for_s, *same, count),) = shut
        assert (for_s, tuple(same)) == (0.02, reply)
        assert (stats.errors["deadline_exceeded"], stats.over_goal_rows) == (1, 1)
        count(5)
        assert (stats.errors["deadline_exceeded"], stats.over_goal_rows, stats.fail.count) == (6, 6, 6)

        many = Tensor("text", "BYTES", (8,), [b"x"] * 8)
        whole.request, whole.alike, whole.headers = InferRequest([many]), object(), {}
        station.route.answer(whole, lambda *reply: station.replies.append(reply))
        shut[1][-1](2)
        assert stats.over_goal_rows == 6 + 8 + 2 * 8

    run(scene)


def test_requests_leave_no_circles_for_the_collector() -> None:
    """What it would have to find stops the whole server while it looks, and holds the rows until then."""

    async def scene(station: Station, worker: FakeWorker) -> None:
        async def asked() -> None:
            station.ask(texts("json"))
            station.ask(b"raw", {HEADER_LENGTH: "0"})
            station.ask(texts("urgent", timeout=9_000_000))
            station.ask(texts("late", ml_udf_deadline_ms=0.001))
            station.ask(texts("gone")).leave()
            await station.replied(4)
            for _ in range(3):
                await settle()
            assert sorted(status for status, *_ in station.replies) == [200, 200, 200, 504]
            station.replies.clear()

        await leaves_no_circles(asked, WholeRequest, Call, PendingReply, Answer)

    run(scene)


async def leaves_no_circles(asked: Callable[[], Awaitable[None]], *kinds: type) -> None:
    """Of these kinds nothing is left of what is asked, without the collector."""

    def there() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, kinds)]

    await asked()  # what is made once
    gc.collect()
    gc.disable()
    try:
        before = there()
        known = set(map(id, before))
        for _ in range(5):
            await asked()
        assert [one for one in there() if id(one) not in known] == []
    finally:
        gc.enable()


def test_a_request_like_others_whose_time_is_over_is_refused_alone() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        def replied(*reply: Any) -> None:
            station.replies.append(reply)

        template = RequestTemplate(pieces(), ["binary_data_size", "timeout"])
        late = shaped(template, b"late", 1)
        late.came_s -= 1.0
        for whole in (shaped(template, b"a", 9_000_000), late, shaped(template, b"b", 9_000_000)):
            station.route.answer(whole, replied)
        await station.replied(3)
        assert sorted(status for status, _, _ in station.replies) == [200, 200, 504]

    run(scene)


# ── versions ────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_without_a_version_goes_on_with_the_new_one_when_its_own_is_retired() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        station.ask(texts("a", "b"))
        for version in (2, 3, 4, 5):
            station.deploy(version)
            await settle()
        assert station.replies == []
        again = FakeWorker("w1", answers=True)
        station.house.residency.worker_up(again)
        await station.replied()
        (status, body, _) = station.replies[0]
        reply = json.loads(body)
        assert (status, reply["model_version"], reply["outputs"][0]["data"]) == (200, "5", ["a", "b"])

    run(scene, answers=False)


def test_a_request_for_one_version_is_told_when_that_is_gone() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        station.ask(texts("a"), path="/v2/models/f/versions/1/infer")
        for version in (2, 3):
            station.deploy(version)
        await station.replied()
        assert station.replies[0][0] == 410

    run(scene, answers=False)


def test_a_client_that_left_does_not_come_back_with_a_new_version() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        station.ask(texts("a")).leave()
        for version in (2, 3):
            station.deploy(version)
        await settle()
        assert station.house.dispatcher.queue_depth()["f", 3] == (0, 0)

    run(scene, answers=False)


# ── beside the event loop ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Where requests were decoded, and replies encoded, in this process: names of threads."""
    seen: dict[str, list[str]] = {"decode_request": [], "encode_response": [], "decompressed": []}

    def noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            here = threading.current_thread()
            seen[name].append("loop" if here is threading.main_thread() else "thread")
            return work(*arguments)

        return wrapped

    for name in seen:
        monkeypatch.setattr(infer_module, name, noted(name, getattr(infer_module, name)))
    return seen


def test_a_small_request_is_read_and_answered_at_once(threads: dict[str, list[str]]) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(texts("a"))
        await station.replied()

    run(scene)
    assert threads == {"decode_request": ["loop"], "encode_response": ["loop"], "decompressed": []}


def test_a_large_binary_request_is_read_in_a_thread(threads: dict[str, list[str]]) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        body, headers = encode_request(InferRequest([Tensor.of_bytes("text", [b"x" * 400_000, b"y"])]))
        station.ask(body, headers)
        await station.replied()
        status, body, _ = station.replies[0]
        assert status == 200
        head = station.replies[0][2][HEADER_LENGTH]
        assert decode_response(body, head).outputs[0].elements == [b"x" * 400_000, b"y"]

    run(scene)
    assert threads["decode_request"] == ["thread"]


def test_a_compressed_request_is_unpacked_in_a_thread(threads: dict[str, list[str]]) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(gzip.compress(texts("a", "b")), {"Content-Encoding": "gzip"})
        station.ask(gzip.compress(bytes(80 << 20)), {"Content-Encoding": "gzip"})
        station.ask(b"no gzip", {"Content-Encoding": "gzip"})
        await station.replied(3)
        assert sorted(reply[0] for reply in station.replies) == [200, 400, 413]

    run(scene)
    assert threads["decompressed"] == ["thread"] * 3


def test_large_json_is_read_and_written_by_another_process(
    threads: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: set[int] = set()
    rows = ["word " * 30 + str(number) for number in range(9000)]

    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(texts(*rows))
        await station.replied()
        status, body, headers = station.replies[0]
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body)["outputs"][0]["data"] == rows
        assert station.large._pool is not None
        pids.update(station.large._pool._processes)

    run(scene, rows=1 << 20)
    assert threads["decode_request"] == threads["encode_response"] == []
    assert len(pids) == 1
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"inputs": [column("x" * 1_200_000, shape=[2])]}, 400),
        ({"inputs": [column(*[""] * 600_000)]}, 400),
        ({"inputs": [], "parameters": {"x": "y" * 1_200_000}}, 400),
        ({"inputs": [{"name": "a", "shape": [1] * 400_000, "datatype": "FP32", "data": [1]}]}, 400),
    ],
)
def test_large_json_that_is_wrong_is_refused_like_small(said: object, status: int) -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(json.dumps(said).encode())
        await station.replied()
        assert station.replies[0][0] == status
        assert len(station.replies[0][1]) < 10_000

    run(scene)


def test_a_reader_that_died_says_so_and_the_next_is_a_new_one() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        large = texts("x" * 2_000_000)
        station.ask(large)
        await station.replied()
        assert station.large._pool is not None
        for process in list(station.large._pool._processes.values()):
            process.kill()
            process.join(10)
        station.ask(large)
        station.ask(large)
        await station.replied(3)
        assert {reply[0] for reply in station.replies} <= {200, 503}
        station.ask(large)
        await station.replied(4)
        assert station.replies[-1][0] == 200

    run(scene, rows=1 << 20)


# ── shares and claims ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.security
def test_one_caller_cannot_fill_a_functions_queue() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        greedy, modest = Caller("ask", "10.0.0.1"), Caller("ask", "10.0.0.2")
        for number in range(200):
            station.ask(texts(str(number)), caller=greedy)
        refused = len(station.replies)
        assert 20 <= refused <= 130  # a quarter stays, and something for who is in between
        assert {reply[0] for reply in station.replies} == {503}
        for number in range(10):
            station.ask(texts(str(number)), caller=modest)
        assert len(station.replies) == refused

    run(scene, answers=False, rows=100)


def test_what_was_taken_of_a_queue_is_given_back_however_a_call_ends() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(texts("answered"))
        station.ask(texts("left")).leave()
        station.ask(texts("late", ml_udf_deadline_ms=1))
        station.ask(texts("a", priority=-1))
        station.ask(texts())
        await station.replied(3)  # all but the first: the second has left
        await until(lambda: worker.batches, 60)  # the model may still be on its way
        while worker.batches:
            worker.answer()
            await settle()
        await station.replied(4)
        assert station.route._calls._fair_share._taken == {}

    run(scene, answers=False)


CAPPED = Caller("capped", "10.0.0.1", shares=Shares(rows_per_s=1.0))


def test_rows_that_find_no_room_are_not_counted_among_those_that_a_token_may_ask_for_a_second() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        station.ask(texts("other"))
        for _ in range(3):
            station.ask(texts("a", "b", "c"), caller=CAPPED)
        await settle()
        assert [reply[0] for reply in station.replies] == [503] * 3
        station.house.residency.worker_up(FakeWorker("w1", answers=True))
        await station.replied(4)
        station.ask(texts("a", "b", "c"), caller=CAPPED)
        await station.replied(5)
        assert station.replies[4][0] == 200
        station.ask(texts("d"), caller=CAPPED)
        assert station.replies[5][0] == 429, "what was answered counts"

    run(scene, answers=False, rows=3)


def test_a_request_that_goes_on_with_a_new_version_counts_once_among_a_tokens_rows() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.house.residency.worker_down(worker)
        station.ask(texts("a", "b"), caller=CAPPED)
        for version in (2, 3, 4, 5):
            station.deploy(version)
            await settle()
        assert station.replies == []
        station.house.residency.worker_up(FakeWorker("w1", answers=True))
        await station.replied()
        assert station.replies[0][0] == 200

    run(scene, answers=False)


def test_a_request_says_its_class_goal_and_time_without_its_rows_being_read() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        def hint(body: bytes, caller: Caller = NOBODY, **headers: str) -> tuple[str, float, float]:
            raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
            found = station.route.hint(WholeRequest(PATH, raw, body, 0.0, caller))
            return found.queue[1], found.goal_s, found.time_s

        slo_s = station.house.function.slo_ms / 1000
        assert hint(texts("a")) == ("interactive", slo_s, math.inf)
        assert hint(texts("a", timeout=20_000)) == ("interactive", 0.02, 0.02)
        assert hint(texts("a", ml_udf_deadline_ms=40, timeout=0)) == ("interactive", 0.04, 0.04)
        assert hint(texts("a", ml_udf_slo_ms=5.5)) == ("interactive", 0.0055, math.inf)
        assert hint(texts("a", ml_udf_class="bulk", timeout=1))[0::2] == ("bulk", math.inf)
        assert hint(texts("a"), Caller(shares=Shares(row_class="bulk")))[0] == "bulk"
        assert hint(texts('"timeout": 1,'))[2] == math.inf  # a text is no parameter
        body, headers = encode_request(
            InferRequest([Tensor.of_bytes("text", [b'"timeout": 1}'])], parameters={"timeout": 30_000})
        )
        length = headers[HEADER_LENGTH]
        assert hint(body, inference_header_content_length=length)[2] == 0.03
        unknown = WholeRequest("/v2/models/nobody/infer", {}, b"", 0.0)
        assert station.route.hint(unknown).queue == ("", "")

    run(scene)


def test_of_no_rows_every_output_is_there_and_empty() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(texts(outputs=("label", *OWN_OUTPUTS)))
        await station.replied()
        (status, body, _) = station.replies[0]
        assert status == 200, body
        assert [each["data"] for each in json.loads(body)["outputs"]] == [[]] * (1 + len(OWN_OUTPUTS))

    run(scene)


# ── replies that are alike ──────────────────────────────────────────────────────────────────────────


def binary(*rows: str, outputs: tuple[str, ...] = (), **fields: Any) -> tuple[bytes, dict[str, str]]:
    tensor = Tensor.of_bytes("text", [row.encode() for row in rows])
    return encode_request(InferRequest([tensor], [RequestedOutput(name) for name in outputs], **fields))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"outputs": ("label",)},
        {"outputs": ("confidence", "label")},
        {"outputs": ("label", "label")},
        {"outputs": ("label", "answered_by", "error")},
        {"id": "seven"},
    ],
)
def test_what_is_filled_in_is_to_the_byte_what_would_be_written(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def each_in_its_turn(station: Station) -> None:
        # Of requests that are under way together the later may be answered first.
        for count, rows in enumerate((("a",), ("bb", "ccc"), ("dddd",), ("é",), ("e", "f")), 1):
            station.ask(*binary(*rows, **asked))
            await station.replied(count)

    async def scene(station: Station, _: FakeWorker) -> None:
        await each_in_its_turn(station)
        filled, station.replies[:] = list(station.replies), []
        monkeypatch.setattr(ReplyTemplates, "filled", lambda *_: None)
        await each_in_its_turn(station)
        assert filled == station.replies
        assert [status for status, _, _ in filled] == [200] * 5

    run(scene)


def test_a_new_version_is_named_in_the_replies_that_follow_it() -> None:
    async def scene(station: Station, _: FakeWorker) -> None:
        versions: list[str] = []
        for version in (None, 2, 3):
            if version is not None:
                station.deploy(version)
            station.ask(*binary("a"))
            await station.replied(len(versions) + 1)
            _status, body, headers = station.replies[-1]
            versions.append(decode_response(body, headers[HEADER_LENGTH]).model_version)
        assert versions == ["1", "2", "3"]

    run(scene)


def test_rows_at_fault_are_told_whatever_was_replied_before() -> None:
    async def scene(station: Station, worker: FakeWorker) -> None:
        station.ask(*binary("a"))
        await until(lambda: len(worker.batches) == 1)
        worker.answer()
        await station.replied()
        station.ask(*binary("b"))
        await until(lambda: len(worker.batches) == 1)
        message, on_reply = worker.batches.pop()
        fault = RowError(0, "input_not_found", "there is no b")
        on_reply(Answer(message.id, [classified(message.models[0], [""], [0.0])], [fault]))
        await station.replied(2)
        assert [status for status, _, _ in station.replies] == [200, 400]
        assert b"there is no b" in station.replies[1][1]

    run(scene, answers=False)
