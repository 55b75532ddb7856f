"""`python -m gpu_worker.trial`: the training process of one worker. `gpu_worker.trainer` starts it.

    socket → reader ─┬─ Train, Keep, Drop, Evaluate, Inspect ─→ main thread ─→ socket
                     └─ Cancel ─→ noted; a Train looks before every step

One request after the other, at low priority, with one thread: so a trial's weights depend on its inputs
alone, bit for bit on a CPU. Holds the trials under way and the last snapshot's pixels; the server holds
everything that must last.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gpu_worker.decode import decode_image
from gpu_worker.errors import BadRequest, Cancelled, RowFault, WorkerError
from gpu_worker.frames import receive
from gpu_worker.media import MediaRoots
from gpu_worker.protocol import (
    Cancel,
    Done,
    Drop,
    Evaluate,
    Evaluated,
    Failed,
    FrameError,
    Inspect,
    Inspected,
    Keep,
    Kept,
    Message,
    RowError,
    Train,
    Trained,
    encode,
)

if TYPE_CHECKING:
    import torch

    from gpu_worker.train import TrainSpec
    from gpu_worker.train.snapshot import Snapshot

__all__ = ["main"]

_log = logging.getLogger(__name__)

_LOOK_PIXELS = 64
_NICENESS = 10
_PR_SET_PDEATHSIG = 1
_MOST_TRIALS = 4


@dataclass(slots=True)
class _Trial:
    """A trial under way: `epoch` of its epochs are done; `best`: the weights of the best since it began."""

    spec: TrainSpec
    snapshot: Snapshot
    module: torch.nn.Module
    optimiser: torch.optim.Optimizer
    epoch: int
    best_score: float = -1.0
    best: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Trials:
    """What the process holds, and what it does for each message."""

    device: str
    media: MediaRoots
    max_pixels: int
    max_input_bytes: int
    allow_import: bool
    cancelled: set[int] = field(default_factory=set)
    _trials: dict[str, _Trial] = field(default_factory=dict)
    _snapshots: dict[tuple[str, int, int], Snapshot] = field(default_factory=dict)

    def answer(self, message: Message) -> Message:
        """The reply to a message; every failure is one."""
        try:
            if isinstance(message, Train):
                return self._train(message)
            if isinstance(message, Keep):
                return self._keep(message)
            if isinstance(message, Evaluate):
                return self._evaluate(message)
            if isinstance(message, Inspect):
                return self._inspect(message)
            if isinstance(message, Drop):
                self._trials.pop(message.trial, None)
                return Done(message.id)
            raise BadRequest(f"a training process does not take {message.kind!r} messages")
        except WorkerError as exc:
            return Failed(message.id, exc.code, str(exc))
        except (ValueError, OSError) as exc:  # the snapshot, a knob, a checkpoint
            return Failed(message.id, BadRequest.code, str(exc))
        except Exception as exc:
            _log.exception("request %s failed", message.id)
            return Failed(message.id, "internal", f"{type(exc).__name__}: {exc}")

    def _train(self, message: Train) -> Trained:
        from gpu_worker.train.loop import Stopped, accuracy_of, train_epoch

        began_s = time.monotonic()
        is_first = message.epoch == message.start_epoch + 1
        trial = self._begin(message) if is_first else self._trials.get(message.trial)
        if trial is None or trial.epoch != message.epoch - 1:
            raise BadRequest(f"the trial {message.trial} is not here at epoch {message.epoch - 1}")
        images, validation = trial.snapshot.images("train"), trial.snapshot.images("validation")
        try:
            loss = train_epoch(
                trial.spec,
                trial.epoch,
                trial.module,
                trial.optimiser,
                images,
                lambda: message.id in self.cancelled,
            )
        except Stopped as exc:
            del self._trials[message.trial]
            raise Cancelled(str(exc)) from exc
        score = accuracy_of(trial.module, validation, trial.spec.input)
        trial.epoch = message.epoch
        if score > trial.best_score:
            trial.best_score = score
            trial.best = {name: tensor.detach().clone() for name, tensor in trial.module.state_dict().items()}
        took_s = time.monotonic() - began_s
        return Trained(message.id, message.epoch, loss, score, took_s, len(trial.snapshot.skipped))

    def _begin(self, message: Train) -> _Trial:
        import torch

        from gpu_worker.train.checkpoint import optimiser_file, read_optimiser
        from gpu_worker.train.loop import begin

        torch.set_num_threads(1)
        spec = train_spec(message.spec)
        snapshot = self._snapshot(message.snapshot, message.classes, spec)
        module, optimiser = begin(
            spec, len(message.classes), device=self.device, allow_import=self.allow_import
        )
        if message.start:
            _warm(module, message.start)
        if message.start_epoch:
            read_optimiser(optimiser_file(message.start), optimiser)
        while len(self._trials) >= _MOST_TRIALS:  # of masters that never said Drop
            self._trials.pop(next(iter(self._trials)))
        trial = self._trials[message.trial] = _Trial(spec, snapshot, module, optimiser, message.start_epoch)
        return trial

    def _keep(self, message: Keep) -> Kept:
        from gpu_worker.loader import file_sha256
        from gpu_worker.saving import write_tensors
        from gpu_worker.train.checkpoint import optimiser_file, write_optimiser

        trial = self._trials.get(message.trial)
        if trial is None:
            raise BadRequest(f"the trial {message.trial} is not here")
        os.makedirs(message.directory, exist_ok=True)
        coming = os.path.join(message.directory, f".coming-{os.getpid()}")
        write_tensors(coming, trial.best if message.best else trial.module.state_dict())
        checkpoint = file_sha256(coming)
        nbytes = os.path.getsize(coming)
        place = os.path.join(message.directory, f"{checkpoint}.safetensors")
        if message.paused:
            write_optimiser(optimiser_file(place), trial.optimiser)
        os.replace(coming, place)
        return Kept(message.id, checkpoint, nbytes)

    def _evaluate(self, message: Evaluate) -> Evaluated:
        import torch

        from gpu_worker.train.loop import begin, probabilities_of

        torch.set_num_threads(1)
        spec = train_spec(message.spec)
        images = self._snapshot(message.snapshot, message.classes, spec).images(message.split)
        if not len(images):
            return Evaluated(message.id, [], [], 0.0)
        module, _ = begin(spec, len(message.classes), device=self.device, allow_import=self.allow_import)
        if _warm(module, message.start):
            raise BadRequest(f"the checkpoint {message.start} is not of {spec.architecture} with these knobs")
        began_s = time.monotonic()
        rows = probabilities_of(module, images, spec.input).numpy()
        row_s = (time.monotonic() - began_s) / len(images)
        return Evaluated(message.id, [row.tobytes() for row in rows], images.labels.tolist(), row_s)

    def _inspect(self, message: Inspect) -> Inspected:
        digests: list[str] = []
        errors: list[dict[str, Any]] = []
        folders: dict[str, str] = {}
        for index, row in enumerate(message.rows):
            try:
                data = self.media.read(row, max_bytes=self.max_input_bytes, folders=folders)
                decode_image(data, _LOOK_PIXELS, _LOOK_PIXELS, max_pixels=self.max_pixels)
                digests.append(hashlib.sha256(data).hexdigest())
            except RowFault as fault:
                digests.append("")
                errors.append(asdict(RowError(index, fault.code, fault.message)))
        return Inspected(message.id, digests, errors)

    def _snapshot(self, path: str, classes: Sequence[str], spec: TrainSpec) -> Snapshot:
        from gpu_worker.train.snapshot import read_snapshot

        key = (path, spec.input.height, spec.input.width)
        if key not in self._snapshots:
            self._snapshots.clear()  # one at a time: its pixels are what fills the memory
            self._snapshots[key] = read_snapshot(
                path,
                classes,
                height=spec.input.height,
                width=spec.input.width,
                read=lambda row: self.media.read(row, max_bytes=self.max_input_bytes),
                max_pixels=self.max_pixels,
            )
        return self._snapshots[key]


def train_spec(raw: dict[str, Any]) -> TrainSpec:
    """A `TrainSpec` from JSON: its fields, `size` in pixels for `input`, those of `Augment` below `augment`.

    Raises `BadRequest` for a field that there is not, `ValueError` for a value that cannot be.
    """
    from gpu_worker.manifest import InputSpec
    from gpu_worker.train import Augment, TrainSpec

    given = dict(raw)
    size = int(given.pop("size", 64))
    augment = Augment(**given.pop("augment", {}))
    unknown = sorted(given.keys() - {item.name for item in fields(TrainSpec)})
    if unknown:
        raise BadRequest(f"a trial has no knob {unknown[0]!r}")
    pixels = InputSpec("path", size, size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return TrainSpec(**given, augment=augment, input=pixels)


def _warm(module: torch.nn.Module, checkpoint: str) -> list[str]:
    """Puts the checkpoint's tensors into those of the same name and shape; the names of all others."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(checkpoint)
    cold = []
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name in stored and stored[name].shape == tensor.shape:
                tensor.copy_(stored[name])
            else:
                cold.append(name)
    return cold


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the socket closes."""
    parser = argparse.ArgumentParser(prog="python -m gpu_worker.trial", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of a connected stream socket")
    parser.add_argument("--device", required=True, help="cpu or cuda:N")
    parser.add_argument("--media-root", action="append", default=[], help="folder of readable paths")
    parser.add_argument("--max-pixels", type=int, required=True, help="pixels of one image")
    parser.add_argument("--max-input-bytes", type=int, required=True, help="bytes of one image")
    parser.add_argument("--allow-import", action="store_true", help="permit architectures by import path")
    flags = parser.parse_args(arguments)
    logging.basicConfig(format="gpu_worker.trial %(levelname)s %(message)s", level=logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    _die_with_parent()
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    trials = Trials(
        flags.device,
        MediaRoots(flags.media_root),
        flags.max_pixels,
        flags.max_input_bytes,
        flags.allow_import,
    )
    with socket.socket(fileno=flags.fd) as connection:
        _serve(connection, trials)
    return 0


def _serve(connection: socket.socket, trials: Trials) -> None:
    requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(FrameError):
            while (message := receive(connection)) is not None:
                if isinstance(message, Cancel):
                    trials.cancelled.add(message.target)
                else:
                    requests.put(message)
        os._exit(0)  # whatever runs is for nobody any more

    threading.Thread(target=read, name="reader", daemon=True).start()
    while (message := requests.get()) is not None:
        connection.sendall(encode(trials.answer(message)))
        trials.cancelled.discard(message.id)


def _die_with_parent() -> None:
    # A stopped process does not see its socket close; without this it would outlive a killed worker.
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
