"""Orders of variants that wait, in the registry: a server goes on with its own when it starts. Blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from server.store.damaged import object_in, readable
from server.store.database import reading, utc
from server.store.retries import retried
from server.store.tables import VariantOrderRow

__all__ = ["KeptOrder", "VariantOrderRepository"]


@dataclass(frozen=True, slots=True)
class KeptOrder:
    """variant: its name · wishes: as whoever ordered it wished it, plain values · ordered_at: Unix time"""

    model: str
    version: int
    variant: str
    wishes: Mapping[str, Any]
    ordered_at: float


class VariantOrderRepository:
    """Those of one server of the registry."""

    def __init__(self, engine: Engine, server: str) -> None:
        self._engine = engine
        self._reading = reading(engine)
        self._server = server

    @retried
    def all(self) -> list[KeptOrder]:
        """Every one, the oldest first."""
        with Session(self._reading) as session:
            rows = session.scalars(
                select(VariantOrderRow)
                .where(VariantOrderRow.server == self._server)
                .order_by(VariantOrderRow.ordered_at, VariantOrderRow.variant)
            )
            return readable(rows, _order)

    @retried
    def put(self, orders: Sequence[KeptOrder]) -> None:
        """Keep them."""
        with Session(self._engine) as session:
            for one in orders:
                session.merge(
                    VariantOrderRow(
                        server=self._server,
                        model=one.model,
                        version=one.version,
                        variant=one.variant,
                        wishes=dict(one.wishes),
                        ordered_at=datetime.fromtimestamp(one.ordered_at, UTC),
                    )
                )
            session.commit()

    @retried
    def remove(self, model: str, version: int, variant: str) -> None:
        """It is over; nothing if there is none."""
        with Session(self._engine) as session:
            session.execute(
                delete(VariantOrderRow).where(
                    VariantOrderRow.server == self._server,
                    VariantOrderRow.model == model,
                    VariantOrderRow.version == version,
                    VariantOrderRow.variant == variant,
                )
            )
            session.commit()


def _order(row: VariantOrderRow) -> KeptOrder:
    wishes = object_in(row.wishes, f"the order of {row.variant} of {row.model} version {row.version}")
    return KeptOrder(row.model, row.version, row.variant, wishes, utc(row.ordered_at).timestamp())
