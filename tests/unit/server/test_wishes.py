"""Functions by wish: which models are candidates, which one a goal chooses, and when that is decided anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.model_files.file_list import ModelFile
from server.catalog.catalog import Catalog
from server.catalog.function_spec import function_of, single_model_function, spec_from
from server.catalog.functions import Function, ModelVersion
from server.catalog.variants import HeldOutAccuracy, Variant, Variants
from server.catalog.wants import Wants, wants_from
from server.catalog.wishes import (
    Estimate,
    Goals,
    candidates_for,
    check_had,
    decide,
    held_out_of,
)
from server.errors import BadOption, NoMembers
from server.observability.metrics import Metrics
from server.scheduling.latency_model import LatencyModel
from server.serving.calls import Call
from server.serving.wishes import Wishes
from server.wilson import wilson
from tests.unit.server.served import image_model, text_model

DEFAULTS = {"slo_ms": 500.0, "max_batch": 64, "policy": "greedy"}


def estimate(key: str, low: float | None, ms: float, cost: float = 1.0, **fields: Any) -> Estimate:
    return Estimate(key, low, low or 0.0, ms / 1000, cost, **fields)


SMALL, MIDDLE, LARGE = (
    estimate("small/1", 0.80, 2, 0.5),
    estimate("middle/1", 0.90, 10, 3.0),
    estimate("large/1", 0.96, 80, 40.0),
)
ALL = (SMALL, MIDDLE, LARGE)


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ([], "must be an object"),
        ({}, "must be an object"),
        ({"speed": 3, "task": "text-classification"}, "no field 'speed'"),
        ({"min_accuracy": 0.9}, "does not say what is to be answered"),
        ({"dataset": 3}, "'dataset' of 'wants' must be a name"),
        ({"task": "cooking"}, "'task' of 'wants' must be one of"),
        ({"dataset": "food", "min_accuracy": 1.2}, "1 at the most"),
        ({"dataset": "food", "min_accuracy": True}, "must be a number"),
        ({"dataset": "food", "slo_ms": 0}, "must be a number above 0"),
        ({"dataset": "food", "cost": float("nan")}, "must be a number above 0"),
    ],
)
def test_a_wish_that_says_nothing_of_use_is_refused(raw: object, told: str) -> None:
    with pytest.raises(BadOption, match=told):
        wants_from("f", raw)


def test_a_wish_is_kept_as_it_was_said() -> None:
    wants = wants_from("f", {"dataset": "food", "min_accuracy": 0.9, "slo_ms": 50, "cost": None})
    assert wants == Wants(dataset="food", min_accuracy=0.9, slo_ms=50.0)
    assert wants.to_json() == {"dataset": "food", "min_accuracy": 0.9, "slo_ms": 50.0}


# ── who can answer it ─────────────────────────────────────────────────────────────────────────────


def of_food(model: ModelVersion) -> str | None:
    return "food" if model.name.startswith("food") else None


def keys(models: Sequence[ModelVersion]) -> list[str]:
    return [model.key for model in models]


def test_candidates_are_the_newest_fitting_version_of_each_and_its_variants() -> None:
    models = [
        text_model("food_a", 1),
        text_model("food_a", 2),
        text_model("food_a~int8", 1),
        text_model("food_a~int8", 2),
        text_model("food_b", 7),
        text_model("other", 9),
    ]
    found = candidates_for("f", Wants(dataset="food"), models, of_food)
    assert keys(found) == ["food_a/2", "food_a~int8/2", "food_b/7"]


def test_a_purpose_is_whatever_has_its_task_and_classes() -> None:
    unlike = replace(text_model("unlike"), classes=("soup", "salad"))
    models = [text_model("a"), text_model("b"), unlike, image_model("photo")]
    found = candidates_for("f", Wants(purpose="a"), models, of_food, alike=models[0])
    assert keys(found) == ["a/1", "b/1"]
    with pytest.raises(BadOption, match=r"answer different things.*'purpose'"):
        candidates_for("f", Wants(task="text-classification"), models, of_food)


def test_who_is_behind_another_server_is_no_candidate_and_nobody_is_an_error() -> None:
    remote = text_model("food_remote", endpoint="https://example.org")
    with pytest.raises(BadOption, match="no model that you see was trained on the dataset food"):
        candidates_for("f", Wants(dataset="food"), [remote, text_model("other")], of_food)


def test_vectors_of_different_models_do_not_mean_the_same() -> None:
    model = replace(text_model("food_a"), task="text-embedding", classes=())
    with pytest.raises(BadOption, match="do not mean the same"):
        candidates_for("f", Wants(dataset="food"), [model], of_food)


def test_an_accuracy_counts_by_the_interval_of_its_rows() -> None:
    low, high = wilson(0.9, 100)
    assert 0.82 < low < 0.83
    assert 0.94 < high < 0.95
    told = text_model("net", accuracy=0.9, score={"metric": "accuracy", "value": 0.9, "rows": 100})
    found = held_out_of(told)
    assert found is not None
    assert (found.low, found.high, found.rows) == (low, high, 100)
    said = held_out_of(text_model("net", accuracy=0.9))
    assert said is not None
    assert (said.low, said.rows) == (0.9, None), "nobody said of how many rows"
    assert held_out_of(text_model("net", accuracy=0.0)) is None


def test_what_was_measured_of_a_variant_comes_first() -> None:
    held_out = HeldOutAccuracy(0.88, 500, 0.85, 0.91)
    variants = Variants([Variant("net", 1, "int8", "onnx", held_out=held_out)])
    found = held_out_of(text_model("net~int8", accuracy=0.95), variants)
    assert found is not None
    assert (found.accuracy, found.low, found.rows) == (0.88, 0.85, 500)


# ── the decision ──────────────────────────────────────────────────────────────────────────────────


def test_of_those_that_keep_the_goals_the_cheapest_answers() -> None:
    decision = decide(Goals(min_accuracy=0.75, slo_s=0.1), ALL)
    assert (decision.chosen, decision.is_met) == ("small/1", True)
    assert "3 of 3 keep min_accuracy 0.75, slo_ms 100" in decision.reason
    assert decide(Goals(min_accuracy=0.85), ALL).chosen == "middle/1"


def test_where_no_accuracy_is_asked_for_the_most_accurate_that_keeps_the_rest_answers() -> None:
    assert decide(Goals(slo_s=0.05), ALL).chosen == "middle/1"
    assert decide(Goals(cost=1.0), ALL).chosen == "small/1"
    assert decide(Goals(), ALL).chosen == "large/1"


def test_accuracy_is_never_given_up_and_time_may_be() -> None:
    late = decide(Goals(min_accuracy=0.95, slo_s=0.05), ALL)
    assert (late.chosen, late.is_met) == ("large/1", False)
    assert late.reason.startswith(
        "degraded: nothing keeps min_accuracy 0.95, slo_ms 50 now; large/1 is nearest"
    )
    for slo_s in (0.0001, 0.001, 0.05, 10.0):
        for least in (0.79, 0.85, 0.95):
            chosen = decide(Goals(min_accuracy=least, slo_s=slo_s), ALL).chosen
            assert next(each for each in ALL if each.key == chosen).low >= least  # type: ignore[operator]
    with pytest.raises(NoMembers, match=r"nearest: 0\.96 by large/1"):
        decide(Goals(min_accuracy=0.99), ALL)


def test_who_was_never_measured_keeps_no_accuracy() -> None:
    unknown = estimate("unknown/1", None, 1, 0.1)
    assert decide(Goals(min_accuracy=0.5), [unknown, SMALL]).chosen == "small/1"
    with pytest.raises(NoMembers, match="was not measured on held-out rows"):
        decide(Goals(min_accuracy=0.5), [unknown])


def test_who_was_never_tried_comes_after_those_who_were() -> None:
    hopeful = estimate("hopeful/1", 0.99, 0.1, 0.001, is_guess=True)
    assert decide(Goals(min_accuracy=0.75, slo_s=0.05), [hopeful, SMALL]).chosen == "small/1"
    assert decide(Goals(slo_s=0.05), [hopeful, SMALL]).chosen == "small/1"
    assert decide(Goals(slo_s=0.05), [hopeful]).chosen == "hopeful/1", "it has to run to be known"


def test_waiting_loading_and_a_queue_that_would_grow_count() -> None:
    goals = Goals(min_accuracy=0.75, slo_s=0.05)
    absent = replace(SMALL, load_s=3.0)
    assert decide(goals, [absent, MIDDLE, LARGE]).chosen == "middle/1"
    behind = replace(SMALL, wait_s=0.2)
    assert decide(goals, [behind, MIDDLE]).chosen == "middle/1"
    crowded = replace(MIDDLE, share=1.3)
    assert decide(Goals(slo_s=0.05), [SMALL, crowded]).chosen == "small/1"


def test_a_wish_that_cannot_be_is_refused_with_the_nearest_on_each_side() -> None:
    with pytest.raises(NoMembers) as refused:
        check_had("f", Goals(min_accuracy=0.95, slo_s=0.05), ALL)
    told = refused.value.message
    assert "function f: none of 3 models keeps min_accuracy 0.95, slo_ms 50" in told
    assert "0.9 by middle/1 within 50 ms; or 0.95 in 80 ms by large/1" in told
    assert check_had("f", Goals(min_accuracy=0.95, slo_s=0.1), ALL).chosen == "large/1"


GONE = "whose file model.onnx is gone (make it again: ml-udf variants small --only int8)"


def test_who_has_lost_a_file_is_not_chosen_and_the_reason_says_so() -> None:
    lost = replace(SMALL, lost=GONE)
    decision = decide(Goals(min_accuracy=0.75, slo_s=0.1), [lost, MIDDLE, LARGE])
    assert (decision.chosen, decision.is_met) == ("middle/1", True)
    assert decision.reason.endswith(f"; left out: small/1, {GONE}")
    assert decision.weighed[0].lacks == (GONE,)
    late = decide(Goals(slo_s=0.005), [lost, MIDDLE, LARGE])
    assert (late.chosen, late.is_met) == ("middle/1", False)
    assert f"left out: small/1, {GONE}" in late.reason


def test_where_only_who_has_lost_a_file_would_do_the_error_says_which_and_what_to_do() -> None:
    lost = replace(LARGE, lost=GONE)
    with pytest.raises(NoMembers) as refused:
        decide(Goals(min_accuracy=0.95), [SMALL, MIDDLE, lost])
    assert "nearest: 0.9 by middle/1" in refused.value.message
    assert f"left out: large/1, {GONE}" in refused.value.message
    with pytest.raises(NoMembers, match=r"f: no model is left to answer; left out: large/1, .*make it again"):
        check_had("f", Goals(), [lost])


# ── the function, and its calls ───────────────────────────────────────────────────────────────────


MODELS = (
    text_model("small", accuracy=0.80),
    text_model("middle", accuracy=0.90),
    text_model("large", accuracy=0.96),
)
MS = {"small/1": 2.0, "middle/1": 10.0, "large/1": 80.0}


def wished(catalog: Catalog | None = None, version: int = 1, **wants: Any) -> Function:
    if catalog is None:
        catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
        for model in MODELS:
            catalog.add_model(model)
    body = {"wants": {"task": "text-classification", **wants}}
    return function_of("f", version, spec_from("f", body, catalog, MODELS), catalog, DEFAULTS)


def test_a_function_by_wish_is_its_first_candidate_and_each_other_one_apart() -> None:
    function = wished(slo_ms=50)
    assert keys(function.members) == ["small/1"]
    assert keys(function.candidates) == ["small/1", "middle/1", "large/1"]
    assert function.slo_ms == 50.0
    other = function.by(MODELS[1])
    assert (other.name, other.version, keys(other.members)) == ("f", 1, ["middle/1"])
    assert len({function.key, other.key, function.by(MODELS[2]).key}) == 3, "their rows never share a batch"
    assert function.by(MODELS[0]).key == function.key


@pytest.mark.parametrize("field", ["models", "select", "combine", "cascade"])
def test_a_wish_names_no_models(field: str) -> None:
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    with pytest.raises(BadOption, match=f"'{field}' is said of models that are named"):
        spec_from("f", {"wants": {"task": "text-classification"}, field: ["small"]}, catalog, MODELS)


class House:
    """Wishes over one worker, whose clock, load and models the test sets."""

    def __init__(
        self,
        *held: str,
        price_per_s: Mapping[str, float | None] | None = None,
        loads_able: bool = True,
    ) -> None:
        self.now_s = 100.0
        self.held = frozenset(held or MS)
        self.changes = 0
        self.busy_s = 0.0
        self.spread: list[str] = []
        self.metrics = Metrics()
        self.latencies = {key: LatencyModel({1: ms / 1000, 64: ms / 250}) for key, ms in MS.items()}
        self.wishes = Wishes(
            self,
            lambda model: self.latencies[model.key],
            lambda model, device: 2.0,
            self._spread,
            self.metrics,
            clock=lambda: self.now_s,
            price_per_s=None if price_per_s is None else lambda model, device: price_per_s[model.key],
            loads_able=loads_able,
        )

    async def _spread(self, group: tuple[ModelVersion, ...]) -> None:
        self.spread += keys(group)

    def holdings(self) -> list[tuple[str, frozenset[str], str]]:
        return [("w0", self.held, "cpu")]

    def held_changes(self) -> int:
        return self.changes

    def backlog_s(self) -> Mapping[str, float]:
        return {"w0": self.busy_s}

    def current(self, function: Function) -> Function:
        return function

    def ask(self, function: Function, rows: int = 1, **fields: Any) -> Call:
        return self.wishes.answered_by(Call(function, "text", [b"x"] * rows, rows, **fields))

    def chosen(self, function: Function, rows: int = 1, **fields: Any) -> str:
        return self.ask(function, rows, **fields).function.members[0].name


def test_a_call_is_asked_of_the_candidate_that_its_goals_choose() -> None:
    house, function = House(), wished(min_accuracy=0.75, slo_ms=50)
    assert house.chosen(function) == "small"
    assert house.chosen(function, min_accuracy=0.85) == "middle"
    assert house.chosen(function, slo_s=1.0, min_accuracy=0.95) == "large"
    assert "small/1 takes least of a device" in house.ask(function).decision
    named = Call(function, "text", [b"x"], 1, members=("small/1",))
    assert house.wishes.answered_by(named) is named, "who says whom to ask is not asked what is wished"


def test_where_devices_have_prices_a_cost_is_in_their_currency() -> None:
    """The small one's bytes are dear, and nobody knows those of the large one yet."""
    house = House(price_per_s={"small/1": 100.0, "middle/1": 1.0, "large/1": None})
    function = wished(min_accuracy=0.75)
    told = house.ask(function).decision
    assert "middle/1 costs least, " in told
    assert "device seconds" not in told
    by_model = {each.key: each for each in house.wishes.at_rest(function).estimates}
    seconds = {key: House().wishes.at_rest(function).estimates[place].cost for place, key in enumerate(MS)}
    assert by_model["small/1"].cost == pytest.approx(100 * seconds["small/1"])
    assert by_model["middle/1"].cost == pytest.approx(seconds["middle/1"])
    assert [each.is_guess for each in by_model.values()][2]
    known = House(price_per_s=dict.fromkeys(MS, 2.0))
    with pytest.raises(NoMembers, match=r"cost 1e-06 .*nearest: 0\.75 for [\d.]+ per 1,000 rows by small/1"):
        known.wishes.at_rest(wished(min_accuracy=0.75, cost=1e-6))


