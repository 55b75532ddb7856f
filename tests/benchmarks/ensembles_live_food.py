"""The food log's ensemble for benchmarks of a running server: drawn, trained briefly, deployed from its job.

Three architectures see the lessons a few times only, so that their members are weak and disagree. What was
drawn and trained is kept among the results, and copied for whoever runs a server on it: a server learns.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album
from ml_udf.client import Client
from ml_udf.config import Options
from ml_udf.training import TrainingCalls
from server.ensemble.fit import Fit, combined
from tests.benchmarks.report import RESULTS, say
from tests.inference_server import ANEW, inference_server

__all__ = ["EPOCHS", "FUNCTION", "FoodEnsemble", "food_ensemble", "fresh_photos", "introduction"]

FUNCTION = "udf_food_name"
EPOCHS = 4  # of each member's training
MODELS = ("xception", "resnet", "inception")
_FORMAT = 2  # of what is kept; to be counted up with whatever changes what is trained
_ALBUM = Album(images=2000, rows=1)
_SEED = 4711  # of photos that are drawn beside the album's
_JOB_S = 900.0  # a busy machine trains slowly
_LONG = Options(timeout_ms=120_000, row_class="bulk", on_error="error")


@dataclass(frozen=True)
class FoodEnsemble:
    """What was trained, and what its members answer to photos that none of them saw.

    folder: of what was trained · album: of the photos
    models: NAME/VERSION, in the order of the fit · photos, labels: the held-out ones
    scores: [members, photos, classes], in the order of the fit
    accuracies: of the members, by their models' manifests
    """

    folder: Path
    album: Path
    fit: Fit
    models: Sequence[str]
    photos: Sequence[str]
    labels: Sequence[str]
    classes: Sequence[str]
    scores: NDArray[np.float64]
    accuracies: Sequence[float]

    @property
    def media_root(self) -> Path:
        """Below it lie the photos."""
        return self.album / "images"

    @property
    def truth(self) -> NDArray[np.int64]:
        """The photos' classes, by number."""
        place = {label: number for number, label in enumerate(self.classes)}
        return np.array([place[label] for label in self.labels])

    @property
    def best(self) -> int:
        """The member that is the most accurate by its manifest."""
        return max(range(len(self.accuracies)), key=lambda member: self.accuracies[member])

    def alone(self) -> list[float]:
        """Of each member, the share of the held-out photos that it names."""
        return [float((each.argmax(axis=1) == self.truth).mean()) for each in self.scores]

    def disagree(self) -> float:
        """The share of the held-out photos that not all members name alike."""
        named = self.scores.argmax(axis=2)
        return float((named != named[0]).any(axis=0).mean())

    @contextmanager
    def home(self) -> Iterator[Path]:
        """A copy of the home folder, for one server to run on."""
        with tempfile.TemporaryDirectory(prefix="ml_udf-food-") as copy:
            Path(copy).chmod(0o755)
            yield shutil.copytree(self.folder / "home", Path(copy) / "home")


def food_ensemble(epochs: int = EPOCHS, models: Sequence[str] = MODELS) -> FoodEnsemble:
    """Drawn and trained when it is first asked for. Raises RuntimeError where that does not come about.

    epochs: how often each member sees the lessons. models: the architectures of which members are chosen.
    """
    kept = (RESULTS / "ensembles-live").resolve()
    album, folder = kept / "album", kept / f"food-{'-'.join(models)}-{epochs}-{_FORMAT}"
    if not (folder / "done.json").exists():
        began_s = time.perf_counter()
        album.mkdir(parents=True, exist_ok=True)
        if draw_album(album, _ALBUM):
            say(f"{_ALBUM.images:,} photos drawn in {time.perf_counter() - began_s:.0f} s")
        began_s = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=kept) as coming:
            _train(Path(coming), album, epochs, models)
            shutil.rmtree(folder, ignore_errors=True)
            Path(coming).rename(folder)
            Path(coming).mkdir()  # for the context manager to remove
        say(f"the ensemble was trained in {time.perf_counter() - began_s:.0f} s")
    return _read(folder, album)


def fresh_photos(count: int) -> tuple[Path, list[tuple[str, str]]]:
    """So many photos that nobody saw, drawn when they are first asked for: their folder; paths, labels."""
    album = (RESULTS / "ensembles-live").resolve() / f"fresh-{count}"
    album.mkdir(parents=True, exist_ok=True)
    draw_album(album, Album(images=count, rows=1, seed=_SEED))
    images = album / "images"
    with (album / "labels.csv").open(encoding="utf-8") as file:
        return images, [(str(images / row["image_path"]), row["food_name"]) for row in csv.DictReader(file)]


