"""A torch module as a `Network`: pixels to the device, normalise, forward, softmax, back.

Measured on 2 Zen 5 cores at 64×64 pixels, rows/s of one forward pass, batches of 64, 2 threads:

    |            | as trained | batch norms folded | folded, channels_last |
    | vgg        |      4,300 |              4,500 |                 8,100 |
    | resnet     |     25,100 |             29,800 |                38,900 |
    | squeezenet |      4,800 |              5,100 |                13,100 |

So `torch_loader` does both. Pixels arrive as [n, H, W, 3], which seen as [n, 3, H, W] *is* channels_last: no
copy. At batches of 256 the activations leave the cache, and squeezenet falls by 40 %: on a CPU the engine
cuts batches into pieces.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpu_worker.device import Device
from gpu_worker.model_files.manifest import InputSpec
from gpu_worker.networks.accelerated import Accelerated, beside, on_cuda
from gpu_worker.networks.moved import Weights
from gpu_worker.networks.narrowing import narrowed, narrower
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, pixel_line
from gpu_worker.networks.parts import in_parts_that_fit
from gpu_worker.networks.precision import Read, Verdict, pictures
from gpu_worker.networks.tracing import traced
from gpu_worker.tasks.task import Activation, Reads
from gpu_worker.threads import Threads

__all__ = ["ACTIVATE", "TorchNetwork", "use_one_core_each", "without_classifier"]

_log = logging.getLogger(__name__)

ACTIVATE: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"softmax": lambda logits: torch.softmax(logits, dim=1), "sigmoid": torch.sigmoid, "none": lambda x: x}
)

_one_at_a_time = threading.Lock()
_EXAMPLE_ROWS = 2
_PLANNING_RUNS = 2  # passes that a traced network plans its later ones by


def use_one_core_each(threads: Threads) -> None:
    """Makes passes run by `threads` run in the one of them that was asked, for good.

    torch keeps a number per thread and a default for threads that have not asked yet. That default is left as
    it was: in a notebook it belongs to the user. Passes under way are not waited for.
    """
    threads.set_up(_use_one_core)


def _use_one_core() -> None:
    with _one_at_a_time:
        default = torch.get_num_threads()  # the first call in a thread gives it the default
        torch.set_num_threads(1)  # which sets the default too
        gives_back = threading.Thread(target=torch.set_num_threads, args=(default,))
        gives_back.start()
        gives_back.join()


class TorchNetwork:
    """`module` maps [n, 3, H, W] float32 to [n, classes] logits, as it will run (see `torch_loader`).

    traceable: its layers run in the same order whatever the input is, so that a CPU may run them as one call.
    reads: what it gives, where that is no scores: values, boxes, or features. activation: what makes that of
    it. verdict: on the precision that the module was narrowed to, for a CUDA device; None where none was
    tried: it is then narrowed when it is warmed up, if the device wants that.
    """

    forms = frozenset(("path", "image", "tensor"))
    cuttable = True

    def __init__(
        self,
        module: nn.Module,
        spec: InputSpec,
        device: Device,
        *,
        traceable: bool,
        reads: Reads = "scores",
        activation: Activation = "softmax",
        verdict: Verdict | None = None,
    ) -> None:
        self._reads = reads
        self._activation = activation
        self.pixels = (spec.height, spec.width)
        self._device = torch.device(device.computes_on)
        self._accelerated: Accelerated | None = None
        if device.is_cuda:
            # What kernels its layers run may depend on more than the batch's size, where it is not traceable.
            self._accelerated = on_cuda(device, verdict, recorded=traceable)
        self._precisions = () if verdict is not None else narrower(device, reads)

        def tried(copied: nn.Module, verdict: Verdict) -> TorchNetwork:
            return TorchNetwork(
                copied, spec, device, traceable=False, reads=reads, activation=activation, verdict=verdict
            )

        self._tried = tried
        self._is_measured = False  # at this moment
        self._body_lock = threading.Lock()
        self.features_width = 0  # known once it is warm, as the next
        self.values_width = self.boxes_width = 0
        self._traceable = traceable and not device.is_cuda
        scale, shift = pixel_line(spec)
        self._scale = torch.from_numpy(scale).to(self._device)
        self._shift = torch.from_numpy(shift).to(self._device)
        self._activation_bytes = 0
        self.weights: Weights | None = None
        self._takes(module)

    def _takes(self, module: nn.Module) -> None:
        self._module = module.to(self._device)
        self._run: Callable[[Tensor], Tensor] = self._module
        self._body = self._module if self._reads == "features" else without_classifier(self._module)
        self._run_body: Callable[[Tensor], Tensor] | None = None
        own = (tensor.dtype for tensor in self._module.parameters() if tensor.is_floating_point())
        self._dtype = next(own, torch.float32)
        self._weight_bytes: int = sum(
            tensor.numel() * tensor.element_size()
            for tensor in (*self._module.parameters(), *self._module.buffers())
        )

    @property
    def resident_bytes(self) -> int:
        """Weights, and activations of the largest warm-up batch."""
        weights_bytes = self._weight_bytes if self.weights is None else self.weights.nbytes
        return weights_bytes + self._activation_bytes

    def warm_up(self, rows: int) -> Floats:
        """The scores of `rows` black images; measures the activations on the way, and traces the module.

        On an accelerator it finds out first in which precision the module may run, where that is not known,
        and records its passes; nobody who is served waits for it.
        """
        with beside(self._accelerated):
            self._measure_activations(rows)
            self._measure_features()
            if self._precisions:
                self._narrow()
            if self._accelerated is not None and self._reads != "features":
                with torch.inference_mode():
                    self._accelerated.record(self._answers, self._weights_at, self._black(1))
            if self._traceable and self._run is self._module:
                self._run = self._traced(self._module)
            for _ in range(_PLANNING_RUNS):
                self.scores(self._black(rows), lambda: False)
            found = self.scores(self._black(rows), lambda: False)
        self.values_width = found.shape[1] if self._reads == "values" else 0
        self.boxes_width = found.shape[1] if self._reads == "boxes" else 0
        return found

    def _narrow(self) -> None:
        module, verdict = narrowed(self._module, self._tried, self._precisions)
        self._precisions = ()
        if self._accelerated is not None:
            self._accelerated.verdict = verdict
        self._takes(module)

    def read(self) -> Read:
        """Scores, or what else it gives, and features, of the pictures that precisions are judged by."""
        images = pictures(*self.pixels)
        with beside(self._accelerated):
            self._measure_features()
            found = [(self._passed(self._answers, images, lambda: False), self._reads != "scores")]
            if self._reads != "features" and self.features_width:
                found.append((self.features(images, lambda: False), True))
        return found

    def _weights_at(self) -> int:
        return next((tensor.data_ptr() for tensor in self._module.parameters()), 0)

    @property
    def precision(self) -> str:
        """In which it computes, and how its answers compare with float32's; "" = nothing was to choose."""
        return "" if self._accelerated is None else str(self._accelerated.verdict)

    def pass_s(self) -> float | None:
        """How long the device computed for this thread's last pass; None where only a clock knows."""
        return None if self._accelerated is None else self._accelerated.pass_s()

    def left_device(self) -> None:
        """Its weights are off the device: what was recorded with them goes too."""
        if self._accelerated is not None:
            self._accelerated.clear()

    def _black(self, rows: int) -> NDArray[np.uint8]:
        return np.zeros((rows, *self.pixels, 3), np.uint8)

    @torch.inference_mode()
    def _traced(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        random = np.random.default_rng(0)
        example = random.integers(0, 256, (_EXAMPLE_ROWS, *self.pixels, 3), np.uint8)
        return traced(module, self._normalised(self._on_device(example)))

    @torch.inference_mode()
    def _measure_features(self) -> None:
        if self._body is not None and not self.features_width:
            found = self._body(self._normalised(self._on_device(self._black(1))))
            self.features_width = found.shape[1] if found.ndim == 2 else 0

    def _measure_activations(self, rows: int) -> None:
        # By the module itself: one that is traced or recorded calls no hooks. Nobody else uses it yet.
        run, self._run, self._is_measured = self._run, self._module, True
        handles = [part.register_forward_hook(self._measure) for part in self._module.modules()]
        try:
            self.scores(self._black(rows), lambda: False)
        finally:
            self._run, self._is_measured = run, False
            for handle in handles:
                handle.remove()

    def _measure(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # Modules of somebody else's may give more than tensors to one another.
        parts: tuple[object, ...] = (*inputs, output)
        held = sum(x.numel() * x.element_size() for x in parts if isinstance(x, Tensor))
        self._activation_bytes = max(self._activation_bytes, held)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, classes] probabilities of uint8 [n, H, W, 3] or normalised float32 [n, 3, H, W]."""
        return self._passed(self._answers, inputs, is_cancelled)

    def values(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, values_width] of the same."""
        return self._passed(self._answers, inputs, is_cancelled)

    def boxes(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, boxes_width] of the same, in pixels of the input."""
        return self._passed(self._answers, inputs, is_cancelled)

    def features(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        """[n, features_width] of the same: what the last linear layer, its classifier, would be given."""
        if self._run_body is None:
            self._prepare_body()
        return self._passed(self._features, inputs, is_cancelled)

    def _answers(self, batch: Tensor) -> Tensor:
        return ACTIVATE[self._activation](self._run(self._normalised(batch)).float())

    def _features(self, batch: Tensor) -> Tensor:
        assert self._run_body is not None
        return self._run_body(self._normalised(batch)).float()

    def _prepare_body(self) -> None:
        """At the first use: most models are never asked for it."""
        assert self._body is not None
        with self._body_lock:
            if self._run_body is None:
                self._run_body = self._traced(self._body) if self._traceable else self._body

    @torch.inference_mode()
    def _passed(self, run: Callable[[Tensor], Tensor], inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        def whole(part: Inputs) -> Floats:
            assert isinstance(part, np.ndarray)
            if self._accelerated is not None:
                return self._accelerated.run(run, part, recorded=not self._is_measured)
            result: Floats = run(self._on_device(part)).cpu().numpy()
            return result

        return in_parts_that_fit(whole, inputs, is_cancelled, self._device, torch.cuda.empty_cache)

    def _on_device(self, inputs: np.ndarray) -> Tensor:
        return torch.from_numpy(inputs).to(self._device, non_blocking=True)

    def _normalised(self, batch: Tensor) -> Tensor:
        """Pixels go to the device as bytes, a quarter of what they are as numbers, and become those there."""
        if batch.dtype == torch.uint8:
            lines = batch.view(-1, len(self._scale)).float()
            pixels = torch.addcmul(self._shift, lines, self._scale).view(batch.shape).permute(0, 3, 1, 2)
            return pixels.to(self._dtype)
        return batch.to(self._dtype).contiguous(memory_format=torch.channels_last)


def without_classifier(module: nn.Module) -> nn.Module | None:
    """The module, its weights shared, that ends before the last linear layer; None where there is none."""
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not names or not names[-1]:
        return None
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    try:
        body = copy.deepcopy(module, shared)
    except Exception as exc:  # a module of somebody else's may hold anything
        _log.info("%s has no features: %s", type(module).__name__, exc)
        return None
    place, _, last = names[-1].rpartition(".")
    setattr(body.get_submodule(place), last, nn.Identity())
    return body
