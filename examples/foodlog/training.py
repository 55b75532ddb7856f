"""Three models of the photos, trained by `python -m gpu_worker.train`, as many at once as there are cores.

Owns which models there are, and the folder `models/NAME/VERSION` that each is kept in. A model that was
trained from the same photos by the same recipe is not trained again; another one becomes the next version.
The held-out photos stay away from training altogether: they are not in the file that it reads.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from examples.foodlog.draw import photos_note
from examples.foodlog.labels import read_labels, write_labels
from examples.foodlog.progress import bars

__all__ = ["RECIPES", "Recipe", "TrainingFailed", "train_models"]

STOP_TIMEOUT_S = 20.0


class TrainingFailed(Exception):
    """A training process ended without a model; the text holds what it said."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model's name, its architecture in gpu_worker's zoo, and how often it looks at every photo."""

    model: str
    architecture: str
    epochs: int


RECIPES = (
    Recipe("food_vgg", "vgg", 20),
    Recipe("food_resnet", "resnet", 40),
    Recipe("food_squeezenet", "squeezenet", 25),
)


@dataclass(frozen=True, slots=True)
class _Run:
    """One model to train: `origin` says of what it is made, `folder` is models/NAME."""

    recipe: Recipe
    origin: str
    folder: Path

    @property
    def note(self) -> Path:
        return self.folder / "trained.json"

    def trained(self) -> Path | None:
        """The model's version folder, if this very origin was trained before."""
        if not self.note.is_file():
            return None
        note = json.loads(self.note.read_text())
        version = self.folder / str(note["version"])
        return version if note["origin"] == self.origin and version.is_dir() else None

    def next_version(self) -> int:
        """The number after the versions that are there."""
        return 1 + max((int(path.name) for path in self.folder.glob("[0-9]*")), default=0)


def train_models(
    folder: Path, epochs: int | None, console: Console, recipes: Sequence[Recipe] = RECIPES
) -> list[Path]:
    """The version folder of every recipe's model, trained where it is not there yet.

    `folder` holds an album; `epochs` replaces each recipe's own. Raises `TrainingFailed`.
    """
    lessons = folder / "lessons.csv"
    labels = [label for label in read_labels(folder / "labels.csv") if label.split != "holdout"]
    write_labels(lessons, labels)
    photos = photos_note(folder)
    runs = []
    for recipe in recipes:
        recipe = Recipe(recipe.model, recipe.architecture, epochs or recipe.epochs)
        origin = sha256((photos + json.dumps(asdict(recipe))).encode()).hexdigest()
        runs.append(_Run(recipe, origin, folder / "models" / recipe.model))
    untrained = [run for run in runs if run.trained() is None]
    if untrained:
        _train(untrained, lessons, folder / "images", console)
    models = []
    for run in runs:
        model = run.trained()
        assert model is not None
        accuracy = json.loads((model / "model.json").read_text())["accuracy"]
        how = "trained" if run in untrained else "kept from an earlier run"
        console.print(f"{run.recipe.model} version {model.name}: {how}, validation accuracy {accuracy:.3f}")
        models.append(model)
    return models


def _train(runs: Sequence[_Run], lessons: Path, images: Path, console: Console) -> None:
    at_once = os.cpu_count() or 1
    waiting = list(runs)
    with ExitStack() as stack, selectors.DefaultSelector() as speaking, bars(console) as progress:
        tasks = {
            run: progress.add_task(run.recipe.model, total=run.recipe.epochs, start=False) for run in runs
        }

        def show(run: _Run, event: dict[str, Any]) -> None:
            if event["event"] == "epoch":
                title = f"{run.recipe.model} {event['best_accuracy']:.3f}"
                progress.update(tasks[run], completed=event["epoch"], description=title)

        while waiting or speaking.get_map():
            while waiting and len(speaking.get_map()) < at_once:
                run = waiting.pop(0)
                training = _Training(run, lessons, images)
                progress.start_task(tasks[run])
                stack.callback(training.stop)
                speaking.register(training.output, selectors.EVENT_READ, training)
            for key, _ in speaking.select():
                if not key.data.read_event(show):
                    speaking.unregister(key.fileobj)


class _Training:
    """One training process under way."""

    def __init__(self, run: _Run, lessons: Path, images: Path) -> None:
        self._run = run
        self._version = run.next_version()
        run.folder.mkdir(parents=True, exist_ok=True)
        self._log = run.folder / "train.log"
        command = [sys.executable, "-m", "gpu_worker.train", f"--images={lessons}", f"--root={images}"]
        command += [f"--architecture={run.recipe.architecture}", f"--epochs={run.recipe.epochs}"]
        command += [f"--out={run.folder.parent}", f"--name={run.recipe.model}", f"--version={self._version}"]
        command += ["--threads=1"]  # a thread each: the same weights on every machine
        # A run that is stopped goes on from here; one of another origin must not.
        command += [f"--checkpoint={run.folder / f'{run.origin[:16]}.checkpoint'}"]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then stops the training.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.output: IO[bytes] = self._process.stdout

    def read_event(self, show: Callable[[_Run, dict[str, Any]], None]) -> bool:
        """Read one event; False at the end. Raises `TrainingFailed` if it ended badly."""
        line = self.output.readline()
        if line:
            show(self._run, json.loads(line))
            return True
        if self._process.wait() != 0:
            said = self._log.read_text(errors="replace")[-2000:]
            raise TrainingFailed(f"training {self._run.recipe.model} failed; {self._log} ends with:\n{said}")
        note = {"origin": self._run.origin, "version": self._version}
        self._run.note.write_text(json.dumps(note))
        return False

    def stop(self) -> None:
        """End it before its next step, if it still runs."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()
