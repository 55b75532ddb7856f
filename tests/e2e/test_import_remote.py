"""`ml-udf import` of models behind servers that really listen, and what it registered in use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from ml_udf.cli.app import app
from ml_udf.client import Client
from tests.inference_server import InferenceServer, inference_server
from tests.models import CLASSES, image_model, label_of
from tests.remote_endpoint import KEY, Endpoint, endpoint

LABELS = ",".join(CLASSES)


@pytest.fixture(scope="module")
def far() -> Iterator[Endpoint]:
    with endpoint() as running:
        yield running


@pytest.fixture(scope="module")
def server(far: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    home = tmp_path_factory.mktemp("home")
    with inference_server(home, flags=[f"--allow-remote={far.url}"]) as running:
        yield running


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """Another ml_udf, with a function of photos."""
    home = tmp_path_factory.mktemp("ours")
    with inference_server(home) as running:
        running.deploy(image_model(home / "made", "dish"))
        yield running


def run(server: InferenceServer | None, *arguments: str) -> Result:
    where = [] if server is None else ["--endpoint", server.url]
    return CliRunner().invoke(app, ["import", *arguments, *where])


def label(server: InferenceServer, model: str, text: str) -> str:
    client = Client(server.url)
    try:
        (found,) = client.predict(model, [text]).values
    finally:
        client.close()
    return str(found)


def test_a_model_of_an_oip_server_is_imported_by_its_url(far: Endpoint, server: InferenceServer) -> None:
    url = f"{far.url}/v2/models/hash"
    task = ["--task", "text-classification", "--classes", LABELS]
    several = run(server, url, *task)
    assert several.exit_code == 1
    assert "it has the outputs probs, label" in several.output
    done = run(server, url, *task, "--output", "scores=probs", "--name", "food")
    assert done.exit_code == 0, done.output
    assert "registered as food version 1" in done.output
    assert '"form": "text"' in done.output
    assert label(server, "food", "laksa") == label_of("laksa")


def test_a_model_of_an_openai_server_is_imported_by_its_name_there(
    far: Endpoint, server: InferenceServer, tmp_path: Path
) -> None:
    openai = ["--openai", f"{far.url}/v1", "--task", "text-classification", "--classes", LABELS]
    done = run(server, *openai, "--model", "small", "--prompt", "What is {{text}}?")
    assert done.exit_code == 0, done.output
    assert "registered as small version 1" in done.output
    assert label(server, "small", "laksa") == label_of("laksa")
    wrong = run(server, *openai, "--model", "large")
    assert wrong.exit_code == 1
    assert "has no model 'large'" in wrong.output
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"letters": {"type": "integer"}}}))
    shown = run(
        None, *openai[:2], "--task", "text-generation", "--model", "m", "--schema", str(schema), "--dry-run"
    )
    assert shown.exit_code == 0
    assert '"letters"' in shown.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["URL/v2/models/hash"], "what it does must be said"),
        (["URL/v2/models/nothing", "--task", "text-classification"], "names no inputs and outputs"),
        (["URL/nothing", "--task", "text-classification"], "answers 404"),
        (["http://127.0.0.1:9/v2/models/x", "--task", "text-classification"], "says nothing of a model"),
        (["--openai", "URL/v1", "--task", "text-classification"], "--model NAME"),
        (
            [
                "URL/v2/models/hash",
                "--task",
                "text-classification",
                "--classes",
                "a,b",
                "--output",
                "scores=probs",
            ],
            "4 numbers a row, and 2 classes",
        ),
        ([], "which model is missing"),
    ],
)
def test_what_cannot_be_imported_says_why(arguments: list[str], says: str, far: Endpoint) -> None:
    done = run(None, *(each.replace("URL", far.url) for each in arguments))
    assert done.exit_code == 1
    assert says in " ".join(done.output.split())


def test_the_key_of_the_endpoint_is_read_from_its_file(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    with endpoint(key=KEY) as locked:
        url = f"{locked.url}/v2/models/hash"
        said = ["--task", "text-classification", "--classes", LABELS, "--output", "scores=probs", "--dry-run"]
        assert "--key-file FILE" in run(None, url, *said).output
        done = run(None, url, *said, "--key-file", str(key_file))
    assert done.exit_code == 0
    assert KEY not in done.output


def test_a_function_of_paths_at_another_ml_udf_is_sent_the_pictures(
    ours: InferenceServer, tmp_path: Path
) -> None:
    """Which lie on this server's host, and not on that one's."""
    photos = tmp_path / "photos"
    photos.mkdir()
    pictures = []
    for number, colour in enumerate(((200, 30, 30), (20, 180, 40), (30, 60, 220))):
        Image.new("RGB", (64, 64), colour).save(photos / f"{number}.png")
        pictures.append((photos / f"{number}.png").read_bytes())
    flags = [f"--allow-remote={ours.url}"]
    with inference_server(tmp_path / "near", media_roots=[photos], flags=flags) as near:
        task = ["--task", "image-classification", "--classes", LABELS, "--output", "scores=scores"]
        done = run(near, f"{ours.url}/v2/models/dish", *task, "--name", "far_dish")
        assert done.exit_code == 0, done.output
        with near.client() as client:
            found = client.predict("far_dish", [str(photos / f"{number}.png") for number in range(3)])
        with ours.client() as client:
            expected = client.predict("dish", pictures, input_name="image")
    assert list(found.values) == list(expected.values)
