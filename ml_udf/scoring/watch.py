"""A watch: what it was made with, and what is to be decided about its rows. Pure.

Definition   what `score_table(…, watch => true)` was asked for; JSON in the database
Watch        one row of `ml_udf._watch`
retry_s      when a row that got an error is asked again
pause_s      how long a watch rests after a try that failed as a whole
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ml_udf.client.statement import Binding
from ml_udf.errors import BadOption, InputNotFound, MlUdfError, RemoteInvalid, ServerFault
from ml_udf.scoring.request import BATCH_ROWS, ScoreRequest

__all__ = ["CHANNEL", "LOOK", "NOTE_KEYS", "Definition", "Watch", "pause_s", "retry_s"]

CHANNEL = "ml_udf_watch"  # of NOTIFY
NOTE_KEYS = 1000  # most keys of one note
# Notes that the whole table of watch $1 is to be looked at. It is due before all others.
LOOK = """
    INSERT INTO ml_udf._note (watch, due_at, size, keys)
    VALUES ($1::text::integer, '-infinity', 0, '{}')"""

FIRST_RETRY_S = 10.0
MAX_RETRY_S = 3600.0
MAX_ATTEMPTS = 8
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 30.0

# What may heal without a new input: a file that comes later, a model behind another server, a worker's end.
_HEALS = (InputNotFound, RemoteInvalid, ServerFault)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a watch was made with. Names are those of the catalog, not as SQL writes them.

    function    as the caller named it
    signature   the SQL function of that name; None: `function` is the server's
    server      the foreign server that answers
    binding     how the server is asked
    options     settings of the SQL function
    path        the search_path of whoever made it, by which the table's own triggers find their tables
    """

    function: str
    signature: str | None
    server: str
    binding: Binding
    input: str
    key: tuple[str, ...]
    condition: str | None = None
    batch_rows: int = BATCH_ROWS
    rescore: frozenset[str] = frozenset({"changed", "version"})
    version: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `of_json`."""
        told = asdict(self)
        told.pop("binding")
        bound = {
            "asked": self.binding.function,
            "input_name": self.binding.input_name,
            "output_name": self.binding.output_name,
        }
        return told | bound | {"key": list(self.key), "rescore": sorted(self.rescore)}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Definition:
        """The very same. Raises `BadOption` for what is none: its owner can write what he likes."""
        try:
            given = dict(told)
            binding = Binding(given.pop("asked"), given.pop("input_name"), given.pop("output_name"))
            given |= {"key": tuple(given["key"]), "rescore": frozenset(given["rescore"])}
            made = cls(binding=binding, **given)
            is_sound = made._is_sound()
        except (AttributeError, KeyError, TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise BadOption(
                "what the watch was made with cannot be read",
                hint="drop it with ml_udf.drop_watch, and make it again",
            )
        return made

    def _is_sound(self) -> bool:
        """Whether all is of its type."""
        asked = self.binding
        texts = (self.function, self.server, self.input, self.path, asked.function, *self.key)
        texts += (*self.rescore, *self.options.keys(), *self.options.values())
        others = (self.signature, self.condition, self.version, asked.input_name, asked.output_name)
        return (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(text, str) for text in others if text is not None)
            and type(self.batch_rows) is int
        )

    def answers_as(self, other: Definition) -> bool:
        """Whether answers by this one stand under the other one, too."""
        same = ("function", "signature", "server", "binding", "input", "key", "options")
        return all(getattr(self, name) == getattr(other, name) for name in same)


@dataclass(frozen=True, slots=True)
class Watch:
    """One row of `ml_udf._watch`. `relation` and `target` are quoted names; None where the table is gone."""

    id: int
    owner: str
    relation: str | None
    target: str | None
    place: str
    definition: Definition
    revision: int
    version: str | None
    paused: bool = False

    @property
    def request(self) -> ScoreRequest:
        """What `resolved` makes a layout of."""
        beside = self.relation == self.target
        return ScoreRequest(
            relation=self.relation or "",
            function=self.definition.binding.function,
            input=self.definition.input,
            output=self.place if beside else None,
            result_table=None if beside else self.target,
            key=self.definition.key,
            condition=self.definition.condition,
            batch_rows=self.definition.batch_rows,
            on_error="null",
            rescore=self.definition.rescore,
            version=self.definition.version,
        )


def retry_s(error: MlUdfError, attempts: int) -> float | None:
    """In how many seconds a row is asked again that got `error` at its `attempts`-th time in a row, from 1.

    None: not before its input changes, or the function's version.
    """
    if not isinstance(error, _HEALS) or attempts >= MAX_ATTEMPTS:
        return None
    return min(MAX_RETRY_S, FIRST_RETRY_S * 4.0 ** (attempts - 1))


def pause_s(failures: int) -> float:
    """How long a watch rests after so many tries in a row that failed as a whole, from 1."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
