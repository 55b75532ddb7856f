"""Variants: what a name says, what is kept of them, and that they are their model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine

from gpu_worker.model_files.file_list import ModelFile
from server.access.caller import Caller, Grants, Scope
from server.access.permissions import Thing
from server.access.things import Things
from server.access.view import View
from server.catalog.catalog import Catalog
from server.catalog.function_spec import function_of, single_model_function, spec_from
from server.catalog.functions import ModelVersion
from server.catalog.variant_choice import among_variants
from server.catalog.variants import HeldOutAccuracy, Variant, Variants, base_of, variant_model, variant_of
from server.ensemble.fit import Fit
from server.ensemble.plan import fit_plans
from server.ensemble.policies.by_name import selection_policy
from server.ensemble.selection import Ensemble, EnsembleMember, LoadView, RowEvidence
from server.errors import BadOption
from server.routes.variants import told_variant
from server.store.manifest import check_model_name, check_name, model_from_manifest
from server.store.variant_orders import KeptOrder, VariantOrderRepository
from server.store.variants import VariantRepository
from tests.unit.server.manifests import manifest

INT8 = Variant(
    "food",
    3,
    "int8",
    "onnx",
    "int8",
    threads=2,
    files=(ModelFile("model.onnx", "ab" * 32),),
    nbytes=1000,
    resident_bytes=2000,
    load_s=0.25,
    profile_s={"cpu": {1: 0.001, 4: 0.002, 16: 0.005}},
    held_out=HeldOutAccuracy(0.9, 100, 0.82, 0.95, 0.98, "meals", "s1", "validation"),
    measured_at=1_700_000_000.0,
)
FP32 = Variant("food", 3, "original", "torch", measured_at=1_700_000_000.0)
USES: frozenset[Scope] = frozenset(("infer", "deploy"))
LOST = Variant("food", 3, "bf16", "torch", "bfloat16", refused="it loses 0.2 of its accuracy")


def model(name: str, version: int = 1) -> ModelVersion:
    return model_from_manifest(manifest(name, version), Path("/nowhere"))


@pytest.mark.security
def test_a_variant_names_no_dataset_that_its_reader_does_not_see() -> None:
    assert told_variant(INT8, None, {"meals"})["dataset"] == "meals"
    assert told_variant(INT8, None, set())["dataset"] == ""
    assert told_variant(FP32, None, set())["dataset"] is None


def test_a_variant_has_the_key_of_a_model_version_and_the_original_the_models_own() -> None:
    assert INT8.key == "food~int8/3"
    assert FP32.key == "food/3"
    assert (base_of("food~int8"), variant_of("food~int8"), variant_of("food")) == ("food", "int8", "original")


@pytest.mark.parametrize(
    "name", ["food~", "food~Int8", "food~a~b", "food~-a", "~int8", "food~int8/3", "food~a b"]
)
def test_what_names_no_variant_names_no_model(name: str) -> None:
    with pytest.raises(BadOption, match="name"):
        check_model_name(name, "model")


def test_a_model_may_be_named_for_a_variant_and_a_function_may_not() -> None:
    assert check_model_name("food~onnx-2t", "model") == "food~onnx-2t"
    with pytest.raises(BadOption, match="not a name"):
        check_name("food~int8", "function")
    with pytest.raises(BadOption, match="longer than 100"):
        check_model_name(f"{'f' * 99}~int8", "model")
    with pytest.raises(ValueError, match="names no variant"):
        variant_model("food", "")


def test_a_batch_takes_what_was_measured_and_between_two_sizes_what_lies_between() -> None:
    assert INT8.batch_s(4, "cpu") == 0.002
    assert INT8.batch_s(10, "cpu") == pytest.approx(0.0035)
    assert INT8.batch_s(32, "cpu") == pytest.approx(0.01)
    assert INT8.batch_s(1, "cuda") is None


def test_the_known_are_told_apart_by_model_and_version_and_change_the_epoch() -> None:
    known = Variants([INT8, FP32, LOST])
    assert [each.name for each in known.of("food", 3)] == ["original", "bf16", "int8"]
    assert [each.name for each in known.offered("food", 3)] == ["original", "int8"]
    assert known.of("food", 2) == ()
    assert known.named("food~int8/3") == INT8
    assert known.named("food/3") == FP32
    assert known.named("food~int8") is None
    before = known.epoch
    known.replace([INT8, FP32, LOST])
    assert known.epoch == before
    known.keep(replace(INT8, load_s=1.0))
    assert known.epoch > before
    assert [each.key for each in known.all()] == ["food/3", "food~bf16/3", "food~int8/3"]


def test_the_registry_keeps_all_that_was_measured(database: Engine) -> None:
    kept = VariantRepository(database)
    for variant in (INT8, FP32, LOST):
        kept.put(variant)
    kept.put(replace(INT8, load_s=0.5))
    found = kept.all()
    assert [each.name for each in found] == ["bf16", "int8", "original"]
    assert found[1] == replace(INT8, load_s=0.5)
    assert found[0] == LOST


def test_the_registry_keeps_what_each_server_was_ordered_and_has_not_made(database: Engine) -> None:
    ours, others = (VariantOrderRepository(database, name) for name in ("this", "another"))
    late = KeptOrder("food", 3, "int8", {"threads": [1], "dataset": "meals"}, 1_700_000_100.0)
    early = replace(late, variant="onnx", ordered_at=1_700_000_000.0)
    ours.put([late, early])
    ours.put([late])
    others.put([replace(late, model="cars")])
    assert ours.all() == [early, late]
    ours.remove("food", 3, "onnx")
    ours.remove("food", 3, "none such")
    assert ours.all() == [late]
    assert [one.model for one in others.all()] == ["cars"]


def test_a_variant_is_its_models_and_no_pattern_needs_to_name_it() -> None:
    things = Things()
    things.keep(Thing("model", "food", "anna", "private"))
    own = View(Caller("anna", scopes=USES, grants=Grants(models=("food",), functions=("food",))), things)
    other = View(Caller("bert", scopes=USES, grants=Grants()), things)
    assert own.sees("model", "food~int8")
    assert own.reaches("model", "food~int8")
    assert own.changes("model", "food~int8")
    assert not other.sees("model", "food~int8")


def test_variants_are_no_models_that_a_starting_worker_should_hold_by_themselves() -> None:
    catalog = Catalog(
        lambda each: single_model_function(each, {"slo_ms": 1.0, "max_batch": 4, "policy": "greedy"})
    )
    for name in ("net", "net~int8"):
        catalog.add_model(model(name))
    assert [[each.key for each in group] for group in catalog.groups()] == [["net/1"]]
    gone = catalog.remove_model(model("net~int8"))
    assert gone is not None
    assert [each.key for each in catalog.models()] == ["net/1"]
    assert not catalog.is_model("net~int8")


def judged(name: str, accuracy: float, rows: int = 200) -> Variant:
    held_out = HeldOutAccuracy(accuracy, rows, accuracy - 0.05, accuracy + 0.03)
    return Variant("net", 1, name, "torch", held_out=held_out, measured_at=1.0)


DEFAULTS = {"slo_ms": 500.0, "max_batch": 64, "policy": "greedy"}


def catalog_of(*names: str) -> Catalog:
    catalog = Catalog(lambda each: single_model_function(each, DEFAULTS))
    for name in names:
        catalog.add_model(model(name))
    return catalog


@pytest.mark.parametrize("rows", [20, 2000])
@pytest.mark.parametrize("policy", ["value", "gear", "slackfit"])
def test_each_row_is_asked_of_one_variant_by_every_policy(policy: str, rows: int) -> None:
    catalog = catalog_of("net", "net~int8", "net~onnx")
    known = Variants([judged("original", 0.91, rows), judged("int8", 0.88, rows), judged("onnx", 0.9, rows)])
    body = {"models": ["net"], "variants": True, "select": policy}
    spec, fit = among_variants("f", body, catalog, known)
    assert spec["models"] == ["net/1", "net~int8/1", "net~onnx/1"]
    function = function_of("f", 1, spec_from("f", spec, catalog), catalog, DEFAULTS, fit)
    assert function.follows_plans
    assert fit.evidence is not None
    restored = Fit.from_json(fit.to_json()).evidence
    assert restored is not None
    assert restored.subsets == (1, 2, 4)
    members = tuple(
        EnsembleMember(each.name, 0.9, 1e-4, 1e-3 / place) for place, each in enumerate(function.members, 1)
    )
    ensemble = Ensemble(members, fit.evidence)
    for plan in fit_plans(ensemble):
        assert len(plan.choices[0].ask) == 1
        assert all(choice.is_enough for choice in plan.choices[1:])
    chosen = selection_policy(policy, ensemble)
    load = LoadView(0.0, 0.5, 1e6, np.full(fit.evidence.states, 1e6), (0.0,), (1.0,), 0.0)
    states = [chosen.init(), chosen.steer(chosen.init(), load)]
    for state in states:
        first = chosen.select(state, RowEvidence())
        assert len(first.ask) == 1
        for member in range(3):
            after = RowEvidence(subset=1 << member, state=fit.evidence.state_of(1 << member, 0.5))
            assert chosen.select(state, after).is_enough


def test_a_choice_among_variants_that_are_not_there_says_what_to_do() -> None:
    catalog = catalog_of("net", "net~int8")
    refused = replace(judged("int8", 0.5), refused="it loses 0.4")
    known = Variants([judged("original", 0.9), refused])
    for body, why in (
        ({"models": ["net"], "variants": True}, "make some: ml-udf variants net"),
        ({"models": ["net"], "variants": ["original", "int8"]}, "it loses 0.4"),
        ({"models": ["net"], "variants": ["fp4"]}, "is not there"),
        ({"models": ["net", "net~int8"], "variants": True}, "of one model"),
        ({"models": ["net"], "variants": "int8"}, "true, or a list"),
    ):
        with pytest.raises(BadOption, match=why):
            among_variants("f", body, catalog, known)
