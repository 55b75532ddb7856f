"""A model version's folder → a `Network` on the device. Knows files and runtimes, not who asks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.sources import Sources
from gpu_worker.networks.network import IsCancelled, Network, check, width_of
from gpu_worker.networks.piece_sizes import rows_that_fit
from gpu_worker.networks.runtimes import Runtime, runtime_of
from gpu_worker.tasks import Reads, Task, task_named
from gpu_worker.tasks.task import BOX_NUMBERS, MOST_BOXES

__all__ = [
    "check_input",
    "import_runtime",
    "load_network",
    "warm_up",
    "weights_bytes",
]

_PLAIN_FORMS = ("text", "row")  # of rows that are no pictures
_WARM_UP_ROWS = 64  # a piece of a CPU's size
_WARM_UP_S = 0.5  # about as long as the pass of several rows may take: of large pictures 64 take many seconds


def import_runtime(manifest: Manifest) -> None:
    """Imports the libraries that `load_network` needs for such a model, if they are not there yet.

    Raises `ModelUnusable` where they are not installed, or what the model stands on is not there.
    """
    runtime = runtime_of(manifest)
    runtime.import_modules()
    below = runtime.below(manifest)
    if below is not None:
        import_runtime(below)


def load_network(manifest: Manifest, device: Device, *, allow_import: bool = False) -> Network:
    """The model, loaded and checked against its manifest, not yet warm. Raises `ModelUnusable`.

    For one that is loaded once, straight into the memory where it is computed; `gpu_worker.tiers` is the way
    of a worker's models. Weights come in formats that cannot run code.
    """
    runtime = runtime_of(manifest)
    if runtime.held != "drawn":
        check_input(manifest, runtime)
        sources = Sources()
        if manifest.files or runtime.held != "made":
            sources.hashed(manifest, sources.stamp(manifest), lambda: False)
        sources.check_others(manifest, lambda: False)
    runtime.import_modules()
    return runtime.load(manifest, device, content=None, allow_import=allow_import)


def check_input(manifest: Manifest, runtime: Runtime) -> None:
    """Raises `ModelUnusable` where a model's rows are none of its runtime, or their size is not said."""
    form = manifest.input.form
    if form not in runtime.forms:
        takes = ", ".join(sorted(runtime.forms))
        raise ModelUnusable(f"{manifest.directory}: the runtime {runtime.name!r} takes {takes}, not {form!r}")
    is_picture = form not in _PLAIN_FORMS and manifest.input.preprocess.file_ends is None
    if is_picture and not (manifest.input.height and manifest.input.width):
        raise ModelUnusable(
            f"{manifest.directory}: 'input' needs 'height' and 'width' of its pictures, or where its rows "
            "are any files' bytes, 'preprocess' with 'first_bytes' or 'last_bytes'"
        )


def warm_up(network: Network, manifest: Manifest, is_cancelled: IsCancelled = lambda: False) -> None:
    """First passes: kernels are chosen, memory is laid in, the shape of the answers is seen.

    One row, the same again, which tells what a row takes, and many: as many as run together where that tells
    what memory they take, and elsewhere as many as there is time for, two at least.

    Raises `ModelUnusable` when a row does not get finite numbers, as many as its own task is made of;
    `Cancelled` between two passes.
    """
    task, said = task_named(manifest.task), manifest.features.width
    sizes = [network.pixels] if network.pixels else []
    cold_bytes = network.resident_bytes
    row_s = math.inf
    for most_rows in (1, 1, _WARM_UP_ROWS):
        check(is_cancelled)
        rows = min(most_rows, rows_that_fit(sizes, is_cuda=False))
        if network.resident_bytes == cold_bytes:
            rows = min(rows, max(2, int(_WARM_UP_S / row_s)))
        began_s = time.monotonic()
        found = network.warm_up(rows)
        row_s = max(time.monotonic() - began_s, 1e-6)
        width = width_of(network, task.reads, len(manifest.classes))
        _check_width(manifest, task, width)
        if found.shape != (rows, width):
            raise ModelUnusable(
                f"the model in {manifest.directory} answers {list(found.shape)} for {rows} rows, "
                f"and {_WIDTHS[task.reads].format(width)}"
            )
        if not np.isfinite(found).all():
            raise ModelUnusable(f"the model in {manifest.directory} answers {task.reads} that are not finite")
    has = width_of(network, "features", 0)
    if said and has != said:
        raise ModelUnusable(
            f"the model in {manifest.directory} has {has} features, and model.json says {said}"
        )


_WIDTHS: Mapping[Reads, str] = {
    "scores": "model.json names {} classes",
    "features": "model.json says {} features",
    "values": "a row has {} numbers: a value, or a value and the ends of its interval",
    "boxes": "a row has {} numbers: six for each of its boxes",
    "texts": "a row has {} text",
}


def _check_width(manifest: Manifest, task: Task, width: int) -> None:
    """Raises `ModelUnusable` where no answer of the task can be made of so many numbers a row."""
    where = f"the model in {manifest.directory}"
    if width == 0:
        raise ModelUnusable(f"{where} has no {task.reads}, of which {task.name} is made")
    if task.reads == "values" and width not in (1, 3):
        raise ModelUnusable(
            f"{where} gives {width} values a row; {task.name} takes 1, or 3 with the ends of an interval"
        )
    if task.reads == "boxes" and (width % BOX_NUMBERS or width > MOST_BOXES * BOX_NUMBERS):
        raise ModelUnusable(
            f"{where} gives {width} numbers a row; {task.name} takes {BOX_NUMBERS} for each of up to "
            f"{MOST_BOXES} boxes: x0, y0, x1, y1, score, class. Keep the best boxes within the model"
        )


def weights_bytes(manifest: Manifest) -> int:
    """Size of the model's files: the least that it will take. Raises `ModelUnusable`."""
    return runtime_of(manifest).nbytes(manifest)
