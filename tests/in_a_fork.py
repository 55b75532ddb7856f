"""What something says in a fork of this process, such as a worker that `multiprocessing` starts."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

__all__ = ["said_by_fork"]

_WITHIN_S = 60.0


def said_by_fork(say: Callable[[], str]) -> str:
    """Up to 4,096 bytes; the error's text where it raises; nothing where it has not said it in a minute."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writes, say().encode())
        except BaseException as error:  # it must not go on with the tests
            os.write(writes, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    ready, _, _ = select.select([reads], [], [], _WITHIN_S)
    said = os.read(reads, 4096).decode() if ready else ""
    os.close(reads)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return said
