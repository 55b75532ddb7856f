"""Errors of a device are told apart: memory that is short, a context that is poisoned, and all others."""

from __future__ import annotations

import pytest
import torch

from gpu_worker.networks.failures import Failure, failure_of


class OnnxFail(Exception):
    """As ONNX Runtime's: its exceptions come from a module of its own and have no common base."""


OnnxFail.__module__ = "onnxruntime.capi.onnxruntime_pybind11_state"

SAID: list[tuple[Failure, BaseException]] = [
    ("memory", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")),
    ("memory", RuntimeError("CUDA error: out of memory")),
    ("memory", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    (
        "memory",
        OnnxFail(
            "[ONNXRuntimeError] : 1 : FAIL : bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory "
            "for requested buffer of size 1073741824"
        ),
    ),
    ("memory", OnnxFail("CUDA failure 2: out of memory ; GPU=1 ; hostname=h ; file=cuda_call.cc ; line=123")),
    ("lost", torch.AcceleratorError("CUDA error: an illegal memory access was encountered")),
    ("lost", torch.AcceleratorError("CUDA error: something that has no name yet")),
    ("lost", RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be…")),
    ("lost", RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
    (
        "lost",
        OnnxFail(
            "Non-zero status code returned while running Conv node. CUDA failure 700: an illegal memory "
            "access was encountered ; GPU=0 ; hostname=h ; expr=cudaStreamSynchronize(stream)"
        ),
    ),
    ("lost", OnnxFail("CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0")),
    ("other", OnnxFail("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x")),
    ("other", OnnxFail("CUDA failure 209: no kernel image is available for execution on the device")),
    ("other", RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")),
    ("other", ValueError("the row says: CUDA error: an illegal memory access was encountered")),
    ("other", KeyError("out of memory")),
]


@pytest.mark.parametrize(("means", "exc"), SAID, ids=[str(exc)[:40] for _, exc in SAID])
def test_an_error_is_taken_for_what_it_says(means: Failure, exc: BaseException) -> None:
    assert failure_of(exc) == means


def test_an_error_with_a_code_is_judged_by_it() -> None:
    poisoned = torch.AcceleratorError("CUDA error: words that change from release to release")
    harmless = torch.AcceleratorError("CUDA error: invalid configuration argument")
    poisoned.error_code, harmless.error_code = 719, 9  # type: ignore[attr-defined] # as torch sets it
    assert failure_of(poisoned) == "lost"
    assert failure_of(harmless) == "other"
