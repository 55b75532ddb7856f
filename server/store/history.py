"""What servers did of late, as the registry keeps it. Blocking. Knows slots, not what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from server.store.damaged import object_in, readable
from server.store.database import reading
from server.store.retries import retried
from server.store.tables import HistoryRow

__all__ = ["HistoryRepository", "StoredSlot"]


@dataclass(frozen=True, slots=True)
class StoredSlot:
    """One slot of a ring. at_s: when its stretch of time began, Unix time."""

    ring: str
    slot: int
    at_s: int
    stretch: dict[str, Any]


class HistoryRepository:
    """The rings of one of the servers that share a registry."""

    def __init__(self, engine: Engine, server: str) -> None:
        self._engine = engine
        self._reading = reading(engine)
        self._server = server

    @retried
    def all(self) -> list[StoredSlot]:
        """Every slot of this server's, the oldest first."""
        with Session(self._reading) as session:
            rows = session.scalars(
                select(HistoryRow).where(HistoryRow.server == self._server).order_by(HistoryRow.at_s)
            )
            return readable(rows, _slot)

    @retried
    def write(self, slots: Iterable[StoredSlot]) -> None:
        """Keep these, in place of what stood there."""
        with Session(self._engine) as session:
            for each in slots:
                session.merge(
                    HistoryRow(
                        server=self._server,
                        ring=each.ring,
                        slot=each.slot,
                        at_s=each.at_s,
                        stretch=each.stretch,
                    )
                )
            session.commit()

    @retried
    def forget_gone(self, before_s: float) -> None:
        """Drop what servers did that have written nothing since."""
        with Session(self._engine) as session:
            gone = select(HistoryRow.server).group_by(HistoryRow.server)
            session.execute(
                delete(HistoryRow).where(
                    HistoryRow.server.in_(gone.having(func.max(HistoryRow.at_s) < int(before_s)))
                )
            )
            session.commit()


def _slot(row: HistoryRow) -> StoredSlot:
    stretch = object_in(row.stretch, f"slot {row.slot} of what was done in a {row.ring}")
    return StoredSlot(row.ring, row.slot, row.at_s, stretch)
