"""Numbers as pages write them."""

from __future__ import annotations

import math

import pytest

from server.dashboard.figures import (
    ago,
    byte_size,
    clock,
    count,
    iso,
    milliseconds,
    percent,
    quantity,
    rate,
)

THIN = "\N{NARROW NO-BREAK SPACE}"


@pytest.mark.parametrize("shown", [count, rate, quantity, milliseconds, percent, byte_size, clock])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_known_is_a_dash(shown: object, value: float | None) -> None:
    assert callable(shown)
    assert shown(value) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123, "0.0123"), (1.0, "1"), (1.234, "1.23"), (-2.5, "-2.5"), (12345.6, f"12{THIN}346")],
)
def test_a_quantity_has_the_digits_that_count(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.251, "0.25"), (99.4, "99"), (812.4, "812"), (12345.0, f"12{THIN}345")],
)
def test_a_rate_has_no_more_digits_than_it_is_worth(value: float, text: str) -> None:
    assert rate(value) == text


def test_times_and_sizes_say_their_unit() -> None:
    assert milliseconds(0.0056) == f"5.6{THIN}ms"
    assert milliseconds(2.5) == f"2{THIN}500{THIN}ms"
    assert byte_size(0) == f"0{THIN}B"
    assert byte_size(17_100_000) == f"17.1{THIN}MB"
    assert byte_size(5e15) == f"5{THIN}000{THIN}TB"
    assert percent(0.277) == f"27.7{THIN}%"


@pytest.mark.parametrize(
    ("since_s", "text"), [(0, "0 s"), (59, "59 s"), (61, "1 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_how_long_ago_is_said_in_one_unit(since_s: float, text: str) -> None:
    assert ago(1e9, 1e9 + since_s) == f"{text.replace(' ', THIN)} ago"


def test_a_moment_has_its_zone() -> None:
    assert clock(0.0) == "1970-01-01 00:00 UTC"
    assert iso(0.0) == "1970-01-01T00:00:00+00:00"
    assert iso(None) == ""
