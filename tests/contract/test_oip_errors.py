"""Every fault has its status, its code and its text, in the one form, on every route."""

from __future__ import annotations

import json
import struct

import pytest

from ml_udf.oip import HEADER_LENGTH
from tests.contract.oip_wire import call, infer_body
from tests.inference_server import InferenceServer

INFER = "/v2/models/udf_text/infer"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/v2/nothing", None, 404, "unknown_function: there is no route GET /v2/nothing"),
        ("GET", "/nothing", None, 404, "there is no route"),
        ("GET", "/v2/models/nobody", None, 404, "unknown_function: there is no function or model 'nobody'"),
        ("GET", "/v2/models/udf_text/versions/7", None, 410, "version_gone: version 7 of udf_text"),
        ("GET", "/v2/models/nobody/stats", None, 404, "unknown_function"),
        ("GET", INFER, None, 405, "bad_option"),
        ("DELETE", "/v2/health/live", None, 405, "bad_option"),
        ("POST", "/v2/models/udf_text", None, 405, "bad_option"),
        ("POST", "/v2/models/nobody/infer", infer_body("x"), 404, "unknown_function"),
        ("POST", "/v2/models/a/b/c/infer", infer_body("x"), 404, "unknown_function"),
        ("POST", "/v2/models/../../etc/infer", infer_body("x"), 404, "unknown_function"),
        ("POST", INFER, b"", 400, "the JSON part cannot be parsed"),
        ("POST", INFER, b"{", 400, "the JSON part cannot be parsed"),
        ("POST", INFER, b"[" * 100_000, 400, "the JSON part cannot be parsed"),
        ("POST", INFER, b"\xff\xfe", 400, "the JSON part cannot be parsed"),
        ("POST", INFER, [], 400, "not an object"),
        ("POST", INFER, {}, 400, "no 'inputs'"),
        ("POST", INFER, {"inputs": [{"name": "text"}]}, 400, "bad_option"),
        ("POST", INFER, infer_body("x", name="image_path"), 400, "no input 'image_path'; there are text"),
        ("POST", INFER, infer_body("x", ml_udf_class="best"), 400, "ml_udf_class"),
        ("POST", INFER, infer_body("x", ml_udf_deadline_ms=-5), 504, "deadline_exceeded"),
        ("POST", INFER, infer_body("x", sequence_id=1), 501, "unsupported"),
        ("POST", "/v2/repository/index", b"{", 400, "not JSON"),
        ("POST", "/v2/repository/models/nobody/load", None, 404, "unknown_function"),
        ("POST", "/v2/repository/models/udf_text/load", {"parameters": {"config": "{}"}}, 501, "unsupported"),
        ("POST", "/v2/repository/models/nobody/unload", None, 404, "unknown_function"),
        ("GET", "/v2/cudasharedmemory/status", None, 501, "unsupported"),
        ("PUT", "/v1/functions/x", b"{", 400, "bad_option"),
        ("PUT", "/v1/functions/x", [1], 400, "bad_option"),
        ("PUT", "/v1/functions/x", {"models": ["nobody"]}, 404, "unknown_function"),
        ("PUT", "/v1/functions/x", {"models": ["text_hash"], "policy": "best"}, 400, "no batching policy"),
        ("PUT", "/v1/functions/x", {"models": ["text_hash"], "policy": "os:abort"}, 400, "--allow-import"),
        ("PUT", "/v1/functions/x", {"models": ["text_hash"], "select": "os:abort"}, 400, "--allow-import"),
        ("PUT", "/v1/functions/.x", {"models": ["text_hash"]}, 400, "not a name"),
        ("PUT", "/v1/functions/text_hash", {"models": ["text_hash"]}, 400, "name of a model"),
        ("DELETE", "/v1/functions/nobody", None, 404, "unknown_function"),
        ("DELETE", "/v1/functions/text_hash", None, 404, "unknown_function"),
        ("POST", "/v1/bulk-jobs/x", {"action": ["pause"]}, 400, "say one of"),
        ("POST", "/register", {"directory": "/no/such/folder"}, 400, "cannot be read"),
        ("POST", "/register", {"directory": "relative"}, 400, "absolute"),
        ("POST", "/register", b"{", 400, "bad_option"),
        ("POST", "/register", {}, 400, "bad_option"),
        ("POST", "/classify?function=udf_text", b"x", 400, "takes text, not images"),
        ("POST", "/classify?function=nobody", b"x", 404, "unknown_function"),
        ("POST", "/classify?function=udf_photo&k=0", b"x", 400, "k"),
        ("POST", "/classify?function=udf_photo", b"", 400, "no image"),
        ("POST", "/classify?function=udf_photo", b"not an image", 400, "input_undecodable"),
    ],
)
def test_a_fault_is_told_in_the_one_form(
    oip_server: InferenceServer, method: str, path: str, body: object, status: int, said: str
) -> None:
    reply = call(oip_server.port, method, path, body)
    assert said in reply.error
    assert reply.status == status


