"""One server, started for one case, stopped with everything that it started."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.processor_time import children_of
from tests.benchmarks.serving.cases import Case
from tests.benchmarks.serving.contenders import FRONTS, Contender
from tests.benchmarks.serving.servers.model import WORKERS
from tests.inference_server import ANEW, inference_server

_START_S = 90.0
_END_S = 15.0


class DoesNotRun(Exception):
    """A server that did not start, or answers otherwise than it should; the text says how."""


@contextlib.contextmanager
def running(
    contender: Contender, python: Path, case: Case, model: Path, folder: Path, photos: Sequence[bytes]
) -> Iterator[int]:
    """The port of a server that answers. Raises `DoesNotRun`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # handed on: a connection is an open file
    if contender.name in FRONTS:
        flags = [ANEW, f"--workers={WORKERS}", f"--front={FRONTS[contender.name]}"]
        with inference_server(folder / "home", flags=flags) as server:
            server.deploy(model, "photo", slo_ms=case.slo_ms, max_batch=32)
            _await_answer(contender, server.port, photos[0])
            yield server.port
        return
    port = _free_port()
    log = folder / "server.log"
    environment = {
        **os.environ,
        "SERVING_MODEL": str(model),
        "SERVING_PORT": str(port),
        "SERVING_SLO_MS": str(int(case.slo_ms)),
        "PYTHONPATH": str(Path.cwd()),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # the default, 15, would put it behind everything else
        "BENTOML_DO_NOT_TRACK": "True",
    }
    script = f"tests.benchmarks.serving.servers.{contender.name}_server"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, "-m", script], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        _await_answer(contender, port, photos[0], process, log)
        yield port
    finally:
        _end(process)


def ask(contender: Contender, port: int, photo: bytes) -> str:
    """The label that a server answers. Raises `OSError`, `HTTPException`, `ValueError`, `DoesNotRun`."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(contender.request(photo))
        reply = http.client.HTTPResponse(connection, method="POST")
        reply.begin()
        body = reply.read()
    if reply.status != 200:
        raise DoesNotRun(f"it answers {reply.status}: {body[:300]!r}")
    return contender.label(body)


def _await_answer(
    contender: Contender,
    port: int,
    photo: bytes,
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            ask(contender, port, photo)
            return
        except (OSError, http.client.HTTPException, ValueError, DoesNotRun) as exc:
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > deadline_s:
                told = "" if log is None else log.read_text(errors="replace")[-2000:]
                raise DoesNotRun(f"{contender.name} did not start: {exc!r}\n{told}") from exc
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; then end whatever it had started that is still there."""
    family = _family(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for pid, began in family.items():
        if _began(pid) == began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _family(pid: int) -> dict[int, str]:
    """A process and everything below it: pid → when it began, so that no number is taken for another's."""
    family = {pid: _began(pid)}
    for child in children_of(pid):
        family |= _family(child)
    return family


def _began(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
