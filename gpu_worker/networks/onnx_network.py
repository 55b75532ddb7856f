"""An ONNX file as a `Network`, run by ONNX Runtime: one input [n, 3, H, W] float32, one output of its task.

That is logits, values or boxes. Beside it, or instead of it, it may give features: another output, by its
name.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable, WorkerError
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.model_files.onnx_file import OnnxRefused, check_onnx, check_onnx_content
from gpu_worker.model_files.regular import open_regular
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, activated, pixel_line
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.tasks.task import Activation, Reads

__all__ = ["OnnxNetwork", "first_passes", "open_session"]

_log = logging.getLogger(__name__)

_CUDA = "CUDAExecutionProvider"
_FATAL = 4  # of ONNX Runtime's levels of logging
_WARM_UP_S = 60.0  # of each of the first passes; a graph may hold a loop that never ends


def open_session(path: str, device: Device, content: bytes | None = None) -> onnxruntime.InferenceSession:
    """ONNX Runtime's session of a file that names no other file. Raises `ModelUnusable`.

    content: what the file holds, where that is in memory.
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
    # One core a pass: the engine runs passes side by side (see there).
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL  # errors are raised: in the log a stranger could fill it
    # Never by the file's name: its other format is not the one that was looked over.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    providers = _providers(device, onnxruntime.get_available_providers())
    try:
        session = onnxruntime.InferenceSession(path if content is None else content, options, providers)
    except Exception as exc:  # its exceptions have no common base
        raise ModelUnusable(f"ONNX Runtime cannot read {path}: {exc}") from exc
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


