"""The certificates of a connection, for `ml-udf doctor`: whose they are, and how long they are good for."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ml_udf.cli.findings import Finding, failed, found, noted
from ml_udf.cli.server_options import ServerOptions
from ml_udf.client.tls import ClientTls
from ml_udf.errors import MlUdfError

__all__ = ["check_certificates"]

_CONNECT_S = 5.0
_DAY_S = 86_400.0
_SOON_DAYS = 30
_RENEW = "renew it, and send the server SIGHUP: docs/tls.md"


def check_certificates(server: ServerOptions) -> Iterator[Finding]:
    """Of an https:// endpoint. Says nothing where there is no connection: whoever asks next will."""
    if not server.endpoint.startswith("https://"):
        return
    try:
        version, shown = _shown(server)
    except (OSError, ValueError, MlUdfError):  # ssl.SSLError is an OSError
        return
    names = ", ".join(name for _, name in shown.get("subjectAltName", ()))
    yield _of_age(
        f"{version}; the server's certificate, for {names},",
        ssl.cert_time_to_seconds(shown["notAfter"]),
        _RENEW,
    )
    if server.sslcert is not None:
        yield from _check_own(Path(server.sslcert))


def _shown(server: ServerOptions) -> tuple[str, Any]:
    """The version of TLS, and the server's certificate as `ssl` has it. Raises OSError, `BadOption`."""
    parts = urlsplit(server.endpoint)
    context = ClientTls(server.sslrootcert, server.sslcert, server.sslkey).context()
    with (
        socket.create_connection((parts.hostname or "", parts.port or 443), _CONNECT_S) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as secure,
    ):
        return secure.version() or "TLS", secure.getpeercert()


def _check_own(file: Path) -> Iterator[Finding]:
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        return
    chain: Sequence[x509.Certificate] = x509.load_pem_x509_certificates(file.read_bytes())
    ends_s = min(one.not_valid_after_utc.timestamp() for one in chain)
    yield _of_age(f"the certificate of --sslcert {file}", ends_s, "have a new one signed: docs/tls.md")


def _of_age(what: str, ends_s: float, mend: str) -> Finding:
    days = int((ends_s - time.time()) // _DAY_S)
    if days < 0:
        return failed(f"{what} has expired", mend)
    text = f"{what} is good for {'1 more day' if days == 1 else f'{days} more days'}"
    return noted(text, mend) if days < _SOON_DAYS else found(text)
