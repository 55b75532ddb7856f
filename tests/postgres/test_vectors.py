"""Vectors as results: arrays, jsonb, and the types of pgvector."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import oip_server

# The texts '1', '22' and NULL; `embed` answers each with its length, and a half.
MANY = "ARRAY['1', NULL, '22']"


@pytest.fixture
def embedding(postgres_engine: Callable[..., Engine]) -> Iterator[Engine]:
    with oip_server(ours=False) as foreign:
        foreign.functions["embed"] = "text"
        yield postgres_engine(foreign.url)


def test_a_vector_is_an_array(embedding: Engine) -> None:
    embedding.query("SELECT ml_udf.create_function('embed', returns => 'float4[]')")
    assert embedding.value("SELECT embed('22')") == [2.0, 0.5]
    ((sent,),) = embedding.query("SELECT array_send(ARRAY[2, 0.5]::real[])")
    assert embedding.value(f"SELECT (embed_batch({MANY}))[2:]") == [None, sent]


@pytest.mark.parametrize("kind", ["float4[]", "float8[]"])
def test_a_twin_that_returns_composites_keeps_its_form(embedding: Engine, kind: str) -> None:
    """As those of version 0.3 do: they may be granted to roles, so they are not dropped."""
    vector = f"ml_udf.{kind.removesuffix('[]')}_vector"
    embedding.query(f"SELECT ml_udf.create_function('embed', returns => '{kind}')")
    ((text,),) = embedding.query("SELECT pg_get_functiondef('embed_batch'::regproc)")
    embedding.query("DROP FUNCTION embed_batch")
    embedding.query(text.replace("bytea[]", f"{vector}[]").replace(', "results": "binary"', ""))
    for _ in range(2):
        assert embedding.query(f"SELECT vector FROM unnest(embed_batch({MANY}))") == [
            ([1.0, 0.5],),
            (None,),
            ([2.0, 0.5],),
        ]
        embedding.query(f"SELECT ml_udf.create_function('embed', returns => '{kind}')")


def test_a_vector_is_json(embedding: Engine) -> None:
    embedding.query("SELECT ml_udf.create_function('embed', returns => 'jsonb')")
    assert embedding.value("SELECT embed('22')") == [2.0, 0.5]
    assert embedding.value(f"SELECT embed_batch({MANY})") == [[1.0, 0.5], None, [2.0, 0.5]]


def test_a_vector_is_no_number(embedding: Engine) -> None:
    with pytest.raises(psycopg.errors.DatatypeMismatch, match="embed answers vectors") as refused:
        embedding.query("SELECT ml_udf.create_function('embed', returns => 'float8')")
    assert "answered a vector of 2 numbers" in (refused.value.diag.message_detail or "")
    assert "leave returns out for real[]" in (refused.value.diag.message_hint or "")


def test_a_vector_is_written_as_the_types_of_pgvector_read_it(embedding: Engine) -> None:
    embedding.query("CREATE DOMAIN vector AS text")  # of its name; the real one below
    embedding.query("SELECT ml_udf.create_function('embed', returns => 'vector')")
    assert embedding.value("SELECT embed('22')::text") == "[2.0, 0.5]"
    assert embedding.value(f"SELECT embed_batch({MANY})::text[]") == ["[1.0, 0.5]", None, "[2.0, 0.5]"]


@pytest.mark.parametrize("kind", ["vector", "halfvec"])
def test_a_vector_is_one_of_pgvector(embedding: Engine, kind: str) -> None:
    if not embedding.query("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("PGVECTOR NOT TESTED: it is not installed")
    embedding.query("CREATE EXTENSION vector")
    embedding.query("SELECT ml_udf.create_function('embed', returns => %s::regtype)", kind)
    assert embedding.value("SELECT embed('22')::text") == "[2,0.5]"
    assert embedding.value("SELECT embed('22') <-> embed('1')") == 1.0
    if kind == "vector":  # in its binary format
        sent = embedding.value(
            'SELECT array_agg(vector_send(v)) FROM unnest(\'{"[1,0.5]","[2,0.5]"}\'::vector[]) v'
        )
        assert embedding.value(f"SELECT embed_batch({MANY})") == [sent[0], None, sent[1]]
    else:
        assert embedding.value(f"SELECT embed_batch({MANY})::text[]") == ["[1,0.5]", None, "[2,0.5]"]
    embedding.query("DROP EXTENSION vector CASCADE")
