"""An ONNX file as a `Network`, run by ONNX Runtime: one input [n, 3, H, W] float32, one output of logits."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.manifest import InputSpec
from gpu_worker.model_files import open_regular
from gpu_worker.network import Floats, Inputs, IsCancelled, check, pixel_line, softmax
from gpu_worker.onnx_file import OnnxRefused, check_onnx

__all__ = ["OnnxNetwork", "open_session"]


def open_session(path: str, device: Device) -> onnxruntime.InferenceSession:
    """ONNX Runtime's session of a file that names no other file. Raises `ModelUnusable`."""
    try:
        with open_regular(path) as file:
            check_onnx(file)
    except OnnxRefused as exc:
        raise ModelUnusable(f"{path} cannot be served: {exc}") from exc
    except OSError as exc:
        raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc
    options = onnxruntime.SessionOptions()
    # One core a pass: the engine runs passes side by side (see there).
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Never by the file's name: its other format is not the one that was looked over.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    providers = ["CPUExecutionProvider"]
    if device.is_cuda and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        providers.insert(0, "CUDAExecutionProvider")
    try:
        return onnxruntime.InferenceSession(path, options, providers)
    except Exception as exc:  # its exceptions have no common base
        raise ModelUnusable(f"ONNX Runtime cannot read {path}: {exc}") from exc


class OnnxNetwork:
    """`path` is the model file. Raises `ModelUnusable` when it is not a model of the agreed shape."""

    forms = frozenset(("path", "image", "tensor"))
    cuttable = True

    def __init__(self, path: str, spec: InputSpec, device: Device) -> None:
        self.pixels = (spec.height, spec.width)
        self._session = open_session(path, device)
        self._input = self._only_input(path)
        self.resident_bytes = os.path.getsize(path)
        self._scale, self._shift = pixel_line(spec)

    def _only_input(self, path: str) -> str:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ModelUnusable(
                f"{path} has {len(inputs)} inputs and {len(outputs)} outputs; one of each is needed"
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

    def warm_up(self, rows: int) -> Floats:
        """The scores of `rows` black images."""
        return self.scores(np.zeros((rows, *self.pixels, 3), np.uint8), lambda: False)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of uint8 [n, H, W, 3] or normalised float32 [n, 3, H, W]."""
        assert isinstance(inputs, np.ndarray)
        check(is_cancelled)
        if inputs.dtype == np.uint8:
            lines = inputs.reshape(-1, len(self._scale)) * self._scale + self._shift
            inputs = lines.reshape(inputs.shape).transpose(0, 3, 1, 2)
        (logits,) = self._session.run(None, {self._input: np.ascontiguousarray(inputs)})
        return softmax(np.asarray(logits, np.float32))
