"""`ml-udf score --every 1m`: the same run again and again, for databases that nobody can be notified by.

Each round is a run of its own: between rounds nothing is held, so that others may open a DuckDB file. What
the first round cannot do ends the command; later it is said, and the next round tries again.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from types import FrameType

import typer

from ml_udf.errors import BadOption, MlUdfError
from ml_udf.scoring import ScoreProgress

__all__ = ["every", "interval_of", "rest_s"]

_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def interval_of(text: str) -> float:
    """`'1m'` in seconds; 30s, 1m, 2h, 1d. Raises `BadOption`."""
    found = _INTERVAL.fullmatch(text.strip().lower())
    interval_s = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if interval_s <= 0:
        raise BadOption(f"--every {text} is no time between two runs", hint="write 30s, 1m, 2h or 1d")
    return interval_s


def rest_s(interval_s: float, began_s: float, now_s: float) -> float:
    """How long to rest until the next round, which is due `interval_s` after this one began."""
    return max(0.0, began_s + interval_s - now_s)


def every(interval_s: float, run: Callable[[], ScoreProgress], say: Callable[[str], None]) -> None:
    """Run until Ctrl-C or SIGTERM, either of which ends a round as it ends a run.

    run  one round; what it raises of `MlUdfError` or `typer.Exit` is raised here of the first round alone
    say  called with what a round stored, and what stopped it
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    may_fail = False
    try:
        while True:
            began_s = time.monotonic()
            try:
                so_far = run()
            except MlUdfError as error:
                if not may_fail:
                    raise
                say(f"{error.message} [{error.code}]")
            except typer.Exit:  # it has said why
                if not may_fail:
                    raise
            else:
                if so_far.stored:
                    say(f"{so_far.answered:,} rows answered, {so_far.failed:,} hold an error")
            may_fail = True
            time.sleep(rest_s(interval_s, began_s, time.monotonic()))
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """As Ctrl-C does, which ends DuckDB's statement, too."""
    pressed = signal.getsignal(signal.SIGINT)
    if callable(pressed):
        pressed(signal.SIGINT, frame)
    raise KeyboardInterrupt
