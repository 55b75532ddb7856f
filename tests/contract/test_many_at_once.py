"""Many clients that ask alike at once: each has the answer to its own row, and each counts as one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ml_udf.oip import HEADER_LENGTH, InferRequest, Tensor, decode_response, encode_request
from server.training.promotion.combination import choose_combination
from tests.contract.oip_wire import call
from tests.inference_server import ANEW, inference_server
from tests.models import CLASSES, hashing_model, label_of
from tests.unit.ensemble.ensembles import drawn

_CLIENTS, _ROUNDS = 48, 25
_MEMBERS = ("one", "two")


@pytest.mark.parametrize("flags", [[], [ANEW]], ids=["kept", "anew"])
@pytest.mark.parametrize("front", ["native", "python"])
def test_each_client_has_the_answer_to_its_own_row(
    tmp_path: Path, front: str, flags: Sequence[str], request: pytest.FixtureRequest
) -> None:
    if front == "native":
        request.getfixturevalue("native_front")
    with inference_server(tmp_path / "home", flags=[*flags, "--workers=2", f"--front={front}"]) as server:
        server.deploy(hashing_model(tmp_path), "udf_text", slo_ms=200)
        asked = asyncio.run(_asked(server.port))
        stats = json.loads(call(server.port, "GET", "/v2/models/udf_text/stats").body)
        (one,) = stats["model_stats"]
        assert one["inference_stats"]["success"]["count"] == asked
        assert one["inference_count"] == asked


@pytest.mark.parametrize("front", ["native", "python"])
def test_so_has_each_client_of_a_function_that_follows_plans(
    tmp_path: Path, front: str, request: pytest.FixtureRequest
) -> None:
    if front == "native":
        request.getfixturevalue("native_front")
    with inference_server(tmp_path / "home", flags=[ANEW, "--workers=2", f"--front={front}"]) as server:
        for name in _MEMBERS:
            server.deploy(hashing_model(tmp_path, name))
        with server.client() as client:
            client.put("/v1/functions/udf_text", {"models": list(_MEMBERS), "combine": "log_pool"})
        told, labels = drawn([0.7, 0.8], classes=len(CLASSES))
        scores = {name: each.astype(np.float32) for name, each in zip(_MEMBERS, told, strict=True)}
        server.keep_fit(choose_combination(scores, np.asarray(labels)).fit.to_json())
        with server.client() as client:
            assert client.get("/v1/functions/udf_text")["select"] == "value"
        asked = asyncio.run(_asked(server.port))
        stats = json.loads(call(server.port, "GET", "/v2/models/udf_text/stats").body)
        (one,) = stats["model_stats"]
        assert one["inference_stats"]["success"]["count"] == asked
        assert one["inference_count"] == asked


async def _asked(port: int) -> int:
    """How many requests were answered, rightly."""
    chance = random.Random(0)
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_CLIENTS)]
    asked = 0
    for number in range(_ROUNDS):
        # Half of the rows have come before, or come twice at once.
        rows = [
            f"row {chance.randrange(1, 200) if place % 2 else (number, place)}" for place in range(_CLIENTS)
        ]
        is_raw = number % 2 == 0
        for (_, writer), row in zip(streams, rows, strict=True):
            writer.write(_request(row, is_raw=is_raw))
        for (reader, _), row in zip(streams, rows, strict=True):
            assert await _label(reader) == label_of(row), (number, row)
            asked += 1
    for _, writer in streams:
        writer.close()
    return asked


def _request(row: str, *, is_raw: bool) -> bytes:
    body, length = row.encode(), "0"
    if not is_raw:
        parameters = {"binary_data_output": True, "timeout": 60_000_000}
        body, headers = encode_request(InferRequest([Tensor.of_bytes("text", [body])], parameters=parameters))
        length = headers[HEADER_LENGTH]
    lines = [
        "POST /v2/models/udf_text/infer HTTP/1.1",
        "Host: localhost",
        f"{HEADER_LENGTH}: {length}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _label(reader: asyncio.StreamReader) -> str:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode().lower()
    assert head.startswith("http/1.1 200"), head
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    body = await reader.readexactly(int(fields["content-length"]))
    (label,) = decode_response(body, fields.get(HEADER_LENGTH.lower())).outputs[0].elements
    return label.decode()
