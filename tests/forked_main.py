"""What a fork does to be `python -m MODULE`: the module's imports are done already."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

__all__ = ["run_as_main"]


def run_as_main(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """`python -m MODULE ARGUMENTS` in that environment; returns to nobody."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = [module, *arguments]
    status = _status_of(module)
    # As Python ends, but for taking a thousand shared modules apart one by one, which takes most of a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _status_of(module: str) -> int:
    """Run it; the exit status."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
