"""The inference server, and the watcher of a database, as child processes.

Owns a child's life: it is gone when the `with` block ends, however it ends. Knows no SQL engine.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["ServerDidNotStart", "serving", "watching"]

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
MOST_WORKERS = 4
_PR_SET_PDEATHSIG = 1


class ServerDidNotStart(Exception):
    """The server ended, or said nothing for two minutes; the text holds the end of its log."""


@contextmanager
def serving(
    home: Path, media_root: Path, log_file: Path, flags: Sequence[str] = (), *, workers: int = 0
) -> Iterator[str]:
    """Run the server on a free loopback port; gives its URL. workers: 0 = one for each core.

    Raises `ServerDidNotStart`.
    """
    home.mkdir(parents=True, exist_ok=True)
    port_file = home / "port"
    port_file.unlink(missing_ok=True)
    workers = workers or min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "server", "--port=0", f"--port-file={port_file}"]
    command += [f"--home={home}", f"--media-root={media_root}", f"--workers={workers}", *flags]
    with _running(command, log_file) as process:
        yield f"http://127.0.0.1:{_port(process, port_file, log_file)}"


@contextmanager
def watching(uri: str, url: str, log_file: Path) -> Iterator[None]:
    """Keep a PostgreSQL database's watches fresh meanwhile: `ml-udf score --watch`."""
    command = [sys.executable, "-m", "ml_udf.cli", "score", "--watch"]
    with _running([*command, f"--postgres={uri}", f"--endpoint={url}"], log_file):
        yield


@contextmanager
def _running(command: list[str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log_file.open("wb") as log:
        # In a group of its own: Ctrl-C reaches this process alone, which then ends the child, once.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    # In the child: a demo that is killed must not leave a server behind that trains in the same folder.
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _port(process: subprocess.Popen[bytes], port_file: Path, log_file: Path) -> int:
    end_s = time.monotonic() + START_TIMEOUT_S
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > end_s:
            log = log_file.read_text(errors="replace")
            raise ServerDidNotStart(f"the server did not start; {log_file} ends with:\n{log[-2000:]}")
        time.sleep(0.05)
    return int(port_file.read_text())
