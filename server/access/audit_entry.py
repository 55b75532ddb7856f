"""One line of the audit trail: who did what, to what, and whether they might. Pure.

Names, counts and addresses; never an input, an answer or a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from server.access.caller import Caller
from server.access.failed_logins import network_of

__all__ = ["REFUSED", "SERVER", "AuditEntry", "Auditing", "Folded", "entry_by_server", "entry_of"]

REFUSED = frozenset((401, 403, 429))
SERVER = "server"  # who does what nobody asked for just now; no token is called so

_LONGEST = 200  # characters of a name that somebody sent
_MOST_FOLDED = 1000  # kinds of entries that are counted apart; the rest are counted as one
_FOLD_S = 60.0

Outcome = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """at_s: Unix time · token: its name, "" for none · user, database: as they were claimed · what: names ·
    status: of the reply · count: of such acts, or of rows
    """

    at_s: float
    token: str
    address: str
    user: str
    database: str
    action: str
    what: str
    status: int
    count: int = 1

    @property
    def outcome(self) -> Outcome:
        """In a word."""
        if self.status in REFUSED:
            return "refused"
        return "done" if self.status < 400 else "failed"

    def to_json(self) -> dict[str, Any]:
        """As a line of the log."""
        return {
            "happened_at": datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds"),
            "token": self.token,
            "address": self.address,
            "claimed_user": self.user,
            "claimed_database": self.database,
            "action": self.action,
            "what": self.what,
            "outcome": self.outcome,
            "status": self.status,
            "count": self.count,
        }


def entry_of(
    at_s: float, caller: Caller, action: str, what: str, status: int, *, token: str = "", count: int = 1
) -> AuditEntry:
    """What a caller did. token: the one that they named, where it is not theirs yet."""
    return AuditEntry(
        at_s,
        _kept(token or caller.token),
        _kept(caller.address),
        _kept(caller.user),
        _kept(caller.database),
        _kept(action),
        _kept(what),
        status,
        count,
    )


def entry_by_server(at_s: float, action: str, what: str, cause: str) -> AuditEntry:
    """What the server did by itself, and why."""
    return AuditEntry(at_s, SERVER, "", "", "", action, _kept(f"{what}: {cause}"), 200)


def _kept(text: str) -> str:
    # PostgreSQL has no text with a NUL, and an entry that it refuses would hold up all behind it.
    return text[:_LONGEST].replace("\0", "\ufffd")


class Auditing(Protocol):
    """Who keeps the trail."""

    async def ready(self) -> None:
        """Raises `NoSpace` while the trail cannot be kept: nothing may be changed then."""

    async def keep(self, entry: AuditEntry) -> bool:
        """Keep what was changed; False where it could not be written yet."""

    def fold(self, entry: AuditEntry) -> None:
        """Keep what may come often: the first at once, then by the minute how many were like it."""


class Folded:
    """Entries that are alike, counted. A flood of them costs a line a minute, and bounded memory."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, ...], AuditEntry] = {}
        self._told_s: dict[tuple[str, ...], float] = {}

    def add(self, entry: AuditEntry) -> AuditEntry | None:
        """The entry itself where it is the first of its kind within a minute, else it is counted."""
        place = network_of(entry.address)
        key: tuple[str, ...] = (entry.action, entry.token, place, entry.user, str(entry.status))
        if key not in self._told_s and len(self._told_s) >= _MOST_FOLDED:
            key = ("", str(entry.status))
            entry = replace(entry, token="", address="*", user="*", database="*", what="*")
        if key not in self._told_s:
            self._told_s[key] = entry.at_s
            return entry
        known = self._counted.get(key)
        self._counted[key] = entry if known is None else replace(entry, count=known.count + entry.count)
        return None

    def due(self, now_s: float, *, all_of_them: bool = False) -> Iterable[AuditEntry]:
        """Those whose minute is over, as one entry each."""
        over = [key for key, at_s in self._told_s.items() if all_of_them or now_s - at_s >= _FOLD_S]
        for key in over:
            counted = self._counted.pop(key, None)
            if counted is None:
                del self._told_s[key]
            else:
                self._told_s[key] = now_s
                yield counted

    def __len__(self) -> int:
        return len(self._told_s)
