"""Tokens are made and revoked, here and on other servers of the registry. On the event loop; the registry is
asked in threads.

What another server makes or revokes counts here within two seconds: the registry is looked at each second. It
is at once on the server that is asked. While the registry does not answer, what was known goes on to count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from server.access.caller import Caller, Grants, Shares
from server.access.token import Token, digest_of, new_secret
from server.access.token_form import TokenAsked, asked_token, told_grants, told_shares, told_token
from server.access.token_registry import TokenRegistry
from server.access.tokens import Tokens
from server.administration.endings import Endings
from server.errors import BadOption, ServiceError, UnknownFunction
from server.store.tokens import StoredToken, TokenRepository
from server.supervision import Tasks

__all__ = ["TokenService"]

log = logging.getLogger("ml_udf.server.tokens")

_LOOK_EVERY_S = 1.0
_WRITE_EVERY_S = 60.0
_MOST = 10_000  # that are not revoked


class TokenService:
    """Makes, lists and revokes; keeps `tokens` what the registry has, and notes there when each was used.

    A token's secret leaves `create` and is kept nowhere.
    """

    def __init__(
        self,
        repository: TokenRepository,
        tokens: Tokens,
        tasks: Tasks | None = None,
        *,
        mark: Path | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        look_every_s: float = _LOOK_EVERY_S,
        write_every_s: float = _WRITE_EVERY_S,
    ) -> None:
        """mark: as `TokenRegistry`."""
        self._repository = repository
        self._registry = TokenRegistry(repository, mark)
        self._tokens = tokens
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._look_every_s = look_every_s
        self._write_every_s = write_every_s
        self._taking = asyncio.Lock()
        self._is_away = False
        self.endings = Endings(tokens)

    def start(self) -> None:
        """Begin to look for what other servers do."""
        self._tasks.always("look for tokens", self._look)
        self._tasks.always("note use of tokens", self._note)

    async def close(self) -> None:
        """Stop, after a last note of when tokens were used."""
        await self._tasks.close()
        await asyncio.wait({self._tasks.once("note use of tokens", self._note_once())})

    def counts(self, caller: Caller) -> bool:
        """Whether what let a caller in counts still."""
        return self._tokens.counts(caller)

    @property
    def is_open(self) -> bool:
        """Whether everybody on this machine may do everything, as no token was ever made."""
        return self._tokens.is_open

    async def create(self, form: Mapping[str, Any], by: Caller) -> tuple[dict[str, Any], str]:
        """A new token, as it is listed, and its secret. Raises `BadOption`."""
        now = self._clock()
        asked = asked_token(form, now)
        secret = new_secret()
        stored = StoredToken(
            digest_of(secret.encode()),
            asked.name,
            tuple(asked.scopes),
            asked.grants.to_json(),
            asked.shares.to_json(),
            asked.users,
            by.token,
            now,
            asked.expires_at,
        )
        await asyncio.to_thread(self._repository.add, stored, lambda found: self._check_new(asked, found))
        await self._take()
        return self._told(stored), secret

    async def revoke(self, name: str) -> None:
        """From now on it counts no more, on open connections and streams too.

        Raises `BadOption` for one that cannot be revoked, `UnknownFunction` where there is none.
        """
        for token in self._tokens.of_files():
            if token.name == name:
                raise BadOption(
                    f"the token {name!r} is in a file: change the file, and start the server anew"
                )
        if not await asyncio.to_thread(
            self._repository.revoke, name, lambda found: self._check_old(name, found)
        ):
            raise UnknownFunction(f"there is no token {name[:100]!r} here")
        await self._take()

    async def all(self) -> list[dict[str, Any]]:
        """Every one: those of files, then those of the registry, revoked ones too. No secret, and no hash."""
        stored = await asyncio.to_thread(self._repository.all)
        return [*map(self._told_of_file, self._tokens.of_files()), *map(self._told, stored)]

    async def refresh(self) -> None:
        """Look at once whether another server made or revoked any."""
        if await asyncio.to_thread(self._registry.has_changed):
            await self._take()
        self.endings.look()

    async def _take(self) -> None:
        # One after the other: what was read first must not come last.
        async with self._taking:
            found, ever_made = await asyncio.to_thread(self._registry.read)
            self._tokens.replace(found, ever_made=ever_made)
        self.endings.look()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            try:
                await self.refresh()
                self._is_away = False
            except (SQLAlchemyError, ServiceError, OSError) as error:
                self.endings.look()
                if not self._is_away:
                    log.error("tokens not read, those known go on to count error=%r", str(error))
                self._is_away = True

    async def _note(self) -> None:
        while True:
            await asyncio.sleep(self._write_every_s)
            await self._note_once()

    async def _note_once(self) -> None:
        used = self._tokens.used()
        if not used:
            return
        try:
            await asyncio.to_thread(self._repository.used, used)
        except (SQLAlchemyError, ServiceError, OSError) as error:
            log.error("use of tokens not noted error=%r", str(error))

    def _check_new(self, asked: TokenAsked, found: Sequence[StoredToken]) -> None:
        live = [each for each in found if each.revoked_at is None]
        if any(each.name == asked.name for each in live):
            raise BadOption(
                f"there is a token {asked.name!r} already; revoke it first, or choose another name"
            )
        if len(live) >= _MOST:
            raise BadOption(f"there are {_MOST} tokens, which is the most; revoke some")
        if "admin" not in asked.scopes and not self._is_administered(found):
            raise BadOption(
                "the first token must have the scope admin: from then on the server wants tokens, and nobody "
                "could make the next one"
            )

    def _check_old(self, name: str, found: Sequence[StoredToken]) -> None:
        if self._is_administered(found) and not self._is_administered(
            [each for each in found if each.name != name]
        ):
            raise BadOption(
                f"{name!r} is the last valid token with the scope admin, and without it nobody could "
                "make another: make one first, or start the server with --token-file"
            )

    def _is_administered(self, found: Sequence[StoredToken]) -> bool:
        now = self._clock()
        return any("admin" in token.scopes for token in self._tokens.of_files()) or any(
            "admin" in each.scopes
            and each.revoked_at is None
            and (each.expires_at is None or each.expires_at > now)
            for each in found
        )

    def _told(self, stored: StoredToken) -> dict[str, Any]:
        now = self._clock()
        is_over = stored.expires_at is not None and stored.expires_at <= now
        return {
            "name": stored.name,
            "state": "revoked" if stored.revoked_at else "expired" if is_over else "valid",
            "scopes": list(stored.scopes),
            **told_grants(Grants.from_json(stored.grants)),
            "shares": told_shares(Shares.from_json(stored.shares)),
            "users": list(stored.users),
            "created_by": stored.created_by,
            "created_at": _iso(stored.created_at),
            "expires_at": _iso(stored.expires_at),
            "revoked_at": _iso(stored.revoked_at),
            "last_used_at": _iso(stored.last_used_at),
        }

    def _told_of_file(self, token: Token) -> dict[str, Any]:
        times = dict.fromkeys(("created_at", "expires_at", "revoked_at", "last_used_at"))
        return {**told_token(token), "state": "valid", "created_by": "file", **times}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
