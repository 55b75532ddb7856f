"""Infer requests by a grammar of ours, right and wrong, in JSON and binary: each gets a reply.

Never a fault of the server's own, never a wait for ever, never a loop that stands still.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from ml_udf.oip import HEADER_LENGTH, decode_response
from server.catalog.catalog import Catalog
from server.catalog.functions import Function
from server.http.application import WholeRequest
from server.http.large_json import LargeJson
from server.routes.codec import Codec
from server.routes.infer import InferRoute
from server.serving.call_service import CallService
from server.supervision import Tasks
from tests.fuzz.budget import rounds
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.house import House
from tests.unit.server.served import function, image_model

pytestmark = pytest.mark.security

_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2,
    1.5,
    1e308,
    float("inf"),
    float("nan"),
    2**31,
    2**63,
    2**64,
    10**400,
    "",
    "x",
    "\x00",
    "\ud800",
    "é" * 50,
    [],
    [[]],
    {},
    {"a": [1]},
    "BYTES",
    "FP32",
]
_DATATYPES = ["BYTES", "FP32", "FP64", "FP16", "BF16", "INT8", "INT64", "UINT64", "BOOL", "STRING", "", 7]
_INPUTS = ["text", "image_path", "image", "pixels", "row", "nothing", "", 3]
_OUTPUTS = ["label", "confidence", "scores", "error", "answered_by", "nothing", "", None]
_PARAMETERS = [
    "timeout",
    "priority",
    "ml_udf_class",
    "ml_udf_deadline_ms",
    "ml_udf_slo_ms",
    "ml_udf_min_accuracy",
    "ml_udf_other",
    "binary_data_output",
    "binary_data_size",
    "binary_data",
    "classification",
    "shared_memory_region",
    "sequence_id",
    "x",
]


class Grammar:
    """Requests from one seed: right by nature, wrong in a few places."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._wrong = self._random.choice([0.0, 0.0, 0.02, 0.1, 0.4])

    def request(self) -> tuple[bytes, dict[str, str]]:
        """Body and headers."""
        binary = self._random.random() < 0.5
        blobs: list[bytes] = []
        head: Any = {"inputs": self._list(lambda: self._input(binary, blobs), 1)}
        if self._chance(0.4):
            head["outputs"] = self._list(self._output, 2)
        if self._chance(0.4):
            head["parameters"] = self._parameters()
        if self._chance(0.2):
            head["id"] = self._or_odd("r1")
        head = self._or_odd(head)
        text = json.dumps(head, ensure_ascii=self._chance(0.5)).encode("utf-8", "surrogatepass")
        text = self._damaged(text)
        length = len(text)
        if self._chance(self._wrong):
            length = self._random.choice([0, 1, length - 1, length + 1, 10**6, 10**30])
        body = self._damaged(text + b"".join(blobs))
        shown = self._random.choice(["x", "-1", "１", ""]) if self._chance(self._wrong) else str(length)
        return body, {HEADER_LENGTH: shown} if binary or self._chance(self._wrong) else {}

    def _input(self, binary: bool, blobs: list[bytes]) -> Any:
        name = self._random.choice(_INPUTS) if self._chance(self._wrong) else "text"
        datatype = self._random.choice(_DATATYPES) if self._chance(self._wrong) else "BYTES"
        rows = self._random.choice([0, 1, 1, 2, 3, 20])
        if self._chance(0.2):
            name, datatype = "pixels", "FP32"
        shape: Any = [rows, 3, 2, 2] if name == "pixels" else [rows]
        count = rows * 12 if name == "pixels" else rows
        tensor: dict[str, Any] = {"name": self._or_odd(name), "datatype": datatype, "shape": shape}
        if self._chance(self._wrong):
            tensor["shape"] = self._random.choice([*_ODD, [2**40, 2**40], [0, 2**60], [1] * 100, [-1], ["1"]])
        if binary and self._chance(0.9):
            if datatype == "BYTES":
                texts = [b"x" * self._random.choice([0, 1, 5]) for _ in range(rows)]
                blob = b"".join(struct.pack("<I", len(text)) + text for text in texts)
            else:
                blob = bytes(4 * count)
            blob = self._damaged(blob)
            blobs.append(blob)
            tensor["parameters"] = {"binary_data_size": self._or_odd(len(blob))}
        else:
            values: Any = ["x"] * count if datatype == "BYTES" else [0.5] * count
            if self._chance(0.2) and values:
                values = [values]
            if self._chance(self._wrong) and isinstance(values, list):
                values = [*values, self._random.choice(_ODD)]
            tensor["data"] = self._or_odd(values)
        if self._chance(self._wrong):
            tensor.pop(self._random.choice(list(tensor)))
        return self._or_odd(tensor)

    def _output(self) -> Any:
        name = (
            self._random.choice(_OUTPUTS) if self._chance(self._wrong) else self._random.choice(_OUTPUTS[:5])
        )
        output: dict[str, Any] = {"name": name}
        if self._chance(0.5):
            output["parameters"] = {"binary_data": self._or_odd(self._chance(0.5))}
        if self._chance(self._wrong):
            output["parameters"] = self._parameters()
        return self._or_odd(output)

    def _parameters(self) -> Any:
        right = {
            "timeout": 10_000_000,
            "priority": 1,
            "ml_udf_class": "bulk",
            "ml_udf_deadline_ms": 10_000,
            "ml_udf_slo_ms": 50,
            "ml_udf_min_accuracy": 0.1,
            "binary_data_output": True,
        }
        names = self._random.sample(_PARAMETERS if self._chance(self._wrong) else list(right), 2)
        return self._or_odd({name: self._or_odd(right.get(name, 1)) for name in names})

    def _list(self, make: Any, most: int) -> Any:
        count = self._random.choice([0, 2, 3]) if self._chance(self._wrong) else self._random.randint(1, most)
        return self._or_odd([make() for _ in range(count)])

    def _or_odd(self, value: Any) -> Any:
        return self._random.choice(_ODD) if self._chance(self._wrong * 0.3) else value

    def _damaged(self, data: bytes) -> bytes:
        if not data or not self._chance(self._wrong * 0.3):
            return data
        at = self._random.randrange(len(data))
        return self._random.choice(
            [data[:at], data[:at] + b"\xff" + data[at + 1 :], data[:at] + data[at:] * 2, b"[" * 50_000 + data]
        )

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


