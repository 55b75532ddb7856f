"""The worker's loop: frames in, frames out, one engine between.

    socket ─ reader ─┬─ Infer ──→ engine.begin (decode threads) ──→ queue ──→ model thread ─ engine.finish ─┐
                     ├─ Load, Unload ──→ queue ──→ loading thread ──────────────────────────────────────────┤
                     ├─ Cancel, Ping ───────────────────────────────────────────────────────────────────────┤
                     └─ end of stream, FrameError ──→ the loop ends               replies ──→ socket

A request that fails, whatever its reason, is answered `Failed` and the loop goes on. Expected errors
carry their own code and message; unexpected ones are `internal`, with a traceback in the log. Three
things end the loop: the end of the stream, bytes that are no frame (the two sides no longer agree where
messages start), and `DeviceLost`, after which nothing could be answered.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from dataclasses import dataclass

from gpu_worker.engine import Batch, Engine
from gpu_worker.errors import Cancelled, DeviceLost, NoRoom, WorkerError
from gpu_worker.protocol import (
    PREFIX_BYTES,
    Cancel,
    Done,
    Failed,
    FrameError,
    Infer,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    Unload,
    decode,
    encode,
    frame_length,
)

__all__ = ["Loop"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """An Infer under way. Whoever sets `taken` (model thread or Cancel) under the lock answers it."""

    batch: Batch
    taken: bool = False
    cancelled: bool = False


class Loop:
    """Serves `engine` over a connected stream socket until it closes. `run` may be called once."""

    def __init__(self, connection: socket.socket, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._sending = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._lock = threading.Lock()  # guards _jobs and _Job.taken
        self._batches: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[Load | Unload | None] = queue.SimpleQueue()
        self._draining = False
        self._device_lost: DeviceLost | None = None

    def drain(self) -> None:
        """Take no more requests, answer those that came, end. Safe in a signal handler."""
        self._draining = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        with contextlib.suppress(OSError):  # the other side was quicker
            self._connection.shutdown(socket.SHUT_RD)

    def run(self) -> None:
        """Reads in this thread until the stream ends. Raises `DeviceLost`, `FrameError`."""
        threads = [
            threading.Thread(target=self._run_batches, name="model"),
            threading.Thread(target=self._run_loads, name="loading"),
        ]
        for thread in threads:
            thread.start()
        try:
            while (message := self._receive()) is not None:
                self._accept(message)
        finally:
            if not self._draining:
                self._cancel_all()
            self._batches.put(None)
            self._loads.put(None)
            for thread in threads:
                thread.join()
        if self._device_lost is not None:
            raise self._device_lost

    def _receive(self) -> Message | None:
        """The next message; None at the end of the stream. Raises `FrameError`."""
        prefix = bytearray(PREFIX_BYTES)
        if not self._read_into(memoryview(prefix)):
            return None
        frame = bytearray(frame_length(prefix))
        frame[:PREFIX_BYTES] = prefix
        return decode(frame) if self._read_into(memoryview(frame)[PREFIX_BYTES:]) else None

    def _read_into(self, room: memoryview) -> bool:
        """Fills `room`; False when the stream ended before."""
        while room:
            try:
                count = self._connection.recv_into(room)
            except OSError:  # the other side was killed
                return False
            if count == 0:
                return False
            room = room[count:]
        return True

    def _send(self, message: Message) -> None:
        frame = encode(message)
        with self._sending:
            try:
                self._connection.sendall(frame)
            except OSError as exc:
                _log.debug("nobody takes the answer to %s: %s", message.id, exc)

    def _accept(self, message: Message) -> None:
        if isinstance(message, Infer):
            self._accept_batch(message)
        elif isinstance(message, Load | Unload):
            self._loads.put(message)
        elif isinstance(message, Cancel):
            self._cancel(message.target)
        elif isinstance(message, Ping):
            device = self._engine.device
            self._send(
                Pong(
                    message.id,
                    device.name,
                    device.description,
                    device.capacity_bytes,
                    self._engine.resident(),
                )
            )
        else:
            raise FrameError(f"a worker does not take {message.kind!r} messages")

    def _accept_batch(self, message: Infer) -> None:
        try:
            with self._lock:
                if len(self._jobs) >= self._engine.settings.pending_batches:
                    raise NoRoom(f"{len(self._jobs)} batches wait already; try again when some are answered")
            batch = self._engine.begin(
                message.models, message.form, message.rows, scores=message.scores, request_id=message.id
            )
        except Exception as exc:
            self._fail(message.id, exc)
            return
        job = _Job(batch)
        with self._lock:
            self._jobs[message.id] = job
        self._batches.put(job)

    def _cancel(self, target: int) -> None:
        with self._lock:
            job = self._jobs.get(target)
            if job is None:
                return
            job.cancelled = True
            waits = not job.taken
            job.taken = True
        if waits:  # else the model thread has it and answers soon
            self._forget(job, Cancelled("the request was cancelled before it ran"))

    def _cancel_all(self) -> None:
        with self._lock:
            targets = list(self._jobs)
        for target in targets:
            self._cancel(target)

    def _run_batches(self) -> None:
        while (job := self._batches.get()) is not None:
            with self._lock:
                if job.taken:
                    continue
                job.taken = True
            self._run_batch(job)

    def _run_batch(self, job: _Job) -> None:
        try:
            answer = self._engine.finish(job.batch, lambda: job.cancelled)
        except DeviceLost as exc:
            self._device_lost = exc
            self._stop_reading()
            self._cancel_all()
            self._forget(job, exc)
        except Exception as exc:
            self._forget(job, exc)
        else:
            with self._lock:
                self._jobs.pop(job.batch.id, None)
            self._send(answer)

    def _forget(self, job: _Job, exc: Exception) -> None:
        self._engine.abandon(job.batch)
        with self._lock:
            self._jobs.pop(job.batch.id, None)
        self._fail(job.batch.id, exc)

    def _run_loads(self) -> None:
        while (message := self._loads.get()) is not None:
            try:
                if isinstance(message, Load):
                    report = self._engine.load(message.model, message.directory)
                    reply: Message = Loaded(message.id, report.resident_bytes, report.load_s, report.evicted)
                else:
                    self._engine.unload(message.model)
                    reply = Done(message.id)
            except Exception as exc:
                self._fail(message.id, exc)
            else:
                self._send(reply)

    def _fail(self, request_id: int, exc: Exception) -> None:
        if isinstance(exc, WorkerError):
            self._send(Failed(request_id, exc.code, str(exc)))
            return
        _log.error("request %s failed", request_id, exc_info=exc)
        self._send(Failed(request_id, "internal", f"{type(exc).__name__}: {exc}"))
