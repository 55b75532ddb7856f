"""What a dataset is: a registered query, and which of its columns mean what. Pure; knows no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from server.errors import BadOption
from server.store.manifest import check_name
from server.training.datasets.query import check_query
from server.training.datasets.split import SplitRatios
from server.training.recipes import recipe_for

__all__ = ["PUSHED", "ColumnRoles", "DatasetSpec"]

PUSHED = "push"  # the source of datasets whose rows a client sends
_MOST_FEATURES = 200
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The query's columns, by what they mean; `entity` and `time` may be missing.

    inputs: what a model gets to see; one column, but for tables.
    """

    key: str
    target: str
    inputs: tuple[str, ...]
    entity: str | None
    time: str | None


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A dataset as it was registered.

    key: the column that names a row; it orders the rows. input: what a model gets to see; None = the one
    column that has no other meaning, or the key where there is none; of a table a list, such as "age, plan",
    None = every column that has no other meaning. entity: rows of one entity are all in
    one split. time: the latest rows test, those before them validate. source: the connection that the
    server asks, or `PUSHED`. Raises `BadOption`.
    """

    name: str
    query: str
    target: str
    key: str
    task: str = "image-classification"
    source: str = PUSHED
    input: str | None = None
    entity: str | None = None
    time: str | None = None
    validation: float = 0.15
    test: float = 0.15

    def __post_init__(self) -> None:
        check_name(self.name, "dataset")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("validation", "test"):
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise BadOption(
                        f"dataset {self.name}: {item.name!r} must be a share of the rows, "
                        f"a number such as 0.15, not {value!r}"
                    )
            elif value is None and item.default is None:
                continue
            elif not isinstance(value, str) or not value:
                raise BadOption(f"dataset {self.name}: {item.name!r} must be a text that is not empty")
            elif item.name != "query" and len(value) > _MAX_NAME:
                raise BadOption(f"dataset {self.name}: {item.name!r} is longer than {_MAX_NAME} characters")
        recipe_for(self.task)
        if self.target in (self.key, *(self._named_inputs() or ())):
            raise BadOption(f"dataset {self.name}: the target {self.target!r} would be its own input")
        SplitRatios(self.validation, self.test)
        if self.source != PUSHED:
            check_query(self.query, "postgres")

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> DatasetSpec:
        """The spec of a JSON object; what is null or left out has its default. Raises `BadOption`."""
        given = {name: value for name, value in form.items() if value is not None}
        known = {item.name for item in fields(cls)}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise BadOption(f"a dataset has no field {unknown[0]!r}; there are {', '.join(sorted(known))}")
        columns = given.get("input")
        if isinstance(columns, list) and columns and all(isinstance(name, str) for name in columns):
            given["input"] = ", ".join(columns)
        missing = [name for name in ("name", "query", "target", "key") if name not in given]
        if missing:
            raise BadOption(f"a dataset needs {missing[0]!r}")
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return asdict(self)

    @property
    def ratios(self) -> SplitRatios:
        """How the rows are dealt out."""
        return SplitRatios(self.validation, self.test)

    def columns(self, found: Sequence[str]) -> ColumnRoles:
        """The columns, of those that the query has. Raises `BadOption`."""
        inputs = self._named_inputs()
        named = [
            ("key", self.key),
            ("target", self.target),
            *(("input", name) for name in inputs or ()),
            ("entity", self.entity),
            ("time", self.time),
        ]
        for what, name in named:
            if name is not None and name not in found:
                raise BadOption(
                    f"dataset {self.name}: the query has no column {name!r}, which {what!r} names; "
                    f"it has {', '.join(found)}"
                )
            times = 0 if name is None else list(found).count(name)
            if times > 1:
                raise BadOption(
                    f"dataset {self.name}: the query has {times} columns {name!r}; {what!r} must name one"
                )
        meant = {name for _, name in named}
        free = tuple(name for name in found if name not in meant)
        if recipe_for(self.task).columns:
            inputs = inputs or free
            self._check_features(inputs)
        elif inputs is None:
            if len(free) > 1:
                raise BadOption(
                    f"dataset {self.name}: say which column is the 'input': {', '.join(free)}; "
                    "or select no other columns"
                )
            inputs = free or (self.key,)
        return ColumnRoles(self.key, self.target, inputs, self.entity, self.time)

    def _named_inputs(self) -> tuple[str, ...] | None:
        if self.input is None:
            return None
        if not recipe_for(self.task).columns:
            return (self.input,)
        return tuple(name.strip() for name in self.input.split(","))

    def _check_features(self, features: Sequence[str]) -> None:
        if not features:
            raise BadOption(f"dataset {self.name}: the query has no column but key and target to learn from")
        if len(features) > _MOST_FEATURES:
            raise BadOption(
                f"dataset {self.name}: {len(features)} columns to learn from; {_MOST_FEATURES} is the most"
            )
        if len({name.lower() for name in features}) < len(features):
            raise BadOption(f"dataset {self.name}: a column to learn from is named twice")
