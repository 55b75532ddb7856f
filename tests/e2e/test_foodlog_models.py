"""Training and deployment of the example's models, each with the real trainer and the real server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from examples.foodlog.draw import Album, draw_album
from examples.foodlog.serving import ENSEMBLE, publish
from examples.foodlog.training import Recipe, TrainingFailed, train_models
from ml_udf.client import Client
from tests.inference_server import inference_server
from tests.models import write_manifest

QUIET = Console(quiet=True)
ALBUM = Album(images=60, rows=60, size_px=24, seed=1)
RECIPE = Recipe("food_resnet", "resnet", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    draw_album(folder, ALBUM)
    return folder


def test_another_recipe_becomes_the_next_version_and_the_same_one_is_kept(folder: Path) -> None:
    (first,) = train_models(folder, None, QUIET, [RECIPE])
    draw_album(folder, replace(ALBUM, rows=90))  # the same photos, more meals
    (kept,) = train_models(folder, None, QUIET, [RECIPE])
    (second,) = train_models(folder, 2, QUIET, [RECIPE])
    assert first == kept == folder / "models" / "food_resnet" / "1"
    assert second == folder / "models" / "food_resnet" / "2"
    assert (second / "model.json").is_file()


def test_a_training_that_fails_says_what_the_trainer_said(folder: Path) -> None:
    with pytest.raises(TrainingFailed, match="no_such_network"):
        train_models(folder, None, QUIET, [Recipe("food_odd", "no_such_network", 1)])
    assert not (folder / "models" / "food_odd" / "1").exists()


def test_publishing_again_changes_nothing_and_a_new_version_redeploys(tmp_path: Path) -> None:
    def models(version: int) -> list[Path]:
        return [
            write_manifest(
                tmp_path / "made",
                name,
                version,
                task="image-classification",
                architecture="hashing",
                input={"form": "path"},
            )
            for name in ("food_a", "food_b")
        ]

    with inference_server(tmp_path / "home") as server:
        client = Client(server.url)

        def deployed(name: str) -> tuple[int, list[tuple[str, int]]]:
            (found,) = (f for f in client.get("/v1/functions")["functions"] if f["name"] == name)
            return found["version"], [(member["model"], member["version"]) for member in found["members"]]

        publish(server.url, models(1))
        publish(server.url, models(1))
        assert deployed(ENSEMBLE) == (1, [("food_a", 1), ("food_b", 1)])
        assert deployed("udf_food_b") == (1, [("food_b", 1)])
        publish(server.url, models(2))
        assert deployed(ENSEMBLE) == (2, [("food_a", 2), ("food_b", 2)])
        client.close()