@pytest.mark.parametrize("length", ["x", "-1", "99999", "1.5", "", "9" * 5000])
def test_a_header_length_that_cannot_be_is_refused(oip_server: InferenceServer, length: str) -> None:
    reply = call(oip_server.port, "POST", INFER, infer_body("x"), {HEADER_LENGTH: length})
    assert (reply.status, reply.error.startswith("bad_option: ")) == (400, True)


@pytest.mark.parametrize(
    "column",
    [
        struct.pack("<I", 100) + b"short",
        struct.pack("<I", 0xFFFFFFFF),
        b"\x01\x00",
        struct.pack("<I", 1) + b"a" + struct.pack("<I", 1) + b"b",
    ],
)
def test_a_binary_column_that_does_not_fit_is_refused(oip_server: InferenceServer, column: bytes) -> None:
    tensor = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": len(column)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    reply = call(oip_server.port, "POST", INFER, head + column, {HEADER_LENGTH: str(len(head))})
    assert (reply.status, reply.error.startswith("bad_option: ")) == (400, True)


def test_a_raw_body_is_one_row_and_the_reply_is_binary(oip_server: InferenceServer) -> None:
    reply = call(oip_server.port, "POST", INFER, b"a whole review", {HEADER_LENGTH: "0"})
    assert reply.status == 200
    head_bytes = int(reply.headers[HEADER_LENGTH.lower()])
    outputs = json.loads(reply.body[:head_bytes])["outputs"]
    asked_otherwise = call(oip_server.port, "POST", INFER, infer_body("a whole review")).json()["outputs"]
    size = outputs[0]["parameters"]["binary_data_size"]
    label = reply.body[head_bytes : head_bytes + size]
    assert label[4:].decode() == asked_otherwise[0]["data"][0]


def test_a_row_at_fault_is_told_by_row_when_asked_and_fails_the_request_when_not(
    oip_server: InferenceServer,
) -> None:
    path = "/v2/models/udf_photo/infer"
    rows = ("0.jpg", "missing.jpg", "text.jpg")
    by_row = call(
        oip_server.port,
        "POST",
        path,
        infer_body(*rows, name="image_path", outputs=("label", "error", "answered_by")),
    ).json()
    label, error, answered_by = (output["data"] for output in by_row["outputs"])
    assert label[0] != ""
    assert label[1:] == ["", ""]
    assert error[0] == ""
    assert error[1].startswith("input_not_found: ")
    assert error[2].startswith("input_undecodable: ")
    assert answered_by[0] == "photo_net"
    whole = call(oip_server.port, "POST", path, infer_body(*rows, name="image_path"))
    assert whole.status == 400
    assert whole.error.startswith("input_not_found: row 1: ")
    assert "(2 rows at fault)" in whole.error


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("/etc/passwd", "input_forbidden"),
        ("../../etc/passwd", "input_forbidden"),
        ("escape.jpg", "input_forbidden"),
        ("cut.jpg", "input_undecodable"),
        ("bomb.png", "input_too_large"),
        ("", "input_invalid"),
    ],
)
def test_a_path_at_fault_has_its_own_code(oip_server: InferenceServer, row: str, code: str) -> None:
    body = infer_body(row, "0.jpg", name="image_path", outputs=("label", "error"))
    label, error = call(oip_server.port, "POST", "/v2/models/udf_photo/infer", body).json()["outputs"]
    assert error["data"][0].startswith(f"{code}: ")
    assert error["data"][1] == ""
    assert label["data"][1] != ""
