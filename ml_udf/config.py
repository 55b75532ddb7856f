"""The options of a call, their defaults and their bounds; the same on every engine.

`SETTINGS` is the one table: PostgreSQL's `ml_udf.*` settings, DuckDB's `ml_udf_*` variables and the
documentation are all read from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from ml_udf.errors import BadOption

__all__ = ["SETTINGS", "Options", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a session: its name and its bounds. What it does: docs/using.md.

    longest: of a text, in characters; 0 for what is none.
    """

    name: str
    low: float = 0
    high: float = float("inf")
    choices: tuple[str, ...] = ()
    longest: int = 0


SETTINGS = (
    Setting("slo_ms", 0.1, 3_600_000),
    Setting("min_accuracy", 0.0, 1.0),
    Setting("min_agreement", 0.0, 1.0),
    Setting("on_error", choices=("error", "null")),
    Setting("batch_rows", 1, 65_536),
    Setting("max_in_flight", 1, 64),
    Setting("timeout_ms", 1, 86_400_000),
    Setting("row_class", choices=("interactive", "bulk")),
    Setting("answer_cache", choices=("on", "off")),
    Setting(
        "context", longest=200
    ),  # the last: DuckDB's text of all settings is parted by what may stand in it
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_WHOLE = {"batch_rows", "max_in_flight"}
_BATCH_ROWS, _MAX_IN_FLIGHT = 256, 4
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Options:
    """How one call behaves; see `SETTINGS`. Raises `BadOption` for a value out of bounds.

    slo_ms: latency goal of a call, for which the server picks fewer models; None = the function's own.
    min_accuracy: how often those that answer have to be right together. min_agreement: how often a proxy's
    answers have to be those of the full function, where that is more than its deployment says; 1.0 = all rows
    go to the full function. on_error: what a faulty row does.
    batch_rows: most rows in one request. max_in_flight: most requests of a call under way at once.
    timeout_ms: longest wait for one request. row_class: how the server schedules the rows.
    context: for whom or what is asked, such as a user: labels given in it weigh the members' answers there.
    answer_cache: off: every row is computed anew, whatever the server has answered before.
    """

    slo_ms: float | None = None
    min_accuracy: float | None = None
    min_agreement: float | None = None
    on_error: Literal["error", "null"] = "error"
    batch_rows: int = _BATCH_ROWS
    max_in_flight: int = _MAX_IN_FLIGHT
    timeout_ms: float = 60_000
    row_class: Literal["interactive", "bulk"] = "bulk"
    context: str | None = field(default=None, repr=False)
    answer_cache: Literal["on", "off"] = "on"

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None:
                _check(_BY_NAME[item.name], value)
            elif item.default is not None:
                raise BadOption(f"{item.name} has no value")

    def of_kept_rows(self) -> Options:
        """The same for rows that the server has answered before: as many under way, all in one request.

        These need no worker, and a request is half of what they cost. Numbers that somebody chose stay.
        """
        if (self.batch_rows, self.max_in_flight) != (_BATCH_ROWS, _MAX_IN_FLIGHT):
            return self
        return replace(self, batch_rows=_MAX_IN_FLIGHT * _BATCH_ROWS, max_in_flight=1)

    def overridden(self, texts: Mapping[str, str]) -> Options:
        """These options, with settings as a database stores them (text) in their place.

        Raises `BadOption` for an unknown name, a text that is no number, a value out of bounds.
        """
        values: dict[str, Any] = {}
        for name, text in texts.items():
            setting = _BY_NAME.get(name)
            if setting is None:
                raise BadOption(f"there is no setting {name!r}", hint="settings: " + ", ".join(_BY_NAME))
            values[name] = text if setting.choices or setting.longest else _number(name, text)
        return replace(self, **values)


def _number(name: str, text: str) -> float:
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        raise BadOption(f"ml_udf.{name} = {text!r} is not a number") from None


def _check(setting: Setting, value: object) -> None:
    if setting.longest:
        _check_text(setting, value)
    elif setting.choices:
        if value not in setting.choices:
            raise BadOption(
                f"ml_udf.{setting.name} = {value!r} is not known", hint="use " + " or ".join(setting.choices)
            )
    elif not isinstance(value, int | float) or not setting.low <= value <= setting.high:
        raise BadOption(
            f"ml_udf.{setting.name} = {value!r} is out of bounds",
            hint=f"use a number from {setting.low:g} to {setting.high:g}",
        )


def _check_text(setting: Setting, value: object) -> None:
    """Its words do not say what the value is: it may be somebody's name."""
    if not isinstance(value, str) or len(value) > setting.longest or _UNFIT.search(value):
        raise BadOption(
            f"ml_udf.{setting.name} is not a short text",
            hint=f"use up to {setting.longest} characters, none of them a control character",
        )
