"""The server's certificate: its files → a context for connections, and how long it is good for.

    TlsFiles → Tls.read → a context for connections, certificates
    Tls.read_again → the next one, or `TlsError` where the new files are no better than the old

A client that is refused is told why: by the alert of TLS, and one that speaks plain HTTP by a reply in plain
HTTP. Knows no sockets and no settings.
"""

from __future__ import annotations

import json
import logging
import ssl
import stat
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

__all__ = ["Certificate", "Tls", "TlsError", "TlsFiles"]

log = logging.getLogger("ml_udf.server")

WARN_BEFORE = timedelta(days=30)

_PLAIN = json.dumps({"error": "bad_option: this port speaks TLS; ask it by https://, not http://"}).encode()
_PLAIN_REPLY = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_PLAIN), _PLAIN)
)


class TlsError(Exception):
    """Files that cannot be used; the text says which, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. key: None = in `cert`, too · client_ca: None = clients need no certificate."""

    cert: Path
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of one of the files. flag: the setting that named the file."""

    flag: str
    name: str
    begins: datetime
    ends: datetime

    def warning(self, now: datetime) -> str:
        """What is wrong with it, or will be within 30 days; "" if nothing."""
        whose = f"{self.flag}: the certificate of {self.name}"
        left = self.ends - now
        if left <= timedelta(0):
            return f"{whose} has expired, on {self.ends:%Y-%m-%d}"
        if self.begins > now:
            return f"{whose} is not good before {self.begins:%Y-%m-%d %H:%M} UTC"
        if left <= WARN_BEFORE:
            days = "1 day" if left.days == 1 else f"{left.days} days"
            return f"{whose} expires in {days}, on {self.ends:%Y-%m-%d}"
        return ""


@dataclass(frozen=True, slots=True)
class Tls:
    """What one reading of the files gave. open_key: the private key's file, if other users may read it."""

    files: TlsFiles
    context: ssl.SSLContext
    certificates: tuple[Certificate, ...]
    open_key: Path | None

    @classmethod
    def read(cls, files: TlsFiles) -> Tls:
        """Raises `TlsError`."""
        certificates = _certificates("--tls-cert", files.cert)
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        is_open = _load_key(context, files)
        if files.client_ca is not None:
            certificates += _certificates("--tls-client-ca", files.client_ca)
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return cls(files, context, tuple(certificates), (files.key or files.cert) if is_open else None)

    def read_again(self, now: datetime) -> Tls:
        """What the files hold now. Raises `TlsError`, too where that has expired and this has not."""
        new = Tls.read(self.files)
        expired = new._expired(now)
        if expired is not None and self._expired(now) is None:
            raise TlsError(expired.warning(now))
        return new

    def warnings(self, now: datetime) -> list[str]:
        """What an operator should look at."""
        warnings = [warning for one in self.certificates if (warning := one.warning(now))]
        if self.open_key is not None:
            warnings.append(f"the private key {self.open_key} is for other users to read: chmod 600 it")
        return warnings

    def _expired(self, now: datetime) -> Certificate | None:
        """One that the server shows, and that no client believes any more."""
        shown = (one for one in self.certificates if one.flag == "--tls-cert")
        return next((one for one in shown if one.ends <= now), None)


class _Context(ssl.SSLContext):
    """Makes connections that tell a client why it is refused."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **how: Any) -> Any:  # noqa: ANN401  # as ssl's own
        self.sslobject_class = _Telling
        made = super().wrap_bio(incoming, outgoing, *given, **how)
        made.incoming, made.outgoing = incoming, outgoing  # type: ignore[attr-defined]  # a `_Telling`
        return made


class _Telling(ssl.SSLObject):
    """An event loop closes a connection whose handshake failed, and drops what was to be sent: the alert.

    So the failure is not said: the loop sends what there is, the client reads why, and closes. One that does
    not is closed at the end of the time that a handshake has; what it sends meanwhile is dropped. Closed at
    once, its own bytes under way would take the alert back.
    """

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _has_failed = False

    def do_handshake(self) -> None:
        """As `ssl.SSLObject.do_handshake`."""
        if self._has_failed:
            self.incoming.read()
            raise ssl.SSLWantReadError
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.info("TLS refused reason=%s", (error.reason or type(error).__name__).lower())
            if error.reason == "HTTP_REQUEST":
                self.outgoing.write(_PLAIN_REPLY)
            if not self.outgoing.pending:
                raise
            self._has_failed = True
            raise ssl.SSLWantReadError from error


def _load_key(context: ssl.SSLContext, files: TlsFiles) -> bool:
    """Whether others than its owner and its group may read the private key."""
    key, flag = files.key or files.cert, "--tls-key" if files.key else "--tls-cert"
    try:
        mode = key.stat().st_mode
        if not stat.S_ISREG(mode):  # a pipe would keep whoever opens it waiting
            raise TlsError(f"{flag} {key} is not a regular file")
        key.open("rb").close()
    except OSError as exc:
        raise TlsError(f"{flag} {key} cannot be read: {exc.strerror}") from exc
    try:
        context.load_cert_chain(files.cert, key, password=_no_password)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        where = f"--tls-key {key}" if files.key else "no --tls-key is given, so its key too"
        raise TlsError(
            f"--tls-cert {files.cert} ({where}) must hold a certificate and its own private key: {exc}"
        ) from exc
    return bool(mode & (stat.S_IWGRP | stat.S_IRWXO))


def _certificates(flag: str, file: Path) -> list[Certificate]:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # as above; and it is read again at each renewal
            raise TlsError(f"{flag} {file} is not a regular file")
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as exc:
        raise TlsError(f"{flag} {file} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise TlsError(f"{flag} {file} holds no certificate (PEM): {exc}") from exc
    return [Certificate(flag, _name(one), one.not_valid_before_utc, one.not_valid_after_utc) for one in found]


def _name(certificate: x509.Certificate) -> str:
    """The names that it is for; of one without, an authority's, whose it is."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return certificate.subject.rfc4514_string()
    return ", ".join(str(name.value) for name in names)


def _no_password() -> str:
    raise ValueError("the private key wants a password; store it without one, readable by the server alone")
