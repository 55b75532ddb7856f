"""What one caller sees, decided once for each thing. Every route asks here; `permissions` has the rule."""

from __future__ import annotations

from collections.abc import Sequence

from server.access.caller import NOBODY, Caller, Kind
from server.access.permissions import changes, sees
from server.access.things import Things
from server.catalog.variants import base_of
from server.errors import Forbidden

__all__ = ["WHOLE", "View", "Views", "common_folders", "folders_of"]

_MOST_KEPT = 10_000


class View:
    """Things as a caller sees them."""

    def __init__(self, caller: Caller, things: Things) -> None:
        self.caller = caller
        self._things = things
        self._revision = things.revision
        self._seen: dict[tuple[Kind, str], bool] = {}
        self.is_admin = caller.is_admin

    def sees(self, kind: Kind, name: str) -> bool:
        """Whether a thing exists for the caller."""
        if self.is_admin:
            return True
        if self._revision != self._things.revision:
            self._seen.clear()
            self._revision = self._things.revision
        key = (kind, name)
        found = self._seen.get(key)
        if found is None:
            if len(self._seen) >= _MOST_KEPT:
                self._seen.clear()
            found = self._seen[key] = sees(self.caller, self._things.of(kind, name))
        return found

    def sees_key(self, key: str) -> bool:
        """Whether a model version exists for the caller; "" = none."""
        return not key or self.sees("model", key.partition("/")[0])

    def reaches(self, kind: Kind, name: str) -> bool:
        """Whether the caller's token reaches that name, whosever it is; of a model's variant, the model's."""
        whose = base_of(name) if kind in ("model", "function") else name
        return self.is_admin or self.caller.grants.reach(kind, whose)

    def changes(self, kind: Kind, name: str) -> bool:
        """Whether the caller may change a thing."""
        return self.sees(kind, name) and changes(self.caller, self._things.of(kind, name))

    def check_changes(self, kind: Kind, name: str) -> None:
        """Raises `Forbidden`, which tells whose a thing is to those alone who see it."""
        if self.changes(kind, name):
            return
        if not self.sees(kind, name):
            raise Forbidden(f"the name {name!r} is taken; choose another")
        owner = self._things.of(kind, name).owner
        raise Forbidden(f"the {kind} {name!r} is {owner}'s: that token, or an admin's, may change it")

    def check_reaches(self, kind: Kind, name: str) -> None:
        """Raises `Forbidden` for a name that the caller's token does not reach, be it there or not."""
        if not self.reaches(kind, name):
            patterns = ", ".join(getattr(self.caller.grants, f"{kind}s"))
            raise Forbidden(f"this token reaches the {kind}s {patterns}, and {name!r} is none of them")

    def sees_job(self, dataset: str, owner: str) -> bool:
        """Whether a job exists for the caller: of a dataset that they see, or begun by them."""
        if self.sees("dataset", dataset):
            return True
        return bool(owner) and owner == self.caller.token and self.reaches("dataset", dataset)

    def check_changes_job(self, job: int, dataset: str, owner: str) -> None:
        """Raises `Forbidden` where the job is another's, and the dataset too."""
        if self.is_admin or not owner or owner == self.caller.token or self.changes("dataset", dataset):
            return
        raise Forbidden(f"job {job} is {owner}'s: that token, or an admin's, may change it")

    @property
    def media_roots(self) -> tuple[str, ...] | None:
        """The folders below which the caller's paths must lie; None for all that the workers read."""
        return None if self.is_admin else folders_of(self.caller.grants.media_roots)

    def shown(self, kind: Kind, name: str) -> dict[str, object]:
        """The fields of a thing's description that say whose it is; with whom it is shared, to its owner."""
        thing = self._things.of(kind, name)
        told: dict[str, object] = {"owner": thing.owner, "visibility": thing.visibility}
        if thing.visibility == "shared" and self.changes(kind, name):
            told["shared_with"] = sorted(thing.shared_with)
        return told


class Views:
    """The views of those who ask, made once for each."""

    def __init__(self, things: Things) -> None:
        self._things = things
        self._views: dict[int, View] = {}

    def of(self, caller: Caller) -> View:
        """That of a caller. By identity: comparing what tokens grant would take longer than deciding."""
        view = self._views.get(id(caller))
        if view is None or view.caller is not caller:
            if len(self._views) >= _MOST_KEPT:
                self._views.clear()
            view = self._views[id(caller)] = View(caller, self._things)
        return view


def common_folders(roots: Sequence[str] | None, others: Sequence[str] | None) -> tuple[str, ...] | None:
    """What lies below folders of both: the inner ones; None = everything. By their names alone: who opens
    what is there looks where links lead.
    """
    if roots is None or others is None:
        both = others if roots is None else roots
        return None if both is None else tuple(both)
    inner = [root for root in roots if any(_is_below(root, other) for other in others)]
    inner += [other for other in others if any(_is_below(other, root) for root in roots)]
    return tuple(dict.fromkeys(inner))


def _is_below(path: str, folder: str) -> bool:
    return ".." not in path.split("/") and (path == folder or path.startswith(folder.rstrip("/") + "/"))


def folders_of(granted: tuple[str, ...]) -> tuple[str, ...] | None:
    """Media roots as a token has them, as folders; None for any. A root `/photos` and `/photos/*` are one."""
    if "*" in granted:
        return None
    return tuple(root.removesuffix("*").rstrip("/") or "/" for root in granted)


WHOLE = View(NOBODY, Things())  # that of the server itself, which sees everything
