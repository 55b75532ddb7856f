from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    RequestedOutput,
    ResponseTemplate,
    Tensor,
    WireError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    pack_bytes,
)
from ml_udf.oip.tensor import unpack_bytes


def as_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("elements", [[b""] * 5, [b"x" * 600_000, b"", b"y" * 600_000]])
def test_nothing_but_empty_elements_and_large_ones_decode_to_the_same(elements):
    blob = pack_bytes(elements)
    found = unpack_bytes("t", memoryview(blob), len(elements))
    assert found == elements
    assert {type(each) for each in found} == {bytes}
    with pytest.raises(WireError, match="elements for a shape of"):
        unpack_bytes("t", memoryview(blob), len(elements) + 1)


@given(st.lists(st.binary(max_size=20)), st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_what_is_encoded_as_binary_decodes_to_the_same(elements, numbers):
    sent = InferRequest(
        [Tensor.of_bytes("text", elements), Tensor.of_numbers("x", "FP32", numbers)],
        [RequestedOutput("label")],
        "id-1",
        {"timeout": 5},
    )
    body, headers = encode_request(sent)
    got = decode_request(body, headers.get(HEADER_LENGTH))
    assert got.inputs[0].elements == elements
    assert got.inputs[1].numbers() == numbers
    assert (got.id, got.parameters["timeout"], got.outputs[0].name) == ("id-1", 5, "label")


def test_a_reply_is_json_or_binary_as_each_output_asks():
    request = InferRequest(
        [],
        [RequestedOutput("a", binary=False), RequestedOutput("b")],
        parameters={"binary_data_output": True},
    )
    reply = InferResponse("m", [Tensor.of_bytes("a", [b"x"]), Tensor.of_numbers("b", "FP64", [1.5])], "3")
    body, headers = encode_response(reply, request)
    head = json.loads(body[: int(headers[HEADER_LENGTH])])
    assert head["outputs"][0]["data"] == ["x"]
    assert head["outputs"][1]["parameters"] == {"binary_data_size": 8}
    got = decode_response(body, headers[HEADER_LENGTH])
    assert got.model_version == "3"
    assert got.output("b").numbers() == [1.5]  # type: ignore[union-attr]


def test_nested_json_data_is_flattened_row_major():
    body = as_json(inputs=[{"name": "x", "datatype": "INT64", "shape": [2, 2], "data": [[1, 2], [3, 4]]}])
    assert decode_request(body, None).inputs[0].numbers() == [1, 2, 3, 4]


def test_half_precision_travels_as_binary():
    blob = struct.pack("<2e", 1.5, -2.0)
    tensor = Tensor("x", "FP16", (2,), blob)
    body, headers = encode_request(InferRequest([tensor]))
    assert decode_request(body, headers[HEADER_LENGTH]).inputs[0].numbers() == [1.5, -2.0]
    assert Tensor("x", "BF16", (1,), struct.pack("<H", 0x3FC0)).numbers() == [1.5]


X = {"name": "x", "datatype": "FP32", "shape": [1]}


@pytest.mark.parametrize(
    ("body", "header", "says"),
    [
        (b"not json", None, "cannot be parsed"),
        (b"[]", None, "not an object"),
        (b"{}", None, "no 'inputs'"),
        (b"{}", "x1", "not a whole number"),
        (b"{}", "99", "the body has 2 bytes"),
        (as_json(inputs=[3]), None, "list of objects"),
        (as_json(inputs=[{"datatype": "FP32", "shape": [1]}]), None, "no 'name'"),
        (as_json(inputs=[X]), None, "neither 'data' nor"),
        (as_json(inputs=[{**X, "data": [1, 2]}]), None, "2 values for a shape of 1"),
        (as_json(inputs=[{**X, "data": ["a"]}]), None, "not FP32"),
        (as_json(inputs=[{**X, "datatype": "FP99", "data": [1]}]), None, "unknown datatype"),
        (as_json(inputs=[{**X, "shape": [-1], "data": [1]}]), None, "whole numbers"),
        (as_json(inputs=[{**X, "parameters": {"binary_data_size": 9}}]), None, "does not fit the body"),
        (as_json(inputs=[{**X, "datatype": "BYTES", "data": [1]}]), None, "must be strings"),
        (as_json(inputs=[{**X, "datatype": "UINT8", "data": [300]}]), None, "not UINT8"),
    ],
)
def test_a_message_that_is_wrong_says_where(body, header, says):
    with pytest.raises(WireError, match=says):
        decode_request(body, header)


def test_bytes_after_the_last_tensor_are_refused():
    body, headers = encode_request(InferRequest([Tensor.of_bytes("x", [b"a"])]))
    with pytest.raises(WireError, match="belong to no tensor"):
        decode_request(body + b"zz", headers[HEADER_LENGTH])


def test_an_element_that_runs_past_its_tensor_is_refused_without_allocating_it():
    blob = struct.pack("<I", 0xFFFFFFFF) + b"x"
    head = as_json(
        inputs=[
            {"name": "x", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(blob)}}
        ]
    )
    with pytest.raises(WireError, match="runs past"):
        decode_request(head + blob, str(len(head)))


def test_a_deeply_nested_body_is_refused_and_not_a_crash():
    body = b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(WireError):
        decode_request(body, None)


BINARY = InferRequest([], parameters={"binary_data_output": True})


def labelled(label: bytes, number: float, name: str = "food", **fields: Any) -> InferResponse:
    outputs = [Tensor.of_bytes("label", [label]), Tensor.of_numbers("confidence", "FP32", [number])]
    outputs[0].parameters["content"] = "labels"
    return InferResponse(name, outputs, "3", **fields)


@pytest.mark.parametrize("fields", [{}, {"id": "7"}, {"parameters": {"ml_udf_cached_rows": 1}}])
def test_a_filled_template_is_to_the_byte_what_would_be_encoded(fields):
    template = ResponseTemplate(labelled(b"laksa", 0.5, **fields), BINARY)
    for label, number in [(b"laksa", 0.5), (b"", -1.0), (b"x" * 70_000, 2.0), (b"1000000000000000", 0.0)]:
        blobs = [pack_bytes([label]), struct.pack("<f", number)]
        assert template.fill(blobs) == encode_response(labelled(label, number, **fields), BINARY)


def test_a_response_that_holds_the_mark_of_a_size_makes_no_template_or_a_right_one():
    with pytest.raises(ValueError, match="number of a template"):
        ResponseTemplate(labelled(b"x", 0.5, "f1000000000000000"), BINARY)
    odd = labelled(b"x", 0.5, "1000000000000001")
    filled = ResponseTemplate(odd, BINARY).fill([pack_bytes([b"x"]), struct.pack("<f", 0.5)])
    assert filled == encode_response(odd, BINARY)


def test_a_response_in_json_makes_no_template():
    request = InferRequest([], [RequestedOutput("label", binary=False)], parameters=BINARY.parameters)
    with pytest.raises(ValueError, match="not binary"):
        ResponseTemplate(labelled(b"x", 0.5), request)
