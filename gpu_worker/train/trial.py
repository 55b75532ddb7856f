"""`python -m gpu_worker.train.trial`: the training process of one worker. `trainer` starts it.

    socket → reader ─┬─ TrainEpoch, StoreCheckpoint, ForgetTrial, Evaluate, Inspect ─→ main thread ─→ socket
                     ├─ ProbeTraining ─→ answered at once, with the steps that the main thread has done
                     └─ Cancel ─→ noted; a TrainEpoch checks for it before every step

One request after the other, at low priority, with one thread: so a trial's weights depend on its inputs
alone, bit for bit on a CPU. Holds the trials under way and the last snapshot's rows; the server holds
everything that must last. How a trial learns is `train.learners`'.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import hashlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_worker.errors import BadRequest, Cancelled, NoSpace, RowFault, WorkerError
from gpu_worker.parent import die_with_parent
from gpu_worker.pipeline.decode import decode_image, upright_size
from gpu_worker.pipeline.media import MediaRoots
from gpu_worker.tasks.average_precision import NO_BOX
from gpu_worker.train.asked_pictures import AskedPictures
from gpu_worker.wire.frames import Reader
from gpu_worker.wire.protocol import (
    Cancel,
    CheckpointStored,
    Done,
    EpochTrained,
    Evaluate,
    Evaluated,
    Failed,
    ForgetTrial,
    FrameError,
    Inspect,
    Inspected,
    MakeVariant,
    Message,
    ProbeTraining,
    RowError,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
    VariantMade,
    reply_frame,
)

if TYPE_CHECKING:
    from gpu_worker.tasks.metrics import Targets
    from gpu_worker.train.learner import Learner, Objective
    from gpu_worker.train.learners import Learners

__all__ = ["main"]

_log = logging.getLogger(__name__)

_INSPECT_PIXELS = 64
_NICENESS = 10
_MOST_TRIALS = 8  # twice as many as a server has under way here


@dataclass(slots=True)
class Trials:
    """What the process holds, and what it does for each message."""

    device: str
    media: MediaRoots
    max_pixels: int
    max_input_bytes: int
    allow_import: bool
    asked: AskedPictures | None = None  # of whom it has photos that it does not see
    cancelled: set[int] = field(default_factory=set)
    steps: int = 0  # done so far: of training, and files read
    on: int = 0  # the message under way
    _trials: dict[str, Learner] = field(default_factory=dict)
    _learners: Learners | None = None

    def answer(self, message: Message) -> Message:
        """The reply to a message; every failure is one."""
        try:
            return self._answered(message)
        finally:
            if self.asked is not None:
                self.asked.over(message.id)

    def _answered(self, message: Message) -> Message:
        try:
            if isinstance(message, TrainEpoch):
                return self._train(message)
            if isinstance(message, StoreCheckpoint):
                return self._keep(message)
            if isinstance(message, Evaluate):
                return self._evaluate(message)
            if isinstance(message, Inspect):
                return self._inspect(message)
            if isinstance(message, MakeVariant):
                return self._make_variant(message)
            if isinstance(message, ForgetTrial):
                self._trials.pop(message.trial, None)
                return Done(message.id)
            raise BadRequest(f"a training process does not take {message.kind!r} messages")
        except WorkerError as exc:
            return Failed(message.id, exc.code, str(exc))
        except (ValueError, OSError) as exc:  # the snapshot, a knob, a checkpoint
            if _is_full(exc):
                return Failed(message.id, NoSpace.code, f"no space is left for what trials read: {exc}")
            return Failed(message.id, BadRequest.code, str(exc))
        except Exception as exc:
            _log.exception("request %s failed", message.id)
            return Failed(message.id, "internal", f"{type(exc).__name__}: {exc}")

    def _train(self, message: TrainEpoch) -> EpochTrained:
        from gpu_worker.train.loop import TrainingStopped

        objective = _objective(message)
        # Takes seconds, or the passes of a backbone, once: of no trial's time.
        self._known().load(message.spec, message.snapshot, objective, lambda: self._stepped(message.id))
        began_s = time.monotonic()
        is_first = message.epoch == message.start_epoch + 1
        learner = self._begin(message, objective) if is_first else self._trials.get(message.trial)
        if learner is None or learner.epoch != message.epoch - 1:
            raise BadRequest(f"the trial {message.trial} is not here at epoch {message.epoch - 1}")
        try:
            result = learner.learn(lambda: self._stepped(message.id))
        except TrainingStopped as exc:  # the trial stays: its best epoch may still be wanted
            raise Cancelled(str(exc)) from exc
        except Exception:  # of a trial that failed nobody sends ForgetTrial
            del self._trials[message.trial]
            raise
        took_s = time.monotonic() - began_s
        score = result.score
        return EpochTrained(
            message.id,
            message.epoch,
            result.loss,
            score.value,
            took_s,
            learner.skipped,
            score.metric,
            score.loss,
            result.converged,
        )

    def _stepped(self, request: int) -> bool:
        """Counts a step; whether the request was cancelled."""
        self.steps += 1
        return request in self.cancelled

    def _step(self) -> None:
        self.steps += 1

    def _read(self, row: bytes) -> bytes:
        self._step()
        if self.asked is not None:
            return self.asked.read(row, self.on, self._is_given_up)
        return self.media.read(row, max_bytes=self.max_input_bytes)

    def _ahead(self, rows: Sequence[str]) -> None:
        """These are read next."""
        if self.asked is not None:
            self.asked.ahead([row.encode() for row in rows], self.on)

    def _is_given_up(self) -> bool:
        return self.on in self.cancelled

    def _begin(self, message: TrainEpoch, objective: Objective) -> Learner:
        learner = self._known().begin(
            message.spec, message.snapshot, objective, message.start, message.start_epoch
        )
        while len(self._trials) >= _MOST_TRIALS:  # of masters that never sent ForgetTrial
            self._trials.pop(next(iter(self._trials)))
        self._trials[message.trial] = learner
        return learner

    def _keep(self, message: StoreCheckpoint) -> CheckpointStored:
        from gpu_worker.model_files.regular import file_sha256

        learner = self._trials.get(message.trial)
        if learner is None:
            raise BadRequest(f"the trial {message.trial} is not here")
        os.makedirs(message.directory, exist_ok=True)
        coming = os.path.join(message.directory, f".coming-{os.getpid()}")
        try:
            learner.write(coming, best=message.best)
            checkpoint = file_sha256(coming)
            nbytes = os.path.getsize(coming)
            place = os.path.join(message.directory, checkpoint + learner.suffix)
            if message.paused:
                learner.write_state(place)
            os.replace(coming, place)
        except Exception as exc:
            with contextlib.suppress(OSError):  # half a file would keep the disk full
                os.unlink(coming)
            if _is_full(exc):
                raise NoSpace(f"no space is left for checkpoints in {message.directory}") from exc
            raise
        return CheckpointStored(message.id, checkpoint, nbytes)

    def _evaluate(self, message: Evaluate) -> Evaluated:
        from gpu_worker.train.learner import Objective

        objective = Objective.of(message.task, message.classes)
        found = self._known().evaluate(
            message.spec, message.snapshot, objective, message.start, message.split
        )
        if found is None:
            return Evaluated(message.id, [], [], 0.0)
        predictions = [row.tobytes() for row in found.predictions]
        return Evaluated(message.id, predictions, _told(found.targets), found.row_s)

    def _make_variant(self, message: MakeVariant) -> VariantMade:
        """Torch as in training: one thread."""
        import torch

        from gpu_worker.variants.judging import MakingRows, made_and_judged

        torch.set_num_threads(1)
        try:
            rows = MakingRows(self._read, self.max_pixels, lambda: self._check_stopped(message.id))
            return made_and_judged(message, rows)
        except Exception as exc:
            if _is_full(exc):
                raise NoSpace(f"no space is left for the variant {message.name} in {message.target}") from exc
            raise

    def _check_stopped(self, request: int) -> None:
        if self._stepped(request):
            raise Cancelled("the variant was given up")

    def _known(self) -> Learners:
        if self._learners is None:
            import torch

            from gpu_worker.train.learners import Learners

            torch.set_num_threads(1)
            self._learners = Learners(
                self.device,
                self._read,
                self.max_pixels,
                self.allow_import,
                self._step,
                self._ahead,
            )
        return self._learners

    def _inspect(self, message: Inspect) -> Inspected:
        digests: list[str] = []
        sizes: list[list[int]] = []
        errors: list[dict[str, Any]] = []
        read = self._reading(message)
        for index, row in enumerate(message.rows):
            try:
                data = read(row)
                decode_image(data, _INSPECT_PIXELS, _INSPECT_PIXELS, max_pixels=self.max_pixels)
                digests.append(hashlib.sha256(data).hexdigest())
                height, width = upright_size(data)
                sizes.append([width, height])
            except RowFault as fault:
                digests.append("")
                sizes.append([0, 0])
                errors.append(asdict(RowError(index, fault.code, fault.message)))
        return Inspected(message.id, digests, errors, sizes)

    def _reading(self, message: Inspect) -> Callable[[bytes], bytes]:
        """Reads a row of it. Raises `RowFault`."""
        if self.asked is not None:
            self.asked.ahead(message.rows, message.id)
            return functools.partial(self.asked.read, request=message.id)
        folders: dict[str, str] = {}
        media = self.media if message.media_roots is None else self.media.only(message.media_roots)
        return functools.partial(media.read, max_bytes=self.max_input_bytes, folders=folders)


def _objective(message: TrainEpoch) -> Objective:
    from gpu_worker.train.learner import Objective

    return Objective.of(
        message.task, message.classes, message.metric, message.class_weight, refits=message.refits
    )


def _told(targets: Targets) -> list[Any]:
    """Of each row an index, a number, its boxes, or its labels' indices: labels are few of many."""
    if targets.ndim == 1:
        told: list[Any] = targets.tolist()
        return told
    if targets.ndim == 3:
        return [row[row[:, 4] != NO_BOX].tolist() for row in targets]
    return [np.flatnonzero(row).tolist() for row in targets]


