"""The registry's part for bulk jobs that are held back. Each verb is one transaction. Blocking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from server.catalog.bulk_control import StoredControl
from server.scheduling.bulk_jobs import BulkControl, BulkKind, BulkTag, BulkWhose, JobKey
from server.store.database import reading, utc
from server.store.retries import retried
from server.store.tables import BulkControlRow

__all__ = ["BulkControlRepository"]


class BulkControlRepository:
    """The controls of one database; `serving.bulk_calls.StoredControls`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def all(self) -> list[StoredControl]:
        """Every one, by when it was set."""
        with Session(self._reading) as session:
            rows = session.scalars(select(BulkControlRow).order_by(BulkControlRow.set_at))
            return [_stored(row) for row in rows]

    @retried
    def keep(self, stored: StoredControl) -> None:
        """Store one, in the place of the job's last."""
        with Session(self._engine) as session:
            session.merge(
                BulkControlRow(
                    caller=stored.key.caller,
                    id=stored.key.id,
                    kind=stored.tag.kind,
                    what=stored.tag.what,
                    token=stored.whose.token,
                    claimed_user=stored.whose.user,
                    function=stored.function,
                    paused=stored.control.paused,
                    max_rows_per_s=stored.control.max_rows_per_s,
                    cancelled=stored.control.cancelled,
                    set_at=stored.set_at,
                )
            )
            session.commit()

    @retried
    def forget(self, keys: Iterable[JobKey]) -> None:
        """Remove those of these jobs."""
        with Session(self._engine) as session:
            for key in keys:
                row = session.get(BulkControlRow, tuple(key))
                if row is not None:
                    session.delete(row)
            session.commit()


def _stored(row: BulkControlRow) -> StoredControl:
    return StoredControl(
        JobKey(row.caller, row.id),
        BulkTag(row.id, cast(BulkKind, row.kind), row.what),
        BulkWhose(row.token, row.claimed_user),
        row.function,
        BulkControl(row.paused, row.max_rows_per_s, row.cancelled),
        utc(row.set_at),
    )
