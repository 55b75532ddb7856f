"""Certificates of a private authority, as files that a server, a database and a client can read."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

__all__ = ["Certificates"]

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


class Certificates:
    """Files below a folder. Private keys are for this user alone, unless `give` says otherwise."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self.folder = folder
        self.authority = trustme.CA(organization_name=name)
        self.ca = self._write(f"{name}.pem", self.authority.cert_pem.bytes(), 0o644)

    def issue(self, name: str, *hosts: str, ends: datetime | None = None) -> tuple[Path, Path]:
        """A certificate and its key: NAME.pem, NAME.key."""
        made = self.authority.issue_cert(*(hosts or ("localhost", "127.0.0.1")), not_after=ends)
        chain = b"".join(part.bytes() for part in made.cert_chain_pems)
        key = self._write(f"{name}.key", made.private_key_pem.bytes(), 0o600)
        return self._write(f"{name}.pem", chain, 0o644), key

    def _write(self, name: str, content: bytes, mode: int) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(mode)
        return path


def soon(days: float) -> datetime:
    """In so many days."""
    return datetime.now(UTC) + timedelta(days=days)


def give(path: Path, user: str) -> Path:
    """Make a file that user's, where that can be done."""
    if os.geteuid() == 0:
        owner = pwd.getpwnam(user)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return path