class Worker(FakeWorker):
    """Answers the same to whatever it is asked."""

    def answer(
        self, label: Callable[[bytes], str] = lambda row: "laksa", errors: tuple[int, ...] = ()
    ) -> None:
        super().answer(label, errors)


def test_every_request_gets_a_reply_that_is_no_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    seen: dict[int, int] = {}

    async def fuzz() -> None:
        worker = Worker(answers=True)
        house = House(worker)
        catalog = Catalog(lambda model: function(model))
        pictures = function(image_model(), name="g", max_batch=4, batch_sizes=(1, 4))
        served: list[Function] = [house.function, pictures]
        house.dispatcher.configure(pictures)
        for one in served:
            catalog.add_function(one, 2)
        large = LargeJson()
        codec = Codec(100, lambda model, form: lambda rows: 0.001, 10_000)
        calls = CallService(house.dispatcher, house.metrics)
        route = InferRoute(catalog, calls, codec, house.metrics, large, Tasks(), 1 << 20)
        await settle()
        try:
            for seed in rounds(1200):
                body, headers = Grammar(seed).request()
                replies: list[tuple[int, bytes, Any]] = []
                status = await _status(route, seed, body, headers, replies)
                seen[status] = seen.get(status, 0) + 1
                _check_form(seed, replies[0], status)
        finally:
            large.close()

    asyncio.run(fuzz())
    assert seen.get(500, 0) == 0
    assert seen[200] > 150  # enough are right
    assert seen[400] > 150  # and enough are not
    assert caplog.records == []


async def _status(
    route: InferRoute, seed: int, body: bytes, headers: dict[str, str], replies: list[Any]
) -> int:
    raw = {name.lower().encode(): value.encode() for name, value in headers.items()}
    path = "/v2/models/f/infer" if seed % 4 else "/v2/models/g/infer"
    began_s = time.thread_time()
    whole = WholeRequest(path, raw, body, time.monotonic())
    route.hint(whole)
    route.answer(whole, lambda *reply: replies.append(reply))
    # Of this thread's own time: what others do on the machine does not count.
    assert time.thread_time() - began_s < 0.5, f"request {seed} stopped the loop"
    async with asyncio.timeout(30):
        while not replies:  # noqa: ASYNC110 (threads and processes answer too)
            await asyncio.sleep(0)
    return int(replies[0][0])


def _check_form(seed: int, reply: tuple[int, bytes, Any], status: int) -> None:
    _, body, headers = reply
    if status == 200:
        response = decode_response(body, headers.get(HEADER_LENGTH))
        assert response.model_name in {"f", "g"}, seed
    else:
        content = json.loads(body)
        assert list(content) == ["error"], seed
        assert len(body) < 20_000, seed
