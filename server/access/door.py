"""The door: who sends a request, and whether its route's rule lets them in. Decided by a head alone.

Before any of a body is kept. What a caller may see of what is behind it, `permissions` decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol
from urllib.parse import quote, unquote_to_bytes

from server.access.caller import Caller
from server.access.failed_logins import FailedLogins
from server.access.rules import CHANGING, NO_PAGE, Rule, rule_of
from server.access.sessions import Session, Sessions
from server.access.tokens import Tokens
from server.errors import (
    BadOption,
    Forbidden,
    LoginWanted,
    Unauthorized,
    UnknownFunction,
    WrongContentType,
)
from server.settings import is_loopback

__all__ = ["Access", "RequestHead", "claims_of", "wants_page"]

# A host and perhaps a port, whole: what a general parser of URLs lets through behind `]` or before `@` is
# another host to somebody else.
_HOST_PORT = rb"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z._-]+))(?::([0-9]{0,5}))?"
_AUTHORITY = re.compile(_HOST_PORT)
_PAGE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://" + _HOST_PORT)
_USER = b"ml-udf-user"
_DATABASE = b"ml-udf-database"
_MOST_CLAIMED = 400


class RequestHead(Protocol):
    """What is known of a request before its body: `server.http.request_head.Head`."""

    @property
    def method(self) -> str:
        """In capitals."""
        ...

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """By name in lower case."""
        ...

    @property
    def length(self) -> int | None:
        """Bytes of the body; None = it comes in chunks."""
        ...


class Access:
    """Decides on heads. `hosts` are names, beside those of loopback, by which a server without a token is
    known.
    """

    def __init__(self, tokens: Tokens, sessions: Sessions, *, hosts: Collection[str] = ()) -> None:
        self.tokens = tokens
        self.sessions = sessions
        self.failed = FailedLogins()
        self._hosts = frozenset(host.lower() for host in hosts)

    def check(self, head: RequestHead, path: str, address: str) -> Caller:
        """Who asks.

        Raises `Unauthorized`, `Forbidden`, `WrongContentType`; for a page that nobody is logged in to,
        `LoginWanted`.
        """
        rule = rule_of(head.method, path)
        changes = head.method not in ("GET", "HEAD")
        caller = self._caller(head, rule, path, address, changes)
        if changes and (rule.scope in CHANGING or rule.is_page) and head.length != 0:
            _check_content(head, rule.content)
        return caller

    def _caller(self, head: RequestHead, rule: Rule, path: str, address: str, changes: bool) -> Caller:
        if self.tokens.is_open:
            self._check_page(head, changes)
            user, database = claims_of(head)
            return Caller("", address, user=user, database=database)
        if rule.scope == "open" and not rule.is_page:
            return Caller("", address, frozenset())
        sent = _bearer(head.headers)
        if sent is None and rule.is_page:
            return self._browser(head, rule, path, address, changes)
        caller = None
        if sent is not None:
            user, database = claims_of(head)
            caller = self.tokens.caller(sent, address, user, database)
        if caller is None:
            raise Unauthorized("this server wants a bearer token, and none or another was sent")
        _check_scope(rule, caller)
        return caller

    def _browser(self, head: RequestHead, rule: Rule, path: str, address: str, changes: bool) -> Caller:
        # A cookie goes with whatever any page sends here. Browsers say of a request where it comes from.
        if changes and not _is_same_origin(head):
            raise Forbidden("pages of other sites may change nothing here; open this server's own page")
        session = self.session_of(head.headers, address)
        if session is not None and (rule.scope == "open" or rule.admits(session.caller)):
            return session.caller
        if rule.scope == "open":
            return Caller("", address, frozenset())
        if session is None:
            if wants_page(head.headers):
                raise LoginWanted(_login(path))
            raise Unauthorized("this server wants a bearer token, or a browser that is logged in")
        if rule is NO_PAGE:
            raise UnknownFunction("there is no such page here")
        _check_scope(rule, session.caller)
        raise AssertionError("unreachable")

    def session_of(self, headers: Mapping[bytes, bytes], address: str) -> Session | None:
        """That of the browser which sent a request; None for programs, and who is not logged in."""
        if _bearer(headers) is not None:
            return None
        if self.tokens.is_open:
            return self.sessions.open(address)
        cookie = _cookie(headers, self.sessions.cookie_name)
        return None if cookie is None else self.sessions.of_cookie(cookie, address)

    def _check_page(self, head: RequestHead, changes: bool) -> None:
        """A browser lets any page post to loopback, and names the page's host; a name that is made to point
        to loopback for a while makes the page's own host of it. Programs send no Origin, and say loopback.

        A page behind another port of this machine is somebody else's too: it may look, and a browser shows
        it nothing of the reply.
        """
        origin = head.headers.get(b"origin")
        if origin is not None and not self._is_own(page := _host_of(_PAGE, origin)):
            raise Forbidden("web pages of other hosts may not call a server without a token")
        if changes and origin is not None and page not in self._hosts and not _is_same_origin(head):
            raise Forbidden("web pages of other ports may only look at a server without a token")
        host = head.headers.get(b"host")
        if host is not None and not self._is_own(_host_of(_AUTHORITY, host)):
            raise Forbidden(
                "a server without a token answers to the names of this machine alone; "
                "--allowed-host adds one, --token-file makes names not matter"
            )

    def _is_own(self, host: str | None) -> bool:
        return host is not None and (is_loopback(host) or host in self._hosts)


def _host_of(form: re.Pattern[bytes], text: bytes) -> str | None:
    """The host of an origin, or of `host:port`; None if it has another form, or the port is no port."""
    match = form.fullmatch(text)
    if match is None:
        return None
    address, name, port = match.groups()
    if port and not 0 < int(port) < 1 << 16:
        return None
    found: bytes = address or name
    return found.decode("ascii").lower()


def _check_content(head: RequestHead, content: Iterable[str]) -> None:
    given = head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if given not in content:
        wanted = " or ".join(sorted(one for one in content if one))
        raise WrongContentType(f"the body's content type must be {wanted}, not {given[:100] or 'left out'}")


def wants_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks, for somebody to read."""
    return b"text/html" in headers.get(b"accept", b"")


