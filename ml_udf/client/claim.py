"""On whose behalf a client asks: a database's user, said with each request.

It is a claim of the token that goes with it: the server notes it, may refuse for it, and grants nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote

from ml_udf.client.transport import Abort, HttpRequest, HttpResponse, Transport
from ml_udf.errors import BadOption

__all__ = ["NO_CLAIM", "Claim", "ClaimingTransport"]

MOST_BYTES = 400
"""Of a header's value. A name of 63 bytes, which is PostgreSQL's longest, has 189 at most."""


def _encoded(text: str) -> str:
    return quote(text, safe="", errors="replace")


@dataclass(frozen=True, slots=True)
class Claim:
    """Names as the database has them; "" says nothing. Raises `BadOption` for one that is too long."""

    user: str = ""
    database: str = ""

    def __post_init__(self) -> None:
        for name, text in (("user", self.user), ("database", self.database)):
            if len(_encoded(text)) > MOST_BYTES:
                raise BadOption(f"the {name} is too long", hint="use a name of up to 130 letters")

    def headers(self) -> dict[str, str]:
        """Percent-encoded UTF-8, by header."""
        said = {"ML-UDF-User": _encoded(self.user), "ML-UDF-Database": _encoded(self.database)}
        return {name: text for name, text in said.items() if text}


NO_CLAIM = Claim()


class ClaimingTransport:
    """Another transport, whose requests carry a claim. Its connections are those of the other."""

    def __init__(self, inner: Transport, claim: Claim) -> None:
        self._inner = inner
        self._headers = claim.headers()

    def send(self, request: HttpRequest, *, timeout_s: float, abort: Abort) -> HttpResponse:
        """See `Transport.send`."""
        claiming = replace(request, headers={**request.headers, **self._headers})
        return self._inner.send(claiming, timeout_s=timeout_s, abort=abort)

    def close(self) -> None:
        """Close the other."""
        self._inner.close()
