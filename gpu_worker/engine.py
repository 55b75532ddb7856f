"""The worker without its socket: load models, answer batches. `loop` serves it; `local:` calls it.

    begin:   lease the models, cut the rows into pieces, start decoding the first ones      any thread
    finish:  wait for each piece, run it, start decoding a later one; collect the answers   one at a time

Decoding of later pieces and of later batches overlaps the forward pass of this one. Pieces bound three
things: the memory of decoded rows, the time between two looks at `cancelled`, and, on a CPU, the size of
the activations (they should stay in the cache).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass

from gpu_worker.device import find_device
from gpu_worker.errors import BadRequest
from gpu_worker.forward import Tally
from gpu_worker.intake import Intake, Piece
from gpu_worker.loader import load_network, weights_bytes
from gpu_worker.manifest import FORMS, read_manifest
from gpu_worker.model_cache import ModelCache, Resident
from gpu_worker.network import IsCancelled, check
from gpu_worker.protocol import Answer
from gpu_worker.settings import Settings

__all__ = ["Batch", "Engine", "LoadReport"]

_PIECE_ROWS_CPU = 64
_PIECE_ROWS_CUDA = 1024
_PIECE_S = 0.08  # `cancelled` is looked at at least this often, as far as predictions hold
_PIECES_AHEAD = 3
_LOOK_S = 0.05  # how long a wait lasts between two looks at `cancelled`


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A model made resident: its measured size, the time it took, and whom it displaced."""

    resident_bytes: int
    load_s: float
    evicted: list[str]


class Batch:
    """Rows on their way through one or several models; made by `Engine.begin`, used up by `finish`."""

    def __init__(
        self,
        request_id: int,
        residents: list[Resident],
        form: str,
        rows: Sequence[bytes],
        *,
        scores: bool,
        piece_rows: int,
    ) -> None:
        self.id = request_id
        self.residents = residents
        self.form = form
        self.rows = rows
        self.began_s = time.monotonic()
        self.sizes = tuple(dict.fromkeys(m.network.pixels for m in residents if m.network.pixels))
        self.tally = Tally(residents, len(rows), scores=scores)
        self.ahead: deque[Piece] = deque()
        self.next_row = 0
        self.piece_rows = piece_rows
        self.released = False


