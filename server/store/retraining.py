"""The registry's part for functions that are trained again. Each verb is one transaction. Blocking."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from server.catalog.retraining import Retraining
from server.store.damaged import list_in, object_in, readable
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
            return readable(rows, _retraining)

    @retried
    def find(self, function: str) -> Retraining | None:
        """That of a function, if there is one."""
        with Session(self._reading) as session:
            row = session.get(RetrainingRow, function)
            return None if row is None else _retraining(row)

    @retried
    def amend(
        self, function: str, change: Callable[[Retraining | None], Retraining | None]
    ) -> Retraining | None:
        """Store what `change` makes of it, and give that back; None changes nothing. Whoever else amends it
        waits meanwhile. `change` may be called twice, and waits for nothing.
        """
        with Session(self._engine) as session:
            row = session.get(RetrainingRow, function, with_for_update=True)
            changed = change(None if row is None else _retraining(row))
            if changed is not None:
                session.merge(
                    RetrainingRow(
                        function=changed.function,
                        every_s=changed.every_s,
                        budget=changed.budget,
                        roles=None if changed.roles is None else {"roles": list(changed.roles)},
                        next_at=changed.next_at,
                        job=changed.job,
                        outcome=changed.outcome,
                        ended_at=changed.ended_at,
                        owner=changed.owner,
                        leased_until=changed.leased_until,
                    )
                )
                session.commit()
            return changed

    @retried
    def remove(self, function: str) -> None:
        """Forget it."""
        with Session(self._engine) as session:
            row = session.get(RetrainingRow, function)
            if row is not None:
                session.delete(row)
                session.commit()


def _retraining(row: RetrainingRow) -> Retraining:
    what = f"by whose rights the function {row.function} is trained again"
    roles = None if row.roles is None else list_in(object_in(row.roles, what).get("roles"), what)
    return Retraining(
        row.function,
        row.every_s,
        row.budget,
        None if roles is None else tuple(roles),
        None if row.next_at is None else utc(row.next_at),
        row.job,
        row.outcome,
        None if row.ended_at is None else utc(row.ended_at),
        row.owner,
        None if row.leased_until is None else utc(row.leased_until),
    )
