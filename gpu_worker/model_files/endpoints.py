"""URLs of models on other servers, and which of them an operator lets rows go to.

Pure but for the key of an endpoint, which is read from its file. Standard library only: the server refuses by
the same rules as the worker that would send.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

__all__ = ["NO_KEY", "AllowedEndpoints", "Endpoint", "EndpointKey", "EndpointRefused"]

_HOST: Final = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_PATH: Final = re.compile(
    r"(/[A-Za-z0-9_.~!$&'()*+,;:@-]+)*"
)  # no escapes: each way of writing is the only one
_QUERY: Final = re.compile(r"[A-Za-z0-9_.-]+=[A-Za-z0-9_.:,-]*(&[A-Za-z0-9_.-]+=[A-Za-z0-9_.:,-]*)*")
_SECRETS: Final = re.compile(r"key|token|secret|passw|pwd|sig|auth|credential|^code$|^se$", re.IGNORECASE)
_HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
# Headers by which a request is sent, or that are said otherwise.
_NO_KEY_HEADERS: Final = frozenset(
    (
        *("host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *(
            "accept",
            "accept-encoding",
            "expect",
            "upgrade",
            "te",
            "trailer",
            "inference-header-content-length",
        ),
    )
)
_PORTS: Final = {"http": 80, "https": 443}
_MOST_KEY_BYTES: Final = 8192


_KEYS_LIE: Final = "a key lies in a file, ml-udf serve --allow-remote URL=KEYFILE"


class EndpointRefused(ValueError):
    """Rows may not go there; the text says what an operator would have to allow."""


@dataclass(frozen=True, slots=True)
class EndpointKey:
    """What an endpoint wants with each request; it stands in no message, and in no `repr`."""

    word: str = field(default="", repr=False)
    header: str = ""  # "": a bearer's token

    @property
    def headers(self) -> dict[str, str]:
        """Of a request; none without a key."""
        if not self.word:
            return {}
        return {self.header: self.word} if self.header else {"Authorization": f"Bearer {self.word}"}


NO_KEY: Final = EndpointKey()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL without user or fragment. path: "" or "/a/b". query: of each request, "" or "api-version=1"."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @classmethod
    def parse(cls, url: object) -> Endpoint:
        """Raises `ValueError`, which never repeats a password."""
        if not isinstance(url, str) or not url or len(url) > 2000:
            raise ValueError("the URL of the endpoint is missing")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError(
                "the URL of the endpoint cannot be read: it should be like https://host/v1"
            ) from None
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise ValueError(f"the URL of an endpoint has no user, password or fragment: {_KEYS_LIE}")
        _check_query(parts.query)
        path = parts.path.rstrip("/")
        if parts.scheme not in _PORTS or not parts.hostname or not _HOST.fullmatch(parts.hostname):
            said = "this" if "@" in url else repr(url[:200])  # before it there may be a password
            raise ValueError(f"{said} is no URL of an endpoint: write http://host:port/… or https://host/…")
        if not _PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
            raise ValueError(f"the path of {url[:200]!r} is no plain one: no escapes, no '..'")
        return cls(parts.scheme, parts.hostname.lower(), port or _PORTS[parts.scheme], path, parts.query)

    @property
    def origin(self) -> str:
        """Scheme, host and port, as a URL has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def target(self, path: str) -> str:
        """What is asked of the host for a path, with the query."""
        return f"{path}?{self.query}" if self.query else path

    def is_below(self, other: Endpoint) -> bool:
        """Whether it is the other, or lies below it, whatever its query."""
        same = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        return same and (self.path == other.path or self.path.startswith(other.path + "/"))

    def __str__(self) -> str:
        return self.origin + self.target(self.path)


def _check_query(query: str) -> None:
    """Raises `ValueError` for what is no plain list of NAME=VALUE, or may be a key; it is not repeated."""
    if not query:
        return
    if not _QUERY.fullmatch(query):
        raise ValueError(
            "the query of an endpoint's URL must be NAME=VALUE, with & between several, no escapes"
        )
    for name in (each.partition("=")[0] for each in query.split("&")):
        if _SECRETS.search(name):
            raise ValueError(f"the query of an endpoint's URL may hold no {name[:100]!r}: {_KEYS_LIE}")


class AllowedEndpoints:
    """Prefixes of URLs, each perhaps with the file of the key that is sent there: `URL` or `URL=FILE`.

    allow_plain: whether http may leave this machine. Raises `ValueError` for what is no prefix.
    """

    def __init__(self, prefixes: Sequence[str] = (), *, allow_plain: bool = False) -> None:
        self._allow_plain = allow_plain
        self._allowed: list[tuple[Endpoint, str]] = []
        for each in prefixes:
            url, _, key_file = each.partition("=")
            endpoint = Endpoint.parse(url)
            if endpoint.query or "?" in url:
                raise ValueError(
                    f"{endpoint.origin}{endpoint.path} is allowed whatever the query: leave it out"
                )
            if key_file and not key_file.startswith(("/", "~")):
                raise ValueError(f"the key file of {endpoint} must be an absolute path")
            self._allowed.append((endpoint, os.path.expanduser(key_file)))

    def check(self, url: str) -> str:
        """The file of the key for that URL, "" for none. Raises `EndpointRefused`."""
        endpoint = Endpoint.parse(url)
        found = [pair for pair in self._allowed if endpoint.is_below(pair[0])]
        if not found:
            raise EndpointRefused(
                f"rows may not leave for {endpoint}: the operator has not allowed it; start the server with "
                f"--allow-remote {endpoint.origin}"
            )
        if endpoint.scheme == "http" and not endpoint.is_loopback and not self._allow_plain:
            raise EndpointRefused(
                f"rows may not leave for {endpoint} without TLS, where all on the way could read them and "
                "the key; use https, or start the server with --allow-remote-plain"
            )
        return max(found, key=lambda pair: len(pair[0].path))[1]

    def key_for(self, url: str) -> EndpointKey:
        """The key that is sent to that URL. Raises `EndpointRefused`."""
        path = self.check(url)
        return _read_key(path) if path else NO_KEY


def _read_key(path: str) -> EndpointKey:
    """One word, or `header: word`; never part of a message."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise EndpointRefused(f"the key file {path} is no regular file")
            if mode & 0o077:
                raise EndpointRefused(f"the key file {path} can be read by others; chmod 600 {path}")
            text = file.read(_MOST_KEY_BYTES + 1)
    except OSError as exc:
        raise EndpointRefused(f"the key file {path} cannot be read: {exc.strerror}") from exc
    header, colon, word = text.lstrip().partition(b": ")
    if not colon:
        header, word = b"", header
    word = word.strip()
    if not word or len(text) > _MOST_KEY_BYTES or not word.isascii() or any(byte <= 32 for byte in word):
        raise EndpointRefused(
            f"the key file {path} must hold one word of printable ASCII characters, "
            "or the name of a header before it, such as api-key: WORD"
        )
    name = header.decode("ascii", "replace")
    if name and (not _HEADER.fullmatch(name) or name.lower() in _NO_KEY_HEADERS):
        raise EndpointRefused(f"the key file {path} names a header that carries no key")
    return EndpointKey(word.decode(), name)
