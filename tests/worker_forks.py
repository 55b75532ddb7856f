"""Workers and training processes of forked servers, forked too: they begin with torch imported.

    tests ── server_forks ─┬─ the server ─┬─ a worker ─┬─ its training process
                           └─ …           │            └─ a process that forks these
                                          └─ a process that forks workers

`python -m gpu_worker` takes half a second of a core until it serves, and three more at its first model of
torch. Beside whoever starts such processes stands one that was forked before it began, and has one thread.
What that forks are the starter's own children all the same: the one between them ends at once, and orphans go
to the starter while it says that it takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.forked_main import run_as_main

__all__ = ["TRIAL", "WORKER", "fork_workers", "import_worker", "is_process_of"]

WORKER = "gpu_worker"
TRIAL = "gpu_worker.train.trial"
_PR_SET_CHILD_SUBREAPER = 36
_NAME_BYTES = 15  # that the kernel keeps of a process's name
_REQUEST_BYTES = 1 << 20
_PID_BYTES = 64
_MOST_FDS = 8


def is_process_of(pid: int, module: str) -> bool:
    """Whether that process is `python -m MODULE`, or a fork that does the same. Raises OSError."""
    process = Path(f"/proc/{pid}")
    return (
        module.encode() in (process / "cmdline").read_bytes().split(b"\0")
        or (process / "comm").read_text().strip() == module[-_NAME_BYTES:]
    )


def import_worker() -> None:
    """All that a worker imports until it has a model of torch."""
    import gpu_worker.__main__
    import gpu_worker.networks.torch_loader
    import gpu_worker.train.trial  # noqa: F401
    from gpu_worker.networks.runtimes import RUNTIMES

    RUNTIMES["torch"].import_modules()


def fork_workers() -> None:
    """From now on this process, which has one thread, forks what it starts as `python -m gpu_worker`."""
    forks = _Forks(WORKER)
    started = asyncio.create_subprocess_exec

    async def start(*command: str, **options: Any) -> Any:  # as asyncio's own
        if list(command[:3]) != [sys.executable, "-m", WORKER]:
            return await started(*command, **options)
        return ForkedWorker(forks.fork(command[3:], options["pass_fds"], options["env"]))

    asyncio.create_subprocess_exec = start  # type: ignore[assignment]


def _fork_trials() -> None:
    """The same of training processes."""
    forks = _Forks(TRIAL)
    started = subprocess.Popen

    def start(command: Any, **options: Any) -> Any:  # as subprocess's own
        if list(command[:3]) != [sys.executable, "-m", TRIAL]:
            return started(command, **options)
        return ForkedTrial(forks.fork(command[3:], options["pass_fds"]))

    subprocess.Popen = start  # type: ignore[assignment, misc]


class ForkedWorker:
    """One worker, with what servers use of `asyncio.subprocess.Process`. Made where a loop runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(self._pidfd, self._end)

    async def wait(self) -> int:
        """The exit status, negative for a signal, once it has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError where it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once. Raises ProcessLookupError where it has ended."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set_result(self.returncode)


class ForkedTrial:
    """One training process, with what workers use of `subprocess.Popen`, in any thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)  # kept as long as the worker
        self._burial = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        if not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(TRIAL, timeout or 0.0)
        with self._burial:
            if self.returncode is None:
                _, status = os.waitpid(self.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self) -> int | None:
        """The same at once; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def kill(self) -> None:
        """End it at once."""
        with self._burial:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)


class _Forks:
    """The process that forks those of one module; it ends with this one."""

    def __init__(self, module: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        if os.fork() == 0:
            self._socket.close()
            _fork_on_request(module, theirs)
        theirs.close()

    def fork(
        self,
        arguments: tuple[str, ...],
        pass_fds: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """The pid of a new one, which is this process's child and has those descriptors by their numbers."""
        request = {
            "arguments": arguments,
            "environment": dict(os.environ if environment is None else environment),
            "fds": list(pass_fds),
            "umask": _umask(),
            "data_limit": resource.getrlimit(resource.RLIMIT_DATA),
        }
        prctl = ctypes.CDLL(None).prctl
        with self._asking:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(pass_fds))
                pid = self._socket.recv(_PID_BYTES)
            finally:  # orphans of others are not for it to bury
                prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert pid, "the process that forks has ended"
        return int(pid)


def _umask() -> int:
    """To ask the kernel for it is to change it, and others make files meanwhile."""
    told = Path("/proc/self/status").read_text()
    return int(told.partition("Umask:")[2].split()[0], 8)


# ── in the process that forks ──────────────────────────────────────────────────────────────────────


def _fork_on_request(module: str, requests: socket.socket) -> NoReturn:
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _MOST_FDS)
        if not request:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            pid = os.fork()
            if pid == 0:
                requests.close()
                os.close(read)
                os.close(write)
                _run(module, json.loads(request), fds, between)
            os.write(write, str(pid).encode())
            os._exit(0)
        os.close(write)
        for fd in fds:
            os.close(fd)
        os.waitpid(between, 0)
        with contextlib.suppress(
            OSError
        ):  # the starter has ended: so does the new one, whose socket is closed
            requests.send(os.read(read, _PID_BYTES))
        os.close(read)


def _run(module: str, request: dict[str, Any], fds: Sequence[int], between: int) -> NoReturn:
    """As `python -m MODULE` does, once it is the starter's child."""
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(request["fds"]) + 1) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(aside, request["fds"], strict=True):  # none of which is one of those aside
        os.dup2(fd, number)
        os.close(fd)
    while os.getppid() == between:
        time.sleep(0.001)
    os.setsid()
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_DATA, request["data_limit"])
    Path("/proc/self/comm").write_text(module[-_NAME_BYTES:])
    if module == WORKER:
        _fork_trials()
    run_as_main(module, request["arguments"], request["environment"])
