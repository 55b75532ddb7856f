"""An unmodified `tritonclient.http` works with our server as with Triton."""

from __future__ import annotations

import http.client
import json
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from ml_udf.oip import (
    HEADER_LENGTH,
    InferRequest,
    RequestedOutput,
    Tensor,
    decode_response,
    encode_request,
)
from tests.inference_server import InferenceServer
from tests.models import CLASSES


@pytest.fixture(scope="module")
def client(oip_server: InferenceServer) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(f"127.0.0.1:{oip_server.port}", concurrency=8)
    yield made
    made.close()


def texts(*rows: str, binary: bool = True, shape: list[int] | None = None) -> list[triton.InferInput]:
    column = np.array([row.encode() for row in rows], dtype=np.object_).reshape(shape or [len(rows)])
    tensor = triton.InferInput("text", list(column.shape), "BYTES")
    tensor.set_data_from_numpy(column, binary_data=binary)
    return [tensor]


def expected(*rows: str) -> list[bytes]:
    return [CLASSES[zlib.crc32(row.encode()) % len(CLASSES)].encode() for row in rows]


def test_the_server_and_its_models_are_healthy(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("udf_text")
    assert client.is_model_ready("udf_text", "1")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("udf_text", "99")


def test_the_metadata_names_inputs_outputs_and_versions(client: triton.InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert server["name"] == "ml_udf"
    assert {"ml_udf", "binary_tensor_data", "statistics", "model_repository"} <= set(server["extensions"])
    model = client.get_model_metadata("udf_text")
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert [output["name"] for output in model["outputs"]] == ["label", "confidence", "scores"]
    assert model["outputs"][2]["shape"] == [-1, len(CLASSES)]
    assert model["parameters"]["classes"] == list(CLASSES)
    assert client.get_model_metadata("udf_text", "1") == model


def test_the_config_tells_the_batch_size_and_the_types(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("udf_photo")
    assert config["max_batch_size"] == 256
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    assert config["dynamic_batching"]["preferred_batch_size"][-1] == 256


def test_the_index_lists_functions_and_models(client: triton.InferenceServerClient) -> None:
    states = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
    assert states["udf_text"] == states["text_hash"] == "READY"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_bytes_go_in_and_labels_come_out_in_json_and_binary(
    client: triton.InferenceServerClient, binary_in: bool, binary_out: bool
) -> None:
    rows = ("one", "two", "größer", "")
    outputs = [triton.InferRequestedOutput(n, binary_data=binary_out) for n in ("label", "confidence")]
    result = client.infer("udf_text", texts(*rows, binary=binary_in), outputs=outputs, request_id="r1")
    assert result.get_response()["id"] == "r1"
    assert result.get_response()["model_version"] == "1"
    labels = [label if isinstance(label, bytes) else label.encode() for label in result.as_numpy("label")]
    assert labels == expected(*rows)
    assert result.as_numpy("confidence").dtype == np.float32
    assert result.as_numpy("confidence").tolist() == [1.0] * 4
    assert result.as_numpy("scores") is None


def test_without_named_outputs_label_and_confidence_come_in_binary(
    client: triton.InferenceServerClient,
) -> None:
    result = client.infer("udf_text", texts("one", "two"))
    assert result.as_numpy("label").tolist() == expected("one", "two")
    assert result.as_numpy("confidence").tolist() == [1.0, 1.0]
    assert result.as_numpy("scores") is None


def test_scores_come_to_who_asks_for_them(client: triton.InferenceServerClient) -> None:
    asked = [triton.InferRequestedOutput("scores")]
    scores = client.infer("udf_text", texts("one", "two"), outputs=asked).as_numpy("scores")
    assert scores.shape == (2, len(CLASSES))
    assert [CLASSES[i].encode() for i in scores.argmax(axis=1)] == expected("one", "two")


def test_a_version_in_the_path_answers_and_a_bare_model_does_too(
    client: triton.InferenceServerClient,
) -> None:
    for name in ("udf_text", "text_hash"):
        result = client.infer(name, texts("x"), model_version="1")
        assert result.as_numpy("label").tolist() == expected("x")
        assert result.get_response()["model_name"] == name


def test_a_batch_of_one_wide_rows_is_a_column(client: triton.InferenceServerClient) -> None:
    result = client.infer("udf_text", texts("one", "two", shape=[2, 1]))
    assert result.as_numpy("label").tolist() == expected("one", "two")


@pytest.mark.parametrize("binary", [True, False])
def test_pixels_go_in_as_float32(client: triton.InferenceServerClient, binary: bool) -> None:
    pixels = np.random.default_rng(1).normal(size=(3, 3, 64, 64)).astype(np.float32)
    tensor = triton.InferInput("pixels", [3, 3, 64, 64], "FP32")
    tensor.set_data_from_numpy(pixels, binary_data=binary)
    asked = [triton.InferRequestedOutput(name) for name in ("label", "scores")]
    result = client.infer("udf_photo", [tensor], outputs=asked)
    assert result.as_numpy("label").shape == (3,)
    assert result.as_numpy("scores").sum(axis=1) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_compressed_request_is_understood(client: triton.InferenceServerClient, algorithm: str) -> None:
    result = client.infer(
        "udf_text",
        texts("one"),
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert result.as_numpy("label").tolist() == expected("one")


def test_requests_in_flight_at_once_get_their_own_answers(client: triton.InferenceServerClient) -> None:
    waiting = [(str(i), client.async_infer("udf_text", texts(str(i)))) for i in range(64)]
    for row, request in waiting:
        assert request.get_result().as_numpy("label").tolist() == expected(row)


def test_ten_thousand_rows_in_one_request_come_back_in_order(client: triton.InferenceServerClient) -> None:
    rows = [f"row {i}" for i in range(10_000)]
    outputs = [triton.InferRequestedOutput("label", binary_data=True)]
    result = client.infer("udf_text", texts(*rows), outputs=outputs)
    assert result.as_numpy("label").tolist() == expected(*rows)


def test_no_rows_are_answered_with_no_rows(client: triton.InferenceServerClient) -> None:
    column = triton.InferInput("text", [0], "BYTES")
    column.set_data_from_numpy(np.array([], dtype=np.object_), binary_data=False)
    result = client.infer(
        "udf_text", [column], outputs=[triton.InferRequestedOutput("label", binary_data=False)]
    )
    assert result.as_numpy("label").shape == (0,)


def test_the_statistics_count_rows_and_batches(client: triton.InferenceServerClient) -> None:
    def counts() -> dict[str, int]:
        (stats,) = client.get_inference_statistics("udf_text")["model_stats"]
        assert (stats["name"], stats["version"]) == ("udf_text", "1")
        for part in (
            "success",
            "queue",
            "compute_input",
            "compute_infer",
            "compute_output",
            "cache_hit",
            "cache_miss",
        ):
            assert set(stats["inference_stats"][part]) == {"count", "ns"}
        return {
            "rows": stats["inference_count"],
            "batches": stats["execution_count"],
            "success": stats["inference_stats"]["success"]["count"],
        }

    before = counts()
    client.infer("udf_text", texts("never asked", "nor this", "nor that"))  # else it is no batch
    after = counts()
    assert {key: after[key] - before[key] for key in after} == {"rows": 3, "batches": 1, "success": 1}
    names = {stats["name"] for stats in client.get_inference_statistics()["model_stats"]}
    assert {"udf_text", "text_hash"} <= names


def test_timeout_and_priority_are_honoured(client: triton.InferenceServerClient) -> None:
    assert client.infer("udf_text", texts("x"), priority=1, timeout=5_000_000).as_numpy("label").size == 1
    with pytest.raises(InferenceServerException, match="deadline_exceeded") as late:
        client.infer("udf_slow", texts("x"), timeout=200_000)
    assert late.value.status() == "504"


def test_errors_are_the_clients_own_exceptions(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="unknown_function: there is no") as unknown:
        client.infer("nobody", texts("x"))
    assert unknown.value.status() == "404"
    with pytest.raises(InferenceServerException, match="version_gone") as gone:
        client.infer("udf_text", texts("x"), model_version="99")
    assert gone.value.status() == "410"
    with pytest.raises(InferenceServerException, match="bad_option: there is no output 'boxes'"):
        client.infer("udf_text", texts("x"), outputs=[triton.InferRequestedOutput("boxes")])
    with pytest.raises(InferenceServerException, match="unsupported") as unsupported:
        client.infer("udf_text", texts("x"), outputs=[triton.InferRequestedOutput("label", class_count=2)])
    assert unsupported.value.status() == "501"
    wrong = triton.InferInput("text", [1], "INT32")
    wrong.set_data_from_numpy(np.array([1], np.int32))
    with pytest.raises(InferenceServerException, match="must be BYTES"):
        client.infer("udf_text", [wrong])
    with pytest.raises(InferenceServerException, match="unknown_function"):
        client.get_model_metadata("nobody")
    with pytest.raises(InferenceServerException, match="unsupported"):
        client.get_system_shared_memory_status()
    with pytest.raises(InferenceServerException, match="unsupported"):
        client.get_trace_settings()
    with pytest.raises(InferenceServerException, match="unsupported"):
        client.get_log_settings()


def test_infer_and_everything_else_take_turns_on_one_connection(oip_server: InferenceServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", oip_server.port, timeout=60)

    def asked(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()

    def labels(*rows: str, **parameters: int) -> list[bytes]:
        column = Tensor.of_bytes("text", [row.encode() for row in rows])
        wanted = [RequestedOutput("label")]
        body, headers = encode_request(InferRequest([column], wanted, parameters=parameters))
        connection.request("POST", "/v2/models/udf_text/infer", body, headers)
        reply = connection.getresponse()
        assert reply.status == 200
        output = decode_response(reply.read(), reply.headers[HEADER_LENGTH]).output("label")
        assert output is not None
        return output.elements

    rows = [("one",), ("two", "three"), ("größer",), ("",), ("one", "two", "three")]
    for number, row in enumerate(rows * 3):
        assert labels(*row, timeout=50_000_000 + number) == expected(*row)
        assert labels(*row) == expected(*row)
        assert asked("GET", "/v2/health/live") == (200, b"")
        status, text = asked("POST", "/v2/models/nobody/infer", b"{}")
        assert (status, b"unknown_function" in text) == (404, True)
        wrong = b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [5]}]}'
        assert asked("POST", "/v2/models/udf_text/infer", wrong)[0] == 400
    told = json.loads(asked("GET", "/v1/front")[1])
    connection.close()
    assert told["front"] == ("native" if "native" in oip_server.home.name else "python")
    assert told["why"]
    assert told["core"]["name"] in ("compiled", "python")
    assert told["core"]["why"]
