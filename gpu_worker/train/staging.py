"""Training on a machine that does not see the server's files: these are staged in and out, by pieces.

    TrainEpoch, Evaluate, MakeVariant ─ files fetched, paths of this machine ─→ training process
    CheckpointStored, VariantMade ←─ the server has each file whole ─ files written here ←──┘

One message after the other, as the training process takes them; pictures are looked at beside them. What
pictures a snapshot names come as they are read (`node_pictures`). What a
message names is held in the node's folder until it is answered; what it has stored is answered for only once
the server has it, and then leaves. A link that is cut ends the message and leaves nothing of it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gpu_worker.errors import BadRequest, Cancelled, NoSpace, WorkerError
from gpu_worker.model_files.fetched import PIECE_BYTES, FetchedModels
from gpu_worker.model_files.regular import file_sha256, open_regular, optimiser_file
from gpu_worker.train.trainer import Trainer
from gpu_worker.wire.pieces import Pieces
from gpu_worker.wire.protocol import (
    Cancel,
    CheckpointStored,
    Evaluate,
    Failed,
    FilePiece,
    Inspect,
    MakeVariant,
    Message,
    PieceTaken,
    ProbeTraining,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
    VariantMade,
)

__all__ = ["StagedTrainer", "Training"]

_log = logging.getLogger(__name__)

_LOOK_S = 0.05
_END_S = 5.0


class Training(Protocol):
    """What a worker's loop asks of its training: a `Trainer`, or one whose files are staged."""

    def send(self, message: Message) -> None:
        """Hand a training message on."""

    def probe(self, message: ProbeTraining) -> None:
        """Have it answered, whatever is under way."""

    def end(self) -> None:
        """End a process that hangs."""

    def cancel(self, message: Cancel) -> None:
        """Stop what `message` names, if it is here."""

    def batch_begun(self) -> None:
        """A batch wants the device."""

    def batch_over(self) -> None:
        """A batch has been answered."""

    def close(self) -> None:
        """End it all."""


@dataclass(slots=True, eq=False)
class _Order:
    """A message; whether it was taken back, or is to end whatever it is at; whether its files are moved."""

    message: Message
    given_up: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    moves_files: bool = True
    reply: Future[Message] = field(default_factory=Future)