def _bearer(headers: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
    return sent.strip() if scheme.lower() == b"bearer" else None


def claims_of(head: RequestHead) -> tuple[str, str]:
    """The user and the database that the SQL side names, by the word of its token; "" for none.

    Raises `BadOption`.
    """
    return _claimed(head, _USER), _claimed(head, _DATABASE)


def _claimed(head: RequestHead, name: bytes) -> str:
    """Percent-encoded UTF-8."""
    raw = head.headers.get(name)
    if raw is None:
        return ""
    try:
        if len(raw) > _MOST_CLAIMED:
            raise ValueError
        text = unquote_to_bytes(raw).decode()
        if "\0" in text:
            raise ValueError
        return text
    except ValueError:
        raise BadOption(
            f"the header {name.decode()} is no name in percent-encoded UTF-8 of up to {_MOST_CLAIMED} bytes"
        ) from None


def _cookie(headers: Mapping[bytes, bytes], name: str) -> str | None:
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return None


def _is_same_origin(head: RequestHead) -> bool:
    """Whether a browser says that a page of this very host and port sent it."""
    site = head.headers.get(b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin"
    origin, host = head.headers.get(b"origin"), head.headers.get(b"host")
    return origin is not None and host is not None and origin.partition(b"://")[2] == host


def _check_scope(rule: Rule, caller: Caller) -> None:
    if not rule.admits(caller):
        wanted = "infer or read" if rule.scope == "use" else rule.scope
        had = ", ".join(sorted(caller.scopes))
        raise Forbidden(
            f"this needs a token with the scope {wanted}; the one that was sent has {had}", caller.token
        )


def _login(path: str) -> str:
    """Where to log in, as it is called on a page of this path: under whatever prefix that is."""
    inner = path.lstrip("/")
    return f"{'../' * inner.count('/')}login?next={quote(inner, safe='/')}"
