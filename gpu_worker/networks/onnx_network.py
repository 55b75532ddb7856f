"""An ONNX graph of pictures as a `Network`, run by ONNX Runtime: one input of pixels, outputs by their names.

Pixels may be float32, float16 or uint8, channels first or last, any number of pictures or so many a pass.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable, WorkerError
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx, check_onnx_content
from gpu_worker.model_files.regular import open_regular
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.networks.onnx_answers import Answers
from gpu_worker.networks.onnx_pixels import PixelInput
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.tasks.task import Reads

__all__ = ["OnnxNetwork", "first_passes", "open_session"]

_log = logging.getLogger(__name__)

_CUDA = "CUDAExecutionProvider"
_FATAL = 4  # of ONNX Runtime's levels of logging
# Seconds of a processor for each of the first passes: a graph may hold a loop that never ends. On a busy
# machine they take longer by the clock, but not without end: a device may hang and use none.
_WARM_UP_S = 60.0
_WARM_UP_MOST = 10  # times that, by the clock


def open_session(
    path: str, device: Device, content: bytes | None = None, *, threads: int = 1
) -> onnxruntime.InferenceSession:
    """ONNX Runtime's session of a file that names no other file. Raises `ModelUnusable`.

    content: what the file holds, where that is in memory. threads: cores of one pass.
    """
    try:
        if content is not None:
            check_onnx_content(content)
        else:
            with open_regular(path) as file:
                check_onnx(file)
    except OnnxRefused as exc:
        raise ModelUnusable(f"{path} cannot be served: {exc}") from exc
    except OSError as exc:
        raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc
    options = onnxruntime.SessionOptions()
    # One core a pass, unless a variant says otherwise: the engine runs passes side by side (see there).
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = _FATAL  # errors are raised: in the log a stranger could fill it
    # Never by the file's name: its other format is not the one that was looked over.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    providers = _providers(device, onnxruntime.get_available_providers())
    try:
        session = onnxruntime.InferenceSession(path if content is None else content, options, providers)
    except Exception as exc:  # its exceptions have no common base
        raise ModelUnusable(_why_not_read(path, str(exc))) from exc
    if device.is_cuda and _CUDA not in session.get_providers():
        # It says nothing itself, but for a line in a log that is off.
        _log.warning(
            "%s runs on the CPU, not on %s: this ONNX Runtime has no working %s; install onnxruntime-gpu in "
            "place of onnxruntime, for the CUDA that torch was built for",
            path,
            device.name,
            _CUDA,
        )
    return session


def _why_not_read(path: str, reason: str) -> str:
    unknown = re.search(r"Fatal error: ([\w.]*):(\w+)\(|No Op registered for ()(\w+)", reason)
    if unknown is None:
        return f"ONNX Runtime cannot read {path}: {reason}"
    operator = ".".join(filter(None, unknown.groups()))
    return (
        f"{path} uses the operator {operator}, which ONNX Runtime does not have: export it with ONNX's own "
        "operators (a custom one is code, and none is loaded with a model)"
    )


def _providers(device: Device, available: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """What runs a session there, the best first: the worker's own device, then the CPU."""
    providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
    if device.is_cuda and _CUDA in available:
        own = {
            "device_id": device.name.partition(":")[2],
            # Its arena doubles otherwise, and takes memory that other models were promised.
            "arena_extend_strategy": "kSameAsRequested",
            # It tries every algorithm otherwise at each size of a batch that is new, while rows wait.
            "cudnn_conv_algo_search": "HEURISTIC",
            "use_tf32": "0",  # nobody has compared what it would answer
        }
        providers.insert(0, (_CUDA, own))
    return providers


@contextlib.contextmanager
def first_passes(path: str) -> Iterator[onnxruntime.RunOptions]:
    """Options of passes that end when they take too long; what they raise is the model's fault.

    Raises `ModelUnusable`.
    """
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL
    over = threading.Event()
    # Started in a thread that takes no signals, as threads of a worker are: it inherits that.
    threading.Thread(target=_end_late, args=(options, over), daemon=True).start()
    try:
        yield options
    except WorkerError:
        raise
    except Exception as exc:  # its exceptions have no common base
        late = f"; passes of a warm-up have {_WARM_UP_S:g} s" if options.terminate else ""
        raise ModelUnusable(f"{path} fails at its first rows: {exc}{late}") from exc
    finally:
        over.set()


def _end_late(options: onnxruntime.RunOptions, over: threading.Event) -> None:
    began_s, used_s = time.monotonic(), time.process_time()
    while not over.wait(_WARM_UP_S):
        used_up = time.process_time() - used_s >= _WARM_UP_S
        if used_up or time.monotonic() - began_s >= _WARM_UP_MOST * _WARM_UP_S:
            options.terminate = True
            return


class OnnxNetwork:
    """The weights of `manifest`, or `content` where that is in memory, as a network of pictures.

    Raises `ModelUnusable` when it is not a model of the agreed shape.
    """

    forms = frozenset(("path", "image", "tensor"))
    cuttable = True

    def __init__(self, manifest: Manifest, device: Device, content: bytes | None = None) -> None:
        path = manifest.path_of_weights()
        spec = manifest.input
        self.pixels = (spec.height, spec.width)
        self._path = path
        self._device = device.computes_on
        self._session = open_session(path, device, content, threads=manifest.run.threads)
        self._input = PixelInput(self._session, spec, path)
        self._answers = Answers(self._session, manifest, path)
        self.features_width = 0  # these are known once it is warm
        self.values_width = 0
        self.boxes_width = 0
        self.resident_bytes = os.path.getsize(path) if content is None else len(content)

    def warm_up(self, rows: int) -> Floats:
        """What its task is made of, of `rows` black images. Raises `ModelUnusable`."""
        black = np.zeros((rows, *self.pixels, 3), np.uint8)
        own = self._answers.task.reads
        with first_passes(self._path) as options:
            for reads in sorted(self._answers.gives, key=lambda reads: reads == own):
                found = self._read(reads, black, options)
                if reads != "scores":
                    is_line = found.ndim == 2 and len(found) == rows and np.isfinite(found).all()
                    if reads == "features" and not is_line:
                        raise ModelUnusable(
                            f"{self._path}: its features have the shape {list(found.shape)} for {rows} rows; "
                            "finite numbers [n, width] are needed"
                        )
                    setattr(self, f"{reads}_width", found.shape[1] if found.ndim == 2 else 0)
            return found

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of uint8 [n, H, W, 3] or normalised float32 [n, 3, H, W]."""
        return self._passed("scores", inputs, is_cancelled)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of the same."""
        return self._passed("features", inputs, is_cancelled)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self._passed("values", inputs, is_cancelled)

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width] of the same, in pixels of the input."""
        return self._passed("boxes", inputs, is_cancelled)

    def _passed(self, reads: Reads, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        def whole(part: Inputs) -> Floats:
            assert isinstance(part, np.ndarray)
            return self._read(reads, part, None)

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device)

    def _read(self, reads: Reads, inputs: NDArray[Any], options: onnxruntime.RunOptions | None) -> Floats:
        def run(feed: Mapping[str, NDArray[Any]], count: int) -> Floats:
            def one_pass(names: Sequence[str]) -> Sequence[Any]:
                found = self._session.run(list(names), feed, options)
                return [each[:count] for each in found]

            return self._answers.read(reads, one_pass, count, self.pixels)

        parts = [run(feed, count) for feed, count in self._input.feeds(inputs)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
