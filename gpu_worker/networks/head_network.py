"""A head as a `Network`: what its backbone saw in a row, and what a small model says of that.

    inputs ─ backbone, frozen and shared ─→ features [n, d] ─ the head's own ONNX file ─→ scores or values

Heads of one backbone that are asked of the same rows need its pass once (`pipeline.forward`); Nexus (Shen et
al. 2019, §6.3) calls that prefix batching.
"""

from __future__ import annotations

import os

import numpy as np

from gpu_worker.device import Device
from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.backbone import Backbone
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.backbones import SharedBackbone, is_lent, lend, manifest_below
from gpu_worker.networks.network import Abilities, Floats, Inputs, IsCancelled
from gpu_worker.networks.onnx_network import first_passes, open_session
from gpu_worker.networks.row_network import PROBABILITIES, VALUES
from gpu_worker.networks.runtimes import files_bytes, runtime_of
from gpu_worker.tasks import task_named
from gpu_worker.tasks.task import Reads

__all__ = ["HeadNetwork", "below_head", "head_bytes", "load_head"]

_OUTPUTS: dict[Reads, str] = {"scores": PROBABILITIES, "values": VALUES}


class HeadNetwork:
    """The weights of `manifest` over a backbone. Raises `ModelUnusable` where they do not fit together."""

    def __init__(self, manifest: Manifest, backbone: SharedBackbone, device: Device) -> None:
        path = manifest.path_of_weights()
        self.backbone = backbone
        self.pixels = backbone.network.pixels
        self.forms = backbone.network.forms
        self.cuttable = backbone.network.cuttable
        self.largest_piece = Abilities.of(backbone.network).largest_piece
        self.features_width = backbone.features_width
        self.values_width = 0  # known once it is warm
        if manifest.input != backbone.manifest.input:
            raise ModelUnusable(f"{manifest.directory}: its 'input' is not that of its backbone")
        self._path = path
        self._reads = task_named(manifest.task).reads
        self._session = open_session(path, device)
        self._own_bytes = os.path.getsize(path)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        wanted = _OUTPUTS.get(self._reads)
        if wanted is None or wanted not in [output.name for output in outputs]:
            raise ModelUnusable(f"{path} has no output {wanted!r}, of which {manifest.task} is made")
        shape = inputs[0].shape if len(inputs) == 1 and inputs[0].type == "tensor(float)" else []
        if len(shape) != 2 or shape[1] != backbone.features_width:
            raise ModelUnusable(
                f"{path} needs one float32 input [n, {backbone.features_width}], as many as its backbone "
                f"{backbone.manifest.name} has features"
            )
        self._name = str(inputs[0].name)
        backbone.used_by(self)

    def close(self) -> None:
        """Lets go of the backbone: the last head takes it along, whoever else still knows the head."""
        self.backbone.left_by(self)
        del self.backbone

    @property
    def resident_bytes(self) -> int:
        """Its own file, and its share of what all heads of its backbone hold once."""
        return self._own_bytes + self.backbone.share_bytes

    def warm_up(self, rows: int) -> Floats:
        """What its task is made of, of `rows` empty rows; of the backbone's pass too."""
        self.backbone.warm_up(rows)
        with first_passes(self._path):
            found = self._said(np.zeros((rows, self.features_width), np.float32), self._reads)
        if self._reads == "values":
            self.values_width = found.shape[1] if found.ndim == 2 else 0
        return found

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of what its backbone takes."""
        return self.of_features(self.features(inputs, is_cancelled), "scores")

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self.of_features(self.features(inputs, is_cancelled), "values")

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of the same: those of its backbone."""
        return self.backbone.features(inputs, is_cancelled)

    def of_features(self, features: Floats, reads: Reads) -> Floats:
        """What it says of rows whose features are known; not a number of one that has none."""
        if reads == "features":
            return features
        known = np.asarray(np.isfinite(features).all(axis=1))
        if known.all():
            return self._said(features, reads)
        found = self._said(np.where(known[:, None], features, np.float32(0)), reads)
        found[~known] = np.nan
        return found

    def _said(self, features: Floats, reads: Reads) -> Floats:
        (found,) = self._session.run([_OUTPUTS[reads]], {self._name: features})
        return np.array(found, np.float32)


def load_head(
    manifest: Manifest, device: Device, *, content: bytes | None, allow_import: bool
) -> HeadNetwork:
    """The network of a head's folder, over a backbone beside it. Raises `ModelUnusable`."""
    backbone = lend(below_head(manifest), _backbone(manifest), device, allow_import=allow_import)
    return HeadNetwork(manifest, backbone, device)


def head_bytes(manifest: Manifest) -> int:
    """The least that it will take: its own file, and its backbone's where no other head holds that."""
    below = below_head(manifest)
    there = is_lent(below, _backbone(manifest))
    return files_bytes(manifest) + (0 if there else runtime_of(below).nbytes(below))


def below_head(manifest: Manifest) -> Manifest:
    """The manifest of a head's backbone. Raises `ModelUnusable`."""
    return manifest_below(manifest.directory, _backbone(manifest))


def _backbone(manifest: Manifest) -> Backbone:
    if manifest.backbone is None:
        raise ModelUnusable(f"{manifest.directory}: a head needs its 'backbone'")
    return manifest.backbone
