"""The registry's tokens. Each verb is one transaction. Blocking. Knows rows, not what a token may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, select, update
from sqlalchemy.orm import Session

from server.store.damaged import DamagedRecord, list_in, object_in, tell
from server.store.database import reading, utc
from server.store.retries import once, retried
from server.store.tables import SecretRow, TokenRow

__all__ = ["Check", "StoredToken", "TokenRepository"]

_KEY = "sessions"  # whose row is also the lock of all tokens


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token as it is kept. scopes: as asked for · grants, shares: JSON · users: patterns."""

    digest: str
    name: str
    scopes: tuple[str, ...]
    grants: dict[str, Any]
    shares: dict[str, Any]
    users: tuple[str, ...]
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


Check = Callable[[Sequence[StoredToken]], None]


class TokenRepository:
    """The tokens of one database, by their hashes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def key(self) -> bytes:
        """By which sessions are signed: of this registry alone."""
        with Session(self._reading) as session:
            return session.get_one(SecretRow, _KEY).value

    @retried
    def all(self) -> list[StoredToken]:
        """Every one, revoked ones too, in the order in which they were made."""
        with Session(self._reading) as session:
            return [_stored(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.created_at))]

    @retried
    def state(self) -> tuple[int, int]:
        """Another one after each token that was made or revoked, by whichever server."""
        counted = select(func.count(TokenRow.digest), func.count(TokenRow.revoked_at))
        with Session(self._reading) as session:
            made, revoked = session.execute(counted).one()
            return made, revoked

    @once
    def add(self, token: StoredToken, check: Check) -> None:
        """Keep a new one. `check`: sees all that there are, and raises where this one may not be added."""
        with Session(self._engine) as session:
            check(_all_locked(session))
            session.add(
                TokenRow(
                    digest=token.digest,
                    name=token.name,
                    scopes=list(token.scopes),
                    grants=token.grants,
                    shares=token.shares,
                    users=list(token.users),
                    created_by=token.created_by,
                    created_at=token.created_at,
                    expires_at=token.expires_at,
                )
            )
            session.commit()

    @retried
    def revoke(self, name: str, check: Check) -> bool:
        """From now on it counts no more; False if none of this name does. `check` as in `add`."""
        with Session(self._engine) as session:
            found = _all_locked(session)
            if not any(each.name == name and each.revoked_at is None for each in found):
                return False
            check(found)
            live = (TokenRow.name == name, TokenRow.revoked_at.is_(None))
            session.execute(update(TokenRow).where(*live).values(revoked_at=datetime.now(UTC)))
            session.commit()
            return True

    @retried
    def used(self, when_s: Mapping[str, float]) -> None:
        """Keep when tokens were last used, in Unix seconds by name."""
        with Session(self._engine) as session:
            for name, unix_s in when_s.items():
                live = (TokenRow.name == name, TokenRow.revoked_at.is_(None))
                at = datetime.fromtimestamp(unix_s, UTC)
                session.execute(update(TokenRow).where(*live).values(last_used_at=at))
            session.commit()


def _all_locked(session: Session) -> list[StoredToken]:
    """Every one; until the transaction ends nobody else makes or revokes any."""
    session.get_one(SecretRow, _KEY, with_for_update=True)
    return [_stored(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.created_at))]


def _stored(row: TokenRow) -> StoredToken:
    """One whose rights are damaged has none: left out, the server might seem to have no tokens at all."""
    whose = f"of the token {row.name}"
    try:
        scopes = tuple(list_in(row.scopes, f"the scopes {whose}"))
        grants = object_in(row.grants, f"what is granted {whose}")
        shares = object_in(row.shares, f"the shares {whose}")
        users = tuple(list_in(row.users, f"the users {whose}"))
    except DamagedRecord as error:
        tell(error)
        scopes, grants, shares, users = (), {}, {}, ()
    return StoredToken(
        digest=row.digest,
        name=row.name,
        scopes=scopes,
        grants=grants,
        shares=shares,
        users=users,
        created_by=row.created_by,
        created_at=utc(row.created_at),
        expires_at=None if row.expires_at is None else utc(row.expires_at),
        revoked_at=None if row.revoked_at is None else utc(row.revoked_at),
        last_used_at=None if row.last_used_at is None else utc(row.last_used_at),
    )
