"""One request for answers on its way through the worker: cut into pieces, collected, answered once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from gpu_worker.errors import Cancelled
from gpu_worker.model_cache import Resident
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.network import UntilDeadline
from gpu_worker.pipeline.asking import AskPlan
from gpu_worker.pipeline.forward import Tally
from gpu_worker.pipeline.media import MediaByRow, MediaRoots
from gpu_worker.pipeline.piece import Decoding, Piece
from gpu_worker.pipeline.recent_rows import RecentRows
from gpu_worker.pipeline.work_time import COMMON, WorkClock, WorkTimer
from gpu_worker.wire.protocol import Answer, BatchPart, Row

__all__ = ["Batch"]


class Batch:
    """Made by `Engine.begin`. `answer` resolves to an `Answer`, or raises what went wrong.

    A batch is *closed* once `answer` is resolved. It is *over*, and `on_over` is called, once none of its
    pieces is anywhere in the worker, which for a cancelled or failed batch may be later; with a pass that
    hangs, never. Its models stay leased until then. `turn`: of two batches, the lower is worked on first.
    `media`: below what its paths are read; None for all that the worker may read. `ends_s`: when nobody wants
    it any more, on `time.monotonic`.
    """

    def __init__(
        self,
        request_id: int,
        residents: Sequence[Resident],
        form: str,
        rows: Sequence[Row],
        *,
        piece_rows: int,
        outputs: Sequence[str] = (),
        task: str = "",
        plan: AskPlan | None = None,
        parts: Sequence[BatchPart] = (),
        timer: WorkTimer | None = None,
        turn: int = 0,
        media: MediaRoots | MediaByRow | None = None,
        recent: RecentRows | None = None,
        ends_s: float = math.inf,
        on_over: Callable[[Batch], object] = lambda _: None,
    ) -> None:
        self.id = request_id
        self.residents = residents
        self.form = form
        self.frames: tuple[Frame, ...] = tuple(
            dict.fromkeys(frame for model in residents if (frame := model.frame) is not None)
        )
        self.serial = not all(model.network.cuttable for model in residents)
        self.tally = Tally(
            residents, len(rows), outputs=outputs, task=task, plan=plan, parts=parts, recent=recent
        )
        self.timer = timer or WorkClock().timer()  # alone, unless it is said
        self.turn = turn
        self.media = media
        self.answer: Future[Answer] = Future()
        self._on_over = on_over
        abilities = [model.abilities for model in residents]
        self._encoded = any(able.takes_encoded for able in abilities)
        ends = [able.file_ends for able in abilities if able.file_ends]
        self._parity = residents[0].manifest.parity if residents else None  # the engine lets one in alone
        self._file_ends = (max(first for first, _ in ends), max(last for _, last in ends)) if ends else None
        self._is_unwanted = UntilDeadline(self.is_closed, ends_s)
        self._rows = rows
        self._piece_rows = piece_rows
        self._next_row = 0
        self._pieces = 0  # somewhere in the worker
        self._decoding = Decoding()
        self._spared_rows = 0
        self._closed = False
        self._began_s = self._decoded_s = time.monotonic()
        self._lock = threading.Lock()

    def is_closed(self) -> bool:
        """Whether nobody wants its remaining rows any more."""
        return self._closed

    def stay_s(self) -> float:
        """How long it has been here; its own work is `timer.seconds` of that."""
        return time.monotonic() - self._began_s

    def cut(self) -> Piece | None:
        """The next piece; None when there are no rows left, or nobody wants them."""
        with self._lock:
            if self._closed or self._next_row >= len(self._rows):
                return None
            start = self._next_row
            rows = self._rows[start : start + self._piece_rows]
            self._next_row += len(rows)
            self._pieces += 1
            piece = Piece(start, rows, self.timer, with_shapes=self.tally.needs_shapes)
            piece.encoded = self._encoded
            piece.file_ends = self._file_ends
            piece.parity = self._parity
            piece.names_wanted = self.tally.needs_names
            return piece

    def run(self, piece: Piece) -> None:
        """The forward passes of one decoded piece; what goes wrong closes the batch."""
        try:
            if piece.bug is not None:
                raise piece.bug
            if not self._closed:
                self.tally.add(piece, self._is_unwanted)
        except BaseException as exc:
            self.fail(exc)

    def piece_over(self, piece: Piece) -> bool:
        """Notes that a piece left the worker; True when it was the last and the batch is over."""
        with self._lock:
            self._pieces -= 1
            self._decoded_s = max(self._decoded_s, piece.decoded_s)
            self._decoding.add(piece.decoding)
            self._spared_rows += len(piece.spared)
            return self._pieces == 0

    def finish(self) -> None:
        """The batch is over: resolves `answer` with what was collected, unless it is closed already."""
        if self._close():
            self.answer.set_result(
                Answer(
                    self.id,
                    self.tally.members(),
                    sorted(self.tally.errors, key=lambda error: error.index),
                    self._decoded_s - self._began_s,
                    self.tally.forward_s,
                    self.timer.seconds,
                    self.stay_s(),
                    self._members_s(),
                    self.tally.answered(),
                    self._spared_rows,
                )
            )
        self._on_over(self)

    def _members_s(self) -> list[list[float]]:
        parts_s = self.timer.parts_s
        common_s = parts_s.get(COMMON, 0.0)
        return [
            [parts_s.get(number, 0.0), common_s * self._decoding.part_for(resident.frame)]
            for number, resident in enumerate(self.residents, 1)
        ]

    def fail(self, exc: BaseException) -> None:
        """Resolves `answer` with an exception, unless the batch is closed already."""
        if self._close():
            self.answer.set_exception(exc)

    def cancel(self) -> None:
        """Nobody wants the answer: it raises `Cancelled` at once; pieces under way end soon."""
        self.fail(Cancelled("the request was cancelled"))

    def _close(self) -> bool:
        with self._lock:
            was_open, self._closed = not self._closed, True
            return was_open