def test_of_two_kinds_of_device_the_one_that_would_be_done_first_counts() -> None:
    house, function = House(), wished(min_accuracy=0.95)
    house.holdings = lambda: [("w0", house.held, "cpu"), ("w1", frozenset(), "cuda")]  # type: ignore[method-assign]
    house.busy_s = 10.0
    (large,) = [each for each in ask_estimates(house, function) if each.key == "large/1"]
    assert large.predicted_s == pytest.approx(2.0 + house.latencies["large/1"].on("cuda", "text")(1))
    house.busy_s = 0.5
    house.now_s += 10
    (large,) = [each for each in ask_estimates(house, function) if each.key == "large/1"]
    assert (large.wait_s, large.load_s) == (0.5, 0.0)


def ask_estimates(house: House, function: Function) -> Sequence[Estimate]:
    house.ask(function)
    return house.wishes.decided(function)[0].decision.estimates


def test_a_call_that_nothing_can_answer_is_refused_and_an_slo_alone_never_is() -> None:
    house, function = House(), wished(min_accuracy=0.75)
    with pytest.raises(NoMembers, match=r"f: none of 3 models keeps min_accuracy 0\.99"):
        house.ask(function, min_accuracy=0.99)
    with pytest.raises(NoMembers, match=r"0\.95 in 8. ms by large/1"):
        house.ask(function, min_accuracy=0.95, slo_s=0.01)
    late = house.ask(function, slo_s=0.001)
    assert late.decision.startswith("degraded")
    assert late.function.members[0].name == "small"


