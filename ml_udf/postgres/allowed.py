"""Which inference servers others than superusers may name: a list in a file beside the installed packages.

Who may create foreign servers makes the database's host connect to what they name. A superuser may name any
endpoint; for everybody else there has to be a line. Only who installed the extension can write the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ml_udf.postgres.faults import PostgresError

__all__ = ["FILE_NAME", "check_allowed", "is_listed"]

FILE_NAME = "servers.allow"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_allowed(url: str, file: Path) -> None:
    """Raises `PostgresError` unless a line of `file` names the endpoint, or the file cannot be trusted."""
    try:
        status = file.stat()
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    else:
        trusted = {0, os.geteuid(), Path(__file__).stat().st_uid}
        if status.st_uid not in trusted or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PostgresError(
                "42501",
                f"{file} could have been written by others, so no server that it lists is asked",
                hint=f"on the database's host: chown root {file}; chmod 644 {file}",
            )
    if not is_listed(url, lines):
        parts = urlsplit(url)
        raise PostgresError(
            "42501",
            f"permission denied for the endpoint {parts.scheme}://{parts.netloc}",
            hint=f"a superuser can create the server, or list its host in {file} on the database's host",
        )


def is_listed(url: str, lines: Iterable[str]) -> bool:
    """Whether a line names the host of `url`: `host`, `host:port`, `*.domain`; `#` begins a comment."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    return any(
        (wanted_port is None or wanted_port == port)
        and (host == wanted or (wanted.startswith("*.") and host.endswith(wanted[1:])))
        for wanted, wanted_port in _entries(lines)
    )


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, int | None]]:
    """(host, port or None for all) of each line; lines that are neither name nothing."""
    for line in lines:
        text = line.partition("#")[0].strip()
        try:
            parts = urlsplit("//" + text)
            if parts.hostname and parts.netloc == text and parts.username is None:
                yield parts.hostname, parts.port
        except ValueError:
            continue
