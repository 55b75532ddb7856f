"""What a function by wish asks for in place of models: `wants` of its specification. Pure.

INFaaS (ATC 2021, §3) calls it the model-less abstraction.

{"dataset": "food", "min_accuracy": 0.9, "slo_ms": 50}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpu_worker.tasks import TASKS
from server.errors import BadOption

__all__ = ["Wants", "wants_from"]

_LONGEST_MS = 86_400_000.0


@dataclass(frozen=True, slots=True)
class Wants:
    """What is asked of whichever model answers. None: nothing of that kind.

    task: that it does · dataset: that it was trained on · purpose: a model or a function whose task, classes
    and columns it shares · min_accuracy: how often it is right on held-out rows, by the lower end of the 95 %
    interval · slo_ms: within which it answers · cost: of 1,000 rows, at the most: in seconds of a device, or
    in the currency of the server's prices
    """

    task: str | None = None
    dataset: str | None = None
    purpose: str | None = None
    min_accuracy: float | None = None
    slo_ms: float | None = None
    cost: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As a specification has it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def wants_from(name: str, raw: object) -> Wants | None:
    """What function `name` is wished to be; None where models are named. Raises `BadOption`."""
    if raw is None:
        return None
    known = [field.name for field in fields(Wants)]
    if not isinstance(raw, Mapping) or not any(raw.get(field) is not None for field in known):
        raise BadOption(
            f"function {name}: 'wants' must be an object with some of {', '.join(known)}, such as "
            '{"dataset": "food", "min_accuracy": 0.9, "slo_ms": 50}'
        )
    unknown = sorted(set(map(str, raw)) - set(known))
    if unknown:
        raise BadOption(f"function {name}: 'wants' has no field {unknown[0]!r}; there are {', '.join(known)}")
    wants = Wants(
        task=_text(name, raw, "task"),
        dataset=_text(name, raw, "dataset"),
        purpose=_text(name, raw, "purpose"),
        min_accuracy=_number(name, raw, "min_accuracy", 1.0),
        slo_ms=_number(name, raw, "slo_ms", _LONGEST_MS),
        cost=_number(name, raw, "cost", 1e9),
    )
    if wants.task is not None and TASKS.get(wants.task) is None:
        raise BadOption(f"function {name}: 'task' of 'wants' must be one of {', '.join(TASKS)}")
    if not any((wants.task, wants.dataset, wants.purpose)):
        raise BadOption(
            f"function {name}: 'wants' does not say what is to be answered; name a 'dataset', a 'task', or "
            "as 'purpose' a model or function that does it already"
        )
    return wants


def _text(name: str, raw: Mapping[str, Any], field: str) -> str | None:
    value = raw.get(field)
    if value is not None and (not isinstance(value, str) or not value):
        raise BadOption(f"function {name}: {field!r} of 'wants' must be a name, not {value!r}")
    return value


def _number(name: str, raw: Mapping[str, Any], field: str, most: float) -> float | None:
    value = raw.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise BadOption(
            f"function {name}: {field!r} of 'wants' must be a number above 0, {most:g} at the most, "
            f"not {value!r}"
        )
    return float(value)
