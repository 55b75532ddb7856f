"""A server with something on every page: functions that answer, a job that was really trained, wrong rows.

The job takes half a minute of a core: of the kitchens of a run one trains, the others begin with a copy of
what it keeps.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from PIL import Image

import ml_udf.duckdb
from ml_udf.client import Client
from ml_udf.training import TrainingCalls
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model
from tests.side_by_side import locked
from tests.training_data import CLASSES, draw_photos
from tests.waiting import wait_for_job

__all__ = ["DATASET", "FOOD", "REVIEW", "Kitchen", "furnished", "greenish_jpeg", "kitchen_in", "kitchen_like"]

FOOD = "udf_food"  # of photos, at its second version
REVIEW = "udf_review"  # of texts, of known answers
DATASET = "food"
_MISLABELLED = 4  # every so many rows say the other class: what stands beside a confusion matrix's diagonal
_JOB_S = 900.0


@dataclass(frozen=True, slots=True)
class Kitchen:
    """job: of training. photos: where models may read. token: an admin's; None = none is needed."""

    server: InferenceServer
    photos: Path
    job: int
    token: str | None = None

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return self.server.url


@contextlib.contextmanager
def kitchen_in(folder: Path, *, token: str | None = None, flags: Sequence[str] = ()) -> Iterator[Kitchen]:
    """It runs for the length of a `with` block, on what it keeps in the folder."""
    photos = folder / "photos"
    with inference_server(folder / "home", media_roots=[photos], flags=flags) as server:
        job = _furnish(server, folder, photos, token)
        _ask(server, photos, token)
        yield Kitchen(server, photos, job, token)


@pytest.fixture(scope="session")
def furnished(shared_folder: Path) -> Path:
    """What a kitchen keeps, for `kitchen_like`; made by the process of the run that needs it first."""
    made = shared_folder / "kitchen"
    with locked(shared_folder / "kitchen.lock"):
        if not made.exists():
            half = made.with_suffix(".half")
            with kitchen_in(half):
                pass
            half.rename(made)
    return made


@contextlib.contextmanager
def kitchen_like(made: Path, folder: Path) -> Iterator[Kitchen]:
    """One that begins with a copy of what `made` holds."""
    for part in ("home", "photos"):
        shutil.copytree(made / part, folder / part)
    photos = folder / "photos"
    with inference_server(folder / "home", media_roots=[photos]) as server:
        with server.client() as client:
            (job,) = TrainingCalls(client).jobs()
        _ask(server, photos, None)
        yield Kitchen(server, photos, int(job["id"]))


def _furnish(server: InferenceServer, folder: Path, photos: Path, token: str | None) -> int:
    """Answers the training job's number."""
    labelled = [
        (path, CLASSES[1 - CLASSES.index(label)] if number % _MISLABELLED == 0 else label)
        for number, (path, label) in enumerate(draw_photos(photos))
    ]
    with contextlib.closing(Client(server.url, token=token)) as client:
        client.post("/register", {"directory": str(hashing_model(folder / "models", "review"))})
        client.put(f"/v1/functions/{REVIEW}", {"models": ["review"]})
    with _connected(server, token) as db:
        db.execute("CREATE TABLE labelled (image_path VARCHAR, label VARCHAR)")
        db.executemany("INSERT INTO labelled VALUES (?, ?)", labelled)
        db.execute(
            f"SELECT ml_udf.create_dataset('{DATASET}', 'SELECT image_path, label FROM labelled',"
            " target => 'label', key => 'image_path')"
        ).fetchall()
        ((job,),) = db.execute(
            f"SELECT ml_udf.train('{DATASET}', task => 'image-classification',"
            " models => ['resnet', 'squeezenet'], budget => '24 epochs', max_epochs => 6, size => 32)"
        ).fetchall()
        wait_for_job(lambda query: db.execute(query).fetchall()[0][0], int(job), _JOB_S)
        for choose in ("best", "ensemble"):
            db.execute(f"SELECT ml_udf.deploy('{FOOD}', job => {job}, choose => '{choose}')").fetchall()
    return int(job)


def _ask(server: InferenceServer, folder: Path, token: str | None) -> None:
    """As analysts do: pages show what was asked since the server began. folder: of photos."""
    photos = [photo.name for photo in folder.iterdir()]
    with _connected(server, token) as db:
        db.execute(f"SELECT {FOOD}(photo) FROM (SELECT unnest(?) AS photo)", [photos]).fetchall()
        db.execute(f"SELECT {REVIEW}(unnest(['a', 'b']))").fetchall()


@contextlib.contextmanager
def _connected(server: InferenceServer, token: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
    db = duckdb.connect()
    registration = ml_udf.duckdb.register(db, server.url, token=token)
    try:
        yield db
    finally:
        registration.close()
        db.close()


def greenish_jpeg(file: Path) -> Path:
    """A photo of one's own: what a model of the dataset calls `b`."""
    Image.new("RGB", (320, 240), (40, 200, 45)).save(file, "JPEG", quality=90)
    return file
