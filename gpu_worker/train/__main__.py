"""`python -m gpu_worker.train`: train on labelled image files, write a model version.

Prints one JSON object per line, for a parent that draws a progress bar:

    {"event": "data", "train": n, "validation": n, "test": n, "classes": […]}
    {"event": "epoch", "epoch": 1, "epochs": 12, "train_loss": …, "validation_accuracy": …, …}
    {"event": "saved", "directory": …, "accuracy": …, "epoch": best, "took_s": …}

SIGTERM or SIGINT stops it before its next step, with status 130 and {"event": "stopped"}; with
--checkpoint, the same command goes on after the last whole epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from gpu_worker.device import find_device
from gpu_worker.errors import WorkerError
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.model_files.saving import save_model
from gpu_worker.train.augment import Augment
from gpu_worker.train.examples import read_examples
from gpu_worker.train.images import decode_examples
from gpu_worker.train.loop import TrainingStopped, accuracy_of, train
from gpu_worker.train.spec import TrainSpec
from gpu_worker.zoo import ARCHITECTURES

EXIT_STOPPED = 130
EXIT_BAD_INPUT = 65


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains as the flags say; the exit status is 0 when a model was saved."""
    flags = _parser().parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _run(flags, stop)
    except TrainingStopped as exc:
        _print(event="stopped", message=str(exc))
        return EXIT_STOPPED
    except (OSError, ValueError, WorkerError) as exc:
        print(f"error: {exc}", file=sys.stderr)  # noqa: T201 (a command's own output)
        return EXIT_BAD_INPUT
    return 0


def _run(flags: argparse.Namespace, stop: threading.Event) -> None:
    began_s = time.monotonic()
    device = find_device(flags.device, threads=flags.threads)
    torch.set_num_threads(device.threads)
    spec = _spec(flags)
    directory = os.path.join(flags.out, flags.name, str(flags.version))
    if os.path.exists(directory) and not flags.replace:
        raise FileExistsError(f"{directory} exists; give another --version, or --replace it")
    examples = read_examples(
        flags.images, root=flags.root, path_column=flags.path_column, label_column=flags.label_column
    )
    parts = decode_examples(examples, spec.input.height, spec.input.width, threads=device.threads)
    classes = parts["train"].classes
    _print(event="data", classes=classes, **{split: len(part) for split, part in parts.items()})
    trained = train(
        spec,
        parts["train"],
        parts["validation"],
        device=device.computes_on,
        on_epoch=lambda epoch: _print(event="epoch", **asdict(epoch)),
        should_stop=stop.is_set,
        checkpoint=flags.checkpoint,
        allow_import=flags.allow_import,
    )
    # Read once, for the model that is kept; the validation images chose it.
    tested = len(parts["test"]) > 0
    accuracy = accuracy_of(trained.module, parts["test"], spec) if tested else trained.validation_accuracy
    manifest = Manifest(
        directory=directory,
        name=flags.name,
        version=flags.version,
        task="image-classification",
        runtime="torch",
        architecture=spec.architecture,
        architecture_options=spec.architecture_options,
        classes=classes,
        input=spec.input,
        accuracy=round(accuracy, 6),
    )
    saved = save_model(manifest, trained.module.state_dict(), replace=flags.replace)
    if flags.checkpoint and os.path.exists(flags.checkpoint):
        os.unlink(flags.checkpoint)
    _print(
        event="saved",
        directory=saved.directory,
        accuracy=accuracy,
        measured_on="test" if tested else "validation",
        validation_accuracy=trained.validation_accuracy,
        epoch=trained.epoch,
        took_s=round(time.monotonic() - began_s, 3),
    )


def _spec(flags: argparse.Namespace) -> TrainSpec:
    options = {key: json.loads(value) for key, _, value in (item.partition("=") for item in flags.option)}
    pixels = InputSpec("path", flags.size, flags.size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return TrainSpec(
        flags.architecture,
        epochs=flags.epochs,
        architecture_options=options,
        input=pixels,
        batch_rows=flags.batch_rows,
        learning_rate=flags.learning_rate,
        weight_decay=flags.weight_decay,
        schedule=flags.schedule,
        label_smoothing=flags.label_smoothing,
        augment=Augment(not flags.no_flip, flags.shift, flags.zoom, flags.colour),
        seed=flags.seed,
    )


def _parser() -> argparse.ArgumentParser:
    default, varied = TrainSpec("vgg"), Augment()
    parser = argparse.ArgumentParser(
        prog="python -m gpu_worker.train", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--images", required=True, metavar="CSV", help="labelled paths: a header, then path,label[,split]")
    add("--root", metavar="DIR", help="folder of relative paths; else the CSV's own")
    add("--path-column", help="else the first column")
    add("--label-column", help="else the second column")
    add("--architecture", required=True, help=f"one of {', '.join(ARCHITECTURES)}")
    add("--option", action="append", default=[], metavar="NAME=JSON", help="of the architecture; repeatable")
    add("--out", required=True, metavar="DIR", help="models folder; the model goes to DIR/NAME/VERSION")
    add("--name", required=True, help="name of the model")
    add("--version", type=int, default=1, help="version of the model")
    add("--replace", action="store_true", help="replace the version if it exists")
    add("--epochs", type=int, default=default.epochs, help="passes over the training images")
    add("--batch-rows", type=int, default=default.batch_rows, help="images per step")
    add("--learning-rate", type=float, default=default.learning_rate, help="the highest of the run")
    add("--weight-decay", type=float, default=default.weight_decay, help="AdamW's")
    add(
        "--schedule",
        choices=("one_cycle", "cosine", "constant"),
        default=default.schedule,
        help="of the rate",
    )
    add("--label-smoothing", type=float, default=default.label_smoothing, help="share given to all classes")
    add("--no-flip", action="store_true", help="never mirror images")
    add("--shift", type=float, default=varied.shift, help="most of the side that an image is moved")
    add("--zoom", type=float, default=varied.zoom, help="most that an image is scaled by")
    add("--colour", type=float, default=varied.colour, help="most that a channel is scaled by")
    add("--size", type=int, default=default.input.height, help="pixels of a side")
    add("--seed", type=int, default=default.seed, help="the same seed gives the same model")
    add("--checkpoint", metavar="FILE", help="kept after every epoch; a run that finds it goes on from there")
    add("--device", default="auto", help="auto, cpu or cuda:N")
    add("--threads", type=int, default=1, help="CPU cores; 0 = all that it may use")
    add("--allow-import", action="store_true", help="permit an architecture by import path; runs its code")
    return parser


def _print(**fields: Any) -> None:  # noqa: ANN401 (any JSON)
    print(json.dumps(fields), flush=True)  # noqa: T201 (a command's own output)


if __name__ == "__main__":
    sys.exit(main())
