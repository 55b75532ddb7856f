"""The native front as `make fuzz-front` builds it: it watches its memory, and can be made to run out of it.

Loaded in the place of the ordinary module, before anything imports that; under `LD_PRELOAD` of libasan.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

__all__ = ["fail_after", "has_faults", "use_sanitized_front"]

_MODULE = "server.http.native._front"
_FOLDER = os.environ.get("ML_UDF_FUZZ_FRONT", "")


def use_sanitized_front() -> bool:
    """Whether this run has one; it is the one that is imported from here on."""
    if not _FOLDER:
        return False
    if _MODULE not in sys.modules:
        from server.http.native.build import MODULE

        spec = importlib.util.spec_from_file_location(_MODULE, Path(_FOLDER) / MODULE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_MODULE] = module
    return has_faults()


def has_faults() -> bool:
    """Whether memory can be made to run out."""
    return hasattr(sys.modules.get(_MODULE), "fail_after")


def fail_after(allocations: int) -> None:
    """So many more allocations of the front's succeed; −1 = all of them. Nothing where it cannot be done."""
    if has_faults():
        sys.modules[_MODULE].fail_after(allocations)
