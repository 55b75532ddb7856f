"""A token: a secret that is kept as its hash alone, and what whoever sends it may do. Pure.

A secret has 256 random bits, so one round of SHA-256 hides it: there is nothing to guess (unlike a password).
What is compared is the hash, by its place in a table: how long that takes tells nothing of the secret.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from fnmatch import fnmatchcase

from server.access.caller import DEFAULT_SHARES, EVERYTHING, Caller, Grants, Scope, Shares

__all__ = ["PREFIX", "Token", "digest_of", "new_secret"]

PREFIX = "mludf_"  # so that scanners of logs and repositories can find one that leaked


def new_secret() -> str:
    """A secret that nobody has had before."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: bytes) -> str:
    """What is kept of a secret: SHA-256, in hex."""
    return hashlib.sha256(secret).hexdigest()


@dataclass(frozen=True)
class Token:
    """What is known of a token. Times are Unix seconds.

    scopes: with those that they imply · users: patterns of the database users that it may speak for; none =
    any, and those who name none · is_shared: it comes from a file, and several may hold it
    """

    name: str
    digest: str
    scopes: frozenset[Scope]
    grants: Grants = EVERYTHING
    shares: Shares = DEFAULT_SHARES
    users: tuple[str, ...] = ()
    expires_s: float | None = None
    is_shared: bool = False

    def is_valid(self, now_s: float) -> bool:
        """Whether it has not expired."""
        return self.expires_s is None or now_s < self.expires_s

    def speaks_for(self, user: str) -> bool:
        """Whether it may be sent on behalf of a database user; "" for one that names none."""
        return not self.users or any(fnmatchcase(user, pattern) for pattern in self.users)

    def caller(self, address: str, user: str = "", database: str = "") -> Caller:
        """Who sends it from an address."""
        return Caller(
            self.name,
            address,
            self.scopes,
            self.grants,
            self.shares,
            self.is_shared,
            user,
            database,
            self.digest,
        )