def test_a_load_that_moved_is_degraded_counted_and_over_when_it_is_over() -> None:
    house, function = House(), wished(min_accuracy=0.85, slo_ms=50)
    house.metrics.serve(function)
    assert house.ask(function).decision.startswith("middle/1")
    house.busy_s = 0.5
    house.now_s += 1
    assert house.ask(function, rows=3).decision.startswith("degraded")
    assert house.metrics.of(function).degraded_rows == 3
    house.busy_s = 0.0
    house.now_s += 1
    assert house.ask(function).decision.startswith("middle/1")
    known = {tuple(one.decision.goals.told().items()): one for one in house.wishes.decided(function)}
    assert sum(one.rows for one in known.values()) == 5
    assert sum(one.degraded_rows for one in known.values()) == 3


def test_the_better_one_that_is_not_resident_is_loaded_where_there_is_room() -> None:
    async def run() -> None:
        house, function = House("middle/1", "large/1"), wished(min_accuracy=0.75, slo_ms=50)
        assert house.chosen(function) == "middle"
        await asyncio.sleep(0)
        assert house.spread == ["small/1"]
        house.now_s += 1
        assert house.chosen(function) == "middle"
        await asyncio.sleep(0)
        assert house.spread == ["small/1"], "once for a while"
        house.held = frozenset(MS)
        house.now_s += 1
        assert house.chosen(function) == "small"

    asyncio.run(run())


