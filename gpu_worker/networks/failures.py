"""What an exception of an accelerator's runtime means: memory was short, the device is lost, or neither.

Some errors of CUDA are *sticky*: the context is poisoned, every later call returns the same error, and only a
new process can use the device again (CUDA Runtime API, cudaError). torch raises them as `AcceleratorError`,
its libraries' as `RuntimeError`; ONNX Runtime raises classes of its own that say `CUDA failure N: …`. Knows
names and texts, and imports neither.
"""

from __future__ import annotations

import re
from typing import Final, Literal

__all__ = ["Failure", "failure_of"]

Failure = Literal["memory", "lost", "other"]

_OUT_OF_MEMORY: Final = 2
# After these "the process must be terminated and relaunched": an uncorrectable error of memory or of NVLink,
# an illegal address, a launch that timed out, a failed assertion, faults of the stack, of an instruction, of
# alignment, of an address space, of the program counter, a launch that failed, and what is not known.
_STICKY: Final = frozenset((214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999))
_CODE: Final = re.compile(r"\bCUDA (?:failure|error) (\d+)\b")
_MEMORY_TEXTS: Final = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Failed to allocate memory for requested buffer",  # ONNX Runtime's arena, as the next one
    "is smaller than requested bytes",
)
_LOST_TEXTS: Final = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
    "hardware stack error",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "the launch timed out and was terminated",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "GPU is lost",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)
# Of whom such a text is taken: a row, a path or a model's name may hold any words.
_TORCH: Final = frozenset(("AcceleratorError", "OutOfMemoryError", "RuntimeError"))
_ONNX_MODULE: Final = "onnxruntime"


def failure_of(exc: BaseException) -> Failure:
    """What the exception says of the device; "other" where it says nothing."""
    kind = type(exc)
    if kind.__name__ == "OutOfMemoryError":
        return "memory"
    if kind.__name__ not in _TORCH and not kind.__module__.startswith(_ONNX_MODULE):
        return "other"
    text = str(exc)
    code = getattr(exc, "error_code", None)
    if code is None and (found := _CODE.search(text)) is not None:
        code = int(found[1])
    if code == _OUT_OF_MEMORY:
        return "memory"
    if code in _STICKY or any(words in text for words in _LOST_TEXTS):
        return "lost"
    # torch's own allocators say it of the host's memory in other words, and raise it as no class of theirs.
    if any(words in text for words in _MEMORY_TEXTS):
        return "memory"
    # Of a class that torch keeps for errors of devices: whatever it is, nothing more can be relied on.
    return "lost" if kind.__name__ == "AcceleratorError" and code is None else "other"