def _is_full(exc: Exception) -> bool:
    if isinstance(exc, OSError):
        return exc.errno in (errno.ENOSPC, errno.EDQUOT)
    return "os error 28" in str(exc)  # safetensors', of no class of the system's


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the socket closes."""
    parser = argparse.ArgumentParser(prog="python -m gpu_worker.train.trial", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of a connected stream socket")
    parser.add_argument("--device", required=True, help="cpu or cuda:N")
    parser.add_argument("--media-root", action="append", default=[], help="folder of readable paths")
    parser.add_argument("--pictures-fd", type=int, default=-1, help="of a socket by which photos come")
    parser.add_argument("--max-pixels", type=int, required=True, help="pixels of one image")
    parser.add_argument("--max-input-bytes", type=int, required=True, help="bytes of one image")
    parser.add_argument("--allow-import", action="store_true", help="permit architectures by import path")
    flags = parser.parse_args(arguments)
    logging.basicConfig(format="gpu_worker.train.trial %(levelname)s %(message)s", level=logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    die_with_parent()
    _step_aside()
    trials = Trials(
        flags.device,
        MediaRoots(flags.media_root),
        flags.max_pixels,
        flags.max_input_bytes,
        flags.allow_import,
        AskedPictures(socket.socket(fileno=flags.pictures_fd)) if flags.pictures_fd >= 0 else None,
    )
    with socket.socket(fileno=flags.fd) as connection:
        _serve(connection, trials)
    return 0


def _step_aside() -> None:
    """Leaves the cores to those who serve.

    Where the kernel groups tasks by session (sched(7), autogroup), niceness counts within the session only,
    and the session has a niceness of its own.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as autogroup:
        autogroup.write(str(_NICENESS))


