"""TLS as a client sees it: its files, and the words for what went wrong."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ml_udf.client.exchange import ROW_FAULTS
from ml_udf.client.tls import ClientTls, failure_of
from ml_udf.errors import BadOption, TlsFailed
from tests.certificates import Certificates

URL = "https://ml.example.org:8080"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "said", "hint"),
    [
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "wants a certificate of its clients",
            "sslcert and sslkey name",
        ),
        ("TLSV1_ALERT_UNKNOWN_CA", "refused TLS: unknown ca", "another certificate than that of sslcert"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "refused TLS: handshake failure", "its log says why"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "refused TLS: certificate expired", "not expired"),
        ("WRONG_VERSION_NUMBER", "failed: what answers does not speak it", "write http://"),
        ("UNEXPECTED_EOF_WHILE_READING", "failed: what answers does not speak it", "write http://"),
        ("NO_PROTOCOLS_AVAILABLE", "failed: no protocols available", "does it serve https"),
    ],
)
def test_each_failure_says_what_happened_and_what_to_do(reason: str, said: str, hint: str) -> None:
    fault = failure_of(URL, failed(reason))
    assert said in fault.message
    assert URL in fault.message
    assert hint in fault.hint


def test_a_failure_of_tls_is_no_fault_of_rows_and_is_not_tried_again() -> None:
    assert not issubclass(TlsFailed, ROW_FAULTS)
    assert not TlsFailed.retryable


def owned(uid: int, mode: int) -> Callable[[object], SimpleNamespace]:
    """A file of that owner and mode, as `os.stat` has it."""
    return lambda _: SimpleNamespace(st_uid=uid, st_mode=mode, st_mtime_ns=0, st_size=0, st_ino=0)


@pytest.mark.security
@pytest.mark.parametrize(
    ("owner", "mode", "is_refused"),
    [
        (1000, 0o600, False),
        (1000, 0o400, False),
        (1000, 0o640, True),
        (1000, 0o604, True),
        (0, 0o640, False),
        (0, 0o600, False),
        (0, 0o660, True),
        (0, 0o644, True),
    ],
)
def test_who_may_read_a_key_is_libpqs_rule(
    made: Certificates, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, is_refused: bool
) -> None:
    cert, key = made.issue("modes")
    monkeypatch.setattr(os, "stat", owned(owner, mode))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if is_refused:
        with pytest.raises(BadOption, match="holds a private key that other users may read"):
            ClientTls(None, str(cert), str(key))
    else:
        ClientTls(None, str(cert), str(key))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(made: Certificates) -> None:
    cert, key = made.issue("locked")
    locked = key.with_suffix(".locked")
    command = f"openssl pkey -in {key} -aes256 -passout pass:secret -out {locked}".split()
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(BadOption, match="the private key wants a password"):
        ClientTls(None, str(cert), str(locked))


def test_files_are_read_again_when_they_have_changed_and_only_then(
    made: Certificates, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(made.ca.read_bytes())
    tls = ClientTls(str(ca), None, None)
    first = tls.context()
    assert tls.context() is first
    ca.write_bytes(Certificates(tmp_path, "other").ca.read_bytes())
    os.utime(ca, (1, 1))
    second = tls.context()
    assert second is not first
    ca.unlink()
    with pytest.raises(BadOption, match="no such file or directory"):
        tls.context()
    ca.write_bytes(made.ca.read_bytes())
    assert tls.context() is not second
