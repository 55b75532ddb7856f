"""The registry's lease, and the servers that share the registry. Each verb is one transaction. Blocking.

Who may hold it is `catalog.lease`'s to decide; the clock is the database's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Engine, delete, select, text
from sqlalchemy.orm import Session

from server.catalog.lease import LEASE_S, Holding, SeenServer, Wait, decide
from server.errors import LeaseLost
from server.store.database import reading
from server.store.retries import once
from server.store.tables import LeaseRow, ServerRow

__all__ = ["LeaseRepository", "check_fence"]

_NAME = "background"
_FORGOTTEN_S = 3600.0  # a server that was not seen for so long
# A transaction waits for whoever has the row; PostgreSQL ends one of a process that was paused in its middle.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"
_IDLE_TIMEOUT = "SET LOCAL idle_in_transaction_session_timeout = '4s'"


def check_fence(session: Session, fence: int | None) -> None:
    """Raises `LeaseLost` where another server has taken the lease since `fence`; until the transaction ends
    nobody takes it. None = of a caller who needs no lease.
    """
    if fence is None:
        return
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(_IDLE_TIMEOUT))
    row = session.get_one(LeaseRow, _NAME, with_for_update={"read": True})
    if row.fence != fence:
        raise LeaseLost


class LeaseRepository:
    """The lease of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @once
    def holding(self) -> tuple[Holding, float]:
        """As it stands, and the database's time. Waits for nobody."""
        with Session(self._reading) as session:
            row = session.get_one(LeaseRow, _NAME)
            return _holding(row), _now_s(session)

    @once
    def ask(self, server: SeenServer, has_ended: Callable[[str], bool]) -> Holding:
        """Take or renew it for a server if it may, and note that the server lives: the lease from now on.

        has_ended: whether a holder's process has, for certain.
        """
        with Session(self._engine) as session:
            if session.get_bind().dialect.name == "postgresql":
                session.execute(text(_LOCK_TIMEOUT))
                session.execute(text(_IDLE_TIMEOUT))
            row = session.get_one(LeaseRow, _NAME, with_for_update=True)
            now_s = _now_s(session)
            holder = None if row.holder in (None, server.id) else session.get(ServerRow, row.holder)
            step = decide(
                _holding(row), server.id, now_s, is_gone=holder is not None and has_ended(holder.process)
            )
            if not isinstance(step, Wait):
                row.holder, row.fence, row.until_s = server.id, step.fence, now_s + LEASE_S
                session.execute(delete(ServerRow).where(ServerRow.seen_s < now_s - _FORGOTTEN_S))
            known = session.get(ServerRow, server.id)
            began_s = now_s if known is None else known.started_s
            session.merge(_row(replace(server, started_s=began_s, seen_s=now_s)))
            session.commit()
            return _holding(row)

    @once
    def leave(self, server: str) -> None:
        """A server ends in order: it holds the lease no more, and is not listed."""
        with Session(self._engine) as session:
            if session.get_bind().dialect.name == "postgresql":
                session.execute(text(_LOCK_TIMEOUT))
            row = session.get_one(LeaseRow, _NAME, with_for_update=True)
            if row.holder == server:
                row.holder, row.until_s = None, 0.0
            session.execute(delete(ServerRow).where(ServerRow.id == server))
            session.commit()

    @once
    def servers(self) -> tuple[list[SeenServer], Holding, float]:
        """Those of the last hour, the one that began first before the others; the lease; the time."""
        with Session(self._reading) as session:
            rows = session.scalars(select(ServerRow).order_by(ServerRow.started_s, ServerRow.id))
            seen = [_seen(row) for row in rows]
            return seen, _holding(session.get_one(LeaseRow, _NAME)), _now_s(session)


def _now_s(session: Session) -> float:
    """Unix seconds, of the moment and not of the transaction's begin: it may have waited for the row."""
    postgres = session.get_bind().dialect.name == "postgresql"
    clock = (
        "SELECT extract(epoch FROM clock_timestamp())"
        if postgres
        else "SELECT (julianday('now') - 2440587.5) * 86400.0"
    )
    return float(session.execute(text(clock)).scalar_one())


def _holding(row: LeaseRow) -> Holding:
    return Holding(row.holder, row.fence, row.until_s)


def _row(server: SeenServer) -> ServerRow:
    return ServerRow(
        id=server.id,
        name=server.name,
        version=server.version,
        process=server.process,
        started_s=server.started_s,
        seen_s=server.seen_s,
    )


def _seen(row: ServerRow) -> SeenServer:
    return SeenServer(row.id, row.name, row.version, row.process, row.started_s, row.seen_s)
