"""How much a model was asked of late is remembered, and outlives a server's rest."""

from __future__ import annotations

import pytest

from server.placement.rates import RatesOfLate


def test_rows_of_a_while_ago_count_for_less() -> None:
    rates = RatesOfLate()
    rates.count(["a"], 600, 1000.0)
    rates.count(["b"], 600, 1600.0)
    assert rates.rows_per_s("b") == pytest.approx(1.0)
    assert rates.rows_per_s("a") == pytest.approx(1.0 / 2.718281828)
    assert rates.rows_per_s("never") == 0.0


def test_a_night_without_a_server_changes_no_rate() -> None:
    rates = RatesOfLate()
    rates.remember("hot", 40.0, 1000.0)
    rates.remember("cold", 2.0, 400.0)
    assert rates.rows_per_s("hot") == pytest.approx(40.0)
    assert rates.rows_per_s("cold") == pytest.approx(2.0 / 2.718281828)


def test_what_is_counted_goes_on_from_what_was_remembered() -> None:
    rates = RatesOfLate()
    rates.remember("a", 1.0, 1000.0)
    rates.count(["a"], 60, 1000.0)
    rates.remember("a", 99.0, 2000.0)
    assert rates.rows_per_s("a") == pytest.approx(1.1)
