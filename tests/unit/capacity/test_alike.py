"""Which models a capacity policy may choose among: only such as may answer the same rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from server.capacity.alike import Alike, alike
from server.catalog.functions import Function, ModelVersion
from server.catalog.wants import Wants
from server.catalog.wishes import HeldOut
from tests.unit.server.served import function, text_model

A, INT8, ONNX = (text_model(name) for name in ("a", "a~int8", "a~onnx"))
B = text_model("b")
LOW = {A.key: 0.92, INT8.key: 0.88, ONNX.key: 0.92, B.key: 0.95}


def bare(model: ModelVersion) -> Function:
    return function(model, name=model.name, bare=True, slo_ms=500.0)


def wish(*candidates: ModelVersion, min_accuracy: float | None, name: str = "w") -> Function:
    return function(
        candidates[0],
        name=name,
        slo_ms=50.0,
        wants=Wants(purpose="a", min_accuracy=min_accuracy),
        candidates=candidates,
    )


def found(
    *functions: Function, asked: Collection[str] = (), unknown: Collection[str] = ()
) -> dict[frozenset[str], Alike]:
    def held_out(model: ModelVersion) -> HeldOut | None:
        low = LOW[model.key]
        return None if model.key in unknown else HeldOut(low, low, low)

    served = [*(bare(model) for model in (A, INT8, ONNX, B)), *functions]
    by_model = alike(served, lambda one: one.name in asked, held_out)
    assert set(by_model) == set(LOW)
    return {frozenset(group.models): group for group in by_model.values()}


def keys(*models: ModelVersion) -> frozenset[str]:
    return frozenset(model.key for model in models)


def test_variants_that_nobody_asks_wait_beside_each_other() -> None:
    groups = found()
    assert set(groups) == {keys(A, INT8, ONNX), keys(B)}
    assert {one.name for one in groups.values()} == {"a/1", "b/1"}


def test_a_model_that_a_function_names_has_no_stand_in() -> None:
    groups = found(function(A, name="f", slo_ms=80.0))
    assert set(groups) == {keys(A), keys(INT8, ONNX), keys(B)}
    assert [one.name for one in groups[keys(A)].askers.values()] == ["f"], "its own name sets no goal beside"


def test_nor_has_one_that_was_asked_under_its_own_name() -> None:
    assert set(found(asked={"a"})) == {keys(A), keys(INT8, ONNX), keys(B)}


def test_variants_that_are_accurate_enough_for_a_wish_are_alike() -> None:
    groups = found(wish(INT8, A, ONNX, B, min_accuracy=0.85))
    group = groups[keys(A, INT8, ONNX)]
    assert group.min_accuracy == 0.85
    assert set(groups) == {keys(A, INT8, ONNX), keys(B)}, "another model is another function of the policy"
    assert [one.name for one in group.askers.values()] == ["w"]
    assert "w" in {one.name for one in group.counted.values()}
    assert "w" not in {one.name for one in groups[keys(B)].counted.values()}, "late rows count once"


def test_those_that_are_not_are_left_out_and_so_are_those_of_which_nobody_knows() -> None:
    assert keys(A, ONNX) in found(wish(ONNX, A, INT8, min_accuracy=0.9))
    assert keys(A) in found(wish(A, ONNX, INT8, min_accuracy=0.9), unknown={ONNX.key})


def test_the_strictest_wish_is_kept() -> None:
    groups = found(
        wish(INT8, A, ONNX, min_accuracy=0.85), wish(ONNX, A, INT8, min_accuracy=0.9, name="strict")
    )
    assert groups[keys(A, INT8, ONNX)].min_accuracy == 0.9


def test_a_wish_that_says_no_accuracy_is_for_the_best() -> None:
    groups = found(wish(A, INT8, ONNX, min_accuracy=None))
    assert set(groups) == {keys(A), keys(INT8, ONNX), keys(B)}
    assert groups[keys(A)].min_accuracy is None


def test_the_rows_of_a_wish_are_counted_by_the_candidate_that_answers_them() -> None:
    group = found(wish(INT8, A, min_accuracy=0.85))[keys(A, INT8)]
    assert set(group.asked) == {(A,), (INT8,)}


def test_variants_among_which_a_policy_chooses_row_by_row_are_alike() -> None:
    several = function(A, INT8, name="f", select="value")
    groups = found(several)
    assert keys(A, INT8) in groups
    assert (A, INT8) in groups[keys(A, INT8)].asked


def test_members_of_an_ensemble_are_not() -> None:
    assert set(found(function(A, B, name="f", select="value"))) == {keys(A), keys(INT8, ONNX), keys(B)}


def test_models_behind_other_servers_are_none_of_a_fleet() -> None:
    far = replace(text_model("far"), endpoint="https://example.org")
    by_model = alike([function(A, far, name="f")], lambda _: False, lambda _: None)
    assert set(by_model) == {A.key}
