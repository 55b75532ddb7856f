"""What is said of how members are selected: the plan, its price, what is expected of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from server.catalog.functions import ModelVersion
from server.catalog.selections import Selection, selection_of
from server.ensemble.evidence import evidence_of_subsets
from server.ensemble.fit import Fit, SubsetFit
from server.ensemble.gearing import FollowedPlans
from server.ensemble.plan import Plan
from server.ensemble.selection import ENOUGH
from server.observability.metrics import Exposition, Metrics
from server.scheduling.terms import Latency
from server.supervision import Supervisor
from tests.unit.server.served import function, text_model

TWO = text_model("a", accuracy=0.7), text_model("b", accuracy=0.8)
FIT = Fit(
    ("a", "b"),
    (1.0, 1.0),
    (
        SubsetFit((0,), (1.0,), 0.7, 0.5),
        SubsetFit((1,), (1.0,), 0.8, 0.4),
        SubsetFit((0, 1), (1.0, 1.0), 0.9, 0.3),
    ),
    rows=100,
    classes=3,
)


def latency_of(model: ModelVersion) -> Latency:
    return lambda rows: {"a": 0.001, "b": 0.002, "net": 0.004}[model.name] * rows


def test_of_one_member_its_accuracy_is_expected_and_an_unknown_one_is_not() -> None:
    alone = selection_of(function(), None, latency_of)
    assert (alone.policy, alone.gear, alone.expected_accuracy) == ("all", None, 0.9)
    assert alone.device_seconds_a_row == pytest.approx(0.004)
    assert selection_of(function(text_model(accuracy=0.0)), None, latency_of).expected_accuracy is None


def test_of_several_what_they_answered_together_is_expected_where_it_was_counted() -> None:
    fitted = function(*TWO, combine="log_pool", fit=FIT)
    both = selection_of(fitted, None, latency_of)
    assert both.expected_accuracy == 0.9
    assert both.device_seconds_a_row == pytest.approx(0.003)
    assert selection_of(function(*TWO), None, latency_of).expected_accuracy is None
    assert selection_of(function(*TWO, select=["a", "b"]), None, latency_of).policy == "static"


def test_after_a_refit_what_was_counted_then_is_expected() -> None:
    broken = replace(FIT, subsets=tuple(replace(each, accuracy=0.4) for each in FIT.subsets))
    refitted = function(*TWO, combine="log_pool", fit=FIT, refit=broken)
    assert selection_of(refitted, None, latency_of).expected_accuracy == 0.4
    assert set(refitted.held_out.values()) == {0.4}


def test_a_plan_says_its_gear_its_price_and_what_is_expected_of_it() -> None:
    plans = tuple(
        Plan((ENOUGH,), np.array([[cost_s]]), accuracy, (price,))
        for cost_s, accuracy, price in ((0.003, 0.9, 0.0), (0.001, 0.7, 50.0))
    )
    planned = function(*TWO, combine="log_pool", fit=FIT, select="value")
    told = selection_of(planned, FollowedPlans(plans, 1), latency_of).to_json()
    assert told == {
        "policy": "value",
        "gear": 1,
        "gears": 2,
        "price_per_device_second": 50.0,
        "expected_accuracy": 0.7,
        "device_seconds_a_row": 0.001,
    }


def test_a_plan_is_expected_to_be_no_better_than_the_members_are_together_also_after_a_refit() -> None:
    counted = replace(FIT, evidence=evidence_of_subsets(2, {0b01: 0.7, 0b10: 0.8, 0b11: 0.85}))
    broken = replace(FIT, evidence=evidence_of_subsets(2, {0b01: 0.1, 0b10: 0.8, 0b11: 0.75}))
    followed = FollowedPlans((plan_of(0.88), plan_of(0.6)), 0)
    planned = function(*TWO, combine="log_pool", fit=counted, select="value")
    assert selection_of(planned, followed, latency_of).expected_accuracy == pytest.approx(0.85)
    refitted = replace(planned, refit=broken)
    assert selection_of(refitted, followed, latency_of).expected_accuracy == pytest.approx(0.8)
    assert selection_of(refitted, replace(followed, gear=1), latency_of).expected_accuracy == 0.6


def plan_of(accuracy: float) -> Plan:
    return Plan((ENOUGH,), np.array([[0.001]]), accuracy)


def test_the_gauges_are_of_what_is_known_and_of_each_version_alone() -> None:
    selections = {
        ("plan", 2): Selection("value", 1, 4, 50.0, 0.9, 0.002),
        ("alone", 1): Selection("all", device_seconds_a_row=0.004),
    }
    exposition = Exposition(Metrics(), dict, list, Supervisor(lambda _: None), lambda: selections)
    told = exposition.look().text().decode()
    lines = [line for line in told.splitlines() if not line.startswith("#")]
    assert 'ml_udf_gear{function="plan",version="2"} 1.0' in lines
    assert 'ml_udf_price_per_device_second{function="plan",version="2"} 50.0' in lines
    assert 'ml_udf_expected_accuracy{function="plan",version="2"} 0.9' in lines
    assert 'ml_udf_device_seconds_a_row{function="alone",version="1"} 0.004' in lines
    assert [line for line in lines if 'function="alone"' in line and "device_seconds" not in line] == []
