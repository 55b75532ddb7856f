"""A module in the fastest precision that answers as float32 does, found by trying it on the device.

Of a module of ours it is tried once, when its weights are prepared: they are then kept as they will run, half
as large for the host's memory, the link and the device where the precision is a narrow one. Others are tried
at each load.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn

from gpu_worker.device import Device
from gpu_worker.networks.precision import Precision, Read, Verdict, chosen
from gpu_worker.tasks.task import Reads

__all__ = ["Readable", "narrowed", "narrowed_to", "narrower"]

_log = logging.getLogger(__name__)
_DTYPES: dict[Precision, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Readable(Protocol):
    """A network that is being tried."""

    def read(self) -> Read:
        """All that may be read of it, of the pictures or texts that precisions are judged by."""
        ...


def narrower(device: Device, reads: Reads) -> tuple[Precision, ...]:
    """Precisions to try for a module on that device, the fastest first; none where it runs in float32.

    Boxes are places, scores and classes at once: no one bound on how far numbers are apart suits all three.
    """
    if not device.is_cuda or device.precision != "auto" or reads == "boxes":
        return ()
    from gpu_worker.networks.cuda_streams import precisions_of

    return precisions_of(device.name)


def narrowed(
    module: nn.Module,
    network_of: Callable[[nn.Module, Verdict], Readable],
    precisions: Sequence[Precision],
) -> tuple[nn.Module, Verdict]:
    """The module in the first of the precisions that is good, and the verdict on it.

    network_of: a network of a module on the device. It is given copies: what it does to them stays with it.
    """
    name = type(module).__name__

    def read_in(precision: Precision) -> Read:
        tried = narrowed_to(copy.deepcopy(module), precision)
        return network_of(tried, Verdict(precision)).read()

    candidates = [precision for precision in precisions if precision != "float32"]
    if not candidates:
        return module, Verdict("float32")
    verdict, refused = chosen(candidates, read_in("float32"), read_in)
    for each in refused:
        _log.info("%s does not run in %s", name, each)
    _log.info("%s runs in %s", name, verdict)
    return narrowed_to(module, verdict.precision), verdict


def narrowed_to(module: nn.Module, precision: Precision) -> nn.Module:
    """The module, its numbers changed in place to those that the precision keeps."""
    dtype = _DTYPES.get(precision)
    return module if dtype is None else module.to(dtype)
