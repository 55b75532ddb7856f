"""Browsers: a token typed once becomes a cookie, and a change says that it comes from a page of ours.

A cookie says which token it stands for, which session it is and until when, signed with a key of the
registry: so it outlives a restart, and counts no more when its token is revoked, or its session ended. A link
logs in once. No I/O.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from server.access.caller import Caller
from server.access.token import Token
from server.access.tokens import Tokens

__all__ = ["Session", "Sessions"]

_SESSION_S = 30 * 24 * 3600.0
_LINK_S = 600.0
_MOST_LINKS = 1000
_MOST_LINKS_OF_TOKEN = 10
_OPEN = "open"
_COOKIE = "session 2"  # another word for each form that cookies have had: those of before count no more


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that is logged in. csrf: what its changes must bring along."""

    caller: Caller
    csrf: str
    expires_s: float | None


class Sessions:
    """Cookies and links of the tokens that count now. key: of the registry. clock: Unix seconds."""

    def __init__(self, tokens: Tokens, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._key = key
        self._clock = clock
        self._links: dict[str, tuple[str, float]] = {}
        # Browsers send cookies to every port of a host: two servers' must not be called the same.
        self.cookie_name = f"ml_udf_{self._mac('name')[:8]}"

    def begin(self, token: Token) -> tuple[str, float]:
        """A cookie's value that stands for a token, and the seconds that it is good for."""
        now_s = self._clock()
        lasts_s = min(_SESSION_S, (token.expires_s or float("inf")) - now_s)
        # In the order in which they began: see `EndedSessions`.
        id = f"{int(now_s * 1000):012x}{secrets.token_hex(12)}"
        said = json.dumps([token.digest, now_s + lasts_s, id]).encode()
        text = base64.urlsafe_b64encode(said).decode().rstrip("=")
        return f"{text}.{self._mac(_COOKIE, text)}", lasts_s

    def of_cookie(self, value: str, address: str) -> Session | None:
        """The session of a cookie; None if it is no cookie of ours, or is over, or its token revoked."""
        text, _, mac = value.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(_COOKIE, text).encode()):
            return None
        digest, expires_s, id = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        token = self._tokens.of_digest(digest)
        if token is None or self._clock() >= expires_s or self._tokens.ended.has(digest, id):
            return None
        caller = replace(token.caller(address), session=id)
        return Session(caller, self._mac("csrf", text), expires_s)

    def open(self, address: str) -> Session:
        """That of a browser on this machine, where the server has no tokens."""
        return Session(Caller("", address), self._mac("csrf", _OPEN), None)

    def is_csrf(self, session: Session, given: str) -> bool:
        """Whether this is what a page of the session's would send."""
        return hmac.compare_digest(given.encode(), session.csrf.encode())

    def link_of(self, caller: Caller) -> str | None:
        """A code that logs in as a caller's token does; None if it counts no more."""
        token = self._tokens.of_digest(caller.digest)
        return None if token is None else self.link(token)

    def link(self, token: Token) -> str:
        """A code that logs in once, within ten minutes, as this token."""
        now_s = self._clock()
        self._links = {code: found for code, found in self._links.items() if found[1] > now_s}
        # A token's oldest go for its own new ones: nobody takes others' links away.
        own = [code for code, (digest, _) in self._links.items() if digest == token.digest]
        for code in own[: max(0, len(own) + 1 - _MOST_LINKS_OF_TOKEN)]:
            del self._links[code]
        while len(self._links) >= _MOST_LINKS:
            del self._links[next(iter(self._links))]
        code = secrets.token_urlsafe(24)
        self._links[_hash(code)] = (token.digest, now_s + _LINK_S)
        return code

    def linked(self, code: str) -> Token | None:
        """The token that a code stands for, as long as nobody has followed it."""
        digest, until_s = self._links.get(_hash(code), ("", 0.0))
        return self._tokens.of_digest(digest) if self._clock() < until_s else None

    def follow(self, code: str) -> Token | None:
        """The same, the first time."""
        token = self.linked(code)
        self._links.pop(_hash(code), None)
        return token

    def _mac(self, *texts: str) -> str:
        return hmac.new(self._key, "\0".join(texts).encode(), hashlib.sha256).hexdigest()


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
