"""A model at a server of the Open Inference Protocol v2 (Triton, MLServer, KServe, an ml_udf), as a network.

What the server says of the model decides how rows are sent: the name, datatype and rank of its input, and
which of its outputs are read. Numbers go as the binary extension has them, where the server has it; replies
are JSON. https://kserve.github.io/website/latest/modelserving/data_plane/v2_protocol/
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.remote_spec import RemoteSpec, inputs_of, tensors_of
from gpu_worker.networks.network import Floats, Inputs, activated, normalised, pixel_line
from gpu_worker.networks.remote.asking import Try
from gpu_worker.networks.remote.exchange import Call, Connections, EndpointFailed, Reply
from gpu_worker.networks.remote.remote_network import RemoteNetwork, one_hot, probabilities
from gpu_worker.networks.table import values_of
from gpu_worker.tasks.task import BOX_NUMBERS, MOST_BOXES, Activation

__all__ = ["OipNetwork"]

_LENGTH: Final = struct.Struct("<I")
_BINARY: Final = "binary_tensor_data"
_MOST_RANK: Final = 8
_NUMPY: Final = {"FP32": "<f4", "FP64": "<f8", "UINT8": "u1", "INT64": "<i8", "INT32": "<i4"}


class OipNetwork(RemoteNetwork):
    """See `RemoteNetwork`; `ModelUnusable` too where the model there has other inputs or outputs."""

    def __init__(self, manifest: Manifest, spec: RemoteSpec, connections: Connections) -> None:
        version = f"/versions/{spec.version}" if spec.version else ""
        self._path = connections.endpoint.path + version
        self._input: Mapping[str, Any] = {}
        self._outputs: Mapping[str, str] = {}  # name → datatype
        self._is_binary = False
        super().__init__(manifest, spec, connections)

    def describe(self, attempt: Try) -> str:
        """Reads the model's metadata, and says what is used of them. Raises as the class says."""
        told = self._json(attempt, "GET", self._path)
        inputs = inputs_of(told)
        outputs = tensors_of(told.get("outputs"))
        self._outputs = {name: str(each.get("datatype", "")) for name, each in outputs.items()}
        name = self.spec.input or next(iter(inputs), "")
        if not inputs or name not in inputs or (len(inputs) > 1 and not self.spec.input):
            raise ModelUnusable(
                f"{self.url} has the inputs {', '.join(inputs) or 'none'}; say in model.json, "
                "'remote.input', which of them the rows are (it must be the only one that has to be sent)"
            )
        self._input = inputs[name]
        datatype = self.spec.datatype or str(self._input.get("datatype", "BYTES"))
        self._input = {"name": name, "datatype": datatype, "shape": self._shape_of(name, self._input) or [-1]}
        self._check_input()
        self._is_binary = _BINARY in self._extensions(attempt)
        wanted = self._output()
        if self._shape_of(wanted, outputs[wanted])[1:] == [3]:
            self.values_count = 3  # a value and the ends of its interval
        return f"{name} {datatype} {self._input['shape']} → {wanted} {self._outputs[wanted]}"

    def ask_rows(self, attempt: Try, inputs: Inputs) -> Sequence[object]:
        """What the model says of some rows, by one request. Raises `EndpointFailed`."""
        count = len(inputs)
        name = self._output()
        body, headers = self._request(inputs, name)
        told = self._json(attempt, "POST", f"{self._path}/infer", body, headers)
        outputs = tensors_of(told.get("outputs"))
        if name not in outputs:
            raise self._bad(f"it has no output {name!r} but {', '.join(outputs) or 'none'}")
        shape, data = outputs[name].get("shape"), outputs[name].get("data")
        if not isinstance(data, list) or not isinstance(shape, list) or not shape:
            raise self._bad(f"its output {name!r} has no data, or no shape")
        if shape[0] != count:
            raise self._bad(f"its output {name!r} has {shape[0]} rows for {count}")
        if str(outputs[name].get("datatype")) == "BYTES":
            return self._of_texts(_flat(data, len(shape)), count)
        try:
            found = np.array(_flat(data, len(shape)), np.float64).reshape(count, -1)
        except (ValueError, TypeError, OverflowError):
            raise self._bad(f"the data of its output {name!r} are no numbers of the shape {shape}") from None
        return self._of_numbers(cast("Floats", found))

    def _of_texts(self, texts: list[Any], count: int) -> Sequence[object]:
        if len(texts) != count:
            raise self._bad(f"it answers {len(texts)} texts for {count} rows")
        if self.reads == "texts":
            return [text if isinstance(text, str) else _no_text(self.url, text) for text in texts]
        hot = [one_hot(self.manifest.classes, str(text)) for text in texts]
        return [
            _unknown(self.url, str(text)) if each is None else each
            for each, text in zip(hot, texts, strict=True)
        ]

    def _of_numbers(self, found: Floats) -> Sequence[object]:
        if self.reads == "scores":
            if found.shape[1] != len(self.manifest.classes):
                raise self._bad(
                    f"it answers {found.shape[1]} numbers a row, and model.json names "
                    f"{len(self.manifest.classes)} classes"
                )
            found = activated(found, cast("Activation", self.activation))
            likely = [probabilities(row, self.picks_one) for row in found]
            return [
                _unlikely(self.url, row) if p is None else p for p, row in zip(likely, found, strict=True)
            ]
        if self.reads == "boxes":
            return self._of_boxes(found)
        wanted = self.values_count if self.reads == "values" else self.width
        if wanted and found.shape[1] != wanted:
            raise self._bad(f"it answers {found.shape[1]} numbers a row, and {wanted} are wanted")
        return list(found)

    def _of_boxes(self, found: Floats) -> Sequence[object]:
        """As many boxes as a row may have; those that are missing score 0."""
        if found.shape[1] % BOX_NUMBERS or found.shape[1] > self.boxes_width:
            raise self._bad(
                f"it answers {found.shape[1]} numbers a row, which are not {BOX_NUMBERS} for each of up to "
                f"{MOST_BOXES} boxes: x0, y0, x1, y1, score, class"
            )
        padded = np.zeros((len(found), self.boxes_width), np.float32)
        padded[:, : found.shape[1]] = found
        return list(padded)

    def _check_input(self) -> None:
        form, datatype, shape = self.manifest.input.form, self._input["datatype"], self._input["shape"]
        fits = {
            "text": datatype == "BYTES",
            "row": datatype in ("BYTES", "FP32", "FP64"),
            "path": datatype in ("BYTES", "FP32", "UINT8"),
            "image": datatype in ("BYTES", "FP32", "UINT8"),
            "tensor": datatype == "FP32",
        }[form]
        if datatype == "BYTES" and form in ("path", "image", "tensor"):
            self.pixels = None
        elif form in ("path", "image", "tensor") and len(shape) != 4:
            fits = False
        if not fits:
            raise ModelUnusable(
                f"{self.url} takes {datatype} {shape}, which cannot be made of rows of form {form!r}"
            )

    def _output(self) -> str:
        named = getattr(self.manifest.outputs, self.reads, "")
        said = self.spec.output or (named if isinstance(named, str) else "".join(named[:1]))
        if not said and len(self._outputs) != 1:
            # A server like this one names its columns so.
            said = next((each for each in self.column_names if each in self._outputs), "")
        name = said or (next(iter(self._outputs)) if len(self._outputs) == 1 else "")
        if name not in self._outputs:
            raise ModelUnusable(
                f"{self.url} has the outputs {', '.join(self._outputs) or 'none'}; say in model.json, "
                "'remote.output', which of them answers"
            )
        return name

    def _request(self, inputs: Inputs, output: str) -> tuple[bytes, dict[str, str]]:
        datatype, count = self._input["datatype"], len(inputs)
        tail = [1] * (len(self._input["shape"]) - 1)
        head: dict[str, Any] = {"name": self._input["name"], "datatype": datatype}
        asked: dict[str, Any] = {"inputs": [head], "outputs": [{"name": output}]}
        if self._is_binary:
            asked["outputs"][0]["parameters"] = {"binary_data": False}
        if datatype == "BYTES":
            rows = cast("Sequence[bytes]", inputs)
            head["shape"] = [count, *tail]
            raw = b"".join(_LENGTH.pack(len(row)) + bytes(row) for row in rows) if self._is_binary else b""
            data: list[Any] = [] if self._is_binary else [bytes(row).decode() for row in rows]
        else:
            values = self._as_numbers(inputs, datatype)
            head["shape"] = list(values.shape)
            raw = values.tobytes() if self._is_binary else b""
            data = [] if self._is_binary else values.reshape(-1).tolist()
        if not self._is_binary:
            head["data"] = data
            return json.dumps(asked).encode(), {"Content-Type": "application/json"}
        head["parameters"] = {"binary_data_size": len(raw)}
        text = json.dumps(asked).encode()
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(text)),
        }
        return text + raw, headers

    def fault_in(self, row: bytes) -> str | None:
        """See `RemoteNetwork.fault_in`."""
        try:
            if self._input["datatype"] != "BYTES":
                self._numbers_of(row)
            elif not self._is_binary:
                bytes(row).decode()
        except UnicodeDecodeError:
            return f"it is no UTF-8, and {self.url} takes texts alone: it has no {_BINARY} extension"
        except ValueError as exc:
            return f"it cannot be sent to {self.url}, which takes {self._input['datatype']}: {exc}"
        return None

    def _numbers_of(self, row: bytes) -> list[float]:
        """A row of a table. Raises `ValueError`."""
        return [np.nan if each is None else float(each) for each in values_of(row, self.columns)]

    def _as_numbers(self, inputs: Inputs, datatype: str) -> NDArray[Any]:
        if not isinstance(inputs, np.ndarray):  # rows of a table
            return np.array([self._numbers_of(row) for row in inputs], _NUMPY[datatype])
        shape, spec = self._input["shape"], self.manifest.input
        pixels: NDArray[Any] = inputs
        if inputs.dtype == np.uint8:  # [n, H, W, 3]; normalised ones come as [n, 3, H, W]
            pixels = normalised(inputs, pixel_line(spec)) if datatype == "FP32" else inputs
            pixels = pixels.transpose(0, 3, 1, 2)
        if shape[-1] == 3 and shape[1] != 3:
            pixels = pixels.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels, _NUMPY[datatype])

    def _shape_of(self, name: str, tensor: Mapping[str, Any]) -> list[Any]:
        """As its metadata say; none where they say nothing. Raises `EndpointFailed`."""
        shape = tensor.get("shape")
        if shape is not None and not isinstance(shape, list):
            raise self._bad(f"the shape of its tensor {name!r} is {str(shape)[:100]}, and no list")
        return shape or []

    def _extensions(self, attempt: Try) -> Sequence[str]:
        root = self.connections.endpoint.path.rpartition("/models/")[0]
        try:
            said = self._json(attempt, "GET", root or "/v2").get("extensions")
        except EndpointFailed:
            return ()
        return list(map(str, said)) if isinstance(said, list) else ()

    def _json(
        self,
        attempt: Try,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        reply: Reply = attempt.ask(partial(Call, self.connections, method, path, body, headers))
        return self.object_of(reply)


def _flat(data: list[Any], rank: int) -> list[Any]:
    """The protocol lets a server nest the data by their shape, and so no deeper than that has axes."""
    for _ in range(min(rank, _MOST_RANK)):
        if not data or not isinstance(data[0], list):
            break
        data = [each for part in data for each in (part if isinstance(part, list) else [part])]
    return data


def _no_text(url: str, said: object) -> EndpointFailed:
    return EndpointFailed(f"{url} answers {str(said)[:100]}, which is no text", unavailable=False)


def _unknown(url: str, text: str) -> EndpointFailed:
    return EndpointFailed(
        f"{url} answers {text[:100]!r}, which is none of the model's classes", unavailable=False
    )


def _unlikely(url: str, row: Floats) -> EndpointFailed:
    shown = [round(float(each), 4) for each in row[:5]]
    return EndpointFailed(
        f"{url} answers {shown}…, which are no probabilities; say in model.json how they become such, "
        "'outputs.activation'",
        unavailable=False,
    )
