"""Two processes that meet at a TCP port and share a token: each proves to the other that it has it.

    server → worker   nonce (32 bytes)
    worker → server   nonce (32) | HMAC-SHA256(token, "worker" | both nonces)
    server → worker   HMAC-SHA256(token, "server" | both nonces)

The token itself never travels, and a proof is good for one connection. Between machines TLS 1.3 follows on
the same connection, each side's certificate made for that one meeting and known to the other beforehand:
whoever sits between them can neither read nor change what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hmac
import os
import secrets
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "TOKEN_BYTES",
    "Identity",
    "PeerRefused",
    "admit_server",
    "new_identity",
    "prove_as_server",
    "tls_context",
]

TOKEN_BYTES = 32
_NONCE_BYTES = 32
_PROOF_BYTES = 32


class PeerRefused(Exception):
    """Who is at the other end of a connection has not shown that it has the token."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate that signs itself, and its private key, in PEM. The key never leaves its machine."""

    certificate: str
    private_key: str


async def prove_as_server(connection: socket.socket, token: bytes) -> None:
    """On a connection to a worker. Raises `PeerRefused`, `OSError`; the caller bounds its time."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, nonce)
    reply = await _receive(connection, _NONCE_BYTES + _PROOF_BYTES)
    both = nonce + reply[:_NONCE_BYTES]
    if not hmac.compare_digest(reply[_NONCE_BYTES:], _proof(token, b"worker", both)):
        raise PeerRefused("who listens at the worker's port has not the token")
    await loop.sock_sendall(connection, _proof(token, b"server", both))


async def admit_server(connection: socket.socket, token: bytes) -> None:
    """On a connection that came in at a worker. Raises as `prove_as_server` does."""
    loop = asyncio.get_running_loop()
    both = await _receive(connection, _NONCE_BYTES)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    both += nonce
    await loop.sock_sendall(connection, nonce + _proof(token, b"worker", both))
    if not hmac.compare_digest(await _receive(connection, _PROOF_BYTES), _proof(token, b"server", both)):
        raise PeerRefused("who connected has not the token")


def new_identity() -> Identity:
    """One for a meeting that begins within a day."""
    # Not light, and needed between machines only.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ml_udf worker link")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)  # clocks of two machines differ
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .sign(key, hashes.SHA256())
    )
    return Identity(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


def tls_context(own: Identity, other_certificate: str, *, is_server: bool) -> ssl.SSLContext:
    """TLS 1.3 with exactly that other. is_server: in TLS's sense, who was connected to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # its certificate is known itself
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=other_certificate)
    # The library reads keys from files alone.
    with tempfile.TemporaryDirectory(prefix="ml_udf-") as folder:
        chain = Path(folder) / "pair.pem"
        descriptor = os.open(chain, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(own.private_key + own.certificate)
        context.load_cert_chain(chain)
    return context


def _proof(token: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, who + nonces, "sha256")


async def _receive(connection: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while len(data) < count and (more := await loop.sock_recv(connection, count - len(data))):
            data += more
    if len(data) < count:
        raise PeerRefused("the connection ended before both sides had shown the token")
    return data
