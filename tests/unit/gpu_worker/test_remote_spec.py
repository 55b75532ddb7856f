"""What a manifest may say of a model elsewhere, where rows may go, and what an answer is held to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.model_files.endpoints import AllowedEndpoints, Endpoint, EndpointRefused
from gpu_worker.model_files.json_schema import SchemaError, check_schema, fault_of
from gpu_worker.model_files.remote_spec import remote_from, remote_sha256


def manifest(runtime: str = "openai", task: str = "text-classification", **remote: Any) -> dict[str, Any]:
    return {
        "runtime": runtime,
        "task": task,
        "input": {"form": "text"},
        "remote": {"url": "https://api.example.org/v1/", "model": "m"} | remote,
    }


def test_a_manifest_says_where_a_model_is_and_the_rest_has_its_usual_value() -> None:
    spec = remote_from(manifest(concurrency=2))
    assert spec is not None
    assert (spec.url, spec.model, spec.concurrency, spec.retries) == ("https://api.example.org/v1", "m", 2, 2)
    assert remote_from({"runtime": "onnx"}) is None


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"runtime": "oip"}, "'remote' is missing"),
        (manifest() | {"weights": "model.onnx"}, "no files of its own"),
        (manifest(url=""), "the URL of the endpoint is missing"),
        (manifest(url="ftp://example.org/v1"), "no URL of an endpoint"),
        (manifest(url="https://user:hunter2@example.org/v1"), "no user, password or fragment"),
        (manifest(url="user:hunter2@example.org/v1"), "no URL of an endpoint"),
        (manifest(url="https:/user:hunter2@example.org/v1"), "no URL of an endpoint"),
        (manifest(url="https://example.org/v1?key=hunter2"), "may hold no 'key'"),
        (manifest(url="https://example.org/v1?v=1&api-key=hunter2"), "may hold no 'api-key'"),
        (manifest(url="https://example.org/v1?v=a%26b"), "no escapes"),
        (manifest(url="https://example.org/v1?hunter2"), "must be NAME=VALUE"),
        (manifest(url="https://example.org/v1#hunter2"), "no user, password or fragment"),
        (manifest(url="https://example.org/v1/../admin"), "no plain one"),
        (manifest(url="https://example.org/v1/%2e%2e/admin"), "no plain one"),
        (manifest(api_key="sk-1"), "a key is no part of a manifest"),
        (manifest(model=""), "'remote.model' is missing"),
        (manifest(concurrency=0), "'remote.concurrency' must be a whole number from 1 to 32"),
        (manifest(retries=1.5), "'remote.retries' must be a whole number"),
        (manifest(timeout_ms=float("nan")), "'remote.timeout_ms' must be a number"),
        (manifest(temperature=True), "'remote.temperature' must be a number"),
        (manifest(logprobs="yes"), "'remote.logprobs' must be true or false"),
        (manifest(prompt="Of {{name}}?"), "no value for {{name}}"),
        (manifest(schema={"type": "object"}), "is of a generated text"),
        (manifest(task="text-generation", schema={"type": "object", "pattern": "x"}), "keyword 'pattern'"),
        (manifest("oip", datatype="FP8"), "'remote.datatype' must be one of BYTES"),
        (manifest("oip", version="1/../2"), "'remote.version' must be"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_with_its_field(said: dict[str, Any], says: str) -> None:
    if said.get("runtime") == "oip" and "remote" in said:
        said["remote"].pop("model")
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        remote_from(said)
    assert "hunter2" not in str(refused.value), "a password is never repeated"


def test_columns_of_a_row_may_stand_in_a_template() -> None:
    said = manifest(prompt="{{age}} of {{row}}", task="tabular-classification")
    said["input"] = {"form": "row", "columns": [{"name": "age", "kind": "number"}]}
    assert remote_from(said) is not None
    said["remote"]["prompt"] = "{{text}}"
    with pytest.raises(ValueError, match=r"\['age', 'row'\]"):
        remote_from(said)


def test_a_version_that_is_asked_otherwise_is_another() -> None:
    one, same, other = manifest(), manifest(), manifest(prompt="What? {{text}}")
    assert remote_sha256(one) == remote_sha256(same) != remote_sha256(other)


@pytest.mark.parametrize(
    ("prefix", "url", "is_allowed"),
    [
        ("https://example.org", "https://example.org/v1", True),
        ("https://example.org/v1", "https://example.org/v1", True),
        ("https://example.org/v1/", "https://example.org/v1/models/m", True),
        ("https://EXAMPLE.org:443/v1", "https://example.org/v1/m", True),
        ("https://example.org/v1", "https://example.org/v10", False),
        ("https://example.org/v1", "https://example.org", False),
        ("https://example.org/v1", "http://example.org/v1", False),
        ("https://example.org/v1", "https://example.org:8443/v1", False),
        ("https://example.org/v1", "https://example.org.evil.net/v1", False),
        ("http://[::1]:8000", "http://[::1]:8000/v2/models/m", True),
    ],
)
def test_a_prefix_allows_what_lies_below_it_and_nothing_else(prefix: str, url: str, is_allowed: bool) -> None:
    allowed = AllowedEndpoints((prefix,))
    if is_allowed:
        assert allowed.check(url) == ""
    else:
        with pytest.raises(EndpointRefused, match="--allow-remote"):
            allowed.check(url)


def test_the_key_of_the_longest_prefix_is_sent() -> None:
    allowed = AllowedEndpoints(("https://example.org=/keys/a", "https://example.org/v1=/keys/b"))
    assert allowed.check("https://example.org/v1/m") == "/keys/b"
    assert allowed.check("https://example.org/v2/m") == "/keys/a"


def test_http_leaves_the_machine_only_where_that_is_said_too() -> None:
    plain = ("http://192.0.2.1:8000",)
    with pytest.raises(EndpointRefused, match="--allow-remote-plain"):
        AllowedEndpoints(plain).check("http://192.0.2.1:8000/v2")
    assert AllowedEndpoints(plain, allow_plain=True).check("http://192.0.2.1:8000/v2") == ""
    assert AllowedEndpoints(("http://localhost:1",)).check("http://localhost:1/v2") == ""


@pytest.mark.parametrize("prefix", ["", "example.org", "https://example.org=key", "https://a@example.org"])
def test_a_prefix_that_is_none_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"URL|key file"):
        AllowedEndpoints((prefix,))


def test_an_endpoint_is_written_in_one_way() -> None:
    assert str(Endpoint.parse("HTTPS://Example.org:443/v1/")) == "https://example.org/v1"
    assert str(Endpoint.parse("http://[::1]:8000/v2")) == "http://[::1]:8000/v2"


def test_a_query_goes_with_each_request_and_changes_nothing_of_what_is_allowed() -> None:
    azure = Endpoint.parse("https://food.openai.azure.com/openai/deployments/small/?api-version=2024-10-21")
    assert str(azure) == "https://food.openai.azure.com/openai/deployments/small?api-version=2024-10-21"
    assert azure.target(azure.path + "/embeddings").endswith("/small/embeddings?api-version=2024-10-21")
    allowed = AllowedEndpoints(("https://food.openai.azure.com/openai",))
    assert allowed.check(str(azure)) == ""
    with pytest.raises(ValueError, match="query"):
        AllowedEndpoints(("https://example.org/v1?a=/keys/b",))


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        ("sk-1\n", {"Authorization": "Bearer sk-1"}),
        ("api-key: sk-1\n", {"api-key": "sk-1"}),
        ("X-Api-Key:  sk:1", {"X-Api-Key": "sk:1"}),
        ("sk:1", {"Authorization": "Bearer sk:1"}),
    ],
)
def test_a_key_file_may_name_the_header_of_its_key(
    tmp_path: Path, content: str, headers: dict[str, str]
) -> None:
    (tmp_path / "key").write_text(content)
    (tmp_path / "key").chmod(0o600)
    found = AllowedEndpoints((f"https://example.org={tmp_path}/key",)).key_for("https://example.org/v1")
    assert found.headers == headers
    assert found.word not in repr(found)


@pytest.mark.security
@pytest.mark.parametrize(
    "content",
    [
        "",
        "two words",
        "Host: a",
        "Content-Length: 1",
        "a b: c",
        "x\ny: c",
        "api-key: ",
        "api-key: a\r\nX: b",
        "é: k",
    ],
)
def test_a_key_file_that_would_change_the_request_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(EndpointRefused, match="key") as refused:
        AllowedEndpoints((f"https://example.org={tmp_path}/key",)).key_for("https://example.org/v1")
    assert "words" not in str(refused.value)


SCHEMA = {
    "type": "object",
    "properties": {
        "dish": {"type": "string", "enum": ["laksa", "pizza"]},
        "price": {"type": "number", "minimum": 0, "maximum": 100},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "exact": {"const": 1},
    },
    "required": ["dish"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"dish": "laksa"}, None),
        ({"dish": "laksa", "price": 3, "tags": ["a", "b"], "note": None, "exact": 1}, None),
        ([], "$ is [], not of type object"),
        ({}, "$ has no 'dish'"),
        ({"dish": "soup"}, "$.dish is 'soup', none of ['laksa', 'pizza']"),
        ({"dish": "laksa", "price": "3"}, "$.price is '3', not of type number"),
        ({"dish": "laksa", "price": True}, "$.price is True, not of type number"),
        ({"dish": "laksa", "price": -1}, "$.price is -1, outside 0…100"),
        ({"dish": "laksa", "price": float("nan")}, "$.price is nan, no finite number"),
        ({"dish": "laksa", "tags": ["a", "b", "c"]}, "$.tags has 3 items, not 0…2"),
        ({"dish": "laksa", "tags": ["long"]}, "$.tags[0] has 4 length, not 0…3"),
        ({"dish": "laksa", "note": 1}, "$.note is 1, not of type string"),
        ({"dish": "laksa", "exact": True}, "$.exact is True, not 1"),
        ({"dish": "laksa", "more": 1}, "$ has 'more', which the schema does not know"),
    ],
)
def test_an_answer_that_breaks_its_schema_is_told_where(value: object, fault: str | None) -> None:
    assert fault_of(value, check_schema(SCHEMA)) == fault


@pytest.mark.parametrize(
    "schema",
    [
        1,
        {"type": "text"},
        {"$ref": "#/x"},
        {"enum": []},
        {"minimum": "1"},
        {"properties": []},
        {"properties": {"a": {"format": "date"}}},
        {"items": 3},
        {"additionalProperties": 1},
        {"type": 5},
        {"required": [[]]},
    ],
)
def test_a_schema_that_says_what_is_not_checked_is_refused(schema: object) -> None:
    with pytest.raises(SchemaError):
        check_schema(schema)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(SchemaError, match="nested"):
        check_schema(schema)
