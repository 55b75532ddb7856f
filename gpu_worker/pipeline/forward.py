"""A decoded piece → each member's columns. Knows arrays, not files or sockets, and no task by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from gpu_worker.model_cache import Resident
from gpu_worker.networks.network import Explains, Inputs, IsCancelled, reading, width_of
from gpu_worker.pipeline.intake import Piece
from gpu_worker.tasks import task_named
from gpu_worker.wire.protocol import MemberAnswer, RowError

__all__ = ["Tally"]


class Tally:
    """The answers of one batch, filled piece by piece, by several threads at once.

    outputs: the columns that are wanted; none for those that an answer has by default. task: what is asked of
    the models; "" for what each was made for. Rows at fault keep "" or 0.
    """

    def __init__(
        self, residents: Sequence[Resident], rows: int, *, outputs: Sequence[str] = (), task: str = ""
    ) -> None:
        self._residents = residents
        tasks = [task_named(task or resident.manifest.task) for resident in residents]
        self._runs = [
            reading(resident.network, asked.reads) for resident, asked in zip(residents, tasks, strict=True)
        ]
        self._collectors = [
            asked.collector(
                rows,
                resident.manifest.classes,
                width_of(resident.network, asked.reads, len(resident.manifest.classes)),
                outputs or asked.default_outputs,
            )
            for resident, asked in zip(residents, tasks, strict=True)
        ]
        self.errors: list[RowError] = []
        self._lock = threading.Lock()
        self.forward_s = 0.0

    def add(self, piece: Piece, is_cancelled: IsCancelled) -> None:
        """Runs the piece's good rows through every model. Raises what networks raise."""
        self.errors.extend(piece.faults)
        bad = {fault.index - piece.start for fault in piece.faults}
        good = np.array([index for index in range(len(piece.rows)) if index not in bad], np.intp)
        if not len(good):
            return
        for member, resident in enumerate(self._residents):
            with piece.timer.part(1 + member):
                good = self._add_member(member, resident, piece, good, is_cancelled)

    def _add_member(
        self, member: int, resident: Resident, piece: Piece, good: np.ndarray, is_cancelled: IsCancelled
    ) -> np.ndarray:
        """Runs the rows `good` of the piece through one model: those that it could answer."""
        inputs = _inputs(piece, resident, good)
        began_s = time.monotonic()
        found = self._runs[member](inputs, is_cancelled)
        took_s = time.monotonic() - began_s
        with self._lock:
            self.forward_s += took_s
        resident.observe(len(good), took_s)
        finite = np.isfinite(found).all(axis=1)
        if not finite.all():
            self._blame(resident, piece, good[~finite])
            good, found = good[finite], found[finite]
        self._collectors[member].put(good + piece.start, found)
        return good

    def members(self) -> list[MemberAnswer]:
        """Every model's answers, in the order asked."""
        return [
            MemberAnswer(resident.key, collector.columns())
            for resident, collector in zip(self._residents, self._collectors, strict=True)
        ]

    def _blame(self, resident: Resident, piece: Piece, rows: np.ndarray) -> None:
        network = resident.network
        for index in rows.tolist():
            reason = network.fault_of(bytes(piece.rows[index])) if isinstance(network, Explains) else None
            if reason is None:
                what = f"the model {resident.key!r} answers numbers that are not finite"
                error = RowError(piece.start + index, "internal", what)
            else:
                error = RowError(piece.start + index, "input_invalid", reason)
            self.errors.append(error)


def _inputs(piece: Piece, resident: Resident, good: np.ndarray) -> Inputs:
    size = resident.network.pixels
    count = len(piece.rows)
    if size is None:
        return piece.rows if len(good) == count else [piece.rows[index] for index in good]
    # A lent buffer may be longer than the piece.
    inputs = (piece.tensors if piece.tensors else piece.pixels)[size][:count]
    return inputs if len(good) == count else inputs[good]
