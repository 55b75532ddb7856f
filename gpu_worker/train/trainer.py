"""The worker's training process: started at the first training message, stopped while batches are answered.

    loop ── TrainEpoch, StoreCheckpoint, … ──→ socket ──→ python -m gpu_worker.train.trial
    loop ←─ EpochTrained, CheckpointStored, … ─ reader ←──┘
    server ←─→ node_pictures ←─ a socket of their own ←── photos that this machine does not see

A process of its own, since training in a thread would hold the interpreter's lock when an answer wants it.
Serving goes first: from the first batch under way to the last the process is stopped (SIGSTOP), yet after
`_YIELD_S` it goes on beside them at low priority, so that endless traffic slows training and does not end
it. When it dies its requests fail as `worker_lost`; the next training message starts another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_worker.settings import Settings
from gpu_worker.train.node_pictures import NodePictures, PictureDesk
from gpu_worker.wire.frames import Reader
from gpu_worker.wire.protocol import (
    Cancel,
    Failed,
    FrameError,
    Inspect,
    Message,
    ProbeTraining,
    TrainingProbed,
    encode,
)

__all__ = ["Trainer"]

_log = logging.getLogger(__name__)

_YIELD_S = 2.0
_END_S = 5.0


@dataclass(slots=True, eq=False)
class _Child:
    """One life of the training process: what it has not answered, and whether its last word is read.

    desk: which brings it photos; None where it sees them. beside: of what is pending, what it answers beside
    its steps. saying: held while a frame is written to it.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    desk: PictureDesk | None = None
    pending: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)
    saying: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False

    def lives(self) -> bool:
        return not self.is_over and self.process.poll() is None


class Trainer:
    """`reply` is called in a thread of its own. `send` must be called from threads that last.

    pictures: by whom it has photos that it does not see; None where it does.

    Linux signals the child when the thread that started it has ended: it dies with it.
    """

    def __init__(
        self,
        settings: Settings,
        device: str,
        reply: Callable[[Message], None],
        *,
        pictures: NodePictures | None = None,
    ) -> None:
        self._settings = settings
        self._device = device
        self._reply = reply
        self._pictures = pictures
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._child: _Child | None = None
        self._batches = 0
        self._go_on: threading.Timer | None = None

    def send(self, message: Message) -> None:
        """Hand a training message on; its reply comes by `reply`."""
        with self._starting:
            child = self._child
            if child is None or not child.lives():
                child = self._start()
        self._hand(child, message)

    def _hand(self, child: _Child, message: Message) -> None:
        with self._lock:
            child.pending.add(message.id)
            if isinstance(message, Inspect):
                child.beside.add(message.id)
            is_over = child.is_over  # since just now: nobody reads its answers any more
        try:
            if is_over:
                raise OSError("it has just ended")
            frame = encode(message)
            with child.saying:
                child.connection.sendall(frame)
        except OSError as exc:
            self._fail(child, [message.id], f"the training process does not take messages: {exc}")
        except FrameError as exc:
            self._fail(child, [message.id], f"the message cannot be handed on: {exc}", code="bad_option")

    def probe(self, message: ProbeTraining) -> None:
        """Hand it on to the process if there is one; it answers in the middle of whatever it does.

        Of photos on their way to it each piece is a step, counted below 0: never what the process counts.
        """
        child = self._child
        if child is None or not child.lives():
            self._reply(Failed(message.id, "worker_lost", "there is no training process"))
        elif self._pictures is not None and (on := self._pictures.waiting() - child.beside):
            self._reply(TrainingProbed(message.id, -self._pictures.moved, max(on)))
        else:
            self._hand(child, message)

    def end(self) -> None:
        """End a process that hangs; the next message starts another."""
        self._kill()

    def cancel(self, message: Cancel) -> None:
        """Stop what `message` names, if it is here."""
        child = self._child
        if child is None:
            return
        with self._lock:
            known = message.target in child.pending
        if known:
            # It may have just died: the reader reports it.
            with contextlib.suppress(OSError), child.saying:
                child.connection.sendall(encode(message))

    def batch_begun(self) -> None:
        """A batch wants the device: training stops. Called in any thread."""
        with self._lock:
            self._batches += 1
            if self._batches == 1 and self._child is not None:
                self._signal(signal.SIGSTOP)
                self._go_on = threading.Timer(_YIELD_S, self._signal, [signal.SIGCONT])
                self._go_on.daemon = True
                self._go_on.start()

    def batch_over(self) -> None:
        """A batch has been answered; after the last one training goes on."""
        with self._lock:
            self._batches -= 1
            if self._batches == 0 and self._child is not None:
                if self._go_on is not None:
                    self._go_on.cancel()
                self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process; what it was doing is lost, checkpoints are not."""
        if self._go_on is not None:
            self._go_on.cancel()
        self._kill()
        if self._child is not None:
            self._child.connection.close()
            if self._child.desk is not None:
                self._child.desk.close()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # its disk stands still: it dies later
                self._child.process.wait(_END_S)

    def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "gpu_worker.train.trial", f"--fd={theirs.fileno()}"]
        command += [f"--device={self._device}", f"--max-pixels={self._settings.max_pixels}"]
        command += [f"--max-input-bytes={self._settings.max_input_bytes}"]
        command += [f"--media-root={root}" for root in self._settings.media_roots]
        command += ["--allow-import"] if self._settings.allow_import else []
        with contextlib.ExitStack() as handed:
            fds = [handed.enter_context(theirs).fileno()]
            desk = None
            if self._pictures is not None:
                asked, asking = socket.socketpair()
                fds.append(handed.enter_context(asking).fileno())
                command += [f"--pictures-fd={fds[-1]}"]
                desk = PictureDesk(asked, self._pictures)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,  # of which it lowers the priority
            )
        child = _Child(process, ours, desk)
        with self._lock:
            self._child = child
        threading.Thread(target=self._read, args=(child,), name="training", daemon=True).start()
        return child

    def _read(self, child: _Child) -> None:
        reader = Reader(child.connection)
        with contextlib.suppress(FrameError):
            while (message := reader.receive()) is not None:
                with self._lock:
                    child.pending.discard(message.id)
                    child.beside.discard(message.id)
                self._reply(message)
        status = child.process.wait()
        if child.desk is not None:
            child.desk.close()
        with self._lock:
            child.is_over = True
            lost = sorted(child.pending)
        if lost:
            _log.error("the training process ended with status %s", status)
        self._fail(child, lost, f"the training process ended with status {status}")

    def _fail(self, child: _Child, ids: list[int], reason: str, code: str = "worker_lost") -> None:
        for request_id in ids:
            with self._lock:
                known = request_id in child.pending
                child.pending.discard(request_id)
            if known:
                self._reply(Failed(request_id, code, reason))

    def _signal(self, number: signal.Signals) -> None:
        child = self._child
        if child is not None and child.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, number)
