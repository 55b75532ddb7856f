"""An embedding in SQL: a typed vector, asked in batches, once a statement, the same on every engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.device import find_device
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import GivesFeatures
from gpu_worker.pipeline.decode import decode_image
from ml_udf.client import Client
from ml_udf.errors import BadOption
from tests.engines import Engine, SqlError
from tests.inference_server import InferenceServer

WIDTH = 192  # of squeezenet's features


@pytest.fixture(scope="session")
def expected(server: InferenceServer, photos: Path) -> dict[str, np.ndarray]:
    """Path → what the network itself gives before its classifier."""
    manifest = read_manifest(str(server.home / "models" / "photo_net" / "1"))
    network = load_network(manifest, find_device("cpu", threads=1))
    warm_up(network, manifest)
    assert isinstance(network, GivesFeatures)
    assert network.features_width == WIDTH
    paths = [photos / f"{number}.jpg" for number in range(20)]
    pixels = np.stack([decode_image(path.read_bytes(), 64, 64, max_pixels=1 << 20) for path in paths])
    found = network.features(pixels, lambda: False)
    return {str(path): row for path, row in zip(paths, found, strict=True)}


def listed(*paths: str | None) -> str:
    rows = ", ".join("(CAST(NULL AS text))" if path is None else f"('{path}')" for path in paths)
    return f"(SELECT t, row_number() OVER () AS n FROM (VALUES {rows}) AS v(t)) AS numbered"


def test_a_photos_features_are_a_vector_of_its_type(
    engine: Engine, expected: dict[str, np.ndarray], photos: Path
) -> None:
    paths = [*expected, None, f"{photos}/0.jpg"]
    rows = engine.query(f"SELECT t, udf_features(t) FROM {listed(*paths)} ORDER BY n")
    assert [row[0] for row in rows] == paths
    for path, vector in rows:
        if path is None:
            assert vector is None
        else:
            np.testing.assert_allclose(np.array(vector, np.float32), expected[path], rtol=1e-4, atol=1e-5)
    kind = "typeof" if engine.name == "duckdb" else "pg_typeof"
    ((named,),) = engine.query(f"SELECT DISTINCT CAST({kind}(udf_features(t)) AS text) FROM {listed(*paths)}")
    assert named == (f"FLOAT[{WIDTH}]" if engine.name == "duckdb" else "real[]")


def test_equal_photos_of_a_statement_are_embedded_once_and_in_few_batches(
    engine: Engine, expected: dict[str, np.ndarray]
) -> None:
    if engine.name == "postgres-by-row":
        pytest.skip("without the batching module rows are asked one by one")
    before = sent(engine)
    engine.query(
        f"SELECT count(udf_features(t)) FROM (SELECT t FROM {listed(*expected)}, generate_series(1, 50)) AS x"
    )
    rows, batches = (now - then for now, then in zip(sent(engine), before, strict=True))
    assert rows == len(expected)
    assert batches <= 4


def sent(engine: Engine) -> tuple[int, int]:
    rows = engine.query("SELECT rows_sent, batches FROM ml_udf.stat_functions WHERE name = 'udf_features'")
    return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)


def test_the_most_similar_photo_is_found(engine: Engine, expected: dict[str, np.ndarray]) -> None:
    """By an exact search: the vectors are where the index would be asked."""
    first = next(iter(expected))
    unit = {path: row / np.linalg.norm(row) for path, row in expected.items()}
    nearest = max((path for path in unit if path != first), key=lambda path: float(unit[path] @ unit[first]))
    distance = (
        f"array_cosine_distance(udf_features(t), udf_features('{first}'))"
        if engine.name == "duckdb"
        else "-(SELECT sum(a * b) / sqrt(sum(a * a)) FROM "
        f"unnest(udf_features(t), udf_features('{first}')) AS u(a, b))"
    )
    rows = engine.query(f"SELECT t FROM {listed(*expected)} WHERE t <> '{first}' ORDER BY {distance} LIMIT 1")
    assert rows == [(nearest,)]


def test_each_bad_photo_has_its_own_error_and_null_takes_its_place(engine: Engine, photos: Path) -> None:
    for name, sqlstate in (("missing.jpg", "58P01"), ("text.jpg", "22P03"), ("escape.jpg", "42501")):
        with pytest.raises(SqlError) as caught:
            engine.query(f"SELECT udf_features('{photos}/{name}')")
        assert caught.value.sqlstate == sqlstate
    engine.set("on_error", "null")
    rows = engine.query(
        f"SELECT udf_features(t) IS NULL FROM {listed(f'{photos}/0.jpg', f'{photos}/missing.jpg')} ORDER BY n"
    )
    assert rows == [(False,), (True,)]
    (warning,) = engine.warned()
    assert "missing.jpg" in warning


def test_predict_answers_the_vector_as_text_and_without_a_confidence(
    engine: Engine, expected: dict[str, np.ndarray]
) -> None:
    path, vector = next(iter(expected.items()))
    ((text,),) = engine.query(f"SELECT ml_udf.predict('udf_features', '{path}')")
    np.testing.assert_allclose(np.array(json.loads(text), np.float32), vector, rtol=1e-4, atol=1e-5)
    assert max(map(len, text.strip("[]").split(", "))) <= 15  # no digits that float32 does not have
    tried = engine.query(
        "SELECT (r).value, (r).confidence, (r).error "
        f"FROM (SELECT ml_udf.try_predict('udf_features', '{path}') AS r) AS tried"
    )
    assert tried == [(text, None, None)]


def test_the_view_of_functions_tells_task_and_outputs(engine: Engine) -> None:
    rows = engine.query("SELECT name, task, outputs FROM ml_udf.functions WHERE name LIKE 'udf_%'")
    told = {name: (task, outputs) for name, task, outputs in rows}
    task, (output,) = told["udf_features"]
    assert task == "image-embedding"
    assert (output["name"], output["datatype"], output["shape"]) == ("embedding", "FP32", [-1, WIDTH])
    task, outputs = told["udf_photo"]
    assert task == "image-classification"
    assert [output["name"] for output in outputs][:2] == ["label", "confidence"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"models": ["photo_net", "photo_two"]}, "one model answers image-embedding alone, and 2 are named"),
        (
            {"models": ["text_hash"]},
            "text_hash does text-classification, and image-embedding takes",
        ),
        ({"models": ["photo_hash"]}, "photo_hash/1 has no features"),
        ({"models": ["photo_net"], "min_confidence": 0.5}, "without a confidence"),
        ({"models": ["photo_net"], "default": "none"}, "without a confidence"),
        ({"models": ["photo_net"], "combine": "mean"}, "leave 'combine' out"),
        ({"models": ["photo_net"], "task": "image-embeding"}, "'task' must be one of"),
    ],
)
def test_a_function_that_cannot_embed_is_refused_when_it_is_deployed(
    server: InferenceServer, body: dict[str, object], said: str
) -> None:
    client = Client(server.url)
    try:
        with pytest.raises(BadOption, match=said):
            client.put("/v1/functions/udf_refused", {"task": "image-embedding", **body})
        assert "udf_refused" not in {row["name"] for row in client.listed("functions")}
    finally:
        client.close()


def test_a_rollback_brings_the_vectors_back(server: InferenceServer) -> None:
    client = Client(server.url)
    try:
        embedding = {"models": ["photo_net"], "task": "image-embedding"}
        first = client.put("/v1/functions/udf_turned", embedding)
        client.put("/v1/functions/udf_turned", {"models": ["photo_net"]})
        back = client.post("/v1/functions/udf_turned/rollback", {})
        assert (back["task"], back["outputs"]) == (first["task"], first["outputs"])
        client.delete("/v1/functions/udf_turned")
    finally:
        client.close()
