"""The tokens that count now, by their hashes, and which callers they make. No I/O: shells fill it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from server.access.caller import Caller
from server.access.ended_sessions import EndedSessions
from server.access.token import Token, digest_of
from server.errors import Forbidden

__all__ = ["Tokens"]

_MOST_KNOWN = 10_000


class Tokens:
    """Looked up at each request, so that what is revoked counts no more at once, on open connections too.

    of_files: those that hold as long as the server runs. clock: Unix seconds. ended: sessions that are over
    before their token is.
    """

    def __init__(
        self,
        of_files: Iterable[Token] = (),
        clock: Callable[[], float] = time.time,
        ended: EndedSessions | None = None,
    ) -> None:
        self.ended = EndedSessions() if ended is None else ended
        self._of_files = tuple(of_files)
        self._clock = clock
        self._by_digest: dict[str, Token] = {}
        self._known: dict[tuple[bytes, str, str, str], tuple[Token, Caller]] = {}
        self._used_s: dict[str, float] = {}
        self.is_open = False  # none was ever made: everybody on this machine may do everything
        self.replace((), ever_made=False)

    def replace(self, of_registry: Iterable[Token], *, ever_made: bool) -> None:
        """Take these, beside those of files, for all that there are: expired ones too, revoked ones not.

        ever_made: whether the registry ever had one. Revoking the last one opens nothing.
        """
        self._by_digest = {token.digest: token for token in (*of_registry, *self._of_files)}
        self.is_open = not self._by_digest and not ever_made
        self._known.clear()

    def named(self, name: str) -> Token | None:
        """The token of this name, if it is valid."""
        now_s = self._clock()
        for token in self._by_digest.values():
            if token.name == name and token.is_valid(now_s):
                return token
        return None

    def of_digest(self, digest: str) -> Token | None:
        """The token of this hash, if it is valid; it is used with that."""
        token = self._by_digest.get(digest)
        return token if token is not None and self._use(token) else None

    def of_secret(self, secret: bytes) -> Token | None:
        """The token of this secret, if it is valid."""
        return self.of_digest(digest_of(secret))

    def of_files(self) -> tuple[Token, ...]:
        """Those that hold as long as the server runs."""
        return self._of_files

    def admin(self) -> Token | None:
        """A valid one that may do everything: that of a file first."""
        now_s = self._clock()
        found = (token for token in self._by_digest.values() if "admin" in token.scopes)
        valid = [token for token in found if token.is_valid(now_s)]
        return min(valid, key=lambda token: (not token.is_shared, token.name), default=None)

    def counts(self, caller: Caller) -> bool:
        """Whether what let a caller in counts still: their token, and their session if they have one. It is
        used once more then.
        """
        if caller.session and self.ended.has(caller.digest, caller.session):
            return False
        token = self._by_digest.get(caller.digest)
        if token is None:
            return self.is_open and not caller.digest
        return self._use(token)

    def caller(self, secret: bytes, address: str, user: str = "", database: str = "") -> Caller | None:
        """Who sends a secret, and for whom; None if it is no token's.

        Raises `Forbidden` where the token may not speak for that user.
        """
        key = (secret, address, user, database)
        found = self._known.get(key)
        if found is None:
            token = self._by_digest.get(digest_of(secret))
            if token is None:
                return None
            if not token.speaks_for(user):
                raise Forbidden(
                    f"the token {token.name!r} may speak for the users {', '.join(token.users)}, "
                    f"not for {user[:100]!r}",
                    token.name,
                )
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = (token, token.caller(address, user, database))
        token, caller = found
        return caller if self._use(token) else None

    @property
    def remembered(self) -> int:
        """Callers that are kept, so that who comes again is not worked out again."""
        return len(self._known)

    def used(self) -> dict[str, float]:
        """When each token was last used, of those that were since the last call of this."""
        used, self._used_s = self._used_s, {}
        return used

    def _use(self, token: Token) -> bool:
        """Whether it is valid; it was last used now then."""
        now_s = self._clock()
        if not token.is_valid(now_s):
            return False
        self._used_s[token.name] = now_s
        return True
