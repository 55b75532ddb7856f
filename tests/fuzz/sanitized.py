"""Modules in C as `make fuzz-front` builds them: they watch their memory, and can be made to run out of it.

Loaded in the place of the ordinary ones, before anything imports those; under `LD_PRELOAD` of libasan.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from server.extensions import ANSWERS, FRONT, Extension

__all__ = ["SANITIZED_ANSWERS", "Sanitized", "fail_after", "has_faults", "use_sanitized_front"]

_FOLDER = os.environ.get("ML_UDF_SANITIZED", "")


class Sanitized:
    """One of them. module: its whole name."""

    def __init__(self, extension: Extension, module: str) -> None:
        self._extension = extension
        self._module = module

    def use(self) -> bool:
        """Whether this run has one; it is the one that is imported from here on."""
        if not _FOLDER:
            return False
        if self._module not in sys.modules:
            spec = importlib.util.spec_from_file_location(self._module, Path(_FOLDER) / self._extension.file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[self._module] = module
        return self.has_faults()

    def has_faults(self) -> bool:
        """Whether memory can be made to run out."""
        return hasattr(sys.modules.get(self._module), "fail_after")

    def fail_after(self, allocations: int) -> None:
        """So many more of its allocations succeed; −1 = all of them. Nothing where it cannot be done."""
        if self.has_faults():
            sys.modules[self._module].fail_after(allocations)


SANITIZED_ANSWERS = Sanitized(ANSWERS, "server.cache.native._answers")
_FRONT = Sanitized(FRONT, "server.http.native._front")
use_sanitized_front, has_faults, fail_after = _FRONT.use, _FRONT.has_faults, _FRONT.fail_after
