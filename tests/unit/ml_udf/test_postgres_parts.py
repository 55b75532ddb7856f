"""The parts of the PostgreSQL side that need no PostgreSQL: texts of functions, fitting values, latencies."""

from __future__ import annotations

import ast
import json
import math
import re
import struct
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_udf.client.exchange import AnswerDetail
from ml_udf.client.statement import Outcome
from ml_udf.errors import BadOption, InputNotFound, WrongType
from ml_udf.postgres.binary import binary as binary_form
from ml_udf.postgres.binary import binary_reals, flat_reals, reals_of
from ml_udf.postgres.columns import ColumnFunction
from ml_udf.postgres.endpoints import Endpoints
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.latency_histogram import LatencyHistogram
from ml_udf.postgres.values import composite, detailed, fitted
from ml_udf.postgres.wrapper import Wrapper

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


def wrapper(name: str = "f", function: str = "f", **fields: str) -> Wrapper:
    plain = Wrapper(
        schema="public",
        name=name,
        argument="text",
        returns="text",
        server="s",
        function=function,
        parallel="UNSAFE",
    )
    for field, value in fields.items():
        setattr(plain, field, value)
    return plain


def body_of(statement: str) -> str:
    """The body that PostgreSQL would read from the literal at the end of CREATE FUNCTION."""
    literal = re.search(r" E'(.*)'\Z", statement, re.DOTALL)
    assert literal
    return re.sub(r"\\\\|''", lambda escaped: escaped[0][0], literal[1])


@given(names, names, names)
def test_whatever_the_names_are_the_body_is_two_lines_of_python_that_hold_them(
    name: str, function: str, server: str
) -> None:
    scalar, batch = wrapper(name, function, server=server).create()
    for statement, entry in ((scalar, "scalar"), (batch, "batch")):
        tree = ast.parse(body_of(statement).replace("\nreturn ", "\n", 1))
        assert len(tree.body) == 2
        call = tree.body[1].value  # type: ignore[attr-defined]  # an expression
        assert call.func.attr == entry
        assert ast.literal_eval(call.args[0]) == {"server": server, "function": function, "returns": "text"}
        record = re.search(rf"\.{entry}\((\{{.*\}}), inputs?\)\Z", body_of(statement), re.DOTALL)
        assert record
        assert json.loads(record[1])["function"] == function  # as the view reads it


@given(names)
def test_identifiers_cannot_be_left(name: str) -> None:
    signature = wrapper(name).signature
    assert signature == f'"public"."{name.replace(chr(34), chr(34) * 2)}"(text)'


def test_vectors_have_a_twin_of_bytes_and_other_arrays_none() -> None:
    numbers = wrapper(argument="double precision[]", returns="real[]")
    assert numbers.signatures()[1] == ("f_batch", "ml_udf.float8_vector[]", "bytea[]")
    older = replace(numbers, twin_is_binary=False)
    assert older.signatures()[1] == ("f_batch", "ml_udf.float8_vector[]", "ml_udf.float4_vector[]")
    assert wrapper(returns="text[]").signatures()[1] == ("f_batch", "text[]", "bytea[]")
    assert wrapper(returns="shop.vector").signatures()[1] == ("f_batch", "text[]", "bytea[]")
    assert len(wrapper(returns="numeric[]").signatures()) == 1


@pytest.mark.parametrize(("sql_type", "code", "size"), [("real[]", "f", 4), ("double precision[]", "d", 8)])
@given(numbers=st.lists(st.floats(width=32), max_size=20))
def test_a_vector_in_binary_is_a_header_and_each_number_with_its_size(
    sql_type: str, code: str, size: int, numbers: list[float]
) -> None:
    binary = binary_form(numbers, sql_type)
    dimensions, nulls, _ = struct.unpack_from(">iiI", binary)
    assert (dimensions, nulls) == (1 if numbers else 0, 0)
    if numbers:
        assert struct.unpack_from(">ii", binary, 12) == (len(numbers), 1)
    found = list(struct.iter_unpack(f">i{code}", binary[20:]))
    assert [each for each, _ in found] == [size] * len(numbers)
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for (_, a), b in zip(found, numbers, strict=True))


@given(vectors=st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2), max_size=5))
def test_vectors_one_after_the_other_are_one_array(vectors: list[list[float]]) -> None:
    flat = flat_reals([array("f", vector) for vector in vectors])
    assert flat == binary_form([number for vector in vectors for number in vector], "real[]")


@given(
    vectors=st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.floats(width=32), min_size=width, max_size=width), min_size=1, max_size=4
        )
    )
)
def test_vectors_one_after_the_other_are_arrays_each_and_read_back(vectors: list[list[float]]) -> None:
    made = binary_reals([array("f", vector) for vector in vectors])
    each = [binary_form(vector, "real[]") for vector in vectors]
    assert made == b"".join(each)
    for vector, value in zip(vectors, each, strict=True):
        assert reals_of(value) == pytest.approx(vector, nan_ok=True)


@given(texts=st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), max_size=5))
def test_texts_in_binary_are_a_header_and_each_text_with_its_size(texts: list[str]) -> None:
    binary = binary_form(texts, "text[]")
    assert struct.unpack_from(">iiI", binary) == (1 if texts else 0, 0, 25)
    at, found = 20, []
    while at < len(binary):
        (size,) = struct.unpack_from(">i", binary, at)
        found.append(binary[at + 4 : at + 4 + size].decode())
        at += 4 + size
    assert found == texts


def test_the_numbers_of_a_vector_may_be_texts_in_binary() -> None:
    assert binary_form(array("f", [1.0, 0.5]), "text[]") == binary_form(["1.0", "0.5"], "text[]")


