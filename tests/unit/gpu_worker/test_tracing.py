"""A traced network answers as the network does, for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gpu_worker.networks.build import build_module
from gpu_worker.networks.tracing import traced
from gpu_worker.zoo import ARCHITECTURES
from gpu_worker.zoo.blocks import fold_batch_norms


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_a_traced_network_of_the_zoo_answers_the_same_to_the_bit(architecture: str) -> None:
    torch.manual_seed(1)
    module = build_module(architecture, 7, {}).eval().requires_grad_(False)
    fold_batch_norms(module)
    with torch.inference_mode():
        program = traced(module, torch.rand(2, 3, 64, 64))
        assert program is not module
        for rows in (1, 3, 17, 3):
            images = torch.rand(rows, 3, 64, 64)
            assert torch.equal(program(images), module(images))


class Moody(nn.Module):
    """Its layers depend on the number of rows, which no trace can hold."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) if len(images) > 1 else images.amax((2, 3))


class Untraceable(nn.Module):
    """Answers what no program of tensors can."""

    def forward(self, images: Tensor) -> object:
        return object()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("module", [Moody(), Untraceable()])
def test_a_module_that_cannot_be_traced_runs_as_it_is(module: nn.Module) -> None:
    with torch.inference_mode():
        assert traced(module, torch.rand(2, 3, 8, 8)) is module
