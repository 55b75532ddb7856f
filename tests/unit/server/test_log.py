"""A line of the log is an event, whatever was sent."""

from __future__ import annotations

import logging

import pytest

from server.observability.log import OneLine


def line_of(message: str, *arguments: object, error: BaseException | None = None) -> str:
    told = None if error is None else (type(error), error, None)
    return OneLine().format(logging.LogRecord("ml_udf", logging.INFO, "x.py", 1, message, arguments, told))


@pytest.mark.security
def test_a_name_that_somebody_sent_begins_no_line_and_moves_no_cursor() -> None:
    sent = "x\n2026 ERROR one\r2026 ERROR two\x1b[2J\0\x85\u2028é"
    line = line_of("model registered task=%s", sent)
    assert line.endswith(r"task=x\n2026 ERROR one\r2026 ERROR two\x1b[2J\x00\x85\u2028é")
    assert len(line.splitlines()) == 1


def test_a_traceback_is_a_part_of_its_line() -> None:
    line = line_of("request failed", error=ValueError("a\nb"))
    assert len(line.splitlines()) == 1
    assert "request failed error=" in line
