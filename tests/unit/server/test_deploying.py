"""What makes a function, and what is served under its name."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine

from gpu_worker.model_files.parity_spec import ParitySpec
from server.access.ownership import Ownership
from server.access.permissions import Thing
from server.access.things import Things
from server.catalog.catalog import Catalog
from server.catalog.function_spec import (
    deployed_form,
    file_form,
    function_of,
    single_model_function,
    spec_from,
)
from server.catalog.functions import Function, ModelVersion
from server.catalog.late_rows import LateRows
from server.ensemble.fit import Fit, SubsetFit
from server.errors import BadOption, UnknownFunction, VersionGone
from server.publisher import Publisher
from server.store.artifacts import Artifacts
from server.store.repository import Repository
from server.store.things import ThingRepository
from server.training.promotion.combination import choose_combination
from tests.unit.ensemble.ensembles import untaught
from tests.unit.server.manifests import manifest
from tests.unit.server.served import image_model, text_model

DEFAULTS = {"slo_ms": 500.0, "max_batch": 64, "policy": "greedy"}


@pytest.fixture
def catalog() -> Catalog:
    made = Catalog(lambda model: single_model_function(model, DEFAULTS))
    for model in (
        text_model("net", 1, 0.7),
        text_model("net", 2, 0.8),
        text_model("other", 1, 0.9),
        image_model("photo", side=2),
        image_model("large_photo", side=4),
    ):
        made.add_model(model)
    return made


def deploy(catalog: Catalog, name: str = "f", version: int = 1, **body: Any) -> Function:
    return function_of(name, version, spec_from(name, body, catalog), catalog, DEFAULTS)


def test_a_function_pins_the_newest_version_of_its_models(catalog: Catalog) -> None:
    function = deploy(catalog, models=["net", {"model": "other"}])
    assert [model.key for model in function.members] == ["net/2", "other/1"]
    catalog.add_model(text_model("net", 3))
    spec = spec_from("f", {"models": ["net/1", {"model": "other", "version": 1}]}, catalog)
    assert spec["models"] == ["net/1", "other/1"]


def test_what_is_left_out_comes_from_the_servers_defaults(catalog: Catalog) -> None:
    function = deploy(catalog, models=["net"])
    assert (function.slo_ms, function.max_batch, function.policy) == (500.0, 64, "greedy")
    assert function.batch_sizes == (1, 2, 4, 8, 16, 32, 64)
    assert deploy(catalog, models=["net"], max_batch=100).batch_sizes[-2:] == (64, 100)


def test_the_best_member_and_a_static_subset_alone_answer(catalog: Catalog) -> None:
    assert [m.name for m in deploy(catalog, models=["net", "other"], select="best").members] == ["other"]
    assert [m.name for m in deploy(catalog, models=["net", "other"], select=["net"]).members] == ["net"]


def test_late_rows_are_sent_anew_or_rebuilt_by_the_models_own_parity_model(catalog: Catalog) -> None:
    hedged = deploy(catalog, models=["photo"], late_rows="hedge")
    assert (hedged.late_rows, hedged.parity, hedged.coded) == (LateRows("hedge"), None, None)
    wanted = {"by": "parity", "k": 2}
    with pytest.raises(BadOption, match="ml-udf variants photo --only parity-2"):
        deploy(catalog, models=["photo"], late_rows=wanted)
    parity = replace(image_model("photo~parity-2"), parity=ParitySpec(2, "tiles"))
    catalog.add_model(parity)
    function = deploy(catalog, models=["photo"], late_rows=wanted)
    assert function.parity == parity
    assert function.groups == ((function.members[0],), (parity,))
    coded = function.coded
    assert coded is not None
    assert (coded.members, coded.late_rows, coded.coded) == ((parity,), None, None)
    assert coded.key != function.key
    assert deployed_form(function)["late_rows"] == {"by": "parity", "after_ms": None, "k": 2}
    assert deployed_form(function)["late_members"] == "wait"
    with pytest.raises(BadOption, match="answers groups of rows, and none alone"):
        deploy(catalog, models=["photo~parity-2"])


def test_late_rows_are_of_functions_of_one_model(catalog: Catalog) -> None:
    with pytest.raises(BadOption, match="say late_members: 'leave_out'"):
        deploy(catalog, models=["net", "other"], late_rows="hedge")
    with pytest.raises(BadOption, match="'late_rows' is said of models that are named"):
        deploy(catalog, wants={"task": "text-classification"}, late_rows="hedge")


def test_the_input_form_may_be_chosen_among_those_of_the_task(catalog: Catalog) -> None:
    assert deploy(catalog, models=["photo"]).input_name == "image_path"
    assert deploy(catalog, models=["photo"], input="image").input_name == "image"
    assert deploy(catalog, models=["photo"], input={"name": "pixels"}).form == "tensor"
    with pytest.raises(BadOption, match="must be one of path, image, tensor"):
        deploy(catalog, models=["photo"], input="text")
    with pytest.raises(BadOption, match="must be one of path, image, not 'tensor'"):
        deploy(catalog, models=["photo", "large_photo"], input="tensor")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'models' must be"),
        ({"models": []}, "'models' must be"),
        ({"models": "net"}, "'models' must be"),
        ({"models": [7]}, "does not name a model"),
        ({"models": ["net/x"]}, "version must be a number"),
        ({"models": ["net/1", "net/2"]}, "names a model twice"),
        ({"models": ["net", "photo"]}, "share their task"),
        ({"models": ["net"], "colour": 1}, "unknown field 'colour'"),
        ({"models": ["net"], "slo_ms": 0}, "slo_ms"),
        ({"models": ["net"], "slo_ms": "fast"}, "slo_ms"),
        ({"models": ["net"], "max_batch": 1.5}, "max_batch"),
        ({"models": ["net"], "batch_sizes": [1, 2]}, "largest of 'batch_sizes'"),
        ({"models": ["net"], "batch_sizes": [0, 64]}, "batch_sizes"),
        ({"models": ["net"], "combine": "sum"}, "combine"),
        ({"models": ["net"], "select": "worst"}, "select"),
        ({"models": ["net"], "min_confidence": 2}, "min_confidence"),
        ({"models": ["net"], "late_members": "never"}, "late_members"),
        ({"models": ["net"], "default": 3}, "default"),
        ({"models": ["net"], "policy_options": []}, "policy_options"),
        ({"models": ["net"], "input": 3}, "input"),
    ],
)
def test_a_body_that_makes_no_function_is_refused_by_field(
    catalog: Catalog, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadOption, match=said):
        deploy(catalog, **body)


def test_members_with_other_classes_are_refused(catalog: Catalog) -> None:
    catalog.add_model(replace(text_model("reordered"), classes=("pizza", "laksa", "satay")))
    with pytest.raises(BadOption, match="classes"):
        deploy(catalog, models=["net", "reordered"])


def test_a_model_that_is_not_registered_is_unknown(catalog: Catalog) -> None:
    with pytest.raises(UnknownFunction, match="no model 'nobody'"):
        deploy(catalog, models=["nobody"])
    with pytest.raises(UnknownFunction, match="version 9"):
        deploy(catalog, models=["net/9"])


def test_a_function_names_folders_for_its_paths_and_without_a_name_all_or_none_are_read(
    catalog: Catalog,
) -> None:
    assert deploy(catalog, models=["photo"]).media_roots is None
    named = deploy(catalog, models=["photo"], media_roots=["/photos/ours"])
    assert named.media_roots == ("/photos/ours",)
    assert deployed_form(named)["media_roots"] == ["/photos/ours"]
    assert deploy(catalog, models=["photo"], media_roots=[]).media_roots == ()
    for wrong in ("/photos", ["photos"], [7], ["/a\0b"]):
        with pytest.raises(BadOption, match="media_roots"):
            deploy(catalog, models=["photo"], media_roots=wrong)
    strict = {**DEFAULTS, "name_media_roots": True}
    assert single_model_function(catalog.model("photo"), strict).media_roots == ()
    spec = spec_from("f", {"models": ["photo"]}, catalog)
    assert function_of("f", 1, spec, catalog, strict).media_roots == ()
    spec = spec_from("f", {"models": ["photo"], "media_roots": ["/ours"]}, catalog)
    assert function_of("f", 1, spec, catalog, strict).media_roots == ("/ours",)


def test_the_published_form_is_what_the_local_endpoint_reads(catalog: Catalog) -> None:
    assert file_form(deploy(catalog, models=["net", "other"], default="none", version=4)) == {
        "format": 1,
        "name": "f",
        "version": 4,
        "task": "text-classification",
        "features": 0,
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
            {"name": "confidence", "datatype": "FP32", "shape": [-1]},
            {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
        ],
        "input": {"name": "text", "form": "text"},
        "combine": "majority_vote",
        "fitted": None,
        "fit": None,
        "members": [
            {"model": "net", "version": 2, "accuracy": 0.8},
            {"model": "other", "version": 1, "accuracy": 0.9},
        ],
        "slo_ms": 500.0,
        "min_confidence": 0.0,
        "default": "none",
        "thresholds": {},
        "media_roots": None,
    }


def test_what_was_fitted_is_told_in_short_and_published_whole(catalog: Catalog) -> None:
    fit = Fit(("other", "net"), (1.0, 2.0), (SubsetFit((0, 1), (0.5, 0.7), 0.9, 0.3),), 100, 3)
    spec = spec_from("f", {"models": ["net", "other"], "combine": "log_pool"}, catalog)
    function = function_of("f", 1, spec, catalog, DEFAULTS, fit)
    assert (function.combine, function.fit) == ("log_pool", fit)
    assert deployed_form(function)["fitted"] == {"rows": 100, "subsets": 1, "accuracy": 0.9, "nll": 0.3}
    assert Fit.from_json(file_form(function)["fit"]) == fit
    assert function.outputs_of((), 1) == ["label", "confidence", "scores"], "a member alone is calibrated too"
    alone = function_of("f", 1, spec_from("f", {"models": ["net"]}, catalog), catalog, DEFAULTS, fit)
    assert deployed_form(alone)["fitted"]["accuracy"] is None
    with pytest.raises(BadOption, match="what was fitted is of a, b, and net is none of them"):
        function_of("f", 1, spec, catalog, DEFAULTS, Fit(("a", "b"), (1.0, 1.0), (), 100, 3))


# ── the catalog ─────────────────────────────────────────────────────────────────────────────────────


def test_the_last_two_deployments_are_served_and_older_ones_are_gone(catalog: Catalog) -> None:
    retired = [
        catalog.add_function(deploy(catalog, models=["net"], version=version), keep=2)
        for version in (1, 2, 3)
    ]
    assert [[function.version for function in gone] for gone in retired] == [[], [], [1]]
    assert catalog.resolve("f").version == 3
    assert catalog.resolve("f", "2").version == 2
    with pytest.raises(VersionGone, match="version 1 of f is not served; served now: 2, 3"):
        catalog.resolve("f", "1")
    with pytest.raises(VersionGone):
        catalog.resolve("f", "latest")


def test_a_model_answers_under_its_name_with_every_version_it_has(catalog: Catalog) -> None:
    assert catalog.resolve("net").version == 2
    assert catalog.resolve("net", "1").members[0].key == "net/1"
    assert catalog.resolve("net").bare


def test_a_name_belongs_to_a_model_or_to_a_function(catalog: Catalog) -> None:
    catalog.add_function(deploy(catalog, models=["net"]), keep=2)
    with pytest.raises(BadOption, match="name of a function"):
        catalog.add_model(text_model("f"))
    with pytest.raises(UnknownFunction):
        catalog.remove_function("net")


def test_an_unloaded_name_is_unknown_until_it_is_loaded_or_deployed(catalog: Catalog) -> None:
    catalog.add_function(deploy(catalog, models=["net"]), keep=2)
    catalog.set_loaded("f", False)
    with pytest.raises(UnknownFunction, match="was unloaded"):
        catalog.resolve("f")
    catalog.set_loaded("f", True)
    assert catalog.resolve("f").version == 1
    catalog.set_loaded("f", False)
    catalog.add_function(deploy(catalog, models=["net"], version=2), keep=2)
    assert catalog.resolve("f").version == 2
    with pytest.raises(UnknownFunction):
        catalog.set_loaded("nobody", False)


def counted(*names: str) -> Fit:
    """A fit of these members, and how sure and how right they and their subsets are."""
    draw = np.random.default_rng(0)
    scores = {name: draw.dirichlet(np.ones(3), 60).astype(np.float32) for name in names}
    return choose_combination(scores, draw.integers(3, size=60)).fit


def test_a_policy_selects_among_all_that_were_fitted_in_the_order_of_the_fit(catalog: Catalog) -> None:
    body = {"models": ["net", "other"], "combine": "log_pool", "select": "value"}
    function = function_of("f", 1, spec_from("f", body, catalog), catalog, DEFAULTS, counted("other", "net"))
    assert function.follows_plans
    assert [model.name for model in function.members] == ["other", "net"]
    file = file_form(function)
    fit = Fit.from_json(file["fit"])
    assert fit.evidence is not None
    assert file["plan"] == [], "by so few rows nobody stops, and all are asked at once"
    everybody = replace(function, select="all")
    assert "plan" not in file_form(everybody)
    assert "evidence" not in file_form(everybody)["fit"], "nobody reads it where all answer"
    assert not deploy(catalog, models=["net", "other"]).follows_plans


@pytest.mark.parametrize(
    ("body", "fit", "select"),
    [
        ({}, counted("net", "other"), "value"),
        ({"select": None}, counted("net", "other"), "value"),
        ({"select": "all"}, counted("net", "other"), "all"),
        ({"select": "best"}, counted("net", "other"), "best"),
        ({"models": ["net"]}, counted("net"), "all"),
        ({}, None, "all"),
        ({}, replace(counted("net", "other"), evidence=None), "all"),
        ({"combine": "majority_vote"}, counted("net", "other"), "all"),
        ({}, counted("net", "other", "third"), "all"),
    ],
)
def test_where_nothing_is_said_value_selects_if_it_has_something_to_go_by_else_all_answer(
    catalog: Catalog, body: dict[str, Any], fit: Fit | None, select: str
) -> None:
    asked = {"models": ["net", "other"], "combine": "log_pool", **body}
    spec = spec_from("f", asked, catalog)
    assert spec.get("select") == body.get("select"), "nothing is kept that was not said"
    function = function_of("f", 1, spec, catalog, DEFAULTS, fit)
    assert (function.select, function.follows_plans) == (select, select == "value")
    assert len(function.members) == (1 if select == "best" else len(asked["models"]))


@pytest.mark.parametrize(
    ("body", "fit", "why"),
    [
        ({"models": ["net"]}, counted("net"), "there is one"),
        ({}, None, "not counted"),
        ({}, replace(counted("net", "other"), evidence=None), "not counted"),
        ({"combine": "majority_vote"}, counted("net", "other"), "log_pool"),
        ({"combine": None}, counted("net", "other"), "majority_vote"),
        ({}, counted("net", "other", "third"), "name all of them"),
        ({"select": "dearest"}, counted("net", "other"), "a policy"),
        ({"select": "exp3", "models": ["net"]}, counted("net"), "'exp3' selects among several"),
    ],
)
def test_a_policy_is_refused_where_it_has_nothing_to_go_by(
    catalog: Catalog, body: dict[str, Any], fit: Fit | None, why: str
) -> None:
    asked = {"models": ["net", "other"], "combine": "log_pool", "select": "gear", **body}
    spec = spec_from("f", asked, catalog)
    with pytest.raises(BadOption, match=why):
        function_of("f", 1, spec, catalog, DEFAULTS, fit)


def test_a_learned_policy_needs_a_network_that_was_trained_for_so_many_members(catalog: Catalog) -> None:
    body = {"models": ["net", "other"], "combine": "log_pool", "select": "actor_critic"}

    def deployed(**fields: Any) -> Function:
        spec = spec_from("f", {**body, **fields}, catalog)
        return function_of("f", 1, spec, catalog, DEFAULTS, counted("net", "other"))

    function = deployed(actor=untaught(2).to_json())
    assert function.follows_plans
    assert function.actor is not None
    assert function.actor.members == 2
    with pytest.raises(BadOption, match="train-actor"):
        deployed()
    with pytest.raises(BadOption, match="trained for 3 members, and there are 2"):
        deployed(actor=untaught(3).to_json())
    with pytest.raises(BadOption, match="'actor' cannot be read"):
        deployed(actor={"format": 1, "members": 1_000_000})


class Restored:
    """All that a publisher asks when it restores what one registry holds; the functions that it serves."""

    def __init__(self, spec: dict[str, Any], fit: Fit) -> None:
        self.served_now: list[Function] = []
        self._stored = SimpleNamespace(
            function="f", version=1, spec=spec, fit=fit.to_json(), feedback=None, refit=None
        )

    def models(self) -> list[ModelVersion]:
        return [text_model("net"), text_model("other")]

    def served(self) -> list[SimpleNamespace]:
        return [self._stored]

    def configure(self, function: Function) -> None:
        self.served_now += [] if function.bare else [function]

    def found(self) -> list[Path]:
        return []

    def functions(self) -> set[str]:
        return set()

    def know(self, models: object) -> None: ...

    def write_function(self, name: str, form: object) -> None: ...


@pytest.mark.security
@pytest.mark.parametrize("allow_import", [False, True])
def test_what_was_deployed_while_code_might_be_imported_is_served_without_it_once_it_may_not(
    allow_import: bool,
) -> None:
    spec = {
        "models": ["net/1", "other/1"],
        "combine": "log_pool",
        "policy": "mine:Policy",
        "policy_options": {"mine": 1},
        "select": "mine:make",
    }
    told: Any = Restored(spec, counted("net", "other"))
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    publisher = Publisher(told, told, catalog, told, told, DEFAULTS, 1.0, allow_import)
    asyncio.run(publisher.restore())
    (function,) = told.served_now
    found = function.policy, dict(function.policy_options), function.select
    assert found == (("mine:Policy", {"mine": 1}, "mine:make") if allow_import else ("greedy", {}, "value"))


def test_the_forms_of_functions_that_the_registry_has_lost_are_set_aside_and_not_thrown_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts = Artifacts(tmp_path, max_model_bytes=1 << 20)
    folder = tmp_path / "functions"
    artifacts.write_function("lost", {"version": 3})
    (folder / "a person's notes.json").write_text("{}")
    told: Any = Restored({"models": ["net/1", "other/1"]}, counted("net", "other"))
    answered, deployed = told.served, {"version": 1}

    def served() -> Any:  # and another server deploys a function just then
        artifacts.write_function("fresh", deployed)
        return answered()

    told.served = served
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    asyncio.run(Publisher(told, artifacts, catalog, told, told, DEFAULTS, 1.0).restore())
    assert artifacts.functions() == {"f", "fresh"}
    aside = folder / "lost.json.set-aside"
    assert json.loads(aside.read_text()) == {"version": 3}
    assert (folder / "a person's notes.json.set-aside").exists()
    assert f"function=lost file={aside}" in caplog.text


@pytest.mark.security
def test_a_model_that_is_found_in_the_home_is_no_more_visible_than_any_new_one(
    registry: Engine, tmp_path: Path
) -> None:
    repository, artifacts = Repository(registry, tmp_path), Artifacts(tmp_path, 1 << 20)
    repository.add_model(*artifacts.install(manifest("old"), None))  # before there were owners
    for name, version in (("old", 2), ("new", 1), ("hers", 2)):
        artifacts.install(manifest(name, version), None)
    things = Things()
    things.keep(Thing("model", "hers", "ann", "private"))
    shell: Any = Restored({"models": ["old/1"]}, counted("old"))
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    ownership = Ownership(ThingRepository(registry), things, "private")
    asyncio.run(
        Publisher(repository, artifacts, catalog, shell, shell, DEFAULTS, 1.0, ownership=ownership).restore()
    )
    assert {model.key for model in catalog.models()} == {"old/1", "old/2", "new/1", "hers/2"}
    found = {
        name: (things.of("model", name).owner, things.of("model", name).visibility)
        for name in ("old", "new", "hers")
    }
    assert found == {"old": ("", "public"), "new": ("", "private"), "hers": ("ann", "private")}
    assert [each.name for each in ThingRepository(registry).all()] == ["new"]
