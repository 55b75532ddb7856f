"""What a function does about rows whose batch does not come back in time: its `late_rows`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gpu_worker.model_files.parity_spec import MOST_K
from server.errors import BadOption

__all__ = ["HEDGE", "PARITY", "LateRows", "late_rows_from"]

HEDGE: Final = "hedge"
PARITY: Final = "parity"
_FIELDS: Final = {"by", "after_ms", "k"}
_MOST_AFTER_MS: Final = 3_600_000.0


@dataclass(frozen=True, slots=True)
class LateRows:
    """by: `hedge`, they are sent to another worker too, and the first answer counts (Dean and Barroso, "The
    Tail at Scale", 2013); or `parity`, they are rebuilt (ParM) · after_ms: since their batch was sent;
    None = by what that should take · k: rows of a group; 0 by `hedge`
    """

    by: Literal["hedge", "parity"] = HEDGE
    after_ms: float | None = None
    k: int = 0

    @property
    def after_s(self) -> float | None:
        """The same in seconds."""
        return None if self.after_ms is None else self.after_ms / 1000

    def to_json(self) -> dict[str, Any]:
        """As a deployment says it."""
        return {"by": self.by, "after_ms": self.after_ms, **({"k": self.k} if self.k else {})}


def late_rows_from(name: str, raw: object) -> LateRows | None:
    """That of a function's specification; None where nothing is said. Raises `BadOption`."""
    if raw is None:
        return None
    if isinstance(raw, str):
        raw = {"by": raw}
    if not isinstance(raw, Mapping):
        raise BadOption(
            f"function {name}: 'late_rows' must be 'hedge', or an object such as "
            '{"by": "parity", "k": 2, "after_ms": 50}'
        )
    unknown = sorted(map(str, raw.keys() - _FIELDS))
    if unknown:
        raise BadOption(
            f"function {name}: unknown field {unknown[0]!r} of 'late_rows'; there are "
            f"{', '.join(sorted(_FIELDS))}"
        )
    by, k, after_ms = raw.get("by"), raw.get("k"), raw.get("after_ms")
    if by not in (HEDGE, PARITY):
        raise BadOption(f"function {name}: 'late_rows.by' must be 'hedge' or 'parity', not {by!r}")
    is_number = isinstance(after_ms, int | float) and not isinstance(after_ms, bool)
    if after_ms is not None and not (is_number and 0 < after_ms <= _MOST_AFTER_MS):
        raise BadOption(
            f"function {name}: 'late_rows.after_ms' must be a number above 0 and up to {_MOST_AFTER_MS:g}, "
            f"not {after_ms!r}"
        )
    if by == HEDGE:
        if k is not None:
            raise BadOption(f"function {name}: 'late_rows.k' is said of 'parity', and this is 'hedge'")
        return LateRows(HEDGE, after_ms)
    if k is None:
        k = 2
    if type(k) is not int or not 2 <= k <= MOST_K:
        raise BadOption(
            f"function {name}: 'late_rows.k' must be a whole number from 2 to {MOST_K}, not {k!r}"
        )
    return LateRows(PARITY, after_ms, k)
