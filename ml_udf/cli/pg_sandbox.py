"""A private, throw-away PostgreSQL cluster with the extension installed: for trying, for demos, for tests.

Everything lives in one temporary directory that only the cluster's user can enter; nothing of the machine's
own PostgreSQL is touched. The extension is installed inside that directory where the server's build can look
there, else into the server's own directories. Local connections through the socket need no password (the
directory guards them); loopback TCP asks for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from ml_udf.cli.pg_extension import ALLOWED_SERVERS, Installed, hidden_from, install
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.quoting import literal, quoted

__all__ = ["SUPERUSER", "Sandbox", "sandbox"]

SUPERUSER = "postgres"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1

# Lost on a crash by design: a sandbox is not for keeping data.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "autovacuum_naptime": "1h",
}


class Sandbox:
    """A running cluster. `stop` ends it and removes its files."""

    def __init__(
        self, server: PostgresServer, directory: Path, user: pwd.struct_passwd, settings: Mapping[str, str]
    ) -> None:
        self.server = server
        self.directory = directory
        self.installed: Installed | None = None
        self.password = secrets.token_urlsafe(16)
        self.port = 0
        self._user = user
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        server: PostgresServer,
        *,
        settings: Mapping[str, str] | None = None,
        extension: bool = True,
        local: bool | None = None,
        batching: bool | None = False,
    ) -> Sandbox:
        """Create a cluster in a new temporary directory and start it. Raises `SetupError`.

        settings         of postgresql.conf, beside those of a sandbox
        extension        whether to install ml_udf for it; `CREATE EXTENSION` is left to the caller
        local, batching  see `ml_udf.cli.pg_extension.install`
        """
        user = _unprivileged_user()
        # The socket's path must stay under 108 bytes, so a short name below the system's own directory.
        directory = Path(tempfile.mkdtemp(prefix="ml_udf-pg-"))
        cluster = cls(server, directory, user, settings or {})
        try:
            os.chown(directory, user.pw_uid, user.pw_gid)
            if extension:
                cluster._install(local, batching)
            cluster._initdb()
            cluster._launch()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def dsn(self, database: str = "postgres", *, user: str = SUPERUSER, tcp: bool = False) -> str:
        """A connection URI; by default through the socket, which any role may use without a password."""
        if tcp:
            secret = f":{quote(self.password)}" if user == SUPERUSER else ""
            return f"postgresql://{quote(user)}{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"
        where = urlencode({"host": str(self.directory), "port": self.port})
        return f"postgresql://{quote(user)}@/{quote(database, safe='')}?{where}"

    def database(
        self,
        name: str,
        *,
        url: str,
        token: str | None = None,
        functions: Sequence[str] = (),
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Create a database with the extension, a server `ml_udf` and SQL functions; returns its URI.

        options: of the server, beside its url; files have to be the cluster's own user's to read.
        Raises `SetupError`, with PostgreSQL's own message, where `url` or a function is refused.
        """
        self.sql(f"CREATE DATABASE {quoted(name)}")
        self.sql("SET client_min_messages = warning; CREATE EXTENSION ml_udf CASCADE", name)
        written = ", ".join(f"{option} {literal(value)}" for option, value in {"url": url, **options}.items())
        self.sql(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS ({written})", name)
        if token is not None:
            mapping = f"CREATE USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (token {literal(token)})"
            self.sql(mapping, name)
        for function in functions:
            self.sql(f"SELECT ml_udf.create_function({literal(function)})", name)
        return self.dsn(name)

    def program(self, name: str, *arguments: str) -> list[str]:
        """The command line of one of the server's own programs, such as pg_dump."""
        return [str(self.server.bin_dir / name), *arguments]

    def sql(self, text: str, database: str = "postgres") -> str:
        """Run statements as the superuser; returns what psql prints, unaligned. Raises `SetupError`."""
        command = self.program("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", self.dsn(database))
        # By way of stdin: a command line, and a token in it, is for every user to read.
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SetupError(f"the sandbox refused {text.split('(')[0][:60]!r}: {done.stderr.strip()}")
        return done.stdout.strip()

    def hides(self, paths: Iterable[Path]) -> str:
        """Why what runs inside the server cannot read all of `paths`; '' where it can."""
        return hidden_from(self._user, paths)

    def log(self) -> str:
        """The server's log so far."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def crash(self) -> None:
        """End the cluster as a crash would (pg_ctl stop -m immediate); start it again at the same address."""
        self._start_again(signal.SIGQUIT)

    def restart(self) -> None:
        """End the cluster cleanly (pg_ctl stop -m fast); start it again at the same address."""
        self._start_again(signal.SIGINT)

    def stop(self) -> None:
        """End the cluster at once and remove its files. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            for stop_signal in (signal.SIGQUIT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(stop_signal)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
                    break
        shutil.rmtree(self.directory, ignore_errors=True)

    def _install(self, local: bool | None, batching: bool | None) -> None:
        found_below = self.server.finds_extensions_below(self.directory)
        self._settings |= found_below
        root = self.directory if found_below else Path("/")
        self.installed = install(
            self.server, root=root, local=local, batching=batching, server_user=self._user.pw_name
        )
        if found_below:  # its own list: whoever tries things here may try them on any port of this machine
            allowed = self.installed.python_dir.parent / ALLOWED_SERVERS
            allowed.write_text("127.0.0.1\nlocalhost\n")
        if self.installed.module is not None:
            self._settings.setdefault("session_preload_libraries", str(self.installed.module))

    def _initdb(self) -> None:
        secret = self.directory / "password"
        secret.write_text(self.password)
        os.chown(secret, self._user.pw_uid, self._user.pw_gid)
        initdb = self.program("initdb", "-D", str(self._data), "-U", SUPERUSER, "-E", "UTF8", "--no-locale")
        initdb += ["-N", "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}"]
        done = subprocess.run(initdb, capture_output=True, text=True, check=False, **self._as_user())
        secret.unlink()
        if done.returncode:
            raise SetupError(f"initdb failed: {done.stderr.strip()}")

    def _launch(self) -> None:
        self.port = self.port or _free_port()
        settings = {
            **_SETTINGS,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            **self._settings,
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = self.program("postgres", "-D", str(self._data), *arguments)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # in the child: a tester that is killed leaves no cluster behind
                **self._as_user(),
            )
        self._wait_until_ready(self._process)

    def _start_again(self, stop_signal: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(stop_signal)
        self._process.wait(STOP_TIMEOUT_S)
        self._launch()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        status_file = self._data / "postmaster.pid"
        end_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end_s:
            if process.poll() is not None:
                raise SetupError(f"PostgreSQL did not start: {self.log().strip()}")
            with contextlib.suppress(OSError, IndexError):
                if status_file.read_text().splitlines()[7].strip() == "ready":
                    return
            time.sleep(0.05)
        raise SetupError(f"PostgreSQL was not ready after {START_TIMEOUT_S:g} s: {self.log().strip()}")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _as_user(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "cwd": self.directory,
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
        }
        if self._user.pw_uid == os.getuid():
            return plain
        return plain | {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def sandbox(server: PostgresServer, **how: Any) -> Iterator[Sandbox]:  # noqa: ANN401  # as Sandbox.start
    """A sandbox for the length of a `with` block."""
    cluster = Sandbox.start(server, **how)
    try:
        yield cluster
    finally:
        cluster.stop()


def _unprivileged_user() -> pwd.struct_passwd:
    """This user; where it is root, which PostgreSQL refuses to run as, postgres or nobody."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise SetupError("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
