"""Which modules are compiled, and of which sources what was made of them is. Standard library only.

All of `COMPILED` are made together, as they call one another without the interpreter. What people bring
(policies of their own), Protocols and the records that cross the wall stay Python, and any object that has
what is asked for may stand in their place; an object of a compiled class is of that class alone.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

__all__ = ["COMPILED", "LIBRARY", "MANIFEST", "SUFFIX", "digests", "folder", "source_of"]

ROOT = Path(__file__).resolve().parents[2]
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
LIBRARY = "ml_udf_core__mypyc"  # what all of them share
MANIFEST = "sources.json"
_PACKAGES = (
    "server.placement",
    "server.placement.policies",
    "server.scheduling",
    "server.scheduling.policies",
)
_MORE = (
    "server.ensemble.cascade",
    "server.ensemble.evidence",
    "server.ensemble.gearing",
    "server.ensemble.one_by_one",
    "server.ensemble.plan",
    "server.ensemble.select",
    "server.ensemble.worths",
)
_INTERPRETED = {
    "server.ensemble.selection",  # what policies of users see
    "server.placement.places",  # said to those who look
    "server.placement.policies.by_name",  # looks for modules of users
    "server.placement.policies.guarded",  # runs what users wrote
    "server.placement.policy",  # what policies of users see
    "server.placement.profiling",  # a shell
    "server.placement.remote_models",
    "server.placement.residency",
    "server.placement.worker_link",
    "server.scheduling.policies.by_name",  # looks for modules of users
    "server.scheduling.policies.guarded",  # runs what users wrote
    "server.scheduling.policy",  # what policies of users see
    "server.scheduling.stragglers",  # generic dataclasses
    "server.scheduling.terms",  # records that cross the wall
}


def _modules(package: str) -> list[str]:
    files = sorted((ROOT / package.replace(".", "/")).glob("*.py"))
    return [f"{package}.{file.stem}" for file in files if file.stem != "__init__"]


COMPILED: tuple[str, ...] = (
    *_MORE,
    *(module for package in _PACKAGES for module in _modules(package) if module not in _INTERPRETED),
)


def folder() -> Path:
    """Where the modules for this Python are, or are to be."""
    return Path(__file__).parent / "made" / SUFFIX.strip(".").removesuffix(".so")


def source_of(module: str) -> Path:
    """The file in Python that a module is made of."""
    return ROOT / f"{module.replace('.', '/')}.py"


def digests() -> dict[str, str]:
    """SHA-256 of each source that what is compiled was made of, or relies on, by its module."""
    return {
        module: hashlib.sha256(source_of(module).read_bytes()).hexdigest()
        for module in (*COMPILED, *sorted(_INTERPRETED))
    }