def test_a_vector_of_pgvector_in_binary_is_its_dimensions_and_numbers() -> None:
    assert binary_form([1.0, 0.5], "public.vector") == struct.pack(">hhff", 2, 0, 1.0, 0.5)
    for numbers in ([], [0.0] * 16_001):
        with pytest.raises(WrongType, match="a vector has 1 to 16000"):
            binary_form(numbers, "vector")


@pytest.mark.parametrize("numbers", [[1e39], ["a", "b"], [None]])
def test_what_is_no_vector_of_the_type_is_an_answer_of_the_wrong_type(numbers: list[Any]) -> None:
    with pytest.raises(WrongType):
        binary_form(numbers, "real[]")


@pytest.mark.parametrize(
    ("value", "sql_type", "wanted"),
    [
        ("laksa", "text", "laksa"),
        (None, "bytea", None),
        ("x", "bytea", b"x"),
        (3.0, "integer", 3),
        (2.5, "double precision", 2.5),
        ("FALSE", "boolean", False),
        (1, "boolean", True),
        ([1.0, 2.0], "real[]", [1.0, 2.0]),
        ([1.0, 2.0], "jsonb", "[1.0, 2.0]"),
        ('{"a": 1}', "jsonb", '{"a": 1}'),
    ],
)
def test_answers_fit_their_type(value: object, sql_type: str, wanted: object) -> None:
    assert fitted([value, None], sql_type) == [wanted, None]


@pytest.mark.parametrize(
    ("value", "sql_type"), [(b"\xff", "text"), ([1.0, 2.0], "boolean"), ("maybe", "boolean")]
)
def test_answers_that_do_not_fit_are_refused_with_the_way_out(value: object, sql_type: str) -> None:
    with pytest.raises(BadOption) as caught:
        fitted([value], sql_type)
    assert "returns =>" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "sql_type"),
    [("a\0b", "text"), ("a\0b", "character varying"), ("a\0", "shop.dish"), (r'["a\u0000"]', "text[]")],
)
def test_a_zero_character_fits_no_text(value: str, sql_type: str) -> None:
    with pytest.raises(WrongType, match="holds a zero character"):
        fitted([value], sql_type)
    assert fitted([value.encode()], "bytea") == [value.encode()]


@pytest.mark.parametrize(
    ("label", "columns"), [("a\0b", r'{"label": "a\u0000b"}'), ("a", r'{"label": "a", "other": "\\\u0000"}')]
)
def test_a_row_with_a_zero_character_in_any_column_is_a_fault(label: str, columns: str) -> None:
    found = detailed(Outcome(label, 0.5, None, AnswerDetail((), None, None, None, columns)), "3")
    assert found is not None
    assert found["error"].startswith("wrong_type: the answer ")
    assert (found["value"], found["columns"], found["model_version"]) == (None, None, "3")
    kept = detailed(Outcome("a", 0.5, None, AnswerDetail((), None, None, None, r'{"a": "\\u0000"}')), "3")
    assert kept is not None
    assert kept["columns"] == r'{"a": "\\u0000"}'  # a backslash and five letters


def test_a_prediction_has_a_value_or_an_error_and_null_is_null() -> None:
    assert composite(Outcome(), "3") is None
    assert composite(Outcome("laksa", 0.75), "3") == {
        "value": "laksa",
        "confidence": 0.75,
        "model_version": "3",
        "error": None,
    }
    failed = composite(Outcome(error=InputNotFound("there is no file x")), "3")
    assert failed is not None
    assert failed["error"] == "input_not_found: there is no file x"


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantiles_are_within_ten_percent(durations: list[float], share: float) -> None:
    latencies = LatencyHistogram()
    for seconds in durations:
        latencies.add(seconds)
    ordered, rank = sorted(durations), math.ceil(share * len(durations)) - 1
    below, above = ordered[max(0, rank - 1)], ordered[min(len(ordered) - 1, rank + 1)]
    found = latencies.quantile_s(share)
    assert found is not None
    assert below / 1.1 <= found <= above * 1.1  # a neighbour: share × n is not exact


def test_nothing_has_no_quantile() -> None:
    assert LatencyHistogram().quantile_s(0.5) is None


@pytest.mark.security
def test_of_several_endpoints_each_has_to_be_allowed(tmp_path: Path) -> None:
    nothing: Any = None
    endpoints = Endpoints(nothing, nothing, "")
    endpoints._allowed = tmp_path / "servers.allow"
    endpoints._allowed.write_text("a.example\nb.example:8443\n")
    endpoints._allowed.chmod(0o644)
    endpoints._check_allowed("https://a.example, https://b.example:8443")
    for url in ("https://a.example,https://inside:8080", "https://inside:8080,https://a.example"):
        with pytest.raises(PostgresError, match="permission denied for the endpoint https://inside:8080"):
            endpoints._check_allowed(url)


def test_parameters_are_named_as_postgresql_keeps_them() -> None:
    long = "c" * 60
    columns = [(name, "number") for name in ("a", "A", long + "1234", long + "1235", "é" * 32, "")]
    made = ColumnFunction("public", "f", columns, "text", "safe", None)
    assert made.names == ["a", "A", long + "123", long + "1_1", "é" * 31, "column"]
    assert f'"{long}1_1" double precision, ' in made.create("")[0]


def test_more_columns_than_a_function_takes_are_refused_with_what_takes_them() -> None:
    def made(columns: int) -> ColumnFunction:
        numbers = [(f"c{number}", "number") for number in range(columns)]
        return ColumnFunction("public", "f", numbers, "text", "safe", None)

    assert made(100).create("")
    with pytest.raises(PostgresError, match="f takes 101 columns") as caught:
        made(101).create("")
    assert (caught.value.sqlstate, "to_jsonb(t)::text" in caught.value.hint) == ("54023", True)
