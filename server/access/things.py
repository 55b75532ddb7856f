"""Who owns what, and who sees it, in memory. Pure lookups; a shell (`ownership`) fills it.

What nobody has claimed was there before there were owners. It is nobody's: functions and models everybody's
to use, as they were; datasets show rows, and are for admins until one gives them to somebody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from server.access.caller import Kind
from server.access.permissions import Thing, Visibility
from server.catalog.variants import base_of

__all__ = ["Things"]

_UNCLAIMED: Mapping[Kind, Visibility] = {
    "function": "public",
    "model": "public",
    "dataset": "private",
    # These are the operator's, who grants them by patterns alone.
    "source": "public",
    "media_root": "public",
}


class Things:
    """By kind and name. revision: another one as soon as anything is."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, str], Thing] = {}
        self.revision = 0

    def of(self, kind: Kind, name: str) -> Thing:
        """The thing of a name, be it there or not. A model's variants are its owner's, as it is."""
        name = _whose(kind, name)
        return self._known.get((kind, name)) or Thing(kind, name, visibility=_UNCLAIMED[kind])

    def is_claimed(self, kind: Kind, name: str) -> bool:
        """Whether it is known whose it is."""
        return (kind, _whose(kind, name)) in self._known

    def replace(self, things: Iterable[Thing]) -> None:
        """Take these for all that there are."""
        known = {(thing.kind, thing.name): thing for thing in things}
        if known != self._known:
            self._known = known
            self.revision += 1

    def keep(self, thing: Thing) -> None:
        """Take over one."""
        self._known[thing.kind, thing.name] = thing
        self.revision += 1

    def forget(self, kind: Kind, name: str) -> None:
        """It is gone: whoever makes the next one of its name owns that."""
        self._known.pop((kind, name), None)
        self.revision += 1


def _whose(kind: Kind, name: str) -> str:
    return base_of(name) if kind == "model" else name
