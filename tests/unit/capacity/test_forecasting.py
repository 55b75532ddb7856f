"""Promises of the forecast: it averages chance away, follows a trend, and forgets after a jump."""

from __future__ import annotations

import numpy
import pytest

from server.capacity.forecasting import RateForecast, is_jump


def after(rates: list[float], begins: float) -> RateForecast:
    forecast = RateForecast(begins)
    for rate in rates:
        forecast = forecast.seen(rate)
    return forecast


def test_a_rate_that_stays_is_what_is_expected():
    assert after([100.0] * 30, 100.0).at(30.0) == pytest.approx(100.0)


@pytest.mark.parametrize("rate", [4.0, 100.0])
def test_chance_is_averaged_away(rate: float):
    counts = numpy.random.default_rng(1).poisson(rate, 300)
    levels, forecast = [], RateForecast(rate)
    for count in counts:
        forecast = forecast.seen(float(count))
        levels.append(forecast.level)
    assert numpy.std(levels) < 0.6 * numpy.std(counts)
    assert numpy.mean(levels) == pytest.approx(rate, rel=0.05)


def test_a_trend_goes_on_for_a_while_and_no_further():
    forecast = after([100.0 + 10 * second for second in range(40)], 100.0)
    now = forecast.at(0.0)
    assert now + 20 < forecast.at(10.0) < now + 100
    assert forecast.at(30.0) == forecast.at(10.0)


def test_a_jump_is_believed_at_once_and_is_no_trend():
    forecast = after([50.0] * 20 + [500.0], 50.0)
    assert forecast.level > 400
    assert forecast.trend == 0.0
    assert forecast.at(30.0) == pytest.approx(forecast.level)


def test_a_forecast_opens_up_and_never_falls_below_nothing():
    rate, deviation = after([4.0, 9.0, 0.0, 2.0, 5.0], 4.0).band(5.0)
    assert rate > 0
    assert 0 < deviation < after([4.0, 9.0, 0.0, 2.0, 5.0], 4.0).band(9.0)[1]
    assert after([40.0, 30.0, 20.0, 10.0, 0.0, 0.0], 50.0).at(10.0) >= 0.0


def test_nothing_comes_and_nothing_is_expected():
    assert after([0.0] * 60, 20.0).at(10.0) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize(
    ("rows", "expected", "jumps"), [(12, 2.0, False), (13, 2.0, True), (3, 0.0, False), (6, 0.0, True)]
)
def test_what_half_a_second_must_bring_to_be_a_jump(rows: int, expected: float, jumps: bool):
    assert is_jump(rows, expected) is jumps
