"""The server's certificate: what of its files is refused, and what an operator is warned of."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.http.tls import Certificate, Tls, TlsError, TlsFiles
from tests.certificates import LONG_AGO, Certificates, soon

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        (-1, 31, ""),
        (-1, 30, "--tls-cert: the certificate of ml expires in 30 days, on 2026-05-31"),
        (-1, 1.5, "--tls-cert: the certificate of ml expires in 1 day, on 2026-05-02"),
        (-1, 0.5, "--tls-cert: the certificate of ml expires in 0 days, on 2026-05-01"),
        (-9, 0, "--tls-cert: the certificate of ml has expired, on 2026-05-01"),
        (-9, -3, "--tls-cert: the certificate of ml has expired, on 2026-04-28"),
        (0.5, 90, "--tls-cert: the certificate of ml is not good before 2026-05-01 12:00 UTC"),
    ],
)
def test_a_certificate_is_warned_of_for_thirty_days(begins: float, ends: float, said: str) -> None:
    one = Certificate("--tls-cert", "ml", NOW + timedelta(days=begins), NOW + timedelta(days=ends))
    assert one.warning(NOW) == said


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_names_and_times_of_every_certificate_are_read(made: Certificates) -> None:
    cert, key = made.issue("server", "ml.example.org", "10.0.0.7")
    tls = Tls.read(TlsFiles(cert, key, made.ca))
    assert [one.flag for one in tls.certificates] == ["--tls-cert", "--tls-client-ca"]
    assert tls.certificates[0].name == "ml.example.org, 10.0.0.7"
    assert "O=ca" in tls.certificates[1].name
    assert tls.context.verify_mode == ssl.CERT_REQUIRED
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert tls.warnings(datetime.now(UTC)) == []
    assert Tls.read(TlsFiles(cert, key)).context.verify_mode == ssl.CERT_NONE


def test_the_key_may_lie_in_the_certificates_file(made: Certificates) -> None:
    cert, key = made.issue("both")
    cert.write_bytes(cert.read_bytes() + key.read_bytes())
    assert Tls.read(TlsFiles(cert)).open_key == cert  # which others may read, as a certificate's file
    cert.chmod(0o640)
    assert Tls.read(TlsFiles(cert)).open_key is None


@pytest.mark.security
@pytest.mark.parametrize(
    ("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, False), (0o644, True), (0o660, True)]
)
def test_a_key_that_others_may_read_or_its_group_write_is_warned_of(
    made: Certificates, mode: int, is_open: bool
) -> None:
    cert, key = made.issue("modes")
    key.chmod(mode)
    warnings = Tls.read(TlsFiles(cert, key)).warnings(datetime.now(UTC))
    assert warnings == (
        [f"the private key {key} is for other users to read: chmod 600 it"] if is_open else []
    )


def test_a_key_with_a_password_is_refused_at_once(made: Certificates) -> None:
    cert, key = made.issue("locked")
    locked = key.with_suffix(".locked")
    command = f"openssl pkey -in {key} -aes256 -passout pass:secret -out {locked}".split()
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(TlsError, match="the private key wants a password"):
        Tls.read(TlsFiles(cert, locked))


def test_what_has_expired_does_not_follow_what_has_not_but_follows_its_like(
    made: Certificates, tmp_path: Path
) -> None:
    now, cert, key = datetime.now(UTC), tmp_path / "cert", tmp_path / "key"

    def put(name: str, ends: datetime) -> None:
        for new, path in zip(made.issue(name, ends=ends), (cert, key), strict=True):
            path.write_bytes(new.read_bytes())

    put("good", soon(90))
    good = Tls.read(TlsFiles(cert, key))
    put("late", LONG_AGO)
    with pytest.raises(TlsError, match="has expired"):
        good.read_again(now)
    late = Tls.read(TlsFiles(cert, key))
    assert late.read_again(now).warnings(now)[0].endswith("has expired, on 2001-01-01")
    put("good again", soon(90))
    assert late.read_again(now).certificates[0].ends > now
