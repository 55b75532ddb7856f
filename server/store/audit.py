"""The audit trail in the registry: of all its servers, so that it can be asked. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, delete, func, insert, select
from sqlalchemy.orm import Session

from server.store.database import reading, utc
from server.store.retries import once, retried
from server.store.tables import AuditRow

__all__ = ["AuditRepository", "StoredAudit"]

_MOST_ROWS = 100_000
_MOST_IDS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StoredAudit:
    """An entry as it is kept; `id` counts them."""

    id: int
    at: datetime
    token: str
    address: str
    user: str
    database: str
    action: str
    what: str
    outcome: str
    status: int
    count: int


class AuditRepository:
    """The entries of one database."""

    def __init__(self, engine: Engine, *, most_rows: int = _MOST_ROWS) -> None:
        self._engine = engine
        self._reading = reading(engine)
        self._most_rows = most_rows

    @once
    def add(self, entries: Sequence[dict[str, object]]) -> None:
        """Keep these, columns by name; the oldest go where they are too many."""
        with Session(self._engine) as session:
            session.execute(insert(AuditRow), list(entries))
            newest = session.scalar(select(func.max(AuditRow.id))) or 0
            session.execute(delete(AuditRow).where(AuditRow.id <= newest - self._most_rows))
            session.commit()

    @retried
    def page(
        self, *, before: int | None, limit: int, token: str = "", action: str = "", outcome: str = ""
    ) -> list[StoredAudit]:
        """The newest that are older than number `before`, the newest first; "" = whichever."""
        found = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            # A number that the registry can compare with those of entries, whatever a caller has named.
            found = found.where(AuditRow.id < min(max(before, 0), _MOST_IDS))
        for column, wanted in (
            (AuditRow.token, token),
            (AuditRow.action, action),
            (AuditRow.outcome, outcome),
        ):
            if wanted:
                found = found.where(column == wanted)
        with Session(self._reading) as session:
            return [_stored(row) for row in session.scalars(found)]


def _stored(row: AuditRow) -> StoredAudit:
    return StoredAudit(
        row.id,
        utc(row.at),
        row.token,
        row.address,
        row.user,
        row.database,
        row.action,
        row.what,
        row.outcome,
        row.status,
        row.count,
    )