class StagedTrainer:
    """`trainer_of(reply)` is the one that trains. `reply` is called in threads of both.

    What is fetched goes into `files`; `pieces` come and go by the connection to the server.
    """

    def __init__(
        self,
        trainer_of: Callable[[Callable[[Message], None]], Trainer],
        reply: Callable[[Message], None],
        files: FetchedModels,
        pieces: Pieces,
    ) -> None:
        self._trainer = trainer_of(self._answered)
        self._reply = reply
        self._files = files
        self._pieces = pieces
        self._moved = 0  # pieces
        self._lock = threading.Lock()
        self._orders: list[_Order] = []  # the first is under way
        self._coming: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._is_closed = False
        # It starts the training process, which ends with the thread that has started it.
        self._thread = threading.Thread(target=self._work, name="staging", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Hand a training message on; its reply comes by `reply`."""
        if isinstance(message, Inspect):  # of pictures, which come as it reads them
            self._trainer.send(message)
            return
        order = _Order(message)
        with self._lock:
            self._orders.append(order)
        self._coming.put(order)

    def probe(self, message: ProbeTraining) -> None:
        """Of files on their way each piece is a step, counted below 0: never what the process counts."""
        with self._lock:
            order = self._orders[0] if self._orders else None
        if order is not None and order.moves_files:
            self._reply(TrainingProbed(message.id, -self._moved, order.message.id))
        else:
            self._trainer.probe(message)

    def end(self) -> None:
        """End what hangs, be it the process or a file that does not come."""
        with self._lock:
            for order in self._orders[:1]:
                order.ended.set()
        self._trainer.end()

    def cancel(self, message: Cancel) -> None:
        """Stop what `message` names, if it is here; what is stored already is given all the same."""
        with self._lock:
            for order in self._orders:
                if order.message.id == message.target:
                    order.given_up.set()
        self._trainer.cancel(message)

    def batch_begun(self) -> None:
        """See `Trainer.batch_begun`."""
        self._trainer.batch_begun()

    def batch_over(self) -> None:
        """See `Trainer.batch_over`."""
        self._trainer.batch_over()

    def close(self) -> None:
        """End the process, and give up what is on its way."""
        with self._lock:
            self._is_closed = True
            for order in self._orders:
                order.ended.set()
        self._trainer.close()
        self._coming.put(None)
        self._thread.join(_END_S)  # its disk may stand still: it ends with this process

    # ── in the thread of its own ────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while (order := self._coming.get()) is not None:
            reply = self._carried_out(order)
            with self._lock:
                self._orders.remove(order)
            self._reply(reply)

    def _carried_out(self, order: _Order) -> Message:
        request = order.message.id
        try:
            if order.ended.is_set():
                raise _Ended
            with contextlib.ExitStack() as held:
                return self._with_files(order, held)
        except _Ended:
            return Failed(request, "worker_lost", "it was ended as its files were on their way")
        except WorkerError as exc:
            return Failed(request, exc.code, str(exc))
        except OSError as exc:
            return Failed(request, BadRequest.code, str(exc))
        except Exception as exc:
            _log.exception("request %s failed", request)
            return Failed(request, "internal", f"{type(exc).__name__}: {exc}")

    def _with_files(self, order: _Order, held: contextlib.ExitStack) -> Message:
        message = order.message
        if isinstance(message, StoreCheckpoint):
            folder = held.enter_context(self._files.stored())
            reply = self._asked(order, replace(message, directory=folder))
            while isinstance(reply, Failed) and reply.code == NoSpace.code and self._files.free_some():
                reply = self._asked(order, replace(message, directory=folder))
            if isinstance(reply, CheckpointStored):
                self._give(order, folder)
            return reply
        if isinstance(message, MakeVariant):
            near = self._near_variant(order, message, held)
            reply = self._asked(order, near)
            if isinstance(reply, VariantMade):
                self._give(order, near.target)
            return reply
        if isinstance(message, TrainEpoch | Evaluate):
            return self._asked(order, self._near_examples(order, message, held))
        return self._asked(order, message)

    def _near_examples(
        self, order: _Order, message: TrainEpoch | Evaluate, held: contextlib.ExitStack
    ) -> TrainEpoch | Evaluate:
        """The message with the paths of this machine."""
        spec, start = message.spec, message.start
        if isinstance(said := spec.get("backbone"), dict):
            lent = self._files.lent(str(said["directory"]), self._asking(order), self._is_given_up(order))
            spec = spec | {"backbone": said | {"directory": held.enter_context(lent).directory}}
        begins = not isinstance(message, TrainEpoch) or message.epoch == message.start_epoch + 1
        if start and begins:  # a trial that is here already does not read it again
            goes_on = isinstance(message, TrainEpoch) and message.start_epoch > 0
            start = self._fetched(order, held, start, *([optimiser_file(start)] if goes_on else []))
        snapshot = self._fetched(order, held, message.snapshot)
        return replace(message, spec=spec, start=start, snapshot=snapshot)

    def _near_variant(self, order: _Order, message: MakeVariant, held: contextlib.ExitStack) -> MakeVariant:
        lent = self._files.lent(message.directory, self._asking(order), self._is_given_up(order))
        directory = held.enter_context(lent).directory
        snapshot = message.snapshot and self._fetched(order, held, message.snapshot)
        target = held.enter_context(self._files.stored())
        return replace(message, directory=directory, snapshot=snapshot, target=target)

    def _fetched(self, order: _Order, held: contextlib.ExitStack, *paths: str) -> str:
        """Where the first of these files lies here, the others beside it."""
        lent = self._files.lent_files(paths, self._asking(order), self._is_given_up(order))
        return str(Path(held.enter_context(lent)) / Path(paths[0]).name)

    def _asked(self, order: _Order, near: Message) -> Message:
        """The training process's reply."""
        order.reply = Future()
        order.moves_files = False
        self._trainer.send(near)
        if order.given_up.is_set():  # as it was handed on
            self._trainer.cancel(Cancel(0, near.id))
        while not self._is_closed:
            with contextlib.suppress(NotYet):
                return order.reply.result(_END_S)
        raise _Ended

    def _answered(self, reply: Message) -> None:
        """In the thread that reads what the process says: the reply to what is under way, or to a probe."""
        with self._lock:
            order = self._orders[0] if self._orders else None
        if order is not None and order.message.id == reply.id:
            order.moves_files = True
            order.reply.set_result(reply)
        else:
            self._reply(reply)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────

    def _asking(self, order: _Order) -> Callable[[str, str, int, int], Future[FilePiece]]:
        def ask(beside: str, file: str, at: int, nbytes: int) -> Future[FilePiece]:
            self._moved += 1
            return self._pieces.ask(order.message.id, beside, file, at, nbytes)

        return ask

    def _is_given_up(self, order: _Order) -> Callable[[], bool]:
        def is_given_up() -> bool:
            if order.ended.is_set():
                raise _Ended
            return order.given_up.is_set()

        return is_given_up

    def _give(self, order: _Order, folder: str) -> None:
        """The server has every file of the folder. Raises `WorkerError`, `OSError`."""
        names = [path.name for path in Path(folder).iterdir() if not path.name.startswith(".")]
        # The weights last, whose name is the shorter one: who finds them finds the optimiser's state too.
        for name in sorted(names, key=len, reverse=True):
            self._give_file(order, Path(folder) / name)

    def _give_file(self, order: _Order, path: Path) -> None:
        sha256 = file_sha256(str(path))
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            for at, data in _pieces_of(file.read):
                self._moved += 1
                give = functools.partial(self._pieces.give, order.message.id, path.name)
                self._taken(order, give(at, data, size, sha256), path.name)

    def _taken(self, order: _Order, coming: Future[PieceTaken], name: str) -> None:
        while True:
            if order.ended.is_set():
                raise _Ended
            try:
                answer = coming.result(_LOOK_S)
            except NotYet:
                continue
            except CancelledError:
                raise Cancelled("the server went as it was given files") from None
            if answer.code == NoSpace.code:
                raise NoSpace(answer.error)
            if answer.error:
                raise OSError(f"the server does not take {name}: {answer.error}")
            return


class _Ended(Exception):
    """Nothing more is to come of the message."""


def _pieces_of(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Where each begins, and its bytes; of an empty file one that is empty."""
    at, data = 0, read(PIECE_BYTES)
    yield at, data
    while len(data) == PIECE_BYTES:
        at += len(data)
        data = read(PIECE_BYTES)
        if data:
            yield at, data
