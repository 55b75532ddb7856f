"""Libraries that only some models need: they are extras of the install, and asked for by name."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpu_worker.errors import ModelUnusable

__all__ = ["first_line", "required"]

_SHOWN_CHARS = 300


def required(module: str, extra: str) -> ModuleType:
    """The module of that name, which `pip install 'ml_udf[extra]'` brings. Raises `ModelUnusable`."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as exc:  # a library of its that does not fit torch, say
        raise ModelUnusable(
            f"the model needs {module!r}, which cannot be imported on this worker ({exc}): "
            f"pip install 'ml_udf[{extra}]'"
        ) from exc


def first_line(exc: BaseException) -> str:
    """What went wrong, of an exception of such a library: some add their own stack, or much advice."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[0] if lines else type(exc).__name__)[:_SHOWN_CHARS]
