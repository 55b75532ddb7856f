"""A hot standby of a cluster: streams from it, and answers queries."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ml_udf.cli.pg_sandbox import Sandbox
from tests.postgres.fixtures import Engine
from tests.waiting import wait_until

__all__ = ["caught_up", "standby_of"]


@contextlib.contextmanager
def standby_of(primary: Sandbox) -> Iterator[Sandbox]:
    """A standby of `primary`, with its settings and the files that it has installed."""
    directory = Path(tempfile.mkdtemp(prefix="ml_udf-pg-"))
    standby = Sandbox(primary.server, directory, primary._user, primary._settings)
    try:
        os.chown(directory, primary._user.pw_uid, primary._user.pw_gid)
        copied = ["-D", str(standby._data), "-d", primary.dsn(), "-R", "-X", "stream", "-c", "fast"]
        subprocess.run(primary.program("pg_basebackup", *copied), check=True, **primary._as_user())
        standby._launch()
        yield standby
    finally:
        standby.stop()
        shutil.rmtree(directory, ignore_errors=True)


def caught_up(primary: Engine, standby: Engine) -> None:
    """Wait until the standby shows what the primary has committed."""
    # What commits without waiting for the log is not flushed, and so not sent, at once.
    now = primary.value("SELECT pg_current_wal_insert_lsn()")
    wait_until(lambda: standby.value("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", now), 30)
