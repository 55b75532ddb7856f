"""Who may ask a server: its tokens as calls, for the command line and the SDK. Plain JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ml_udf.client import Client

__all__ = ["TokenCalls"]

Json = dict[str, Any]


class TokenCalls:
    """Every call raises the errors of `ml_udf.errors`; but for `login_link` they need the scope admin."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        patterns: Mapping[str, Sequence[str]] | None = None,
        shares: Mapping[str, float | str] | None = None,
        users: Sequence[str] = (),
        expires: str | None = None,
    ) -> Json:
        """A new token, with its `secret`, which is told this once.

        patterns: by functions, models, datasets, sources, media_roots. shares: as docs/access.md has them.
        users: patterns of database users that it may speak for. expires: "90d", or a day; None = never.
        """
        return self._client.post(
            "/v1/tokens",
            {
                "name": name,
                "scopes": list(scopes),
                **{kind: list(found) for kind, found in (patterns or {}).items()},
                "shares": dict(shares or {}),
                "users": list(users),
                "expires": expires,
            },
        )

    def all(self) -> list[Json]:
        """Every one, revoked ones too, without their secrets."""
        found: list[Json] = self._client.get("/v1/tokens")["tokens"]
        return found

    def revoke(self, name: str) -> None:
        """It counts no more."""
        self._client.delete(f"/v1/tokens/{quote(name, safe='')}")

    def login_link(self) -> tuple[str, int | None]:
        """Where a browser logs in once as the client's token, and for how many seconds that holds.

        None for the seconds: the server wants no tokens, and the link is its first page.
        """
        made = self._client.post("/v1/login-links", {})
        return f"{self._client.answering.rstrip('/')}/{made['path']}", made["expires_s"]
