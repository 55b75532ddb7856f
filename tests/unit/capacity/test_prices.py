"""Promises about price files: what is written counts, and what is wrong is refused with its line."""

from __future__ import annotations

import pytest

from server.capacity.prices import Price, check_kinds, prices_of

TOML = """\
# of the machines that we rent
[cpu]
per_gb_s = 1

[cuda]
per_gb_s = 7.97
per_hour = 3.06
host_per_gb_s = 1.0
"""


def test_a_file_says_what_each_kind_costs():
    assert prices_of(TOML, "prices.toml") == {"cpu": Price(1.0), "cuda": Price(7.97, 3.06, 1.0)}


def test_json_says_the_same():
    text = '{"cpu": {"per_gb_s": 1}, "cuda": {"per_gb_s": 7.97, "per_hour": 3.06, "host_per_gb_s": 1.0}}'
    assert prices_of(text, "prices.json") == prices_of(TOML, "prices.toml")


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("per_hour = 3.06", "per_hour = -1", "line 7: per_hour of cuda is -1: a number of at least 0"),
        ("per_hour = 3.06", "per_hour = nan", "line 7: per_hour of cuda is nan"),
        ("per_hour = 3.06", "per_hour = inf", "line 7: per_hour of cuda is inf"),
        ("per_hour = 3.06", "per_hour = '3'", "line 7: per_hour of cuda is '3'"),
        ("per_hour = 3.06", "per_hour = true", "line 7: per_hour of cuda is True"),
        ("per_hour = 3.06", "hourly = 3", "line 7: cuda has no 'hourly'; known: per_gb_s, per_hour"),
        ("per_gb_s = 1\n", "host_per_gb_s = 1\n", "line 2: cpu has neither per_gb_s nor per_hour"),
        ("per_gb_s = 1\n", "\n", "line 2: cpu has neither per_gb_s nor per_hour"),
        ("per_hour = 3.06", "per_hour = ", "at line 7"),
        ("per_hour = 3.06", "per_gb_s = 3", "at line 7"),
        (TOML, "", "line 1: prices of at least one device kind are missing"),
        (TOML, "cpu = 3", "line 1: cpu needs a table"),
    ],
)
def test_holes_and_nonsense_are_refused_with_their_line(wrong: str, right: str, said: str):
    with pytest.raises(ValueError, match=r"^prices\.toml") as refused:
        prices_of(TOML.replace(wrong, right, 1), "prices.toml")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cpu":\n {"per_gb_s": 1,}}', "line 2"),
        ('{"cpu": {"per_gb_s": 1},\n "cpu": {"per_gb_s": 2}}', "line 2: 'cpu' comes twice"),
        ('{"cpu":\n {"per_gb_s": Infinity}}', "line 2: per_gb_s of cpu is inf"),
        ("[1]", "line 1: prices of at least one device kind are missing"),
    ],
)
def test_json_is_refused_in_the_same_way(text: str, said: str):
    with pytest.raises(ValueError, match=r"^prices\.json") as refused:
        prices_of(text, "prices.json")
    assert said in str(refused.value)


def test_a_file_of_another_ending_is_refused():
    with pytest.raises(ValueError, match=r"prices\.yaml: .* \.toml or \.json"):
        prices_of(TOML, "prices.yaml")


def test_a_kind_without_a_price_is_a_hole():
    prices = prices_of(TOML, "prices.toml")
    check_kinds(prices, {"cpu", "cuda"}, "prices.toml")
    with pytest.raises(ValueError, match=r"no price of mps, .* known: cpu, cuda"):
        check_kinds(prices, {"cpu", "mps"}, "prices.toml")
