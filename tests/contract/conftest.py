"""One server, one database cluster, and every (engine, endpoint) pair over the same home folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from ml_udf.client import Client
from tests.engines import FUNCTIONS, Engine, Postgres, make_engine
from tests.inference_server import InferenceServer, database_group, inference_server
from tests.models import hashing_model, image_model


@pytest.fixture(scope="session")
def photos(open_folder: Path) -> Path:
    """A media root with real JPEG files `0.jpg` … `19.jpg`, and everything that can be wrong with a file."""
    folder = open_folder / "photos"
    folder.mkdir()
    for number in range(20):
        Image.effect_noise((80, 60), 20 + 10 * number).convert("RGB").save(folder / f"{number}.jpg")
    (folder / "text.jpg").write_text("this is no photo")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "cut.jpg").write_bytes((folder / "0.jpg").read_bytes()[:400])
    Image.new("1", (30_000, 30_000)).save(folder / "bomb.png")
    for team in ("team", "other_team"):
        (folder / team).mkdir()
        (folder / team / "x.jpg").write_bytes((folder / "0.jpg").read_bytes())
    outside = open_folder / "outside"
    outside.mkdir()
    (outside / "secret.jpg").write_bytes((folder / "0.jpg").read_bytes())
    (folder / "escape.jpg").symlink_to(outside / "secret.jpg")
    return folder


@pytest.fixture(scope="session")
def server(open_folder: Path, photos: Path) -> Iterator[InferenceServer]:
    made = open_folder / "made"
    # Its sessions read the home where the endpoint is local:. `native_server` is behind the other front.
    flags = [f"--home-group={database_group()}", "--front=python"]
    with inference_server(open_folder / "served", media_roots=[photos], flags=flags) as running:
        running.deploy(hashing_model(made, "text_hash"), "udf_text")
        running.deploy(image_model(made, "photo_net"), "udf_photo")
        running.deploy(hashing_model(made, "slow_hash", delay_ms=10_000), "udf_slow")
        running.deploy(made / "photo_net" / "1", "udf_team", media_roots=[str(photos / "team")])
        running.deploy(image_model(made, "photo_two", seed=2))
        running.deploy(hashing_model(made, "photo_hash", form="path"))
        client = Client(running.url)
        client.put("/v1/functions/udf_features", {"models": ["photo_net"], "task": "image-embedding"})
        client.close()
        yield running


@pytest.fixture(scope="session")
def native_server(open_folder: Path, photos: Path, native_front: None) -> Iterator[InferenceServer]:
    """What the protocol's own tests ask of `server`, behind the native front."""
    made = open_folder / "made_for_native"
    with inference_server(open_folder / "native", media_roots=[photos], flags=["--front=native"]) as running:
        running.deploy(hashing_model(made, "text_hash"), "udf_text")
        running.deploy(image_model(made, "photo_net"), "udf_photo")
        running.deploy(hashing_model(made, "slow_hash", delay_ms=10_000), "udf_slow")
        running.deploy(hashing_model(made, "photo_hash", form="path"))
        yield running


@pytest.fixture(scope="session", params=["python", "native"])
def oip_server(request: pytest.FixtureRequest) -> InferenceServer:
    """Either front. By a name of its own: a fixture that overrides `server` would start it anew for each."""
    found: InferenceServer = request.getfixturevalue(
        "server" if request.param == "python" else "native_server"
    )
    return found


@pytest.fixture(params=["http", "local"])
def endpoint(request: pytest.FixtureRequest, server: InferenceServer, photos: Path) -> str:
    return server.url if request.param == "http" else f"local:{server.home}?media_root={photos}"


@pytest.fixture(scope="session")
def sessions_with_models() -> Iterator[dict[tuple[str, str], Postgres]]:
    """PostgreSQL's, by engine and `local:` endpoint: each that is new begins with seconds of imports."""
    kept: dict[tuple[str, str], Postgres] = {}
    yield kept
    for session in kept.values():
        session.close()


@pytest.fixture
def engine(
    engine_name: str,
    endpoint: str,
    request: pytest.FixtureRequest,
    sessions_with_models: dict[tuple[str, str], Postgres],
) -> Iterator[Engine]:
    """An engine whose session calls the three functions by name."""
    kept = sessions_with_models.get((engine_name, endpoint))
    if kept is not None and kept.is_open:
        kept.begin(endpoint, FUNCTIONS)
        yield kept
        return
    made = make_engine(engine_name, endpoint, request)
    if isinstance(made, Postgres) and endpoint.startswith("local:"):
        sessions_with_models[engine_name, endpoint] = made
        yield made
        return
    yield made
    made.close()
