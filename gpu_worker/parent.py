"""A process that must not outlive the one that started it. Linux does the watching, where there is Linux."""

from __future__ import annotations

import contextlib
import ctypes
import signal

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """From now on the kernel kills this process when the thread that started it ends.

    A process that is stopped, or hangs in a computation that holds the interpreter's lock, does not see its
    socket close. Nothing happens elsewhere than on Linux.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
