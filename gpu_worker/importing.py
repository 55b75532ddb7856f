"""Bringing a model: what a file or folder is, the folder that is made of it, and whether it answers alike.

    path ─ recognise (by the runtimes' own eyes) ─→ Recognised ─ staged ─→ a model's folder
                                                                └ checked: loaded, warm, beside its source

Knows no server: `ml-udf import` registers what comes out of here.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.device import find_device
from gpu_worker.errors import ModelUnusable, WorkerError
from gpu_worker.model_files.file_list import PICKLES, ModelFile
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.model_files.regular import MANIFEST_FILE, file_sha256
from gpu_worker.networks.extras import first_line
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Inputs, Network, reading
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.runtimes import RUNTIMES
from gpu_worker.pipeline.decode import decode_picture
from gpu_worker.tasks import task_named

__all__ = ["Checked", "checked", "recognised", "staged"]

_MOST_PIXELS = 64_000_000
_SAMPLES = 4
_TEXTS = (
    b"The soup is hot.",
    b"How do I reset my password?",
    b"An unusually long sentence, with commas, about nothing in particular.",
    "Grüße aus Köln, 東京".encode(),
)


@dataclass(frozen=True, slots=True)
class Checked:
    """difference: the largest between the source's numbers and these; None where there is no source here."""

    rows: int
    difference: float | None
    bound: float
    resident_bytes: int


def recognised(path: Path, wishes: Mapping[str, Any]) -> Recognised:
    """What there is at `path`. wishes: fields of a manifest that its owner said, and `runtime`.

    Raises `ModelUnusable` where it is nothing that is known, or something is missing.
    """
    if not path.exists():
        raise ModelUnusable(f"there is no {path}")
    asked = wishes.get("runtime")
    if asked is not None and asked not in RUNTIMES:
        raise ModelUnusable(f"there is no runtime {asked!r}; there are: {', '.join(RUNTIMES)}")
    for runtime in RUNTIMES.values():
        if runtime.recognise is None or asked not in (None, runtime.name):
            continue
        try:
            found = runtime.recognise(path, wishes)
        except WorkerError:
            raise
        except Exception as exc:  # a file from elsewhere says anything in any place
            raise ModelUnusable(
                f"{path} cannot be read as a model of the runtime {runtime.name!r}: "
                f"{type(exc).__name__}: {first_line(exc)}"
            ) from exc
        if found is not None:
            return found
    raise ModelUnusable(_why_nothing(path))


def staged(found: Recognised, name: str, folder: Path) -> Manifest:
    """Writes the model's folder, with model.json, into `folder`, which is empty. Raises `ModelUnusable`."""
    files = []
    for file_name, (source, role) in found.files.items():
        place = folder / file_name
        if isinstance(source, bytes):
            place.write_bytes(source)
        else:
            try:
                shutil.copyfile(source, place)
            except OSError as exc:
                raise ModelUnusable(f"{source} cannot be read: {exc.strerror}") from exc
        files.append(ModelFile(file_name, file_sha256(str(place)), role))
    content = {"format": 1, "name": name, "version": 1, "accuracy": 0.0, **found.manifest}
    if files:
        content |= {"weights": files[0].name, "sha256": files[0].sha256}
    if len(files) > 1:
        content["files"] = [file.to_json() for file in files]
    (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return read_manifest(str(folder))


def checked(manifest: Manifest, found: Recognised) -> Checked:
    """Loads the model, and compares it with its source where that is here.

    Raises `ModelUnusable` where it cannot be loaded, or answers otherwise than its source.
    """
    network = load_network(manifest, find_device("cpu", threads=1))
    warm_up(network, manifest)
    if found.reference is None:
        return Checked(0, None, found.bound, network.resident_bytes)
    rows = list(found.samples) or _samples(manifest)
    ours = np.asarray(_answers(network, manifest, rows), np.float64)
    try:
        theirs = np.asarray(found.reference(rows), np.float64)
    except Exception as exc:  # of a library that is not ours
        raise ModelUnusable(
            f"the model's own library fails at it, so that nothing can be compared: {first_line(exc)}"
        ) from exc
    if ours.shape != theirs.shape:
        raise ModelUnusable(
            f"the model answers {list(ours.shape)} for {len(rows)} rows, and its source {list(theirs.shape)}"
        )
    difference = float(np.abs(ours - theirs).max(initial=0.0))
    if not difference <= found.bound:
        raise ModelUnusable(
            f"the model answers otherwise than its source: numbers of {len(rows)} rows differ by up to "
            f"{difference:.2g}, and {found.bound:g} may be; is its preprocessing, or its activation, another?"
        )
    return Checked(len(rows), difference, found.bound, network.resident_bytes)


def _answers(network: Network, manifest: Manifest, rows: Sequence[bytes]) -> Any:  # noqa: ANN401  # floats, of numpy
    read = reading(network, task_named(manifest.task).reads)
    inputs: Inputs = rows
    if network.pixels is not None:
        frame = manifest.input.frame
        inputs = np.stack([decode_picture(row, frame, max_pixels=_MOST_PIXELS) for row in rows])
    return read(inputs, lambda: False)


def _samples(manifest: Manifest) -> list[bytes]:
    """Rows of the manifest's form to compare on: drawn pictures, or some texts."""
    if manifest.input.form == "text":
        return list(_TEXTS)
    if manifest.input.form == "row":
        raise ModelUnusable("there are no rows to compare with the source on")
    from PIL import Image

    samples = []
    for seed in range(_SAMPLES):
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(file, "PNG")
        samples.append(file.getvalue())
    return samples


def _why_nothing(path: Path) -> str:
    if path.is_dir():
        if (path / "model.json").is_file():
            return (
                f"{path} is a model as ml_udf keeps it, which needs no import: on the server's host "
                f'POST /register {{"directory": "{path.absolute()}"}}'
            )
        files = ", ".join(sorted(os.listdir(path))[:10]) or "nothing"
        return f"{path} is no model that is known: it holds {files}"
    if path.suffix.lower() in PICKLES:
        return (
            f"{path} is a pickle by its name, which runs code when it is read, and is not read: export "
            "the model to ONNX, register a scikit-learn model from its own process (ml_udf.sdk.register), or "
            "name the --architecture of a PyTorch checkpoint"
        )
    return (
        f"{path} is no model that is known: .onnx, a PyTorch checkpoint with its --architecture, or what the "
        f"other runtimes read ({', '.join(RUNTIMES)})"
    )
