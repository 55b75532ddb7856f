"""The registry's part for functions that are trained again. Each verb is one transaction. Blocking."""

from __future__ import annotations

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from server.catalog.retraining import Retraining
from server.store.database import reading, utc
from server.store.retries import retried
from server.store.tables import RetrainingRow

__all__ = ["RetrainingRepository"]


class RetrainingRepository:
    """The retrainings of one database, by function."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def all(self) -> list[Retraining]:
        """Every one, by function."""
        with Session(self._reading) as session:
            rows = session.scalars(select(RetrainingRow).order_by(RetrainingRow.function))
            return [_retraining(row) for row in rows]

    @retried
    def find(self, function: str) -> Retraining | None:
        """That of a function, if there is one."""
        with Session(self._reading) as session:
            row = session.get(RetrainingRow, function)
            return None if row is None else _retraining(row)

    @retried
    def put(self, retraining: Retraining) -> None:
        """Store it, in place of what was stored of its function."""
        with Session(self._engine) as session:
            session.merge(
                RetrainingRow(
                    function=retraining.function,
                    every_s=retraining.every_s,
                    budget=retraining.budget,
                    roles=None if retraining.roles is None else {"roles": list(retraining.roles)},
                    next_at=retraining.next_at,
                    job=retraining.job,
                    outcome=retraining.outcome,
                    ended_at=retraining.ended_at,
                )
            )
            session.commit()

    @retried
    def remove(self, function: str) -> None:
        """Forget it."""
        with Session(self._engine) as session:
            row = session.get(RetrainingRow, function)
            if row is not None:
                session.delete(row)
                session.commit()


def _retraining(row: RetrainingRow) -> Retraining:
    return Retraining(
        row.function,
        row.every_s,
        row.budget,
        None if row.roles is None else tuple(row.roles["roles"]),
        None if row.next_at is None else utc(row.next_at),
        row.job,
        row.outcome,
        None if row.ended_at is None else utc(row.ended_at),
    )
