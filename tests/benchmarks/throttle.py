"""`python -m tests.benchmarks.throttle PID TIMES`: a process gets 1/TIMES of its time, until stdin ends.

Stopped and continued in turn, 50 times a second. It is left running, whatever ends this.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

__all__ = ["throttled"]

_PERIOD_S = 0.02
_ENDS_S = 5.0


@contextlib.contextmanager
def throttled(pid: int, times: float) -> Iterator[None]:
    """The process is slow for the length of a `with` block, by a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.throttle", str(pid), str(times)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(_ENDS_S)
        finally:
            child.kill()
            child.wait()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _main(pid: int, times: float) -> None:
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_PERIOD_S * (1 - 1 / times))
            os.kill(pid, signal.SIGCONT)
            time.sleep(_PERIOD_S / times)
    except ProcessLookupError:
        return  # it has ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]))
