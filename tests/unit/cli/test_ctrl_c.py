"""Ctrl-C that somebody drops comes again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ml_udf.cli.ctrl_c import ctrl_c_until_heard, press_what_python_drops_again

LONG_S = 20


@pytest.fixture(autouse=True)
def handlers_left_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Pressed:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def drop_ctrl_c() -> float:
    """Press it, and forget it; gives how long to wait for what comes of it."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    return LONG_S


def test_ctrl_c_within_a_finalizer_comes_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    press_what_python_drops_again()
    Pressed()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(LONG_S)


def test_what_else_a_finalizer_raises_is_told_as_before(monkeypatch: pytest.MonkeyPatch):
    told: list[object] = []

    class Faulty:
        def __del__(self) -> None:
            raise ValueError

    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))
    press_what_python_drops_again()
    Faulty()
    assert told == [ValueError]


def test_ctrl_c_comes_until_it_is_heard_and_then_no_more():
    with pytest.raises(KeyboardInterrupt), ctrl_c_until_heard():
        time.sleep(drop_ctrl_c())
    time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_was_dropped_is_not_lost_where_the_work_ends():
    with pytest.raises(KeyboardInterrupt), ctrl_c_until_heard():
        drop_ctrl_c()


def test_what_fails_after_ctrl_c_is_ctrl_c():
    with pytest.raises(KeyboardInterrupt), ctrl_c_until_heard():
        raise ModuleNotFoundError(f"half imported {drop_ctrl_c()}")
    with pytest.raises(ModuleNotFoundError), ctrl_c_until_heard():
        raise ModuleNotFoundError("nobody pressed")


def test_ctrl_c_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ctrl_c_until_heard():
        signal.raise_signal(signal.SIGINT)


COMMAND_LINE = """
import signal
import ml_udf.duckdb
from ml_udf.cli import main
from ml_udf.client import Client, Options
from ml_udf.duckdb.registration import Registration
from tests.unit.ml_udf.fake_transport import FakeTransport

keys = [signal.SIGINT]

def pressed(*_):
    if keys:
        signal.raise_signal(keys.pop())
    return []

Registration._view_rows = pressed  # DuckDB asks for a view while it makes it, and drops what that raises
client = Client("http://fake", transport=FakeTransport())
ml_udf.duckdb.register = lambda con, *_, **__: Registration(con, client, {"udf_f": "f"}, Options())
main()
"""


def test_ctrl_c_while_functions_are_registered_ends_the_command():
    query = "SELECT sum(sqrt(b)), count(udf_f(a::VARCHAR)) FROM range(2) t(a), range(100000000000) u(b)"
    run = subprocess.run(
        [sys.executable, "-c", COMMAND_LINE, "sql", query], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 130, run.stderr
    assert "Traceback" not in run.stderr
