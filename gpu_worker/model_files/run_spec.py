"""How a model runs where that is not its runtime's own way: `run` of model.json, of a model's variants.

Standard library only: the server reads manifests by this module too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = ["AS_IT_IS", "BFLOAT16", "FLOAT32", "INT8", "MOST_THREADS", "RunSpec", "run_from"]

FLOAT32: Final = "float32"
BFLOAT16: Final = "bfloat16"
INT8: Final = "int8"
MOST_THREADS: Final = 64
_PRECISIONS: Final = (FLOAT32, BFLOAT16, INT8)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """precision: of its weights and passes on a CPU; int8 stands in the graph itself · traced: as one call ·
    threads: cores of one pass
    """

    precision: str = FLOAT32
    traced: bool = False
    threads: int = 1

    def to_json(self) -> dict[str, Any]:
        """The `run` of model.json."""
        return asdict(self)


AS_IT_IS: Final = RunSpec()


def run_from(manifest: Mapping[str, Any]) -> RunSpec:
    """That of a manifest. Raises `ValueError` with the field."""
    said = manifest.get("run")
    if said is None:
        return AS_IT_IS
    if not isinstance(said, Mapping) or said.keys() - {"precision", "traced", "threads"}:
        raise ValueError("'run' must be an object with 'precision', 'traced' and 'threads'")
    precision, traced, threads = (said.get(field) for field in ("precision", "traced", "threads"))
    if precision not in (None, *_PRECISIONS):
        raise ValueError(f"'run.precision' must be one of {', '.join(_PRECISIONS)}, not {precision!r}")
    if traced not in (None, False, True):
        raise ValueError(f"'run.traced' must be true or false, not {traced!r}")
    is_count = isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= MOST_THREADS
    if threads is not None and not is_count:
        raise ValueError(f"'run.threads' must be a whole number from 1 to {MOST_THREADS}, not {threads!r}")
    return RunSpec(precision or FLOAT32, bool(traced), threads or 1)
