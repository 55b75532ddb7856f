"""Which endpoint a foreign server stands for, and the token that the caller's user mapping holds for it.

Only the owner of a server may read a PUBLIC mapping, and a token must reach no user. So a SECURITY DEFINER
function without arguments and without a result, `ml_udf._read_mapping()`, reads it: what it shall read is
left here by Python code that users cannot write, and what it found stays here.

A function that was made for a server asks that server alone: a name can be taken by another after a
DROP SERVER, so the function holds the server's oid and owner too (`Bound`).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ml_udf.client import Client
from ml_udf.client.claim import Claim
from ml_udf.client.endpoints import endpoints_of
from ml_udf.client.request_pool import signals_blocked
from ml_udf.errors import BadOption
from ml_udf.postgres.allowed import FILE_NAME, check_allowed
from ml_udf.postgres.backend import Backend
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.spi import Spi

__all__ = ["Bound", "Endpoints"]

_MAX_CLIENTS = 8
_FOREIGN_SERVER = 1417  # the catalogs' own oids, fixed since the catalogs exist
_USER_MAPPING = 1418
_FILES = ("sslrootcert", "sslcert", "sslkey")
_ALLOWED = {_FOREIGN_SERVER: ("url", "allow_plain", *_FILES), _USER_MAPPING: ("token",)}
_WHAT = {_FOREIGN_SERVER: "a server", _USER_MAPPING: "a user mapping"}

# A role's own mapping goes before PUBLIC's, which has umuser 0.
_MAPPING = """
    SELECT s.srvoptions AS server_options,
           (SELECT u.umoptions FROM pg_catalog.pg_user_mapping u
            WHERE u.umserver = s.oid AND u.umuser IN (0, $2) ORDER BY u.umuser DESC LIMIT 1) AS user_options,
           pg_catalog.has_server_privilege($2, s.oid, 'USAGE') AS usable,
           s.oid::text AS oid, r.rolname::text AS owner, r.rolsuper AS of_superuser,
           pg_catalog.pg_get_userbyid($2)::text AS caller, pg_catalog.current_database()::text AS database
    FROM pg_catalog.pg_foreign_server s JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw
    JOIN pg_catalog.pg_roles r ON r.oid = s.srvowner
    WHERE s.srvname = $1 AND w.fdwname = 'ml_udf'"""


_RIGHTS = """
    SELECT pg_catalog.pg_has_role(current_user, 'pg_read_server_files', 'USAGE') AS reads_files,
           r.rolsuper AS is_superuser FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"""


@dataclass(frozen=True, slots=True)
class Bound:
    """The foreign server that a function was made for. A dump keeps names, and gives new oids."""

    oid: str | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """How a server is reached."""

    url: str
    token: str | None = field(repr=False)
    allow_plain: bool
    sslrootcert: str | None
    sslcert: str | None
    sslkey: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], token: str | None) -> _Endpoint:
        """By the options of a foreign server. Raises `BadOption`."""
        plain = options.get("allow_plain", "false").lower()
        if plain not in ("true", "false"):
            raise BadOption(f"allow_plain is true or false, not {plain!r}")
        return cls(options.get("url", ""), token, plain == "true", *map(options.get, _FILES))

    def connected(self) -> Client:
        """A client; nothing is sent yet. Raises `BadOption`."""
        return Client(
            self.url,
            token=self.token,
            allow_plain=self.allow_plain,
            sslrootcert=self.sslrootcert,
            sslcert=self.sslcert,
            sslkey=self.sslkey,
        )


@dataclass(frozen=True, slots=True)
class _Server:
    """A foreign server as the catalogs have it."""

    endpoint: _Endpoint
    usable: bool
    oid: str
    owner: str
    of_superuser: bool
    claim: Claim  # of who asks

    def is_bound_to(self, bound: Bound) -> bool:
        """Whether it is the server that a function was made for, as far as can be seen."""
        if bound.oid is None and bound.owner is None:  # made before functions held it
            return self.of_superuser
        return self.oid == bound.oid or self.owner == bound.owner


class Endpoints:
    """The clients of this session, by the options of servers and mappings at the time of asking."""

    def __init__(self, spi: Spi, backend: Backend, local_path: str) -> None:
        self._spi = spi
        self._backend = backend
        self._local_path = local_path
        self._asked: tuple[str, int] | None = None
        self._found: _Server | None = None
        self._clients: OrderedDict[_Endpoint, Client] = OrderedDict()
        # share/ml_udf/servers.allow, beside share/ml_udf/VERSION/ml_udf, which is this package
        self._allowed = Path(__file__).parents[3] / FILE_NAME

    def client(self, server: str, *, needs_usage: bool, bound: Bound | None = None) -> Client:
        """The client of `server` for current_user, in whose name it asks. Raises `PostgresError`.

        The connections are the session's: users that change, as behind a pooler, share them.

        needs_usage  whether the right to use the server is asked for; a function that somebody created on
                     it, and granted EXECUTE on, needs none
        bound        the server that such a function was made for: another of the same name is not asked
        """
        found = self._looked_up(server)
        if needs_usage and not found.usable:
            raise PostgresError(
                "42501",
                f"permission denied for server {server!r}",
                hint=f"the server's owner can GRANT USAGE ON FOREIGN SERVER {server} TO you, or EXECUTE on a"
                " function made by ml_udf.create_function",
            )
        if bound is not None and not found.is_bound_to(bound):
            raise PostgresError(
                "42501",
                f"server {server!r} is not the one that this function was made for: it belongs to"
                f" {found.owner!r} now",
                hint="if it shall answer, the function's owner can call ml_udf.create_function again",
            )
        url = found.endpoint.url
        if not (found.of_superuser or url.startswith("local:")):
            self._check_allowed(url)
        client = self._connected(found.endpoint)
        return client if url.startswith("local:") else client.on_behalf_of(found.claim)

    def bound(self, server: str) -> Bound:
        """What a function that is made for `server` now has to hold. Raises `PostgresError`."""
        found = self._looked_up(server)
        return Bound(found.oid, found.owner)

    def _looked_up(self, server: str) -> _Server:
        self._asked, self._found = (server, self._backend.role()), None
        try:
            self._spi.rows("SELECT ml_udf._read_mapping()")
            found = self._found
        finally:
            self._asked = self._found = None
        if found is None:
            raise PostgresError(
                "42704",
                f"there is no server {server!r} of the foreign-data wrapper ml_udf",
                hint="CREATE SERVER … FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'http://host:port')",
            )
        return found

    def read(self) -> None:
        """The body of `ml_udf._read_mapping()`: runs with its owner's rights, on what `client` asked."""
        if self._asked is None:
            raise PostgresError("42501", "ml_udf._read_mapping() is for ml_udf's own use")
        server, role = self._asked
        row = self._spi.row(_MAPPING, ("name", server), ("oid", role))
        if row is not None:
            token = _parsed(row["user_options"]).get("token")
            self._found = _Server(
                _Endpoint.of(_parsed(row["server_options"]), token),
                bool(row["usable"]),  # NULL of a server that is gone since the transaction's snapshot
                row["oid"],
                row["owner"],
                row["of_superuser"],
                Claim(row["caller"], row["database"]),
            )

    def validate(self, options: Sequence[str], catalog: int) -> None:
        """The foreign-data wrapper's validator. Raises `BadOption`, `PostgresError`; never shows a value."""
        allowed = _ALLOWED.get(catalog, ())
        given = _parsed(options)
        for name in given:
            if name not in allowed:
                what = _WHAT.get(catalog, "this object")
                known = f"allowed: {', '.join(allowed)}" if allowed else "it has none"
                raise BadOption(f"{what} of ml_udf has no option {name!r}", hint=known)
        if catalog == _FOREIGN_SERVER:
            self._validate_server(given)
        if "token" in given and not _is_token(given["token"]):
            raise BadOption(
                "the token is not a token: it has to be printable ASCII without blanks, and not empty",
                hint="give it as the inference server was given it; drop the mapping to use none",
            )

    def _validate_server(self, options: Mapping[str, str]) -> None:
        endpoint = _Endpoint.of(options, None)
        url = endpoint.url
        if not url:
            raise BadOption(
                "a server of ml_udf needs the option url", hint="OPTIONS (url 'http://host:port')"
            )
        is_local = url.startswith("local:")
        row = self._spi.row(_RIGHTS)
        reads_files = is_local or any(name in options for name in _FILES)
        if reads_files and not (row and row["reads_files"]):
            raise PostgresError(
                "42501",
                "local: endpoints, sslrootcert, sslcert and sslkey read files on the database's host",
                hint="only superusers and members of pg_read_server_files may create them",
            )
        if is_local:
            return
        endpoint.connected().close()
        if not (row and row["is_superuser"]):
            self._check_allowed(url)

    def _check_allowed(self, url: str) -> None:
        for endpoint in endpoints_of(url):
            check_allowed(endpoint, self._allowed)

    def _connected(self, endpoint: _Endpoint) -> Client:
        client = self._clients.get(endpoint)
        if client is None:
            if endpoint.url.startswith("local:"):
                self._find_local_packages()
            try:
                # Libraries that start threads when imported must start them deaf to PostgreSQL's signals.
                with signals_blocked():
                    client = self._clients[endpoint] = endpoint.connected()
            except OSError as exc:  # local: alone reads files, as the user that the server runs as
                raise PostgresError(
                    "58030",
                    f"{endpoint.url} cannot be read by this server's user: {exc.strerror}",
                    hint="give that user the right to read the folder and to enter those above it",
                ) from exc
        self._clients.move_to_end(endpoint)
        while len(self._clients) > _MAX_CLIENTS:
            _, oldest = self._clients.popitem(last=False)
            oldest.close()
        return client

    def _find_local_packages(self) -> None:
        if not self._local_path:
            raise PostgresError(
                "55000",
                "local: endpoints need torch, and ml_udf was installed without it",
                hint="on the database's host: ml-udf postgres install --local",
            )
        if self._local_path not in sys.path:
            sys.path.append(self._local_path)


def _parsed(options: Sequence[str] | None) -> dict[str, str]:
    """`['url=http://…']`, the form of the catalogs, as a dictionary."""
    return dict(option.split("=", 1) for option in options or ())


def _is_token(token: str) -> bool:
    return token.isascii() and token.isprintable() and bool(token) and " " not in token
