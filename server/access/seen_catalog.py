"""The catalog as one caller sees it: what they do not see was never there.

Functions and models share their names. A model that answers under its own name is asked as a function: the
patterns of functions of a token hold for it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from server.access.view import View
from server.catalog.catalog import Catalog, unknown
from server.catalog.functions import Function, ModelVersion
from server.errors import UnknownFunction

__all__ = ["SeenCatalog", "may_ask"]


def may_ask(catalog: Catalog, view: View, name: str) -> bool:
    """Whether what a name stands for, be it there or not, is a caller's to see, and to ask."""
    if view.is_admin or catalog.is_function(name):
        return view.sees("function", name)
    return view.sees("model", name) and view.reaches("function", name)


class SeenCatalog:
    """Has what `Catalog` has for those who ask, and raises as it does."""

    def __init__(self, catalog: Catalog, view: View) -> None:
        self._catalog = catalog
        self._view = view

    def sees(self, name: str) -> bool:
        """Whether what a name stands for, be it there or not, is the caller's to see, and to ask."""
        return may_ask(self._catalog, self._view, name)

    def resolve(self, name: str, version: str | None = None) -> Function:
        """See `Catalog.resolve`."""
        if not self.sees(name):
            raise unknown(name)
        return self._catalog.resolve(name, version)

    def versions(self, name: str) -> list[Function]:
        """See `Catalog.versions`."""
        if not self.sees(name):
            raise unknown(name)
        return self._catalog.versions(name)

    def __iter__(self) -> Iterator[Function]:
        """See `Catalog.__iter__`."""
        return (function for function in self._catalog if self.sees(function.name))

    def functions(self) -> list[list[Function]]:
        """See `Catalog.functions`."""
        return [served for served in self._catalog.functions() if self.sees(served[-1].name)]

    def models(self) -> list[ModelVersion]:
        """See `Catalog.models`."""
        return [model for model in self._catalog.models() if self._view.sees("model", model.name)]

    def model(self, name: str, version: int | None = None) -> ModelVersion:
        """See `Catalog.model`."""
        if not self._view.sees("model", name):
            raise self._catalog.no_model(name, version)
        return self._catalog.model(name, version)

    def is_function(self, name: str) -> bool:
        """See `Catalog.is_function`."""
        return self._catalog.is_function(name) and self.sees(name)

    def check_function(self, name: str) -> None:
        """Raises `UnknownFunction` where there is no deployed function of that name."""
        if not self.is_function(name):
            raise UnknownFunction(f"there is no function {name!r} here")

    def is_whole(self) -> bool:
        """Whether the caller sees everything that there is: sums over all then tell them nothing new."""
        view = self._view
        return view.is_admin or (
            all(self.sees(function.name) for function in self._catalog)
            and all(view.sees("model", model.name) for model in self._catalog.models())
        )

    def hidden_members(self, function: Function, also: Iterable[str] = ()) -> dict[str, str]:
        """The names of a function's models that the caller does not see → what they are called instead.

        Those of datasets, and of the purpose of a wish, too. also: keys of models that it had before.
        """
        if self._view.is_admin:
            return {}
        fitted = () if function.fit is None else function.fit.members
        proxy = str((function.cascade or {}).get("proxy") or "")  # also of one that is not used
        named = (key.partition("/")[0] for key in (*function.named, *also, *([proxy] if proxy else ())))
        asked = function.asked if function.parity is None else (*function.asked, function.parity)
        names = dict.fromkeys((*(model.name for model in asked), *named, *fitted))
        sees = self._view.sees
        stages = () if function.pipeline is None else function.pipeline.stages
        hidden = {
            stage.name: f"function {at}" for at, stage in enumerate(stages, 1) if not self.sees(stage.name)
        }
        hidden |= {name: f"member {place}" for place, name in enumerate(names, 1) if not sees("model", name)}
        return self._hidden_ends(function) | hidden

    def _hidden_ends(self, function: Function) -> dict[str, str]:
        """What a function is for, or was judged by, as far as the caller does not see it."""
        wants, cascade = function.wants, function.cascade or {}
        datasets = {cascade.get("dataset"), None if wants is None else wants.dataset}
        hidden = {
            str(name): "a dataset" for name in datasets if name and not self._view.sees("dataset", name)
        }
        purpose = None if wants is None else wants.purpose
        if purpose and not self._view.sees(
            "function" if self._catalog.is_function(purpose) else "model", purpose
        ):
            hidden[purpose] = "a purpose"
        return hidden