def test_where_a_capacity_policy_says_which_able_ones_there_are_a_wish_loads_no_other() -> None:
    async def loaded(held: str, **wants: Any) -> list[str]:
        house = House(held, loads_able=False)
        house.chosen(wished(**wants))
        await asyncio.sleep(0)
        return house.spread

    async def run() -> None:
        assert await loaded("middle/1", min_accuracy=0.75, slo_ms=50) == []
        assert await loaded("small/1", slo_ms=100) == ["large/1"], "which is the best no policy knows"

    asyncio.run(run())


def test_what_has_just_been_evicted_is_asked_nothing_more() -> None:
    """A row that waited for it would have it loaded again."""
    house, function = House(loads_able=False), wished(min_accuracy=0.75, slo_ms=50)
    assert house.chosen(function) == "small"
    house.held, house.changes = frozenset({"middle/1"}), 1
    assert house.chosen(function) == "middle", "in the same moment"


def test_a_candidate_whose_file_is_gone_answers_nothing_until_it_is_back(tmp_path: Path) -> None:
    """Not bulk rows either, nor where a worker holds it still."""

    async def run() -> None:
        small = replace(MODELS[0], directory=tmp_path, files=(ModelFile("model.onnx"),))
        house, function = House(), wished(min_accuracy=0.75, slo_ms=50)
        function = replace(function, candidates=(small, *MODELS[1:]), members=(small,))
        assert house.chosen(function) == "small"
        await house.wishes.look_for_files(function.candidates)
        assert house.chosen(function) == "middle"
        assert house.chosen(function, row_class="bulk") == "middle"
        told = "small/1, whose file model.onnx is gone (put it back, or register the model anew)"
        assert told in house.ask(function).decision
        assert house.wishes.at_rest(function).chosen == "middle/1"
        assert not house.wishes.has_its_files(small)
        (tmp_path / "model.onnx").touch()
        await house.wishes.look_for_files(function.candidates)
        assert house.chosen(function) == "small"

    asyncio.run(run())


def test_bulk_rows_are_answered_by_whoever_is_cheapest_whatever_the_load() -> None:
    house, function = House(), wished(min_accuracy=0.75, slo_ms=50)
    house.busy_s = 3.0
    bulk = house.ask(function, rows=1000, row_class="bulk")
    assert bulk.function.members[0].name == "small"
    assert not bulk.decision.startswith("degraded")


def test_a_decision_holds_until_something_has_moved() -> None:
    house, function = House(), wished(min_accuracy=0.75, slo_ms=50)
    house.ask(function)
    house.now_s += 0.5
    house.ask(function)
    epoch = house.wishes.epoch
    house.now_s += 1.0
    house.busy_s = 0.0005
    house.ask(function)
    assert house.wishes.epoch == epoch, "so little waiting is none"
    house.held = frozenset({"small/1"})
    house.now_s += 0.5
    house.ask(function)
    assert house.wishes.epoch > epoch


def test_a_version_that_is_gone_leaves_nothing() -> None:
    house, function = House(), wished(min_accuracy=0.75)
    house.ask(function)
    assert house.wishes.decided(function)
    house.wishes.forget(function)
    assert house.wishes.decided(function) == []
