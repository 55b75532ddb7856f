"""A tabular model in ONNX as a `Network`: rows as JSON in, probabilities or values out.

The file holds its columns in its metadata (`networks.table`), so that it says itself what a row is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import onnxruntime

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.networks.onnx_network import first_passes, open_session
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.networks.table import RowInvalid, Table, values_of
from gpu_worker.tasks import Reads

__all__ = ["COLUMNS_KEY", "PROBABILITIES", "VALUES", "RowNetwork"]

COLUMNS_KEY = "ml_udf.columns"
PROBABILITIES = "probabilities"
VALUES = "values"  # [n, 1], or [n, 3] with the ends of an interval; what answers numbers has no classes


class RowNetwork:
    """`path` is the model file, `content` what it holds where that is in memory. reads: scores or values.

    Raises `ModelUnusable` when it is not a model of the agreed shape.
    """

    forms = frozenset(("row",))
    pixels: tuple[int, int] | None = None
    cuttable = True

    def __init__(
        self, path: str, device: Device, content: bytes | None = None, *, reads: Reads = "scores"
    ) -> None:
        self._path = path
        self._device = device.computes_on
        self._session = open_session(path, device, content)
        stored = self._session.get_modelmeta().custom_metadata_map.get(COLUMNS_KEY)
        if stored is None:
            raise ModelUnusable(f"{path} holds no {COLUMNS_KEY!r} in its metadata, which says what a row is")
        try:
            self._table = Table.from_json(stored)
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise ModelUnusable(f"{COLUMNS_KEY!r} of {path} cannot be read: {exc}") from exc
        inputs = self._session.get_inputs()
        outputs = [output.name for output in self._session.get_outputs()]
        self._output = VALUES if reads == "values" else PROBABILITIES
        fits = len(inputs) == 1 and inputs[0].type == "tensor(float)" and len(inputs[0].shape) == 2
        if not fits or self._output not in outputs:
            raise ModelUnusable(
                f"{path} needs one float32 input [n, features] and an output {self._output!r}"
            )
        if inputs[0].shape[1] != self._table.width:
            raise ModelUnusable(
                f"{path} takes {inputs[0].shape[1]} features, and its columns make {self._table.width}"
            )
        self._input = str(inputs[0].name)
        self.values_width = 0  # known once it is warm
        self.resident_bytes = os.path.getsize(path) if content is None else len(content)

    def warm_up(self, rows: int) -> Floats:
        """The scores, or the values, of `rows` rows whose values are all missing. Raises `ModelUnusable`."""
        empty = ("[" + ",".join(["null"] * len(self._table.columns)) + "]").encode()
        with first_passes(self._path) as options:
            found = self._found([empty] * rows, options)
        if self._output == VALUES and found.ndim == 2:
            self.values_width = found.shape[1]
        return found

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of JSON rows; not a number where a row does not fit the columns."""

        return self._passed(inputs, is_cancelled)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self._passed(inputs, is_cancelled)

    def _passed(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        def whole(part: Inputs) -> Floats:
            return self._found([bytes(row) for row in part], None)

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device)

    def _found(self, rows: Sequence[bytes], options: onnxruntime.RunOptions | None) -> Floats:
        matrix, faults = self._table.numbers(rows)
        (found,) = self._session.run([self._output], {self._input: matrix}, options)
        numbers: Floats = np.asarray(found, np.float32)
        numbers[list(faults)] = np.nan
        return numbers

    def fault_of(self, row: bytes) -> str | None:
        """Why a row does not fit the columns; None for one that does."""
        try:
            values_of(row, self._table.columns)
        except RowInvalid as fault:
            return str(fault)
        return None
