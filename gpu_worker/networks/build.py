"""Named architectures → untrained modules. Knows names and options, no files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpu_worker.errors import ModelUnusable
from gpu_worker.zoo import ARCHITECTURES, DETECTORS, HASHING, MOST_OF_OPTIONS, TEXT_ARCHITECTURES

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build_module"]


def build_module(
    architecture: str, classes: int, options: dict[str, Any], *, allow_import: bool = False
) -> nn.Module:
    """An untrained module of a named architecture. Raises `ModelUnusable`.

    With `allow_import` a name may also be "package.module:attribute", which is imported and called.
    """
    known = {**ARCHITECTURES, **DETECTORS, **TEXT_ARCHITECTURES}
    target = known.get(architecture)
    if target is None and ":" in architecture:
        if not allow_import:
            raise ModelUnusable(
                f"the architecture {architecture!r} is an import path, which runs code; "
                "start the worker with --allow-import to permit it"
            )
        target = architecture
    if target is None:
        there = ", ".join(sorted([*known, HASHING]))
        raise ModelUnusable(f"the architecture {architecture!r} is not known; there are: {there}")
    if target != architecture:
        _check_options(architecture, options)
    module_name, _, attribute = target.partition(":")
    try:
        make: Callable[..., nn.Module] = getattr(importlib.import_module(module_name), attribute)
        return make(classes, **options)
    except (ImportError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as exc:
        raise ModelUnusable(f"the architecture {architecture!r} cannot be built: {exc}") from exc


def _check_options(architecture: str, options: Mapping[str, Any]) -> None:
    """An option can make a module as large as one likes, out of a file of a few bytes."""
    for name, value in options.items():
        most = MOST_OF_OPTIONS.get(name)
        if most is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue  # the architecture says what it takes
        if not 0 <= value <= most:
            raise ModelUnusable(
                f"the architecture {architecture!r} cannot be built: {name!r} must be from 0 to {most}, "
                f"not {value}"
            )
