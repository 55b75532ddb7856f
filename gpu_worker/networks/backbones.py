"""The frozen networks below heads: each once in a process, for as long as a head stands on it.

A backbone that is a model in its own right is resident beside these: what a head holds is its own. What both
see in a row is the same, and has the same key.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.backbone import Backbone
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.networks.loader import load_network
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, Network, reading, width_of

__all__ = [
    "BackboneKey",
    "SharedBackbone",
    "backbone_below",
    "has_heads",
    "is_lent",
    "key_of",
    "lend",
    "manifest_below",
]


class BackboneKey(NamedTuple):
    """What decides what a network sees in a row: its hash as a backbone, its folder, the device's name."""

    sha256: str
    directory: str
    device: str


class SharedBackbone:
    """A network that says what it saw. features_width: numbers of a row's features. identity: its key.

    Raises `ModelUnusable` where it has no features.
    """

    def __init__(self, manifest: Manifest, network: Network, identity: BackboneKey) -> None:
        self.manifest = manifest
        self.identity = identity
        self.network = network
        self._warm: set[int] = set()  # passes of so many rows were made
        self._warming = threading.Lock()
        self.warm_up(1)
        self.features_width = width_of(network, "features", 0)
        if not self.features_width:
            raise ModelUnusable(
                f"the model {manifest.name} has no features, and no head can stand on it; a backbone is an "
                "embedding model, or one that gives features beside its answers"
            )
        self._read = reading(network, "features")
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    def warm_up(self, rows: int) -> None:
        """A first pass of so many rows, if there was none."""
        with self._warming:
            if rows not in self._warm:
                self.network.warm_up(rows)
                self._warm.add(rows)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """float32 [n, features_width] of the inputs that its network takes. Raises what networks raise."""
        found: Floats = np.asarray(self._read(inputs, is_cancelled), np.float32)
        return found

    def used_by(self, head: object) -> None:
        """A head stands on it from now on, for as long as there is that head."""
        self._users.add(head)

    def left_by(self, head: object) -> None:
        """A head stands on it no more."""
        self._users.discard(head)

    @property
    def share_bytes(self) -> int:
        """What each of its heads has to count, so that all of them together count it once."""
        return -(-self.network.resident_bytes // max(1, len(self._users)))


_lent: weakref.WeakValueDictionary[BackboneKey, SharedBackbone] = weakref.WeakValueDictionary()
_lending = threading.Lock()


def manifest_below(directory: str, wanted: Backbone) -> Manifest:
    """That of the backbone of the head stored in `directory`: models of one home lie side by side.

    Raises `ModelUnusable` where it is not there, or is another one by now.
    """
    return backbone_below(str(Path(directory).parent.parent / wanted.name / str(wanted.version)), wanted)


def backbone_below(directory: str, wanted: Backbone) -> Manifest:
    """The manifest of the backbone that is stored in `directory`. Raises as `manifest_below`."""
    try:
        below = read_manifest(directory)
    except ModelUnusable as exc:
        raise ModelUnusable(
            f"the backbone {wanted.key} is not there ({exc}); import it again under that name and version, "
            "or train on another one"
        ) from exc
    if below.as_backbone != wanted.sha256:
        raise ModelUnusable(
            f"the model {wanted.key} in {directory} is not the one on which the head was trained: it was "
            "replaced; put the former one back, or train again"
        )
    if below.backbone is not None or below.remote is not None:
        what = "a head itself" if below.backbone is not None else "behind another server"
        raise ModelUnusable(f"the model {wanted.key} is {what}: no backbone; name a model that lies here")
    return below


def lend(manifest: Manifest, wanted: Backbone, device: Device, *, allow_import: bool) -> SharedBackbone:
    """The backbone with that manifest, on the device; loaded where no head holds it.

    Raises `ModelUnusable`.
    """
    key = BackboneKey(wanted.sha256, manifest.directory, device.name)
    with _lending:
        found = _lent.get(key)
        if found is None:
            network = load_network(manifest, device, allow_import=allow_import)
            found = _lent[key] = SharedBackbone(manifest, network, key)
        return found


def is_lent(manifest: Manifest, wanted: Backbone) -> bool:
    """Whether some head of this process holds it."""
    return any(key[:2] == (wanted.sha256, manifest.directory) for key in list(_lent.keys()))


def key_of(manifest: Manifest, device: Device) -> BackboneKey | None:
    """That of a model that is resident by itself; None where its files have no hashes to be known by."""
    is_known = manifest.as_backbone and all(file.sha256 for file in manifest.files)
    return BackboneKey(manifest.as_backbone, manifest.directory, device.name) if is_known else None


def has_heads(key: BackboneKey) -> bool:
    """Whether heads of this process stand on a backbone of that key."""
    return key in _lent
