"""Sessions that were ended before their time, in memory. Pure lookups; a shell fills it."""

from __future__ import annotations

from collections.abc import Iterable

from server.store.sessions import EndedSession

__all__ = ["EndedSessions"]


class EndedSessions:
    """By the digests of their tokens."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}
        self._until: dict[str, str] = {}

    def has(self, digest: str, id: str) -> bool:
        """Whether a token's session is over."""
        return id in self._ids.get(digest, ()) or id <= self._until.get(digest, "")

    def keep(self, ended: EndedSession) -> None:
        """Take over one."""
        if ended.and_earlier:
            self._until[ended.digest] = max(ended.id, self._until.get(ended.digest, ""))
        else:
            self._ids.setdefault(ended.digest, set()).add(ended.id)

    def replace(self, ended: Iterable[EndedSession]) -> None:
        """Take these for all that there are."""
        self._ids, self._until = {}, {}
        for each in ended:
            self.keep(each)

    def __len__(self) -> int:
        return len(self._until) + sum(map(len, self._ids.values()))
