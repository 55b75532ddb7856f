"""An Open Inference Protocol server whose functions answer in the columns of every task, with known values.

For tests of what SQL makes of answers: an answer follows from its row alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ml_udf.oip import Tensor
from tests.postgres.oip_server import OipServer

CLASSES = ("laksa", "pizza", "satay")
WIDTH = 4
NAN = float("nan")


def price_of(row: str) -> float:
    return len(row) + 0.5


def tags_of(row: str) -> list[str]:
    return [name for name in CLASSES if name[0] in row] + (['a "b", {c}\\'] if "!" in row else [])


def scores_of(row: str) -> list[float]:
    """Eighths, which float32 has exactly; of a row `even`, all the same."""
    if row == "even":
        return [0.25] * len(CLASSES)
    first = len(row) % len(CLASSES)
    return [0.625 if at == first else 0.125 + 0.125 * at / 4 for at in range(len(CLASSES))]


def kind_of(row: str) -> str:
    scores = scores_of(row)
    return CLASSES[scores.index(max(scores))]


def boxes_of(row: str) -> list[dict[str, Any]]:
    return [
        {"label": letter, "score": 0.5, "box": [0.0, float(at), 2.5, 3.0]} for at, letter in enumerate(row)
    ]


def vector_of(row: str) -> list[float]:
    return [float(len(row)), 0.5, -1.25, 3e-5]


def json_of(row: str) -> dict[str, Any]:
    return {"said": row, "long": len(row) > 3}


@dataclass(frozen=True)
class _Output:
    """One column of a function's answers."""

    name: str
    datatype: str
    of_row: Callable[[str], Any]
    width: int = 0
    content: str = ""
    on_request: bool = False

    def described(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "name": self.name,
            "datatype": self.datatype,
            "shape": [-1, self.width] if self.width else [-1],
        }
        return told | ({"parameters": {"content": self.content}} if self.content else {})

    def tensor(self, rows: list[str]) -> Tensor:
        values = [self.of_row(row) for row in rows]
        if self.datatype == "BYTES":
            texts = [json.dumps(value) if self.content else value for value in values]
            tensor = Tensor.of_bytes(self.name, [text.encode() for text in texts])
            tensor.parameters = {"content": self.content} if self.content else {}
            return tensor
        flat = [number for value in values for number in value] if self.width else values
        shape = (len(rows), self.width) if self.width else (len(rows),)
        return Tensor.of_numbers(self.name, self.datatype, flat, shape)


_SCORES = _Output("scores", "FP32", scores_of, len(CLASSES), on_request=True)
_KIND = [
    _Output("label", "BYTES", kind_of),
    _Output("confidence", "FP32", lambda row: max(scores_of(row))),
    _SCORES,
]

FUNCTIONS: dict[str, tuple[str, list[_Output]]] = {
    "udf_kind": ("text", _KIND),
    "udf_shown": ("path", _KIND),
    "udf_row": ("row", _KIND),
    "udf_grade": ("row", [_Output("label", "BYTES", lambda row: CLASSES[int(json.loads(row)[0]) % 3])]),
    "udf_tags": ("text", [_Output("labels", "BYTES", tags_of, content="labels"), _SCORES]),
    "udf_price": (
        "text",
        [
            _Output("value", "FP64", price_of),
            _Output("low", "FP64", lambda row: price_of(row) - 1, on_request=True),
            _Output("high", "FP64", lambda _: NAN, on_request=True),
        ],
    ),
    "udf_vector": ("text", [_Output("embedding", "FP32", vector_of, WIDTH)]),
    "udf_boxes": ("text", [_Output("boxes", "BYTES", boxes_of, content="boxes")]),
    "udf_json": ("text", [_Output("text", "BYTES", json_of, content="json")]),
    "udf_liar": ("text", [_Output("labels", "BYTES", lambda row: {"not": row}, content="labels")]),
}
COLUMNS = [{"name": "age", "kind": "number"}, {"name": "plan", "kind": "text"}]


class TypedServer(OipServer):
    """Serves `FUNCTIONS`."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = {name: form for name, (form, _) in FUNCTIONS.items()}

    def _answered(self, function: str, tensor: Tensor) -> list[Tensor]:
        rows = [row.decode("utf-8", "replace") for row in tensor.elements]
        count = len(rows)
        return [
            *(output.tensor(rows) for output in FUNCTIONS[function][1]),
            Tensor.of_bytes("error", self._errors(tensor.elements)),
            Tensor.of_bytes("answered_by", [b"m"] * count),
            Tensor.of_numbers("expected_accuracy", "FP64", [-1.0] * count),
            Tensor.of_numbers("device_seconds", "FP64", [0.25] * count),
            Tensor.of_bytes("prediction", [b""] * count),
        ]

    def _metadata(self, name: str) -> dict[str, Any]:
        form, outputs = FUNCTIONS[name]
        inputs = {"image_path": "path", "image": "image"} if form == "path" else {form: form}
        has_classes = any(output.name in ("label", "scores") for output in outputs)
        return {
            "name": name,
            "versions": [self.version],
            "inputs": [{"name": next(iter(inputs)), "datatype": "BYTES", "shape": [-1]}],
            "outputs": [output.described() for output in outputs],
            "parameters": {
                "form": form,
                "inputs": inputs,
                "classes": list(CLASSES) if has_classes else [],
                "columns": COLUMNS if form == "row" else [],
                "outputs_on_request": [output.name for output in outputs if output.on_request],
            },
        }


@contextlib.contextmanager
def typed_server() -> Iterator[TypedServer]:
    server = TypedServer()
    try:
        yield server
    finally:
        server.stop()
