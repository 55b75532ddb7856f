"""An ONNX graph of tables' rows, texts or files' bytes as a `Network`: probabilities, values, features out.

What a row becomes is `row_inputs`'; what its answer is made of, `onnx_answers`'.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime

from gpu_worker.device import Device
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.networks.onnx_answers import Answers
from gpu_worker.networks.onnx_network import first_passes, open_session
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.networks.piece_sizes import LARGEST_LIGHT_PIECE_ROWS, LARGEST_PIECE_ROWS
from gpu_worker.networks.row_inputs import COLUMNS_KEY, row_input
from gpu_worker.tasks.task import FILE_FORMS, Reads

__all__ = ["COLUMNS_KEY", "PROBABILITIES", "VALUES", "RowNetwork"]

PROBABILITIES: Final = "probabilities"
VALUES: Final = "values"  # [n, 1], or [n, 3] with the ends of an interval
# What scikit-learn's converter calls them.
_KNOWN: Final[Mapping[Reads, Sequence[str]]] = {
    "scores": (PROBABILITIES, "output_probability"),
    "values": (VALUES, "variable"),
}


class RowNetwork:
    """The weights of `manifest`, or `content` where that is in memory, as a network of rows, texts or files.

    Raises `ModelUnusable` when it is not a model of the agreed shape.
    """

    pixels: tuple[int, int] | None = None
    cuttable = True

    def __init__(self, manifest: Manifest, device: Device, content: bytes | None = None) -> None:
        path = manifest.path_of_weights()
        self.file_ends = manifest.input.preprocess.file_ends
        self.forms = frozenset((manifest.input.form,) if self.file_ends is None else FILE_FORMS)
        self._path = path
        self._device = device.computes_on
        self._session = open_session(path, device, content)
        # A row of a table becomes as many numbers as it has columns, a text as many as there are words.
        self.largest_piece = LARGEST_LIGHT_PIECE_ROWS if manifest.input.form == "row" else LARGEST_PIECE_ROWS
        self._input = row_input(self._session, manifest, path)
        self._answers = Answers(self._session, manifest, path, _KNOWN, "none")
        self.features_width = 0  # these are known once it is warm
        self.values_width = 0
        self.resident_bytes = os.path.getsize(path) if content is None else len(content)

    def warm_up(self, rows: int) -> Floats:
        """What its task is made of, of `rows` rows that say nothing. Raises `ModelUnusable`."""
        own = self._answers.task.reads
        with first_passes(self._path) as options:
            for reads in sorted(self._answers.gives, key=lambda reads: reads == own):
                found = self._read(reads, [self._input.empty] * rows, options)
                if reads != "scores":
                    setattr(self, f"{reads}_width", found.shape[1] if found.ndim == 2 else 0)
            # Some models have no answer for a row that says nothing, and all have one for others.
            return np.nan_to_num(found)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities; not a number where a row does not fit the columns."""
        return self._passed("scores", inputs, is_cancelled)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of the same."""
        return self._passed("features", inputs, is_cancelled)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self._passed("values", inputs, is_cancelled)

    def _passed(self, reads: Reads, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        def whole(part: Inputs) -> Floats:
            return self._read(reads, [bytes(row) for row in part], None)

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device)

    def _read(self, reads: Reads, rows: Sequence[bytes], options: onnxruntime.RunOptions | None) -> Floats:
        feed, faults = self._input.feed(rows)

        def one_pass(names: Sequence[str]) -> Sequence[Any]:
            found: Sequence[Any] = self._session.run(list(names), feed, options)
            return found

        numbers = self._answers.read(reads, one_pass, len(rows))
        if faults:
            numbers = numbers.copy()
            numbers[list(faults)] = np.nan
        return numbers

    def fault_of(self, row: bytes) -> str | None:
        """Why a row does not fit the columns; None for one that does."""
        return self._input.fault_of(row)
