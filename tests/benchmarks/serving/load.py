"""The load generator of load.c: compiled once, run as a process of its own, answers as a `Replay`."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.load_generator import Outcome, Replay

SOURCE = Path(__file__).with_name("load.c")
_REFUSALS = {429: 503}  # "too many requests" says the same


class Load:
    """Sends one list of requests, in turn, to one port, whenever a trace says so."""

    def __init__(self, program: Path, folder: Path, port: int, requests: Sequence[bytes]) -> None:
        self._program = program
        self._port = port
        handle, name = tempfile.mkstemp(dir=folder, prefix="requests-")
        os.close(handle)
        self._requests = Path(name)
        self._arrivals = folder / "arrivals"
        self._requests.write_bytes(b"".join(struct.pack("<I", len(one)) + one for one in requests))

    def replay(self, arrivals_s: Sequence[float], patience_s: float) -> Replay:
        """Send a row at each of `arrivals_s`; wait `patience_s` for the last answers.

        Raises `CalledProcessError` if the server cannot be reached.
        """
        np.asarray(arrivals_s, "<f8").tofile(self._arrivals)
        done = subprocess.run(
            [self._program, str(self._port), self._requests, self._arrivals, str(patience_s)],
            stdout=subprocess.PIPE,
            check=True,
        )
        *pairs, (lag_s, _) = np.frombuffer(done.stdout, "<f8").reshape(-1, 2).tolist()
        outcomes = [
            Outcome(at_s, latency_s, _REFUSALS.get(int(status), int(status)))
            for at_s, (latency_s, status) in zip(arrivals_s, pairs, strict=True)
        ]
        return Replay(outcomes, lag_s)


def build(folder: Path) -> Path:
    """The compiled program. Raises `SystemExit` where there is no compiler."""
    program = folder / "load"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        compiler = shutil.which("cc")
        if compiler is None:
            raise SystemExit("the load generator needs a C compiler: apt-get install gcc libc6-dev")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O2", "-o", program, SOURCE, "-lm"], check=True)
    return program
