"""What a `MakeVariant` asks for: the variant is made, then judged beside its original on held-out rows."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_worker.device import find_device
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.model_files.regular import MANIFEST_FILE
from gpu_worker.networks.runtimes import files_bytes
from gpu_worker.variants.calibration import Calibration
from gpu_worker.variants.held_out import UNREAD, HeldOutRows, Places
from gpu_worker.variants.making import make_variant
from gpu_worker.wire.protocol import MakeVariant, VariantMade

__all__ = ["MakingRows", "made_and_judged"]

_TAUGHT_ROWS = 10_000  # by which a parity model learns


@dataclass(frozen=True, slots=True)
class MakingRows:
    """How rows are read. read: path → the file's bytes; raises `RowFault`. on_step: may raise `Cancelled`."""

    read: Callable[[bytes], bytes]
    max_pixels: int
    on_step: Callable[[], object]


def made_and_judged(message: MakeVariant, rows: MakingRows) -> VariantMade:
    """Raises `ModelUnusable`, and what `on_step` raises."""
    began_s = time.monotonic()
    target = Path(message.target)

    def read(path: bytes) -> bytes:
        rows.on_step()
        return rows.read(path)

    def calibration(manifest: Manifest) -> Calibration:
        most = _TAUGHT_ROWS if is_parity else message.calibration_rows
        return Calibration(message.snapshot, manifest, read, most, rows.max_pixels)

    is_parity = message.recipe.startswith("parity")

    made = make_variant(
        Path(message.directory),
        target,
        message.name,
        message.recipe,
        threads=message.threads,
        calibration=calibration if message.snapshot else None,
        on_step=rows.on_step,
    )
    told = VariantMade(
        message.id,
        made.manifest.runtime,
        made.manifest.run.precision,
        files_bytes(made.manifest),
        0.0,
        difference=made.difference,
        calibrated=made.calibrated,
    )
    if message.snapshot:
        original = read_manifest(message.directory)
        held_out = HeldOutRows(
            message.snapshot, message.split, message.held_out_rows, read, rows.max_pixels, rows.on_step
        )
        device = find_device("cpu", threads=1)
        targets, (before, now) = held_out.answers([original, made.manifest], device)
        told.right, told.original_right = _right(targets, now), _right(targets, before)
        told.agreed = int(((now == before) & (now != UNREAD)).sum())
        judged = [each for each in told.right if each != UNREAD]
        if judged:
            _note_accuracy(made.manifest, target, sum(judged) / len(judged))
    told.took_s = time.monotonic() - began_s
    return told


def _right(targets: Places, named: Places) -> list[int]:
    found = np.where(named == UNREAD, UNREAD, (named == targets).astype(np.int64))
    told: list[int] = found.tolist()
    return told


def _note_accuracy(manifest: Manifest, target: Path, accuracy: float) -> None:
    said = dataclasses.replace(manifest, accuracy=round(accuracy, 6))
    (target / MANIFEST_FILE).write_text(json.dumps(said.to_json(), indent=2) + "\n", encoding="utf-8")
