"""What is served now: names and versions → functions. In memory, rebuilt from the registry at start.

Functions and models share one namespace; a model answers as a function with one member. Knows neither
database nor workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from server.catalog.functions import Function, ModelVersion
from server.catalog.variants import is_variant
from server.errors import BadOption, UnknownFunction, VersionGone

__all__ = ["Catalog", "Models", "unknown"]


class Models(Protocol):
    """Models by name, and functions: the catalog, or as much of it as somebody sees."""

    def model(self, name: str, version: int | None = None) -> ModelVersion:
        """A model version, the newest if none is named. Raises `UnknownFunction`."""

    def is_function(self, name: str) -> bool:
        """Whether a deployed function, not a model, has that name."""

    def versions(self, name: str) -> list[Function]:
        """What is served under a name, the current version last. Raises `UnknownFunction`."""


def unknown(name: str) -> UnknownFunction:
    """What asking for a name raises under which nothing is served."""
    return UnknownFunction(f"there is no function or model {name!r} here")


class Catalog:
    """`as_function(model)` is the bare function of a model version."""

    def __init__(self, as_function: Callable[[ModelVersion], Function]) -> None:
        self._as_function = as_function
        self._served: dict[str, list[Function]] = {}  # ascending versions; the last one is current
        self._models: dict[str, ModelVersion] = {}  # by key
        self._unloaded: set[str] = set()

    def resolve(self, name: str, version: str | None = None) -> Function:
        """The function to run. Raises `UnknownFunction`, `VersionGone`."""
        served = self._served.get(name)
        if served is None:
            raise unknown(name)
        if name in self._unloaded:
            raise UnknownFunction(f"{name!r} was unloaded; POST /v2/repository/models/{name}/load loads it")
        if version is None:
            return served[-1]
        for function in served:
            if str(function.version) == version:
                return function
        current = ", ".join(str(function.version) for function in served)
        raise VersionGone(f"version {version[:20]} of {name} is not served; served now: {current}")

    def versions(self, name: str) -> list[Function]:
        """What is served under a name, the current version last. Raises `UnknownFunction`."""
        if name not in self._served:
            raise unknown(name)
        return list(self._served[name])

    def __iter__(self) -> Iterator[Function]:
        """Every served version of everything, by name."""
        for name in sorted(self._served):
            yield from self._served[name]

    def functions(self) -> list[list[Function]]:
        """The deployed functions, by name, each with its served versions."""
        return [list(served) for _, served in sorted(self._served.items()) if not served[-1].bare]

    def models(self) -> list[ModelVersion]:
        """Every model version, by name and version."""
        return sorted(self._models.values(), key=lambda model: (model.name, model.version))

    def model(self, name: str, version: int | None = None) -> ModelVersion:
        """A model version, the newest if none is named. Raises `UnknownFunction`."""
        found = [m for m in self.models() if m.name == name and version in (None, m.version)]
        if not found:
            raise self.no_model(name, version)
        return found[-1]

    @staticmethod
    def no_model(name: str, version: int | None = None) -> UnknownFunction:
        """What asking for a model raises that is not there."""
        which = "" if version is None else f" version {version}"
        return UnknownFunction(f"there is no model {name!r}{which} here; POST /register registers one")

    def is_model(self, name: str) -> bool:
        """Whether a model has that name."""
        return name in self._served and self._served[name][-1].bare

    def is_function(self, name: str) -> bool:
        """Whether a deployed function, not a model, has that name."""
        return name in self._served and not self._served[name][-1].bare

    def add_model(self, model: ModelVersion) -> Function:
        """Serve a model version under its own name. Raises `BadOption` if a function has that name."""
        if self.is_function(model.name):
            raise BadOption(
                f"{model.name!r} is the name of a function; functions and models share their names"
            )
        function = self._as_function(model)
        self._models[model.key] = model
        others = [f for f in self._served.get(model.name, []) if f.version != model.version]
        self._served[model.name] = sorted([*others, function], key=lambda f: f.version)
        return function

    def remove_model(self, model: ModelVersion) -> Function | None:
        """Serve a model version under its own name no longer: what it was served as."""
        self._models.pop(model.key, None)
        served = self._served.get(model.name, [])
        gone = next((each for each in served if each.bare and each.version == model.version), None)
        left = [each for each in served if each is not gone]
        if left:
            self._served[model.name] = left
        else:
            self._served.pop(model.name, None)
        return gone

    def add_function(self, function: Function, keep: int) -> list[Function]:
        """Serve a deployment as the current one; the versions that are thereby no longer served."""
        served = [*self._served.get(function.name, []), function]
        self._served[function.name] = served[-keep:]
        self._unloaded.discard(function.name)
        return served[:-keep]

    def replace(self, function: Function) -> bool:
        """Serve a version that is served already as it is described now; whether it is."""
        served = self._served.get(function.name, [])
        for place, known in enumerate(served):
            if known.version == function.version and known.bare == function.bare:
                served[place] = function
                return True
        return False

    def remove_function(self, name: str) -> list[Function]:
        """Serve a function no longer: its versions. Raises `UnknownFunction`; a model stays."""
        if not self.is_function(name):
            raise UnknownFunction(f"there is no function {name!r} here")
        self._unloaded.discard(name)
        return self._served.pop(name)

    def groups(self) -> list[tuple[ModelVersion, ...]]:
        """What a starting worker should hold: the members of each current function, then bare models.

        A model's variants come when rows ask for them.
        """
        served = (function for function in self if not is_variant(function.name))
        current = {function.name: function for function in served}  # the last version wins
        loaded = [function for function in current.values() if self.is_loaded(function.name)]
        groups = [
            group
            for function in sorted(loaded, key=lambda function: function.bare)
            for group in function.groups
        ]
        return list(dict.fromkeys(groups))

    def is_loaded(self, name: str) -> bool:
        """False between an explicit unload and the next load."""
        return name not in self._unloaded

    def set_loaded(self, name: str, loaded: bool) -> None:
        """Note an explicit load or unload. Raises `UnknownFunction`."""
        self.versions(name)
        (self._unloaded.discard if loaded else self._unloaded.add)(name)
