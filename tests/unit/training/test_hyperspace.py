"""Spaces of hyper-parameters: ranges, order, hooks, JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from server.training.studies.hyperspace import HyperSpace
from server.training.studies.messages import StudySpec


def drawn(space: HyperSpace, count: int = 300) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [space.random_point(random)[1] for _ in range(count)]


def test_ranges_include_their_least_value_and_exclude_their_greatest():
    space = HyperSpace()
    space.add_range_knob("rotation", "integer", 0, 3, group="preprocessing")
    space.add_range_knob("rate", "float", 0.25, 0.5)
    space.add_range_knob("letter", "string", "a", "d")
    knobs = drawn(space)
    assert {k["rotation"] for k in knobs} == {0, 1, 2}
    assert all(0.25 <= k["rate"] < 0.5 for k in knobs)
    assert {k["letter"] for k in knobs} == {"a", "b", "c"}
    for dimension in space.dimensions():
        assert dimension.at(0.0) == dimension.clip(dimension.low)
        assert float(dimension.clip(dimension.high)) < dimension.high


def test_a_logarithmic_range_gives_every_decade_its_share():
    space = HyperSpace()
    space.add_range_knob("rate", "float", 1e-4, 1.0, log=True)
    low = np.mean([k["rate"] < 1e-2 for k in drawn(space, 1000)])
    assert 0.45 < low < 0.55


def test_units_and_values_are_each_others_inverse():
    space = HyperSpace()
    space.add_range_knob("rate", "float", 1e-4, 1.0, log=True)
    space.add_range_knob("layers", "integer", 1, 9)
    space.add_categorical_knob("kernel", "string", ["linear", "rbf", "poly"])
    rate, layers, kernel = space.dimensions()
    assert rate.at(rate.unit(0.01)) == pytest.approx(0.01)
    assert [layers.at(layers.unit(n)) for n in range(1, 9)] == list(range(1, 9))
    assert kernel.at(kernel.unit("rbf")) == "rbf"


def test_a_knob_is_generated_after_those_it_depends_on():
    space = HyperSpace()
    space.add_range_knob(
        "decay",
        "float",
        0,
        1,
        depends=["rate"],
        post_hook=lambda value, knobs: float(value) * float(knobs["rate"]),
    )
    space.add_range_knob("rate", "float", 10, 11)
    assert [knob.name for knob in space.knobs()] == ["rate", "decay"]
    draws, knobs = space.point(lambda dimension: dimension.at(0.5))
    assert knobs["decay"] == float(draws["decay"]) * float(knobs["rate"])


def test_a_pre_hook_bends_the_range_and_advisors_still_see_a_fixed_one():
    space = HyperSpace()
    space.add_range_knob("rate", "float", 0.0, 1.0)
    space.add_range_knob("final_rate", "float", 0.0, 1.0, pre_hook={"hook": "at_most", "knob": "rate"})
    assert all(k["final_rate"] <= k["rate"] for k in drawn(space))
    final = space.dimensions()[1]
    assert (final.low, final.high) == (0.0, 1.0)


def test_a_conditional_knob_is_there_only_when_its_condition_holds_and_a_chain_closes():
    space = HyperSpace()
    space.add_categorical_knob("kernel", "string", ["linear", "poly"])
    space.add_range_knob(
        "degree", "integer", 2, 5, pre_hook={"hook": "only_when", "knob": "kernel", "values": ["poly"]}
    )
    space.add_categorical_knob(
        "bias", "integer", [0, 1], pre_hook={"hook": "only_when", "knob": "degree", "values": [2, 3, 4]}
    )
    for knobs in drawn(space):
        assert ("degree" in knobs) == ("bias" in knobs) == (knobs["kernel"] == "poly")


def test_a_knob_that_a_trial_lacks_binds_no_other():
    space = HyperSpace()
    space.add_categorical_knob("optimizer", "string", ["sgd", "adam"])
    with_sgd = {"hook": "only_when", "knob": "optimizer", "values": ["sgd"]}
    space.add_range_knob("momentum", "float", 0.0, 0.5, pre_hook=with_sgd)
    space.add_range_knob("most", "float", 0, 1, pre_hook={"hook": "at_most", "knob": "momentum"})
    space.add_range_knob("least", "float", 0, 1, pre_hook={"hook": "at_least", "knob": "momentum"})
    space.add_range_knob("product", "float", 0.6, 1, post_hook={"hook": "times", "knob": "momentum"})
    among = {"hook": "among", "knob": "momentum", "candidates": {"0.9": [1]}}
    space.add_categorical_knob("turns", "integer", [1, 2], pre_hook=among)
    for knobs in drawn(space):
        if "momentum" in knobs:
            assert knobs["most"] <= knobs["momentum"] <= knobs["least"]
            assert knobs["product"] <= knobs["momentum"]
        else:
            assert knobs["product"] >= 0.6
            assert knobs["turns"] in (1, 2)
    free = [knobs for knobs in drawn(space) if "momentum" not in knobs]
    assert max(knobs["most"] for knobs in free) > 0.5 > min(knobs["least"] for knobs in free)


def test_candidates_can_depend_on_another_knob():
    space = HyperSpace()
    space.add_categorical_knob("solver", "string", ["sgd", "adam"])
    among = {"hook": "among", "knob": "solver", "candidates": {"sgd": [0.1, 0.01], "adam": [0.001]}}
    space.add_categorical_knob("rate", "float", [0.1, 0.01, 0.001], pre_hook=among)
    assert {(k["solver"], k["rate"]) for k in drawn(space)} == {("sgd", 0.1), ("sgd", 0.01), ("adam", 0.001)}


def test_a_space_comes_back_from_json_and_draws_the_same():
    space = HyperSpace()
    space.add_range_knob("rate", "float", 1e-4, 1, log=True, branching="lower")
    space.add_range_knob(
        "width", "integer", 8, 65, group="architecture", post_hook={"hook": "multiple_of", "step": 8}
    )
    space.add_categorical_knob("kernel", "string", ["a", "b"])
    again = HyperSpace.from_json(space.as_json())
    assert again.as_json() == space.as_json()
    assert drawn(again) == drawn(space)
    assert all(k["width"] % 8 == 0 for k in drawn(space))


def test_jitter_moves_numbers_a_little_never_raises_the_rate_and_keeps_what_is_fixed():
    space = HyperSpace()
    space.add_range_knob("rate", "float", 1e-4, 1.0, log=True, branching="lower")
    space.add_range_knob("decay", "float", 0.0, 1.0)
    space.add_range_knob("init_std", "float", 0.0, 1.0, branching="fixed")
    space.add_range_knob("layers", "integer", 1, 9, group="architecture")
    space.add_categorical_knob("kernel", "string", ["a", "b"])
    parent: dict[str, Any] = {"rate": 0.1, "decay": 0.5, "init_std": 0.3, "layers": 4, "kernel": "b"}
    random = np.random.default_rng(2)
    children: list[dict[str, Any]] = [space.jittered_point(parent, random, 0.5)[1] for _ in range(200)]
    assert all(1e-4 <= child["rate"] <= 0.1 for child in children)
    assert min(child["rate"] for child in children) < 0.07
    assert len({child["decay"] for child in children}) > 100
    assert {child["decay"] > 0.5 for child in children} == {True, False}
    assert {(c["init_std"], c["layers"], c["kernel"]) for c in children} == {(0.3, 4, "b")}


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda s: s.add_range_knob("x", "float", 1, 1), r"the range \[1, 1\) is empty"),
        (lambda s: s.add_range_knob("x", "float", 0, 1, log=True), "must begin above 0"),
        (lambda s: s.add_range_knob("x", "float", 0, float("inf")), "finite"),
        (lambda s: s.add_range_knob("x", "string", "aa", "b"), "one character"),
        (lambda s: s.add_range_knob("x", "double", 0, 1), "dtype must be one of"),
        (lambda s: s.add_categorical_knob("x", "integer", []), "list of candidates is empty"),
        (lambda s: s.add_categorical_knob("x", "integer", ["a"]), "is not of dtype integer"),
        (lambda s: s.add_categorical_knob("x", "integer", [1, 1]), "occurs twice"),
        (lambda s: [s.add_range_knob("x", "float", 0, 1) for _ in range(2)], "there is a knob 'x' already"),
        (lambda s: s.add_range_knob("x", "float", 0, 1, post_hook={"hook": "exec"}), "there is no post-hook"),
        (lambda s: s.add_range_knob("x", "float", 0, 1, pre_hook={"hook": "at_most"}), "is not complete"),
        (lambda s: s.add_range_knob("x", "integer", 0.2, 0.8), "there is no whole number in the range"),
        (lambda s: s.add_range_knob(5, "float", 0, 1), "a knob needs a name"),
        (lambda s: s.add_categorical_knob("x", "string", "sgd"), "must be a list, not 'sgd'"),
        (lambda s: s.add_categorical_knob("x", "float", [1.0, float("nan")]), "not a finite number"),
    ],
)
def test_a_bad_knob_is_refused_by_name(add, message):
    with pytest.raises(ValueError, match=message):
        add(HyperSpace())


NUMBER = {"name": "x", "dtype": "integer", "min": 1, "max": 9}
CHOICE = {"name": "x", "dtype": "string", "list": ["p", "q"]}


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        (
            NUMBER | {"post_hook": {"hook": "multiple_of", "step": 0}},
            "'step' must be a number above 0, not 0",
        ),
        (CHOICE | {"post_hook": {"hook": "multiple_of", "step": 2}}, "'multiple_of' is of numbers"),
        (NUMBER | {"pre_hook": {"hook": "only_when", "knob": "o", "values": "a"}}, "'values' must be a list"),
        (NUMBER | {"pre_hook": {"hook": "at_most", "knob": "n", "factor": "2"}}, "'factor' must be a number"),
        (NUMBER | {"pre_hook": {"hook": "at_most", "knob": "o"}}, "needs a number, and 'o' is a text"),
        (CHOICE | {"pre_hook": {"hook": "at_most", "knob": "n"}}, "'at_most' is of ranges of numbers"),
        (NUMBER | {"pre_hook": {"hook": "among", "knob": "o", "candidates": {}}}, "'among' is of lists"),
        (CHOICE | {"pre_hook": {"hook": "among", "knob": "o", "candidates": ["p"]}}, "'candidates' must be"),
        (CHOICE | {"pre_hook": {"hook": "among", "knob": "o", "candidates": {"a": []}}}, "is empty"),
        (
            CHOICE | {"pre_hook": {"hook": "among", "knob": "o", "candidates": {"a": [1]}}},
            "not of dtype string",
        ),
        (NUMBER | {"pre_hook": {"hook": "at_most", "knob": 5}}, "'knob' must be a knob's name"),
        (NUMBER | {"pre_hook": "at_most"}, "a hook is an object"),
        (None, "a knob is an object"),
    ],
)
def test_a_hook_that_would_fail_in_a_trial_is_refused_before_any_begins(knob, message):
    others: list[Any] = [
        {"name": "o", "dtype": "string", "list": ["a", "b"]},
        {"name": "n", "dtype": "float", "min": 0, "max": 1},
    ]
    with pytest.raises(ValueError, match=message):
        HyperSpace.from_json([*others, knob])


def test_dependencies_that_lead_nowhere_or_in_a_circle_are_refused():
    space = HyperSpace()
    space.add_range_knob("x", "float", 0, 1, depends=["y"])
    with pytest.raises(ValueError, match="'y', which is not a knob"):
        space.knobs()
    space.add_range_knob("y", "float", 0, 1, depends=["x"])
    with pytest.raises(ValueError, match="in a circle"):
        StudySpec("s", space)


def test_python_hooks_work_in_process_and_are_refused_by_json():
    space = HyperSpace()
    space.add_range_knob("x", "float", 0, 1, post_hook=lambda value, knobs: 7.0)
    assert drawn(space, 1) == [{"x": 7.0}]
    with pytest.raises(ValueError, match="Python code, which JSON cannot carry"):
        StudySpec("s", space).as_json()
