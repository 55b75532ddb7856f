"""A real inference server in a process of its own, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ml_udf.client import Client
from tests.server_forks import ForkedServer, ServerForks
from tests.worker_forks import WORKER, is_process_of

START_TIMEOUT_S = 180.0
# For whoever asks the same rows again and looks at what computing them takes, or at who does it.
ANEW = "--answer-cache-bytes=0"


class InferenceServer:
    """`python -m server` on loopback with a home folder; `stop` ends it and its workers.

    tree: a folder with another commit's code, which it runs instead of this one's.
    connect: of `Client`, how it is reached: the token, the files of TLS.
    forked: it may be a fork of `forks`; not for who reads its command line.
    """

    forks: ClassVar[ServerForks | None] = None  # of a run of tests; benchmarks measure whole processes

    def __init__(
        self,
        home: Path,
        *,
        media_roots: Sequence[Path] = (),
        flags: Sequence[str] = (),
        tree: Path | None = None,
        connect: Mapping[str, Any] | None = None,
        forked: bool = True,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._tree = tree
        self._connect = dict(connect or {})
        self._flags = [*flags, *(f"--media-root={root}" for root in media_roots)]
        self._log = (home / "server.log").open("ab")
        self._forked = forked
        self._process: subprocess.Popen[bytes] | ForkedServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        scheme = "https" if "sslrootcert" in self._connect else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_started(self) -> bool:
        """Whether it has been started and has not ended since."""
        return self._process is not None and self._process.poll() is None

    @property
    def ended_by_itself(self) -> int | None:
        """Its exit status, if it has one and nobody has stopped it."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, on the port it had before if there was one, and wait until it is ready."""
        port_file = self.home / "port"
        port_file.unlink(missing_ok=True)
        arguments = ["--host=127.0.0.1", f"--port={self.port}", f"--home={self.home}"]
        self._process = self._spawn([*arguments, f"--port-file={port_file}", *self._flags])
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{self.log[-4000:]}")
            time.sleep(0.02)
        self.port = int(port_file.read_text())

    def _spawn(self, arguments: list[str]) -> subprocess.Popen[bytes] | ForkedServer:
        environment = None
        if self._tree is not None:  # no flag: a commit that keeps no answers would not know it
            environment = {**os.environ, "PYTHONPATH": str(self._tree), "ML_UDF_ANSWER_CACHE_BYTES": "0"}
        elif self.forks is not None and self._forked:
            forked = self.forks.spawn(arguments, self._log)
            if forked is not None:
                return forked
        return subprocess.Popen(
            [sys.executable, "-m", "server", *arguments],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            cwd=self._tree,
            env=environment,
        )

    def client(self) -> contextlib.closing[Client]:
        """One of its own, for a `with` block."""
        return contextlib.closing(Client(self.url, **self._connect))

    def deploy(self, model: Path, function: str | None = None, **options: object) -> None:
        """Register a model folder; deploy it as `function` (or just register it)."""
        with self.client() as client:
            client.post("/register", {"directory": str(model)})
            if function is not None:
                client.put(f"/v1/functions/{function}", {"models": [model.parent.name], **options})

    def keep_fit(self, fit: Mapping[str, Any], *, forget: Sequence[str] = ()) -> None:
        """Have its functions answer by that fit, as if they had been deployed with it; it starts again.

        forget: tables of its registry that are emptied meanwhile.
        """
        self.stop()
        with contextlib.closing(sqlite3.connect(self.home / "registry.db")) as registry, registry:
            registry.execute("UPDATE deployments SET fit = ?", [json.dumps(fit)])
            for table in forget:
                registry.execute(f"DELETE FROM {table}")
        self.start()

    def successes(self, model: str) -> int:
        """How many calls for it have been answered."""
        with self.client() as client:
            stats = client.get(f"/v2/models/{model}/stats")["model_stats"][0]
        return int(stats["inference_stats"]["success"]["count"])

    def worker_pids(self) -> list[int]:
        """Its worker processes."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        workers = []
        for child in children:
            with contextlib.suppress(OSError):
                if is_process_of(int(child), WORKER):
                    workers.append(int(child))
        return workers

    def kill_workers(self) -> list[int]:
        """`kill -9` its workers; returns their pids."""
        pids = self.worker_pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def wait(self, within_s: float = 60.0) -> int:
        """The exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(within_s)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def stop(self) -> None:
        """End it as an operator would."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def database_user() -> str:
    """The user that the tests' PostgreSQL runs as."""
    for name in ("postgres", "nobody") if os.getuid() == 0 else ():
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return pwd.getpwuid(os.getuid()).pw_name


def database_group() -> str:
    """The group of that user."""
    return grp.getgrgid(pwd.getpwnam(database_user()).pw_gid).gr_name


@contextlib.contextmanager
def inference_server(
    home: Path,
    *,
    media_roots: Sequence[Path] = (),
    flags: Sequence[str] = (),
    tree: Path | None = None,
    connect: Mapping[str, Any] | None = None,
    forked: bool = True,
) -> Iterator[InferenceServer]:
    """A server for the length of a `with` block."""
    server = InferenceServer(
        home, media_roots=media_roots, flags=flags, tree=tree, connect=connect, forked=forked
    )
    try:
        yield server
    except BaseException as error:
        if (status := server.ended_by_itself) is not None:
            error.add_note(
                f"The server had ended before, with status {status}; its last words:\n{server.log[-4000:]}"
            )
        raise
    finally:
        server.stop()