def _serve(connection: socket.socket, trials: Trials) -> None:
    requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    inspections: queue.SimpleQueue[Inspect] = queue.SimpleQueue()
    saying = threading.Lock()

    def say(reply: Message) -> None:
        with saying:
            connection.sendall(reply_frame(reply))

    def read() -> None:
        reader = Reader(connection)
        with contextlib.suppress(FrameError):
            while (message := reader.receive()) is not None:
                if isinstance(message, Cancel):
                    trials.cancelled.add(message.target)
                elif isinstance(message, ProbeTraining):
                    say(TrainingProbed(message.id, trials.steps, trials.on))
                elif isinstance(message, Inspect):
                    inspections.put(message)
                else:
                    requests.put(message)
        os._exit(0)  # whatever runs is for nobody any more

    def inspect() -> None:
        # Beside the epoch under way, not behind it: a dataset of many pictures asks hundreds of times.
        while True:
            say(trials.answer(inspections.get()))

    threading.Thread(target=inspect, name="inspector", daemon=True).start()
    threading.Thread(target=read, name="reader", daemon=True).start()
    while (message := requests.get()) is not None:
        trials.on = message.id
        say(trials.answer(message))
        trials.on = 0
        trials.cancelled.discard(message.id)


if __name__ == "__main__":
    sys.exit(main())
