"""Functions by name and version, with those that are served as stages of pipelines alone."""

from __future__ import annotations

from collections.abc import Iterable

from server.catalog.catalog import Catalog
from server.catalog.functions import Function

__all__ = ["Stages"]


class Stages:
    """A pipeline goes on with the versions that it was deployed with, when newer ones have their names."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: dict[str, Function] = {}  # by key: of versions that are served under no name any more

    def resolve(self, name: str, version: str | None = None) -> Function:
        """See `Catalog.resolve`; a version that is kept is found too."""
        kept = self._kept.get(f"{name}@{version}")
        return self._catalog.resolve(name, version) if kept is None else kept

    def functions(self) -> list[list[Function]]:
        """See `Catalog.functions`."""
        return self._catalog.functions()

    def keep(self, function: Function) -> None:
        """A version that is a stage, and served under no name."""
        self._kept[function.key] = function

    def let_go(self, retired: Iterable[Function]) -> list[Function]:
        """Of versions that have just left the catalog, and their stages, those that nobody needs any more."""
        candidates = dict(self._kept)
        for function in retired:
            candidates[function.key] = function
            if function.pipeline is not None:
                candidates |= {stage.key: stage for stage in function.pipeline.stages}
        served = {function.key for function in self._catalog}
        needed = {
            stage.key
            for function in self._catalog
            if function.pipeline is not None
            for stage in function.pipeline.stages
        }
        self._kept = {
            key: function for key, function in candidates.items() if key in needed and key not in served
        }
        return [function for key, function in candidates.items() if key not in needed and key not in served]
