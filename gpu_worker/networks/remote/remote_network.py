"""What every model behind another server has in common: rows out, requests side by side, answers or faults.

A row that gets no answer has a fault, which spoils no other row (`take_faults`): `remote_unavailable` where
the endpoint cannot be asked, `remote_invalid` where what it said cannot be used. Knows no protocol.
"""

from __future__ import annotations

import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np

from gpu_worker.errors import Cancelled, RowFault, WorkerError
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.remote_spec import RemoteSpec
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, UntilDeadline
from gpu_worker.networks.remote.asking import Asking, Try
from gpu_worker.networks.remote.exchange import Connections, EndpointFailed, Reply
from gpu_worker.networks.table import TableColumn
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import BOX_NUMBERS, MOST_BOXES

__all__ = ["EndpointDown", "RemoteNetwork", "one_hot", "probabilities"]

_DESCRIBE_S: Final = 10.0
_SHOWN_BYTES: Final = 64 << 10  # longer than any key: none is cut in two before it is hidden


class EndpointDown(WorkerError):
    """The endpoint of a model cannot be asked now; try again later."""

    code = "remote_unavailable"


class RemoteNetwork(ABC):
    """`manifest` of the model, `spec` of where it is, `connections` there.

    Asks the endpoint what the model is: raises `EndpointDown` where it does not say, `ModelUnusable` where
    the model does not fit its manifest. Its methods may be called by several threads at once.
    """

    cuttable = True
    resident_bytes = 0  # of this machine's devices

    def __init__(self, manifest: Manifest, spec: RemoteSpec, connections: Connections) -> None:
        self.manifest, self.spec, self.connections = manifest, spec, connections
        self.url = spec.url
        size = (manifest.input.height, manifest.input.width)
        self.pixels: tuple[int, int] | None = size if all(size) else None
        task = task_named(manifest.task)
        self.reads: str = task.reads
        self.picks_one = getattr(task, "picks_one", True)
        self.columns = [TableColumn(name, kind) for name, kind in manifest.input.columns]
        self.activation = manifest.outputs.activation or "none"
        self.column_names = [spec.name for spec in task.columns if spec.name != "confidence"][::-1]
        self.forms = _forms(manifest, self.pixels)
        self.values_count = 1
        self.width = manifest.features.width if self.reads == "features" else 0
        self._asking = Asking(spec.concurrency, spec.timeout_ms / 1000, spec.retries)
        self._faults = threading.local()
        described = Try(min(_DESCRIBE_S, spec.timeout_ms / 1000), 0, math.inf)
        try:
            self.description = self.describe(described)
        except EndpointFailed as failed:
            raise EndpointDown(connections.without_key(failed.message)) from failed
        self._asking.start()

    # ── what a protocol is ──────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def describe(self, attempt: Try) -> str:
        """Asks whether the model is there, and what it takes and gives; in a few words."""

    @abstractmethod
    def ask_rows(self, attempt: Try, inputs: Inputs) -> Sequence[object]:
        """What the model says of some rows, each numbers, a text, or why it cannot be used.

        Raises `EndpointFailed` where nothing can be said of any.
        """

    def fault_in(self, row: bytes) -> str | None:
        """Why that row cannot be sent; None where it can."""
        return None

    @property
    def rows_a_request(self) -> int:
        """The most rows of one request."""
        return self.spec.batch_rows

    @property
    def takes_encoded(self) -> bool:
        """Whether pictures go as they are encoded."""
        return self.pixels is None and self.manifest.input.form in ("path", "image")

    # ── as a network ────────────────────────────────────────────────────────────────────────────────

    @property
    def features_width(self) -> int:
        """Numbers of a row's features; 0 where it gives none."""
        return self.width

    @property
    def values_width(self) -> int:
        """Numbers of a row's value: alone, or with the ends of an interval; 0 where it gives none."""
        return self.values_count if self.reads == "values" else 0

    def warm_up(self, rows: int) -> Floats:
        """Nothing: an endpoint is asked about no made-up rows."""
        return np.zeros((rows, len(self.manifest.classes) or self.width or 1), np.float32)

    @property
    def texts_width(self) -> int:
        """1 where it writes."""
        return int(self.reads == "texts")

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities."""
        return cast("Floats", self._numbers(inputs, is_cancelled, len(self.manifest.classes)))

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width]."""
        return cast("Floats", self._numbers(inputs, is_cancelled, self.width))

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width], float64: as exact as the endpoint says them."""
        return cast("Floats", self._numbers(inputs, is_cancelled, self.values_count, np.float64))

    @property
    def boxes_width(self) -> int:
        """Numbers of the boxes that a row may have; 0 where it finds none."""
        return MOST_BOXES * BOX_NUMBERS if self.reads == "boxes" else 0

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width], in pixels of the model's input; of one that reads pictures itself, of those."""
        return cast("Floats", self._numbers(inputs, is_cancelled, self.boxes_width))

    def texts(self, inputs: Inputs, is_cancelled: IsCancelled) -> np.ndarray:
        """n texts, as an array of objects; "" for rows at fault."""
        said = self._said(inputs, is_cancelled)
        found = np.empty(len(said), object)
        found[:] = ["" if each is None else str(each) for each in said]
        return found

    def take_faults(self) -> dict[int, RowFault]:
        """By row of the calling thread's last pass, why it has no answer; they are told once."""
        found: dict[int, RowFault] = getattr(self._faults, "last", {})
        self._faults.last = {}
        return found

    def close(self) -> None:
        """Hangs up. Nothing may be under way."""
        self._asking.close()
        self.connections.close()

    def object_of(self, reply: Reply) -> dict[str, Any]:
        """The JSON object of a reply. Raises `EndpointFailed`."""
        try:
            found = json.loads(reply.body)
        except (ValueError, RecursionError) as exc:
            shown = self.connections.hidden(reply.body[:_SHOWN_BYTES].decode("utf-8", "replace"))
            raise self._bad(f"its reply is no JSON: {shown!r}") from exc
        if not isinstance(found, dict):
            raise self._bad("its reply is no JSON object")
        return found

    def _bad(self, what: str) -> EndpointFailed:
        return EndpointFailed(f"{self.url}: {what}", unavailable=False)

    def _numbers(
        self, inputs: Inputs, is_cancelled: IsCancelled, width: int, kind: type[np.floating[Any]] = np.float32
    ) -> Any:  # noqa: ANN401  # an array of that kind
        said = self._said(inputs, is_cancelled)
        found = np.zeros((len(said), width), kind)
        for row, each in enumerate(said):
            if each is not None:
                found[row] = each
        return found

    def _said(self, inputs: Inputs, is_cancelled: IsCancelled) -> list[Any]:
        """By row, what the model says; None, and a fault, where it says nothing that can be used."""
        faults: dict[int, RowFault] = {}
        good = list(range(len(inputs)))
        if not isinstance(inputs, np.ndarray):
            for row in good:
                if (reason := self.fault_in(inputs[row])) is not None:
                    faults[row] = RowFault("input_invalid", reason)
            good = [row for row in good if row not in faults]
        most = self.rows_a_request
        parts = [good[at : at + most] for at in range(0, len(good), most)]
        makes = [partial(self._ask, _taken(inputs, part)) for part in parts]
        ends_s = is_cancelled.ends_s if isinstance(is_cancelled, UntilDeadline) else math.inf
        said: list[Any] = [None] * len(inputs)
        found = self._asking.all(makes, is_cancelled, ends_s)
        if time.monotonic() >= ends_s and any(isinstance(each, EndpointFailed) for each in found):
            raise Cancelled("the deadline of its rows has passed")  # which says nothing of the endpoint
        for part, answers in zip(parts, found, strict=True):
            for place, row in enumerate(part):
                each = answers if isinstance(answers, EndpointFailed) else answers[place]
                if isinstance(each, EndpointFailed):
                    code = "remote_unavailable" if each.unavailable else "remote_invalid"
                    faults[row] = RowFault(code, self.connections.without_key(each.message))
                elif not isinstance(each, str) and not np.isfinite(np.asarray(each, np.float64)).all():
                    faults[row] = RowFault(
                        "remote_invalid", f"{self.url} answers numbers that are not finite"
                    )
                else:
                    said[row] = each
        self._faults.last = faults
        return said

    def _ask(self, inputs: Inputs, attempt: Try) -> Sequence[object]:
        return self.ask_rows(attempt, inputs)


def one_hot(classes: Sequence[str], label: str, sure: float = 1.0) -> list[float] | None:
    """Probabilities of a model that says only which class it is; None where it is none of them."""
    if label not in classes:
        return None
    rest = (1.0 - sure) / max(1, len(classes) - 1)
    return [sure if each == label else rest for each in classes]


def probabilities(row: Floats, picks_one: bool) -> Floats | None:
    """The row, if it is probabilities: from 0 to 1, of one class in all where a row has one."""
    if not np.isfinite(row).all() or (row < -1e-3).any() or (row > 1.001).any():
        return None
    if picks_one and abs(float(row.sum()) - 1.0) > 0.02:
        return None
    return row


def _forms(manifest: Manifest, pixels: tuple[int, int] | None) -> frozenset[str]:
    form = manifest.input.form
    if form in ("path", "image", "tensor"):
        return frozenset(("path", "image", "tensor") if pixels else ("path", "image"))
    return frozenset((form,))


def _taken(inputs: Inputs, rows: list[int]) -> Inputs:
    if isinstance(inputs, np.ndarray):
        return inputs if len(rows) == len(inputs) else inputs[rows]
    return [inputs[row] for row in rows]
