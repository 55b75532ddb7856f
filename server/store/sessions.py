"""Browsers' sessions that were ended before their time. Each verb is one transaction. Blocking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from server.store.database import reading, utc
from server.store.retries import retried
from server.store.tables import EndedSessionRow, SecretRow

__all__ = ["EndedSession", "EndedSessionRepository"]

_LOCK = "sessions"
_MOST = 20_000


class EndedSession(NamedTuple):
    """A session that counts no more. Ids of later sessions are greater.

    digest: of its token · expires_at: when its cookie is over anyway · and_earlier: nor do those of its
    token that began before it
    """

    digest: str
    id: str
    expires_at: datetime
    and_earlier: bool = False


class EndedSessionRepository:
    """Those of one database, `most` rows at the most.

    Beyond that the token with most of them has the older half taken for one row, which ends all that began as
    early: a browser may have to log in again, and no cookie that was ended comes back.
    """

    def __init__(self, engine: Engine, most: int = _MOST) -> None:
        self._engine = engine
        self._reading = reading(engine)
        self._most = most

    @retried
    def all(self) -> list[EndedSession]:
        """Every one."""
        with Session(self._reading) as session:
            return _all(session)

    @retried
    def state(self) -> int:
        """Another one after each that was added, by whichever server."""
        with Session(self._reading) as session:
            return session.scalar(select(func.max(EndedSessionRow.number))) or 0

    @retried
    def add(self, ended: EndedSession, now: datetime) -> None:
        """Keep one, and forget those whose cookies are over."""
        with Session(self._engine) as session:
            session.get_one(SecretRow, _LOCK, with_for_update=True)
            session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at <= now))
            session.add(_row(ended))
            session.flush()
            found = _all(session)
            if len(found) > self._most:
                _fold(session, found)
            session.commit()


def _fold(session: Session, found: Sequence[EndedSession]) -> None:
    ((digest, _),) = Counter(each.digest for each in found).most_common(1)
    of_token = sorted((each for each in found if each.digest == digest), key=lambda each: each.id)
    older = of_token[: len(of_token) // 2 + 1]
    ids = [each.id for each in older]
    session.execute(
        delete(EndedSessionRow).where(EndedSessionRow.digest == digest, EndedSessionRow.id <= ids[-1])
    )
    last = max(each.expires_at for each in older)
    session.add(_row(EndedSession(digest, ids[-1], last, and_earlier=True)))


def _all(session: Session) -> list[EndedSession]:
    columns = (
        EndedSessionRow.digest,
        EndedSessionRow.id,
        EndedSessionRow.expires_at,
        EndedSessionRow.and_earlier,
    )
    rows = session.execute(select(*columns).order_by(EndedSessionRow.number))
    return [EndedSession(digest, id, utc(expires_at), earlier) for digest, id, expires_at, earlier in rows]


def _row(ended: EndedSession) -> EndedSessionRow:
    return EndedSessionRow(**ended._asdict())
