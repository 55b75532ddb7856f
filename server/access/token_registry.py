"""The tokens of files and of the registry, as what they count for."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from server.access.caller import SCOPES, Grants, Scope, Shares, implied
from server.access.token import Token, digest_of
from server.settings import Settings
from server.store.tokens import StoredToken, TokenRepository

__all__ = ["MARK", "TokenRegistry", "tokens_of_files"]

log = logging.getLogger("ml_udf.server.tokens")

MARK = "tokens-made"  # in the home


def tokens_of_files(settings: Settings, token: str | None, ask_token: str | None) -> list[Token]:
    """Those of `--token-file` and `--ask-token-file`: they hold as long as the server runs."""
    found = []
    if token is not None:
        found.append(Token("admin", digest_of(token.encode()), frozenset(SCOPES), is_shared=True))
    if ask_token is not None:
        shares = Shares(
            row_class="bulk" if settings.ask_class == "bulk" else "interactive",
            priority=settings.ask_priority,
        )
        scopes: frozenset[Scope] = implied(("infer", "read"))
        found.append(Token("ask", digest_of(ask_token.encode()), scopes, shares=shares, is_shared=True))
    return found


class TokenRegistry:
    """The tokens that a registry has. Blocking.

    mark: a file that is there once one was made, so that a registry that is lost opens nothing; None = none.
    """

    def __init__(self, repository: TokenRepository, mark: Path | None = None) -> None:
        self._repository = repository
        self._mark = mark
        self._state: object = None

    def read(self) -> tuple[list[Token], bool]:
        """All that are not revoked, and whether there was ever one."""
        self._state = self._repository.state()
        stored = self._repository.all()
        ever_made = self._marked() if stored else self._is_marked()
        return [_token(each) for each in stored if each.revoked_at is None], ever_made

    def has_changed(self) -> bool:
        """Whether one was made or revoked since they were read."""
        return self._repository.state() != self._state

    def _marked(self) -> bool:
        if self._mark is not None:
            with contextlib.suppress(OSError):  # a full disk; it is tried again at the next start
                self._mark.touch(0o600)
        return True

    def _is_marked(self) -> bool:
        if self._mark is None or not self._mark.exists():
            return False
        log.error(
            "tokens were made here, and the registry has none: was it lost? Put a copy in its place, or "
            "start with --token-file and make new ones; to let all on this machine do everything, remove "
            "the file file=%s",
            self._mark,
        )
        return True


def _token(stored: StoredToken) -> Token:
    return Token(
        stored.name,
        stored.digest,
        implied(scope for scope in SCOPES if scope in stored.scopes),
        Grants.from_json(stored.grants),
        Shares.from_json(stored.shares),
        stored.users,
        None if stored.expires_at is None else stored.expires_at.timestamp(),
    )
