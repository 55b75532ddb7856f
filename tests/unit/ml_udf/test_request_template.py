"""A template's request is the one that `decode_request` reads, for every number that may stand in it."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from ml_udf.oip import (
    InferRequest,
    RequestedOutput,
    RequestTemplate,
    Tensor,
    WireError,
    decode_request,
    encode_request,
)

TEXTS = Tensor.of_bytes("text", [b"one", b"", b"three"])
PIXELS = Tensor("pixels", "FP32", (1, 2, 2), struct.pack("<4f", 1, 2, 3, 4))


def pieces_of(head: bytes, *numbers: bytes) -> list[bytes]:
    pieces = []
    for number in numbers:
        before, found, head = head.partition(number)
        assert found
        pieces.append(before)
    return [*pieces, head]


@pytest.mark.parametrize("tensor", [TEXTS, PIXELS], ids=["bytes", "numbers"])
@pytest.mark.parametrize("outputs", [(), (RequestedOutput("label"), RequestedOutput("scores", False))])
def test_a_filled_template_is_the_request_that_was_sent(
    tensor: Tensor, outputs: tuple[RequestedOutput, ...]
) -> None:
    asked = {"timeout": 777000, "priority": 2, "ml_udf_deadline_ms": 12345, "ml_udf_class": "interactive"}
    body, headers = encode_request(InferRequest([tensor], list(outputs), "", asked))
    length = headers["Inference-Header-Content-Length"]
    at, size = int(length), len(body) - int(length)
    pieces = pieces_of(body[:at], b"777000", b"12345", b"%d" % size)
    template = RequestTemplate(pieces, ["timeout", "ml_udf_deadline_ms", "binary_data_size"])
    for _ in range(2):  # nothing of the first is left in the second
        filled = template.fill(body, at, (777000, 12345, size))
        assert filled == decode_request(body, length)
        filled.parameters.clear()
    other = body.replace(b"777000", b"1")
    at -= 5
    assert template.fill(other, at, (1, 12345, size)) == decode_request(other, str(at))


def test_data_that_does_not_fit_is_refused_in_the_words_of_the_reader() -> None:
    body, headers = encode_request(InferRequest([TEXTS]))
    at = int(headers["Inference-Header-Content-Length"])
    template = RequestTemplate(pieces_of(body[:at], b"%d" % (len(body) - at)), ["binary_data_size"])
    for wrong, size in ((body + b"x", len(body) - at), (body[:-1], len(body) - at), (body, 1)):
        with pytest.raises(WireError):
            template.fill(wrong, at, (size,))
    cut = body[:-1]
    with pytest.raises(WireError, match="runs past the tensor's end"):
        template.fill(cut, at, (len(cut) - at,))


def head(**changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 9}}
    return json.dumps({"inputs": [tensor], **changes}).encode()


@pytest.mark.parametrize(
    ("json_part", "names"),
    [
        (head(id="7"), ["binary_data_size"]),  # each has its own
        (head().replace(b"9", b'"9"'), ["binary_data_size"]),
        (head(parameters={"binary_data_size": 5}).replace(b"9", b"3"), ["binary_data_size"]),
        (head(inputs=[]), []),
        (head(inputs=json.loads(head())["inputs"] * 2), ["binary_data_size"]),
        (head().replace(b"BYTES", b"NOTYPE"), ["binary_data_size"]),
        (head().replace(b'"x"', b'""'), ["binary_data_size"]),
        (
            head().replace(b"9}", b'9, "binary_data\\u005fsize": 4}'),
            ["binary_data_size"],
        ),  # the last one counts
        (b"[9]", ["binary_data_size"]),
        (b'{"inputs": [{"parameters": 9}]}', ["binary_data_size"]),
        (head(parameters=[9]).replace(b"9", b"8", 1), ["timeout"]),
    ],
)
def test_what_is_not_alike_in_this_way_is_no_template(json_part: bytes, names: list[str]) -> None:
    pieces = pieces_of(json_part, *[b"9" for _ in names]) if b"9" in json_part else [json_part, b""]
    with pytest.raises((ValueError, TypeError, KeyError)):
        RequestTemplate(pieces, names)
