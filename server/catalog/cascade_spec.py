"""What `cascade` of a function's specification asks for, and what is kept of what came of it. Pure.

0.98, or {"agreement": 0.98, "proxy": "food_head", "dataset": "food"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_worker.tasks import Task
from server.catalog.functions import ModelVersion, Proxy
from server.ensemble.proxy import ProxyFit, ProxyRefused
from server.ensemble.select import is_policy
from server.errors import BadOption

__all__ = [
    "CascadeAsked",
    "cascade_asked",
    "check_cascade",
    "found_form",
    "proxy_of",
    "refused",
    "shown",
]

_FIELDS = ("agreement", "proxy", "dataset")


@dataclass(frozen=True, slots=True)
class CascadeAsked:
    """agreement: with the full function, at the least · proxy: a model's key, or None for the best of the
    function's own · dataset: whose held-out rows show it, where no job says
    """

    agreement: float
    proxy: str | None = None
    dataset: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a specification has it."""
        told = {"agreement": self.agreement, "proxy": self.proxy, "dataset": self.dataset}
        return {name: value for name, value in told.items() if value is not None}


def cascade_asked(
    name: str, raw: object, pin: Callable[[str], str] = lambda model: model
) -> CascadeAsked | None:
    """What is asked of function `name`; None where nothing is. pin: from what names a model to its key.

    Raises `BadOption`, and what `pin` raises.
    """
    if raw is None or raw is False:
        return None
    given: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {"agreement": raw}
    unknown = sorted(set(map(str, given)) - set(_FIELDS))
    if unknown:
        raise BadOption(
            f"function {name}: 'cascade' has no field {unknown[0]!r}; there are {', '.join(_FIELDS)}"
        )
    agreement = given.get("agreement")
    if isinstance(agreement, bool) or not isinstance(agreement, int | float) or not 0 < agreement < 1:
        raise BadOption(
            f"function {name}: 'cascade' is the share of rows that are to be answered as the full function "
            f"answers them: a number between 0 and 1, such as 0.98, not {agreement!r}"
        )
    proxy = _name(name, given, "proxy")
    return CascadeAsked(float(agreement), proxy and pin(proxy), _name(name, given, "dataset"))


def _name(name: str, given: Mapping[str, Any], field: str) -> str | None:
    value = given.get(field)
    if value is not None and (not isinstance(value, str) or not value):
        raise BadOption(f"function {name}: {field!r} of 'cascade' must be a name, not {value!r}")
    return value


def check_cascade(
    name: str,
    given: Mapping[str, Any],
    members: Sequence[ModelVersion],
    task: Task,
    proxy: ModelVersion | None,
) -> None:
    """Whether a function of that specification can have one. Raises `BadOption` where it cannot."""
    if not task.picks_one:
        raise BadOption(
            f"function {name}: a proxy answers where it is sure of one class, and the answers to {task.name} "
            "are none; leave 'cascade' out"
        )
    if given.get("late_members") == "leave_out":
        raise BadOption(
            f"function {name}: 'cascade' promises the full function's answers, and late_members: 'leave_out' "
            "takes a part of them for it; leave one of the two out"
        )
    if is_policy(given.get("select")):
        raise BadOption(
            f"function {name}: 'cascade' is itself a rule for which members answer; leave "
            f"select: {given['select']!r} out"
        )
    if proxy is None:
        return
    first = members[0]
    if [proxy.key] == [model.key for model in members]:
        raise BadOption(f"function {name}: {proxy.name} is all that it has, and cannot be its own proxy")
    if any(proxy.name == model.name and proxy.key != model.key for model in members):
        raise BadOption(
            f"function {name}: {proxy.name} is a member in another version, and cannot be its proxy"
        )
    if proxy.task != first.task or proxy.classes != first.classes:
        raise BadOption(
            f"function {name}: its proxy {proxy.name} must do {first.task} and name the same classes in the "
            "same order as its members"
        )
    if proxy.input.columns != first.input.columns:
        raise BadOption(f"function {name}: its proxy {proxy.name} takes other columns than its members")


def found_form(found: ProxyFit | ProxyRefused, model: ModelVersion) -> dict[str, Any]:
    """What came of it, as the registry keeps it: the proxy, or why there is none."""
    if isinstance(found, ProxyFit):
        return {"proxy": model.key, "fit": found.to_json()}
    return {"proxy": model.key, "refused": found.to_json(), "reason": found.reason}


def shown(fit: ProxyFit) -> dict[str, Any]:
    """What is said of a proxy that answers: at the agreement asked for, and the curve."""
    first = fit.levels[0]
    return {
        "share": first.share,
        "agrees": first.agrees,
        "low": first.low,
        "threshold": first.threshold,
        "alone": fit.alone,
        "rows": fit.chosen_rows + fit.proof_rows,
        "proof_rows": fit.proof_rows,
        "curve": [
            {"agreement": each.agreement, "threshold": each.threshold, "share": each.share}
            for each in fit.levels
        ],
    }


def refused(told: object) -> dict[str, Any]:
    """The same of one that was refused; nothing where that is not known."""
    if not isinstance(told, Mapping):
        return {}
    known = {name: told.get(name) for name in ("share", "agrees", "low", "alone", "proof_rows", "needed")}
    return {**known, "rows": (told.get("chosen_rows") or 0) + (told.get("proof_rows") or 0)}


def proxy_of(
    name: str,
    found: object,
    members: Sequence[ModelVersion],
    model_of: Callable[[str], ModelVersion],
) -> Proxy | None:
    """The proxy of a function of these members, as the registry keeps it; None where none is used.

    Raises `BadOption` for what cannot be read.
    """
    if not isinstance(found, Mapping) or found.get("fit") is None:
        return None
    try:
        return Proxy.of(model_of(str(found["proxy"])), members, ProxyFit.from_json(found["fit"]))
    except (ValueError, KeyError, TypeError) as exc:
        raise BadOption(
            f"function {name}: what was found of its proxy cannot be read: {exc}; deploy it anew"
        ) from exc
