"""What a worker process gets of the server's environment: what programs need to run, and nothing secret.

A model's own code may run in a worker (--allow-import), and so may a fault in a library that reads strangers'
files; the server's environment may hold a database's password. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["worker_environment"]

_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
        *("PYTHONFAULTHANDLER", "PYTHONPYCACHEPREFIX", "PYTHONWARNINGS", "PYTHONMALLOC"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME", "SYSTEMROOT"),
    )
)
# Of the libraries that compute, and of the allocator.
_PREFIXES = (
    *("LC_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ORT_", "MALLOC_"),
)


def worker_environment(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The variables of `environment` that workers get; `more`: names of others that they need."""
    return {
        name: value
        for name, value in environment.items()
        if name in _NAMES or name in more or name.startswith(_PREFIXES)
    }
