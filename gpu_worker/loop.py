"""The worker's loop: frames in, frames out, one engine between.

    socket → reader ─┬─ Infer ────────→ engine.begin → decode threads → model threads ─┐
                     ├─ Crop ─────────→ engine.crop  → decode threads ─────────────────┤
                     ├─ Load, Read, … → a thread for each model under way (orders.py) ─┼─→ sender → socket
                     ├─ TrainEpoch, … → trainer (a process of its own) ────────────────┤
                     ├─ FilePiece, PieceTaken → who moves that file (wire/pieces.py)   │
                     ├─ Cancel, Ping, … ───────────────────────────────────────────────┘
                     └─ end of stream, FrameError: the loop ends

A request that fails, whatever its reason, is answered `Failed` and the loop goes on. Expected errors
carry their own code and message; unexpected ones are `internal`, with a traceback in the log. Three
things end the loop: the end of the stream; bytes that are no frame (the two sides no longer agree where
messages start); and `DeviceLost`, after which nothing more is answered, so that the server gives the
unanswered rows to another worker.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from typing import cast

from gpu_worker.engine import Engine, LoadReport
from gpu_worker.errors import DeviceLost, ModelUnusable, NoRoom, WorkerError
from gpu_worker.model_files.fetched import Fetched, FetchedModels
from gpu_worker.model_files.kept_pictures import KeptPictures
from gpu_worker.orders import Orders
from gpu_worker.pipeline.batch import Batch
from gpu_worker.pipeline.crops import Cropping
from gpu_worker.settings import Settings
from gpu_worker.train.node_pictures import NodePictures
from gpu_worker.train.staging import StagedTrainer, Training
from gpu_worker.train.trainer import Trainer
from gpu_worker.wire.frames import Reader
from gpu_worker.wire.pieces import Pieces
from gpu_worker.wire.protocol import (
    Answer,
    Cancel,
    Crop,
    Cropped,
    Done,
    EndTraining,
    Evaluate,
    Failed,
    FilePiece,
    ForgetTrial,
    FrameError,
    Infer,
    Inspect,
    ListResidents,
    Load,
    Loaded,
    MakeVariant,
    Message,
    PieceTaken,
    Ping,
    Pong,
    ProbeTraining,
    Read,
    ResidentsListed,
    Row,
    StoreCheckpoint,
    TrainEpoch,
    Unload,
)
from gpu_worker.wire.replies import Replies

__all__ = ["Loop"]

_log = logging.getLogger(__name__)
_MOST_PENDING = 64  # batches; more are refused, so that memory stays bounded
_OF_TRAINING = (TrainEpoch, StoreCheckpoint, ForgetTrial, Evaluate, Inspect, MakeVariant)
_LOOK_S = 0.2  # between two looks at whether anybody still waits for the batches under way


class Loop:
    """Serves `engine` over a connected stream socket until it closes. `run` may be called once.

    `abandoned` is called once, when nobody waits for what is under way; a pass that hangs may keep `run` from
    returning after that. shared: the memory that rows may lie in.
    """

    def __init__(
        self,
        connection: socket.socket,
        engine: Engine,
        abandoned: Callable[[], None] = lambda: None,
        shared: memoryview | None = None,
    ) -> None:
        self._connection = connection
        self._shared = shared
        self._engine = engine
        self._abandoned = abandoned
        self._batches: dict[int, Batch | Cropping | None] = {}  # None: not begun yet
        self._batches_changed = threading.Condition()
        self._replies = Replies(connection, self._forget)
        self._orders = Orders(self._carry_out, self._fail)
        self._pieces = Pieces(self._replies.put)
        fetched, most_bytes = engine.settings.fetched, engine.settings.fetched_bytes
        self._fetched = FetchedModels(fetched, most_bytes) if fetched else None
        device = engine.device
        trainer_of = functools.partial(
            Trainer, engine.settings, device.computes_on, pictures=self._pictures(engine.settings)
        )
        self._trainer: Training = (
            trainer_of(self._replies.put)
            if self._fetched is None
            else StagedTrainer(trainer_of, self._replies.put, self._fetched, self._pieces)
        )
        self._most_pending = max(_MOST_PENDING, device.threads if device.is_remote else 0)
        self._draining = False
        self._is_abandoned = False
        self._lost: DeviceLost | None = None

    def _pictures(self, settings: Settings) -> NodePictures | None:
        """By whom training has photos that this machine does not see."""
        if not settings.fetched_pictures:
            return None
        files = FetchedModels(settings.fetched_pictures, settings.fetched_bytes)
        return NodePictures(KeptPictures(files), self._pieces)

    def drain(self) -> None:
        """Take no more requests, answer those that came, end. May be called in any thread."""
        self._draining = True
        self._stop_reading()

    def run(self) -> None:
        """Reads in this thread until the stream ends. Raises `DeviceLost`, `FrameError`."""
        sending = threading.Thread(target=self._replies.run, name="sending")
        sending.start()
        try:
            reader = Reader(self._connection, self._shared)
            while (message := reader.receive()) is not None:
                self._accept(message)
        finally:
            if not self._draining:
                self._abandon()
            self._trainer.close()
            self._pieces.close()  # nobody reads any more what would come
            self._orders.join()
            self._wait_for_batches()
            self._replies.close()
            sending.join()
        if self._lost is not None:
            raise self._lost

    def _wait_for_batches(self) -> None:
        while True:
            with self._batches_changed:
                if self._batches_changed.wait_for(lambda: not self._batches, _LOOK_S):
                    return
            if self._peer_is_gone():  # a drain reads no more, and would never see the end of the stream
                self._abandon()

    def _peer_is_gone(self) -> bool:
        looked = select.poll()
        looked.register(self._connection, 0)
        return any(event & select.POLLHUP for _, event in looked.poll(0))

    def _stop_reading(self) -> None:
        with contextlib.suppress(OSError):  # the other side was quicker
            self._connection.shutdown(socket.SHUT_RD)

    def _accept(self, message: Message) -> None:
        if isinstance(message, Infer):
            self._accept_batch(message)
        elif isinstance(message, Crop):
            self._accept_crop(message)
        elif isinstance(message, Load | Read | Unload):
            self._orders.put(message)
        elif isinstance(message, FilePiece):
            self._pieces.came(message)
        elif isinstance(message, PieceTaken):
            self._pieces.taken(message)
        elif isinstance(message, Cancel):
            with self._batches_changed:
                batch = self._batches.get(message.target)
            if batch is not None:
                batch.cancel()
            elif not self._orders.cancel(message.target):
                self._trainer.cancel(message)
        elif isinstance(message, _OF_TRAINING):
            self._trainer.send(message)
        elif isinstance(message, ProbeTraining):
            self._trainer.probe(message)
        elif isinstance(message, EndTraining):
            self._trainer.end()
            self._replies.put(Done(message.id))
        elif isinstance(message, Ping):
            device = self._engine.device
            self._replies.put(
                Pong(
                    message.id,
                    device.name,
                    device.description,
                    device.capacity_bytes,
                    self._engine.resident(),
                    self._engine.loading(),
                    self._engine.used_bytes,
                )
            )
        elif isinstance(message, ListResidents):
            residents = self._engine.residents()
            there = {resident.key: resident.network.resident_bytes for resident in residents}
            in_host, loading = self._engine.in_host(), self._engine.loading()
            self._replies.put(ResidentsListed(message.id, there, in_host, loading))
        else:
            raise FrameError(f"a worker does not take {message.kind!r} messages")

    def _takes(self, message: Infer | Crop) -> bool:
        """Whether there is room for it; else that is its answer."""
        if len(self._batches) >= self._most_pending:
            waiting = f"{len(self._batches)} batches wait already; try again when some are answered"
            self._fail(message.id, NoRoom(waiting))
            return False
        # It may be over, and its reply sent, before `begin` returns.
        with self._batches_changed:
            self._batches[message.id] = None
        self._trainer.batch_begun()
        return True

    def _begun(self, message: Infer | Crop, batch: Batch | Cropping) -> None:
        with self._batches_changed:
            if message.id in self._batches:
                self._batches[message.id] = batch

    def _accept_crop(self, message: Crop) -> None:
        if not self._takes(message):
            return
        try:
            cropping = self._engine.crop(message, functools.partial(self._cropped, message.id))
        except Exception as exc:
            self._trainer.batch_over()
            self._fail(message.id, exc)
            return
        self._begun(message, cropping)

    def _cropped(self, request_id: int, outcome: Cropped | Exception) -> None:
        """In the thread of its last picture."""
        if isinstance(outcome, Exception):
            self._fail(request_id, outcome)
        else:
            self._replies.put(outcome)
        self._trainer.batch_over()

    def _accept_batch(self, message: Infer) -> None:
        if not self._takes(message):
            return
        try:
            batch = self._engine.begin(
                message.models,
                message.form,
                cast("list[Row]", message.rows),
                outputs=message.outputs,
                task=message.task,
                steps=message.steps,
                request_id=message.id,
                media_roots=message.media_roots,
                narrowed=message.narrowed,
                patience_s=message.patience_s,
                parts=message.parts,
                on_over=self._over,
            )
        except Exception as exc:
            self._trainer.batch_over()
            self._fail(message.id, exc)
            return
        self._begun(message, batch)
        batch.answer.add_done_callback(self._answered)

    def _answered(self, answer: Future[Answer]) -> None:
        """Of a lost device nothing is waited for: the batch's other passes may hang on it."""
        exc = answer.exception()
        if isinstance(exc, DeviceLost):
            self._lose(exc)

    def _over(self, batch: Batch) -> None:
        """The reply; only now, since it says that nothing of the batch is here any more.

        Runs in the thread that ended the last piece: it only hands over.
        """
        exc = batch.answer.exception()
        if exc is None:
            self._replies.put(batch.answer.result())
        else:
            self._fail(batch.id, exc, batch.timer.seconds, batch.stay_s())
        self._trainer.batch_over()

    def _forget(self, request_id: int) -> None:
        """Its reply is sent, or never will be: it no longer counts as pending."""
        with self._batches_changed:
            self._batches.pop(request_id, None)
            self._batches_changed.notify_all()

    def _abandon(self) -> None:
        """Nobody waits for anything any more."""
        told, self._is_abandoned = self._is_abandoned, True
        if not told:
            self._abandoned()
        with self._batches_changed:
            batches = list(self._batches.values())
        for batch in batches:
            if batch is not None:
                batch.cancel()
        self._orders.cancel_all()

    def _carry_out(self, message: Load | Read | Unload, is_cancelled: Callable[[], bool]) -> None:
        """In a thread of the order's own."""
        try:
            if isinstance(message, Load):
                reply: Message = self._load(message, is_cancelled)
            elif isinstance(message, Read):
                with self._files(message, is_cancelled) as files:
                    self._engine.read(message.model, files.directory, is_cancelled)
                reply = Done(message.id)
            else:
                self._engine.unload(message.model)
                reply = Done(message.id)
        except Exception as exc:
            self._fail(message.id, exc)
        else:
            self._replies.put(reply)

    def _load(self, message: Load, is_cancelled: Callable[[], bool]) -> Loaded:
        with self._files(message, is_cancelled) as files:
            try:
                report = self._engine.load(message.model, files.directory, is_cancelled)
            except ModelUnusable:
                if self._fetched is None or files.nbytes:
                    raise
                # It came whole long ago: what lies here may have been damaged since.
                self._fetched.forget(message.directory)
            else:
                return _loaded(message, report, files)
        with self._files(message, is_cancelled) as files:
            return _loaded(message, self._engine.load(message.model, files.directory, is_cancelled), files)

    @contextlib.contextmanager
    def _files(self, message: Load | Read, is_cancelled: Callable[[], bool]) -> Iterator[Fetched]:
        """Where they are while it is entered."""
        if self._fetched is None:
            yield Fetched(message.directory, 0.0, 0)
            return
        ask = functools.partial(self._pieces.ask, message.id)
        with self._fetched.lent(message.directory, ask, is_cancelled) as files:
            yield files

    def _lose(self, exc: DeviceLost) -> None:
        """The other side sees the end at once, whatever hangs here."""
        self._lost = exc
        self._replies.drop()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _fail(self, request_id: int, exc: BaseException, work_s: float = 0.0, stay_s: float = 0.0) -> None:
        if isinstance(exc, WorkerError):
            told = (exc.wanted_bytes, list(exc.missing))
            self._replies.put(Failed(request_id, exc.code, str(exc), work_s, stay_s, *told))
        elif isinstance(exc, DeviceLost):
            self._lose(exc)
            self._forget(request_id)
        else:
            _log.error("request %s failed", request_id, exc_info=exc)
            reason = f"{type(exc).__name__}: {exc}"
            self._replies.put(Failed(request_id, "internal", reason, work_s, stay_s))


def _loaded(message: Load, report: LoadReport, files: Fetched) -> Loaded:
    return Loaded(
        message.id,
        report.resident_bytes,
        report.load_s + files.took_s,
        report.features_width,
        precision=report.precision,
        # The next load fetches nothing.
        again_s=report.again_s or (report.load_s if files.nbytes else 0.0),
        fetch_s=files.took_s,
        **asdict(report.times),
    )