def _providers(device: Device, available: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """What runs a session there, the best first: the worker's own device, then the CPU."""
    providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
    if device.is_cuda and _CUDA in available:
        # Its arena doubles otherwise, and takes memory that other models were promised.
        own = {"device_id": device.name.partition(":")[2], "arena_extend_strategy": "kSameAsRequested"}
        providers.insert(0, (_CUDA, own))
    return providers


@contextlib.contextmanager
def first_passes(path: str) -> Iterator[onnxruntime.RunOptions]:
    """Options of passes that end when they take too long; what they raise is the model's fault.

    Raises `ModelUnusable`.
    """
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL
    # Started in a thread that takes no signals, as threads of a worker are: it inherits that.
    ends = threading.Timer(_WARM_UP_S, setattr, (options, "terminate", True))
    ends.daemon = True
    ends.start()
    try:
        yield options
    except WorkerError:
        raise
    except Exception as exc:  # its exceptions have no common base
        late = f"; passes of a warm-up have {_WARM_UP_S:g} s" if options.terminate else ""
        raise ModelUnusable(f"{path} fails at its first rows: {exc}{late}") from exc
    finally:
        ends.cancel()


class OnnxNetwork:
    """`path` is the model file, `content` what it holds where that is in memory.

    Raises `ModelUnusable` when it is not a model of the agreed shape.

    features: name of the output that gives them, "" where none does; of a network that gives nothing else the
    only output may be meant. reads: what its own task is made of; activation: how the output becomes that.
    """

    forms = frozenset(("path", "image", "tensor"))
    cuttable = True

    def __init__(
        self,
        path: str,
        spec: InputSpec,
        device: Device,
        *,
        features: str = "",
        reads: Reads = "scores",
        activation: Activation = "softmax",
        content: bytes | None = None,
    ) -> None:
        self.pixels = (spec.height, spec.width)
        self._path = path
        self._device = device.computes_on
        self._session = open_session(path, device, content)
        self._input = self._only_input(path)
        self._reads, self._activation = reads, activation
        self._main, self._features = self._find_outputs(path, features)
        self.features_width = self.values_width = self.boxes_width = 0  # known once it is warm
        self.resident_bytes = os.path.getsize(path) if content is None else len(content)
        self._scale, self._shift = pixel_line(spec)

    def _only_input(self, path: str) -> str:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1:
            raise ModelUnusable(
                f"{path} has {len(inputs)} inputs and {len(outputs)} outputs; one input is needed"
            )
        shape = inputs[0].shape
        expected = (3, *self.pixels)
        fits = len(shape) == 4 and all(
            not isinstance(have, int) or have == want for have, want in zip(shape[1:], expected, strict=True)
        )
        if inputs[0].type != "tensor(float)" or not fits or isinstance(shape[0], int):
            raise ModelUnusable(
                f"{path} takes {inputs[0].type} {shape}; float32 [n, {', '.join(map(str, expected))}] "
                "with an open batch size is needed"
            )
        return str(inputs[0].name)

    def _find_outputs(self, path: str, features: str) -> tuple[str | None, str | None]:
        """Names of the outputs of its task and of features, None for what there is none."""
        names = [str(output.name) for output in self._session.get_outputs()]
        if features and features not in names:
            raise ModelUnusable(
                f"{path} has no output {features!r} for its features; there are {', '.join(names)}"
            )
        others = [name for name in names if name != features]
        if self._reads == "features":
            if not features and len(names) != 1:
                raise ModelUnusable(
                    f"{path} has the outputs {', '.join(names)}; say in model.json, 'features.output', "
                    "which of them gives the features"
                )
            return None, features or names[0]
        if len(others) != 1:
            raise ModelUnusable(
                f"{path} has 1 input and {len(names)} outputs; one of each is needed, and beside it an "
                "output that model.json names ('features.output')"
            )
        return others[0], features or None

    def warm_up(self, rows: int) -> Floats:
        """The scores of `rows` black images, or their features where it has no classes.

        Raises `ModelUnusable`.
        """
        black = np.zeros((rows, *self.pixels, 3), np.uint8)
        with first_passes(self._path) as options:
            found: Floats | None = None
            if self._features is not None:
                found = self._outputs(self._features, black, options)
                if found.ndim != 2 or len(found) != rows or not np.isfinite(found).all():
                    raise ModelUnusable(
                        f"{self._path}: output {self._features!r} has the shape {list(found.shape)} for "
                        f"{rows} rows; finite numbers [n, width] are needed"
                    )
                self.features_width = found.shape[1]
            if self._main is not None:
                found = self._answered(self._main, black, options)
                width = found.shape[1] if found.ndim == 2 else 0
                self.values_width = width if self._reads == "values" else 0
                self.boxes_width = width if self._reads == "boxes" else 0
            assert found is not None
            return found

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of uint8 [n, H, W, 3] or normalised float32 [n, 3, H, W]."""
        return self._of_its_task(inputs, is_cancelled)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self._of_its_task(inputs, is_cancelled)

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width] of the same."""
        return self._of_its_task(inputs, is_cancelled)

    def _of_its_task(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        assert isinstance(inputs, np.ndarray)
        assert self._main is not None
        return self._passed(functools.partial(self._answered, self._main), inputs, is_cancelled)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of the same."""
        assert isinstance(inputs, np.ndarray)
        assert self._features is not None
        return self._passed(functools.partial(self._outputs, self._features), inputs, is_cancelled)

    def _passed(
        self,
        run: Callable[[NDArray[Any], onnxruntime.RunOptions | None], Floats],
        inputs: NDArray[Any],
        is_cancelled: IsCancelled,
    ) -> Floats:
        def whole(part: Inputs) -> Floats:
            assert isinstance(part, np.ndarray)
            return run(part, None)

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device)

    def _answered(self, name: str, inputs: NDArray[Any], options: onnxruntime.RunOptions | None) -> Floats:
        """What its task is made of: boxes [n, k, 6], and values [n], as networks give them, are lines."""
        found = activated(self._outputs(name, inputs, options), self._activation)
        is_line = self._reads in ("values", "boxes") and found.ndim in (1, 3)
        return found.reshape(len(inputs), -1) if is_line else found

    def _outputs(self, name: str, inputs: NDArray[Any], options: onnxruntime.RunOptions | None) -> Floats:
        if inputs.dtype == np.uint8:
            lines = inputs.reshape(-1, len(self._scale)) * self._scale + self._shift
            inputs = lines.reshape(inputs.shape).transpose(0, 3, 1, 2)
        (found,) = self._session.run([name], {self._input: np.ascontiguousarray(inputs)}, options)
        result: Floats = np.asarray(found, np.float32)
        return result