class Engine:
    """One device, its resident models and its decode threads. Thread-safe; forwards run one at a time.

    Threads are started by the first use (or by `start`), all at once: a caller that must keep signals to
    its main thread (a database backend) blocks them around that.
    Raises `BadRequest` when the device is not there.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = find_device(
            settings.device, threads=settings.threads, resident_bytes=settings.resident_bytes
        )
        self._cache = ModelCache(max_bytes=self.device.capacity_bytes, max_models=settings.resident_models)
        self._intake = Intake(settings, threads=self.device.threads, pinned=self.device.is_cuda)
        self._start_once = threading.Lock()
        self._started = False
        self._forward = threading.Lock()

    def start(self) -> None:
        """Starts the decode threads, if they do not run yet."""
        with self._start_once:
            if not self._started:
                self._intake.start()
                self._started = True

    def close(self) -> None:
        """Ends the threads; batches under way fail."""
        self._intake.close()

    def resident(self) -> list[str]:
        """Keys of the resident models, least recently used first."""
        return self._cache.keys()

    def load(self, key: str, directory: str) -> LoadReport:
        """Makes the model stored in `directory` resident as `key`. Raises `ModelUnusable`, `NoRoom`."""
        self.start()
        began_s = time.monotonic()
        manifest = read_manifest(directory)
        resident, evicted = self._cache.put(
            key,
            manifest,
            weights_bytes(manifest),
            lambda: load_network(manifest, self.device, allow_import=self.settings.allow_import),
        )
        return LoadReport(resident.network.resident_bytes, time.monotonic() - began_s, evicted)

    def unload(self, key: str) -> None:
        """Drops the model once its last batch is done. Raises `UnknownModel`."""
        self._cache.remove(key)

    def infer(
        self,
        models: Sequence[str],
        form: str,
        rows: Sequence[bytes],
        scores: bool = False,
        cancelled: IsCancelled = lambda: False,
    ) -> Answer:
        """The answers of `models` for `rows`, in this thread. Raises what `begin` and `finish` raise."""
        return self.finish(self.begin(models, form, rows, scores=scores), cancelled)

    def begin(
        self,
        models: Sequence[str],
        form: str,
        rows: Sequence[bytes],
        *,
        scores: bool = False,
        request_id: int = 0,
    ) -> Batch:
        """Leases the models and starts decoding. Raises `UnknownModel`, `BadRequest`."""
        if form not in FORMS:
            raise BadRequest(f"the form {form!r} is not known; there are: {', '.join(FORMS)}")
        if not models:
            raise BadRequest("the request names no model")
        self.start()
        residents = self._cache.acquire(models)
        try:
            for resident in residents:
                if form not in resident.network.forms:
                    takes = ", ".join(sorted(resident.network.forms))
                    raise BadRequest(f"the model {resident.key!r} takes {takes}, not {form!r}")
            batch = Batch(
                request_id,
                residents,
                form,
                rows,
                scores=scores,
                piece_rows=self._piece_rows(residents, len(rows)),
            )
            self._decode_ahead(batch)
        except BaseException:
            self._cache.release(residents)
            raise
        return batch

    def finish(self, batch: Batch, cancelled: IsCancelled = lambda: False) -> Answer:
        """Runs the batch to its end and lets go of it, whatever happens.

        Raises `Cancelled` soon after `cancelled()` turned true, `DeviceLost`, and what `cancelled` raises.
        """
        decoded_s = batch.began_s
        try:
            while batch.ahead:
                piece = batch.ahead[0]
                _wait(piece, cancelled)
                decoded_s = max(decoded_s, piece.decoded_s)
                self._decode_ahead(batch)
                self._run(batch, piece, cancelled)
                batch.ahead.popleft()
                self._intake.release(piece)
            errors = sorted(batch.tally.errors, key=lambda error: error.index)
            return Answer(
                batch.id, batch.tally.members(), errors, decoded_s - batch.began_s, batch.tally.forward_s
            )
        finally:
            self.abandon(batch)

    def abandon(self, batch: Batch) -> None:
        """Lets go of a batch's models and buffers; harmless when done already."""
        if not batch.released:
            batch.released = True
            for piece in batch.ahead:
                self._intake.release(piece)
            batch.ahead.clear()
            self._cache.release(batch.residents)

    def _run(self, batch: Batch, piece: Piece, cancelled: IsCancelled) -> None:
        while not self._forward.acquire(timeout=_LOOK_S):
            check(cancelled)
        try:
            batch.tally.add(piece, cancelled)
        finally:
            self._forward.release()

    def _decode_ahead(self, batch: Batch) -> None:
        while batch.next_row < len(batch.rows) and len(batch.ahead) < _PIECES_AHEAD:
            rows = batch.rows[batch.next_row : batch.next_row + batch.piece_rows]
            batch.ahead.append(self._intake.begin(batch.form, rows, batch.next_row, batch.sizes))
            batch.next_row += len(rows)

    def _piece_rows(self, residents: Sequence[Resident], rows: int) -> int:
        if not all(resident.network.cuttable for resident in residents):
            return max(1, rows)
        most = _PIECE_ROWS_CUDA if self.device.is_cuda else _PIECE_ROWS_CPU
        slowest_row_s = max(resident.row_s for resident in residents)
        return most if slowest_row_s * most <= _PIECE_S else max(1, int(_PIECE_S / slowest_row_s))


def _wait(piece: Piece, cancelled: IsCancelled) -> None:
    for future in piece.pending:
        while True:
            check(cancelled)
            try:
                future.result(_LOOK_S)
                break
            except NotYet:
                continue
