"""Servers that begin where their imports are done: forks of one process that has imported the server.

    python -m tests.server_forks --fd 3        started by `ServerForks`, which holds the other end of a socket

`python -m server` takes two seconds of a core before its first line, and a run of all tests starts hundreds.
A fork runs `server/__main__.py` as that command does, with arguments, a working folder and an environment of
its own, and ends as it does. What it has not is a command line of its own, for others to read.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, NoReturn

from tests.forked_main import run_as_main
from tests.worker_forks import fork_workers, import_worker

__all__ = ["ForkedServer", "ServerForks"]

_REQUEST_BYTES = 1 << 20
_ANSWER_BYTES = 64
_BEGINS_S = 120.0  # the forking process, on a busy machine
_PATH = "PYTHONPATH"
_IMPORTED = (  # before the first fork: all that a server imports until it listens
    "server.app",
    "server.observability.log",
    "server.workers.environment",
    "uvicorn.lifespan.on",
    "uvloop",
)


class ForkedServer:
    """One server, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("server", timeout or 0.0)
            told = os.read(self._ended, _ANSWER_BYTES)
            os.close(self._ended)
            assert told, "the process that forks servers ended before them"
            self.returncode = int(told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing is sent to one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it as an operator would."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class ServerForks:
    """The process that forks; it begins with the first server that is wanted."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._python_path = os.environ.get(_PATH)
        self._asking = threading.Lock()  # the pid that comes next is that of who asked

    def spawn(self, arguments: Sequence[str], log: IO[bytes]) -> ForkedServer | None:
        """`python -m server ARGUMENTS`, told into the log; None where that would import from elsewhere."""
        if os.environ.get(_PATH) != self._python_path:
            return None
        request = {"arguments": list(arguments), "folder": os.getcwd(), "environment": dict(os.environ)}
        with self._asking:
            if self._socket is None:
                self._begin()
            assert self._socket is not None
            ended, told = os.pipe()
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [log.fileno(), told])
            finally:
                os.close(told)
            self._socket.settimeout(_BEGINS_S)
            pid = self._socket.recv(_ANSWER_BYTES)
        assert pid, "the process that forks servers has ended"
        return ForkedServer(int(pid), ended)

    def close(self) -> None:
        """Fork no more; servers that run go on."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(_BEGINS_S)
            self._socket = None

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        command = [sys.executable, "-m", "tests.server_forks", f"--fd={theirs.fileno()}"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])


# ── in the process that forks ──────────────────────────────────────────────────────────────────────


def main() -> None:
    """Fork a server for each request, and tell of each how it ended. Without threads: a fork has only one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    requests = socket.socket(fileno=parser.parse_args().fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the tests decide
    for module in _IMPORTED:
        importlib.import_module(module)
    import_worker()
    # Servers look their heap over before they serve: what all of them share is not for each to copy for that.
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    child, told = key.data
                    _, status = os.waitpid(child, 0)
                    os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    os.close(told)
                    continue
                request, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
                if not request:
                    os._exit(0)  # as servers do
                log, told = fds
                child = os.fork()
                if child == 0:
                    for other in list(selector.get_map().values()):  # how others ended is not for it to hold
                        os.close(other.fd)
                        if other.data is not None:
                            os.close(other.data[1])
                    os.close(told)
                    selector.close()
                    _run(json.loads(request), log)
                os.close(log)
                requests.send(str(child).encode())
                selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, told))


def _run(request: dict[str, object], log: int) -> NoReturn:
    """As `python -m server` does; returns to nobody."""
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    folder, environment, arguments = request["folder"], request["environment"], request["arguments"]
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.chdir(folder)
    fork_workers()
    run_as_main("server", arguments, environment)


if __name__ == "__main__":
    main()
