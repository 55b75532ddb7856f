"""Ctrl-C that comes again where it was dropped: a person presses again, `timeout -s INT` does not.

Python drops what is raised in a finalizer and in the callback of a weak reference, of which each import has
one; DuckDB what a function raises that it calls before it runs a statement.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["ctrl_c_until_heard", "press_what_python_drops_again"]

_AGAIN_S = 0.3


def press_what_python_drops_again() -> None:
    """For the rest of the process."""
    told = sys.unraisablehook

    def tell(dropped: sys.UnraisableHookArgs) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and dropped.exc_type is KeyboardInterrupt:
            _press_soon()
        else:
            told(dropped)

    sys.unraisablehook = tell


@contextlib.contextmanager
def ctrl_c_until_heard() -> Iterator[None]:
    """Ctrl-C ends what is within as KeyboardInterrupt, and comes again until it has."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = ended = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if not ended:
            pressed = True
            _press_soon()
        before(number, frame)

    signal.signal(signal.SIGINT, press)
    try:
        yield
    except BaseException as error:
        if pressed and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    else:
        if pressed:
            raise KeyboardInterrupt
    finally:
        ended = True
        if pressed:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if signal.getsignal(signal.SIGINT) is press:  # else who has taken it calls us
            signal.signal(signal.SIGINT, before)


def _press_soon() -> None:
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
