"""How often a variant names the right class, and the class that its original names, on held-out rows.

Both see the same pixels, in batches as serving has them. Knows Parquet, pictures and networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable, RowFault
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, Outputs, reading
from gpu_worker.pipeline.decode import Pixels, decode_picture
from gpu_worker.tasks import task_named
from gpu_worker.variants.parity import rebuilt_places

__all__ = ["UNREAD", "HeldOutRows"]

UNREAD = -1  # in place of right or wrong
_AT_A_TIME = 64
_NO_CLASS = -1

Places = NDArray[np.int64]


@dataclass(slots=True)
class HeldOutRows:
    """At most `most` rows of a split, evenly over all. read: path → the file's bytes; raises `RowFault`.

    on_step: called for each batch.
    """

    snapshot: str
    split: str
    most: int
    read: Callable[[bytes], bytes]
    max_pixels: int
    on_step: Callable[[], object] = lambda: None
    _paths: list[str] = field(default_factory=list)
    _targets: Places = field(default_factory=lambda: np.zeros(0, np.int64))

    def answers(self, manifests: Sequence[Manifest], device: Device) -> tuple[Places, list[Places]]:
        """The rows' classes, and what each model names: places among their classes, [rows] each.

        Of a parity model, what is rebuilt by it from the first one's answers to other rows.

        −1: of a target that is no class, and of all of a row whose picture cannot be read. Raises
        `ModelUnusable` where a model cannot be loaded, or there are no rows.
        """
        first = manifests[0]
        self._open(first.classes)
        named = [np.full(len(self._paths), UNREAD, np.int64) for _ in manifests]
        networks = []
        for manifest in manifests:
            network = load_network(manifest, device)
            warm_up(network, manifest)
            networks.append(reading(network, task_named(manifest.task).reads))
        for start in range(0, len(self._paths), _AT_A_TIME):
            self.on_step()
            places, pixels = self._decoded(first, start)
            if not places:
                continue
            own = np.asarray(networks[0](pixels, lambda: False), np.float32)
            named[0][places] = own.argmax(axis=1)
            for answers, run, manifest in zip(named[1:], networks[1:], manifests[1:], strict=True):
                if manifest.parity is None:
                    answers[places] = np.asarray(run(pixels, lambda: False)).argmax(axis=1)
                else:  # as rebuilt from the answers to others of the batch
                    said = _scores_of(run)
                    answers[places] = rebuilt_places(own, said, pixels, manifest.parity)
        return self._targets, named

    def _open(self, classes: Sequence[str]) -> None:
        try:
            table = pq.read_table(
                self.snapshot, columns=["input", "target"], filters=[("split", "=", self.split)]
            )
        except OSError as exc:
            raise ModelUnusable(f"the snapshot {self.snapshot} cannot be read: {exc}") from exc
        if not len(table):
            raise ModelUnusable(f"the snapshot {self.snapshot} has no {self.split} rows to judge by")
        places = np.unique(np.linspace(0, len(table) - 1, min(len(table), self.most)).astype(int))
        part = table.take(places)
        index = {label: place for place, label in enumerate(classes)}
        self._paths = part["input"].to_pylist()
        self._targets = np.array([index.get(t, _NO_CLASS) for t in part["target"].to_pylist()], np.int64)

    def _decoded(self, manifest: Manifest, start: int) -> tuple[list[int], Pixels]:
        places: list[int] = []
        pictures: list[Pixels] = []
        for place in range(start, min(start + _AT_A_TIME, len(self._paths))):
            try:
                data = self.read(self._paths[place].encode())
                pictures.append(decode_picture(data, manifest.input.frame, max_pixels=self.max_pixels))
            except RowFault:
                continue
            places.append(place)
        return places, np.stack(pictures) if pictures else np.zeros((0, 0, 0, 3), np.uint8)


def _scores_of(run: Callable[[Inputs, IsCancelled], Outputs]) -> Callable[[Pixels], Floats]:
    return lambda pixels: np.asarray(run(pixels, lambda: False), np.float32)
