"""Rows that the server had answered before: every view that shows them counts the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from ml_udf.config import Options
from tests.engines import Engine, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of

ROWS = 10


@pytest.fixture(scope="module")
def keeping(open_folder: Path) -> Iterator[InferenceServer]:
    """A server that keeps answers."""
    with inference_server(open_folder / "keeping", flags=["--answer-cache-bytes=16777216"]) as running:
        running.deploy(hashing_model(open_folder / "kept", "text_hash"), "udf_text")
        yield running


@pytest.fixture
def engine(engine_name: str, keeping: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, keeping.url, request, ["udf_text"])
    yield made
    made.close()


@pytest.fixture
def texts() -> list[str]:
    """That nobody has asked."""
    return [f"{uuid4()} {number}" for number in range(ROWS)]


def answers(texts: list[str]) -> str:
    rows = ", ".join(f"('{text}')" for text in texts)
    return f"SELECT udf_text(t) FROM (VALUES {rows}) AS v(t)"


def asked(engine: Engine) -> tuple[int, int]:
    """Rows that this session sent, and those of them that had been answered before."""
    rows = engine.query("SELECT rows_sent, cached_rows FROM ml_udf.stat_functions WHERE name = 'udf_text'")
    return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)


def deployed(engine: Engine) -> tuple[int, ...]:
    """Rows of all callers, and what became of them."""
    ((is_current, *counts),) = engine.query(
        "SELECT is_current, rows, cached_rows, computed_rows, cache_entries FROM ml_udf.deployments "
        "WHERE function = 'udf_text' ORDER BY CAST(version AS INTEGER) DESC LIMIT 1"
    )
    assert is_current
    return tuple(map(int, counts))


def test_a_session_counts_the_rows_that_had_been_answered_before(engine: Engine, texts: list[str]):
    sent, cached = asked(engine)
    engine.query(answers(texts))
    assert asked(engine) == (sent + ROWS, cached)
    rows = engine.query(answers(texts))
    assert sorted(rows) == sorted((label_of(text),) for text in texts)
    assert asked(engine) == (sent + 2 * ROWS, cached + ROWS)


def test_a_deployment_counts_them_for_all_its_callers(engine: Engine, texts: list[str]):
    rows, cached, computed, entries = deployed(engine)
    engine.query(answers(texts))
    engine.query(answers(texts))
    assert deployed(engine) == (rows + 2 * ROWS, cached + ROWS, computed + ROWS, entries + ROWS)


def test_explain_shows_how_many_inputs_of_each_call_had_been_answered(engine: Engine, texts: list[str]):
    if engine.name != "postgres":
        pytest.skip("the plan node alone shows its calls")
    query = f"EXPLAIN (ANALYZE) {answers(texts)}"
    first, second = ("\n".join(line for (line,) in engine.query(query)) for _ in range(2))
    assert "Cached" not in first
    assert f"Cached: {ROWS} of {ROWS} inputs answered before" in second


def test_the_protocols_statistics_count_calls_that_hit_and_others(
    engine: Engine, keeping: InferenceServer, texts: list[str]
):
    def counted() -> tuple[int, int]:
        with keeping.client() as client:
            (stats,) = client.get("/v2/models/udf_text/stats")["model_stats"]
        found = stats["inference_stats"]
        return found["cache_hit"]["count"], found["cache_miss"]["count"]

    hits, misses = counted()
    engine.query(answers(texts))
    assert counted()[0] == hits
    assert counted()[1] > misses
    engine.query(answers(texts))
    assert counted()[0] > hits


def test_the_metrics_count_them_by_version(keeping: InferenceServer, texts: list[str]):
    with keeping.client() as client:
        for _ in range(2):
            client.predict("udf_text", texts, Options())
    counted = httpx.get(f"{keeping.url}/metrics").text
    named = {
        line.partition(" ")[0]: float(line.partition(" ")[2])
        for line in counted.splitlines()
        if "cache" in line and line[0] != "#"
    }
    of = '{function="udf_text",version="1"}'
    for counter in ("cache_hits_total", "cache_misses_total", "cache_entries", "cache_bytes"):
        assert named[f"ml_udf_{counter}{of}"] >= ROWS
