"""The small files that settings name, read so that none of them keeps the server waiting for good.

A pipe is a file too, such as the shell makes of `--token-file <(pass show ml_udf)`: it is read to its end, if
somebody writes that in time. A named one that nobody writes to would never even be open.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

__all__ = ["read_setting"]

_PIPE_S = 10.0  # that whoever writes to a pipe has for all of it
_MOST_BYTES = 8 << 20


def read_setting(path: Path, pipe_s: float = _PIPE_S) -> str:
    """The text of a file or a pipe. Raises `OSError`, always with a `strerror`, and `UnicodeDecodeError`."""
    # O_NONBLOCK: opening a pipe waits for a writer. O_NOCTTY: a terminal is not taken over.
    descriptor = os.open(path.expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb", buffering=0) as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISFIFO(mode):
            content = _of_pipe(descriptor, time.monotonic() + pipe_s)
        elif stat.S_ISREG(mode):
            content = file.read(_MOST_BYTES + 1)
        else:
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe")
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is too large: over {_MOST_BYTES} bytes")
    return content.decode()


def _of_pipe(descriptor: int, until_s: float) -> bytes:
    content = b""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while len(content) <= _MOST_BYTES:
        if not waiting.poll(max(0.0, 1000 * (until_s - time.monotonic()))):
            raise OSError(errno.ETIMEDOUT, "it is a pipe that nobody writes to, or not to its end")
        more = os.read(descriptor, _MOST_BYTES)
        if not more:
            break
        content += more
    return content