def introduction(food: FoodEnsemble) -> str:
    """How good its members are, in words."""
    alone = ", ".join(f"{n} {100 * a:.1f}" for n, a in zip(food.fit.members, food.alone(), strict=True))
    together = combined(food.fit, tuple(range(len(food.models))), food.scores).argmax(axis=1)
    return (
        f"on {len(food.photos)} photos that none of them saw, % right: {alone},"
        f" together {100 * float((together == food.truth).mean()):.1f};"
        f" {100 * food.disagree():.0f} % of the photos are not named alike"
    )


def _read(folder: Path, album: Path) -> FoodEnsemble:
    done = json.loads((folder / "done.json").read_text())
    if not (folder / "scores.npy").exists():
        raise RuntimeError(f"{folder} is not whole; remove it, and it is made anew")
    registry = f"file:{folder / 'home' / 'registry.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(registry, uri=True)) as connection:
        ((fit,),) = connection.execute(
            "SELECT fit FROM deployments WHERE function = ? ORDER BY version DESC LIMIT 1", [FUNCTION]
        ).fetchall()
    kept = Fit.from_json(json.loads(fit))
    names = [model.partition("/")[0] for model in done["models"]]
    if list(kept.members) != names:
        raise RuntimeError(f"{folder} holds answers of {names}, and a fit of {list(kept.members)}")
    return FoodEnsemble(
        folder,
        album,
        kept,
        done["models"],
        done["photos"],
        done["labels"],
        done["classes"],
        np.load(folder / "scores.npy"),
        done["accuracies"],
    )


def _train(folder: Path, album: Path, epochs: int, models: Sequence[str]) -> None:
    """Train and deploy in `folder`/home, and keep what the members answer to the held-out photos."""
    flags = ["--workers=2", "--threads=1"]
    with inference_server(folder / "home", media_roots=[album / "images"], flags=[ANEW, *flags]) as server:
        with duckdb.connect() as con, contextlib.closing(ml_udf.duckdb.register(con, server.url)):
            con.execute(f"CREATE TABLE labels AS FROM read_csv('{album / 'labels.csv'}')")
            con.execute(
                "SELECT ml_udf.create_dataset('food', 'SELECT image_path, food_name FROM labels WHERE split ="
                " ''lesson''', target => 'food_name', key => 'image_path', validation => 0.3, test => 0.05)"
            ).fetchall()
        with contextlib.closing(Client(server.url)) as client:
            deployed = _trained(client, epochs, models)
            members = ", ".join(deployed["models"])
            say(
                f"{members}; {deployed['combine'] or 'no rule'}: test accuracy"
                f" {deployed['test_accuracy']:.3f}, best alone {deployed['best_single']:.3f}"
            )
            if len(deployed["models"]) < 2:
                raise RuntimeError("one member alone was chosen: change how long or on what they are trained")
            _keep_answers(client, folder, album / "labels.csv", deployed["models"])
    # Learned beside training: whoever runs a server on it learns its own.
    shutil.rmtree(folder / "home" / "latencies", ignore_errors=True)


def _trained(client: Client, epochs: int, models: Sequence[str]) -> dict[str, Any]:
    """What was said when the job's function was deployed. Raises RuntimeError if the job fails."""
    calls = TrainingCalls(client)
    job = calls.train(
        {
            "dataset": "food",
            "models": list(models),
            "budget": f"{epochs * len(models)} epochs",
            "policy": "study",
            "max_epochs": epochs,
            "max_trials": 1,
            # Taught the validation rows too, members that have seen little become others than were fitted.
            "refit": False,
        }
    )
    end_s = time.monotonic() + _JOB_S
    while (state := calls.job(job["id"]))["state"] == "running":
        if time.monotonic() > end_s:
            calls.cancel(job["id"])
            raise RuntimeError(f"the job did not end within {_JOB_S:g} s")
        time.sleep(0.2)
    if state["state"] != "done":
        raise RuntimeError(f"the job is {state['state']}: {state.get('reason')}")
    return calls.deploy(job["id"], FUNCTION)


def _keep_answers(client: Client, folder: Path, labels: Path, models: Sequence[str]) -> None:
    """models: NAME/VERSION, in the order in which they were fitted."""
    with labels.open(encoding="utf-8") as file:
        held_out = [row for row in csv.DictReader(file) if row["split"] == "holdout"]
    photos = [row["image_path"] for row in held_out]
    described = client.get(f"/v1/functions/{FUNCTION}")
    named = [model.split("/") for model in models]
    scores = [
        client.predict(name, photos, _LONG, version=version, output_name="scores").values
        for name, version in named
    ]
    accuracies = {member["model"]: member["accuracy"] for member in described["members"]}
    np.save(folder / "scores.npy", np.array(scores, np.float64))
    done = {
        "photos": photos,
        "labels": [row["food_name"] for row in held_out],
        "classes": described["classes"],
        "models": list(models),
        "accuracies": [accuracies[name] for name, _ in named],
    }
    (folder / "done.json").write_text(json.dumps(done))
