"""TLS as a client sees it: whom it believes, what it shows, and what a failure means.

    sslrootcert, sslcert, sslkey → ClientTls → a context, made anew where the files have changed
    ssl.SSLError → failure_of → TlsFailed, whose hint says what to mend on which side

The names of the files are libpq's, and so is the rule of who may read a private key. Knows no HTTP.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator

from ml_udf.errors import BadOption, TlsFailed

__all__ = ["ClientTls", "failure_of", "is_alert"]

# OpenSSL's numbers, X509_V_ERR_…: a certificate's time, and the names that it is for.
_TIMES = {9, 10}
_NAMES = {62, 63, 64}
# Parts of OpenSSL's reasons, which are longer or shorter by its version.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER", "UNEXPECTED_EOF", "PACKET_LENGTH")


class ClientTls:
    """The files of one endpoint; sslkey None = the key is in sslcert, too. Raises `BadOption`."""

    def __init__(self, sslrootcert: str | None, sslcert: str | None, sslkey: str | None) -> None:
        if sslkey is not None and sslcert is None:
            raise BadOption(
                "sslkey is the key of a certificate, and none is named", hint="name its file too: sslcert"
            )
        self._sslrootcert = sslrootcert
        self._sslcert = sslcert
        self._sslkey = sslkey
        self._stamps = self._stamps_now()
        self._context = self._made()

    def context(self) -> ssl.SSLContext:
        """For a connection that is made now: a certificate may have been renewed. Raises `BadOption`."""
        stamps = self._stamps_now()
        if stamps != self._stamps:
            self._context, self._stamps = self._made(), stamps
        return self._context

    def _made(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._sslrootcert)
        except OSError as exc:  # ssl.SSLError too: no certificate in it
            raise BadOption(
                f"sslrootcert {self._sslrootcert!r} cannot be read as certificates (PEM): {_reason(exc)}"
            ) from exc
        if self._sslcert is not None:
            try:
                context.load_cert_chain(self._sslcert, self._sslkey, password=_no_password)
            except (OSError, ValueError) as exc:
                raise BadOption(
                    f"sslcert {self._sslcert!r} cannot be read as a certificate (PEM) with its own private"
                    f" key: {_reason(exc)}",
                    hint="sslkey names the file of the key, where that is not in sslcert",
                ) from exc
            _check_key(self._sslkey or self._sslcert, "sslcert" if self._sslkey is None else "sslkey")
        return context

    def _stamps_now(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(_stamps([self._sslrootcert, self._sslcert, self._sslkey]))


def failure_of(endpoint: str, error: ssl.SSLError) -> TlsFailed:
    """What went wrong with TLS to an endpoint, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"the certificate of {endpoint} is not trusted: {error.verify_message.rstrip('.').lower()}",
            hint=_of_certificate(error.verify_code),
        )
    reason = error.reason or ""
    if "CERTIFICATE_REQUIRED" in reason:
        return TlsFailed(
            f"{endpoint} wants a certificate of its clients, and none was shown",
            hint="sslcert and sslkey name the files (PEM) of one that an authority of its --tls-client-ca has"
            " signed",
        )
    if "ALERT" in reason:
        return TlsFailed(
            f"{endpoint} refused TLS: {_words(reason.partition('ALERT_')[2])}",
            hint="it may want another certificate than that of sslcert and sslkey: one that has not expired,"
            " of an authority of its --tls-client-ca; its log says why",
        )
    what = "what answers does not speak it" if any(part in reason for part in _NOT_TLS) else _words(reason)
    return TlsFailed(
        f"TLS with {endpoint} failed: {what}",
        hint="does it serve https (ml-udf serve --tls-cert)? where it does not, write http://",
    )


def is_alert(error: ssl.SSLError) -> bool:
    """Whether the other side says that it will not: it has read no request."""
    return "ALERT" in (error.reason or "")


def _of_certificate(verify_code: int) -> str:
    if verify_code in _TIMES:
        return (
            "renew it and send the server SIGHUP (docs/tls.md); where it is good still, a clock is wrong:"
            " the server's, or this machine's"
        )
    if verify_code in _NAMES:
        return (
            "write in the url a name that the certificate is for (openssl x509 -noout -ext subjectAltName"
            " shows them), or have one issued for this name"
        )
    return (
        "sslrootcert names the file of the authorities (PEM) that may vouch for it: is the one that signed it"
        " there?"
    )


def _check_key(path: str, option: str) -> None:
    """As libpq has it: a key is its user's alone; root's may be read by a group. Raises `BadOption`."""
    found = os.stat(path)
    is_roots = found.st_uid == 0 and os.geteuid() != 0
    others = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO if is_roots else stat.S_IRWXG | stat.S_IRWXO
    if found.st_mode & others:
        raise BadOption(
            f"{option} {path!r} holds a private key that other users may read",
            hint="chmod 600 it; where root owns it, 640 will do",
        )


def _stamps(paths: list[str | None]) -> Iterator[tuple[int, int, int]]:
    for path in paths:
        try:
            found = None if path is None else os.stat(path)
        except OSError:
            found = None  # reading it will say so
        yield (0, 0, 0) if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _no_password() -> str:
    raise ValueError("the private key wants a password; store it without one, readable by its user alone")


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError) and exc.reason:
        return _words(exc.reason)
    return (getattr(exc, "strerror", None) or str(exc)).lower()


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower() or "it gave no reason"
