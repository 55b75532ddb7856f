"""Deployments: test rows are looked at once for what is deployed, and each look is counted and paid for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_worker.tasks.metrics import METRICS
from gpu_worker.wire.protocol import Evaluate, Evaluated, Message
from server.ensemble.fit import Fit, fit_combination
from server.errors import BadOption, Overloaded
from server.store.database import migrate, open_database
from server.store.training import TrainingRepository
from server.training.jobs.run import Run
from server.training.jobs.spec import JobSpec
from server.training.promotion import combination, deployer
from server.training.promotion.champion import level_of
from server.training.promotion.deployer import Candidate, Deployer, _model_names
from server.training.studies.trial import Checkpoint, Trial

CLASSES = ["a", "b"]
ROWS = {"train": 40, "validation": 40, "test": 400}


@dataclass
class Workers:
    """Trainers whose checkpoints answer a known share of each split rightly."""

    shares: dict[str, float]
    labels: dict[str, list[int]]
    asked: list[tuple[str, str]] = field(default_factory=list)
    on_ask: Callable[[Evaluate], None] = lambda message: None

    async def ask(self, message: Message, *, pictures: bool = False) -> Message:
        assert isinstance(message, Evaluate)
        self.on_ask(message)
        await asyncio.sleep(0)
        name = Path(message.start).name
        self.asked.append((name, message.split))
        labels = np.array(self.labels[message.split])
        wrong = np.random.default_rng(sum(name.encode())).random(len(labels)) >= self.shares[name]
        rows = np.eye(2, dtype=np.float32)[np.where(wrong, 1 - labels, labels)]
        return Evaluated(1, [row.tobytes() for row in rows], labels.tolist(), 0.001)

    @property
    def looks(self) -> list[str]:
        return [name for name, split in self.asked if split == "test"]


@dataclass
class House:
    """A deployer over a real registry; jobs are made of checkpoints' names."""

    deployer: Deployer
    repository: TrainingRepository
    workers: Workers
    folder: Path
    functions: dict[str, list[Any]]

    def run(self, *checkpoints: str, snapshot: str = "s") -> Run:
        spec = JobSpec("food", task="text-classification", models=("fasttext",))
        job = self.repository.add_job("food", snapshot, spec.as_json())
        trials = [_trial(at, name) for at, name in enumerate(checkpoints)]

        async def weights(digest: str) -> Path:
            return self.folder / digest

        async def known() -> dict[str, list[Any]]:
            return {"fasttext": trials}

        stored = self.repository.snapshot("food", snapshot)
        run = SimpleNamespace(job=job, spec=spec, snapshot=stored, trials=known, weights=weights)
        run.metric = METRICS[str(spec.metric)]
        run.trial_spec, run.backbone_folder = spec.train_spec, None
        run.file = self.folder / f"{snapshot}.parquet"
        run.pins = lambda: contextlib.nullcontext(set())
        run.file_of = lambda of: self.folder / f"{of.id}.parquet"
        return cast("Run", run)


def _trial(number: int, name: str) -> Any:
    best = Checkpoint(1, 0.5, name)
    return SimpleNamespace(
        number=number, knobs={}, seed=0, scores=[0.5], origin=None, parent=None, best_checkpoint=best
    )


@pytest.fixture
def house(tmp_path: Path) -> House:
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    repository = TrainingRepository(engine)
    labels = {split: [0 if at % 10 < 7 else 1 for at in range(count)] for split, count in ROWS.items()}
    write_snapshot(tmp_path / "s.parquet", labels, "")
    facts = {"id": "s", "classes": CLASSES, "file": "s.parquet", "splits": ROWS}
    repository.add_snapshot("food", {"name": "food"}, facts)
    workers = Workers({}, labels)
    functions: dict[str, list[Any]] = {}
    catalog = SimpleNamespace(is_function=functions.__contains__, versions=functions.__getitem__)
    deployer = Deployer(
        cast(Any, workers), cast(Any, Publisher(functions, tmp_path)), cast(Any, catalog), repository
    )
    return House(deployer, repository, workers, tmp_path, functions)


def write_snapshot(path: Path, labels: dict[str, list[int]], prefix: str, copies: int = 1) -> None:
    splits = [split for split, found in labels.items() for _ in found]
    numbers = range(len(splits))
    table = {
        "input": [f"{prefix}{number // copies}" for number in numbers],
        "target": [CLASSES[label] for found in labels.values() for label in found],
        "split": splits,
        "component": [number // copies for number in numbers],
    }
    pq.write_table(pa.table(table), path)


@dataclass
class Publisher:
    functions: dict[str, list[Any]]
    folder: Path
    models: dict[str, Any] = field(default_factory=dict)

    async def register(
        self, manifest: dict[str, Any], weights: Any, view: Any = None, function: str = ""
    ) -> Any:
        directory = self.folder / f"model-{len(self.models)}"
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"")
        (directory / "model.json").write_text(json.dumps(manifest))
        model = SimpleNamespace(
            key=f"{manifest['name']}/{len(self.models)}",
            name=manifest["name"],
            directory=directory,
            task=manifest["task"],
            runtime=manifest["runtime"],
            architecture=manifest["architecture"],
            input=SimpleNamespace(columns=(), height=0),
            backbone=None,
        )
        self.models[model.key] = model
        return model

    async def deploy(
        self,
        name: str,
        body: dict[str, Any],
        fit: Fit | None = None,
        view: Any = None,
        rows_for: Any = None,
        found: Any = None,
        instead_of: int | None = None,
        keeps_fit: bool = True,
    ) -> Any:
        versions = self.functions.setdefault(name, [])
        members = [self.models[key] for key in body["models"]]
        versions.append(
            SimpleNamespace(
                name=name,
                version=len(versions) + 1,
                members=members,
                classes=CLASSES,
                task=SimpleNamespace(name=body.get("task") or members[0].task),
                body=body,
                cascade=None,
                combine=body["combine"],
                fit=fit,
                thresholds=body.get("thresholds", {}),
            )
        )
        return versions[-1]


def deploy(house: House, run: Run, select: str = "best", **options: Any) -> Any:
    for trial in asyncio.run(run.trials())["fasttext"]:
        assert trial.best_checkpoint is not None
        (house.folder / trial.best_checkpoint.digest).write_bytes(b"")
    return asyncio.run(house.deployer.deploy(run, "udf_food", select=select, **options))


def test_what_was_looked_at_is_stored_with_the_deployment_and_not_looked_at_again(house: House):
    house.workers.shares["good"] = 0.9
    first = deploy(house, house.run("good"))
    second = deploy(house, house.run("good"))
    assert house.workers.looks == ["good"]
    assert (second.test_accuracy, second.looks) == (first.test_accuracy, 1)
    (look,) = house.repository.test_looks("food", "s")
    assert (look.function, look.version, look.rows) == ("udf_food", 2, 400)
    assert look.answered_rightly().mean() == first.test_accuracy


def test_what_is_said_of_a_function_stays_where_it_is_trained_again(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    house.workers.shares |= {"good": 0.7, "model.safetensors": 0.7, "better": 0.9, "best": 0.99}
    deploy(house, house.run("good"))
    said = {"media_roots": ["/photos"], "min_confidence": 0.6, "default": "review", "answer_cache": False}
    spec = {**said, "models": ["m/1"], "combine": "log_pool", "select": "value", "slo_ms": 70}
    monkeypatch.setattr(house.repository, "deployed_spec", lambda function, version: spec)
    house.functions["udf_food"][-1].thresholds = {CLASSES[1]: 0.4}
    told = deploy(house, house.run("better"), promote="if_better", keeps_settings=True, slo_ms=200.0)
    assert told.promoted
    assert told.thresholds == {CLASSES[1]: 0.4}
    body = house.functions["udf_food"][-1].body
    assert body == {
        **said,
        "models": told.models,
        "combine": "mean",
        "thresholds": {CLASSES[1]: 0.4},
        "slo_ms": 200.0,
    }
    deploy(house, house.run("best"), promote="if_better")
    assert set(house.functions["udf_food"][-1].body) == {"models", "combine"}, "who deploys says all anew"


def test_a_function_of_another_task_is_not_taken_for_the_champion_of_this_one(house: House):
    house.workers.shares |= {"good": 0.7, "better": 0.9}
    deploy(house, house.run("good"))
    house.functions["udf_food"][-1].task = SimpleNamespace(name="text-embedding")
    with pytest.raises(BadOption, match="answers text-embedding, and the new one text-classification"):
        deploy(house, house.run("better"), promote="if_better")


def test_models_that_do_not_do_another_task_are_not_deployed_for_it(house: House):
    house.workers.shares["good"] = 0.9
    for task in ("image-embedding", "image-embeding"):
        with pytest.raises(BadOption, match=f"do text-classification, text-embedding, not '{task}'"):
            deploy(house, house.run("good"), task=task)
    assert deploy(house, house.run("good"), task="text-classification").version == 1


def test_each_look_at_the_test_rows_makes_the_next_one_stricter(house: House):
    names = [f"model {number}" for number in range(4)]
    house.workers.shares |= dict.fromkeys(names, 0.9)
    told = [deploy(house, house.run(name)) for name in names]
    assert [found.looks for found in told] == [1, 2, 3, 4]
    assert [found.level for found in told] == [level_of(look) for look in (1, 2, 3, 4)]
    widths = [found.test_high - found.test_low for found in told]
    assert widths[3] > widths[0]


def test_looks_of_deployments_at_once_are_each_paid_for_and_the_same_once(house: House):
    names = ["one", "two", "two", "three"]
    house.workers.shares |= dict.fromkeys(names, 0.9)
    for name in names:
        (house.folder / name).write_bytes(b"")

    async def at_once() -> list[Any]:
        runs = [house.run(name) for name in names]
        return await asyncio.gather(*(house.deployer.deploy(run, "udf_food", select="best") for run in runs))

    told = asyncio.run(at_once())
    assert told[1].looks == told[2].looks
    assert sorted({found.looks for found in told}) == [1, 2, 3]
    assert [look.number for look in house.repository.test_looks("food", "s")] == [1, 2, 3]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_challenger_takes_no_place_but_that_of_the_champion_it_was_compared_with(
    house: House, is_first: bool
):
    house.workers.shares |= {"champion": 0.6, "better": 0.999}
    if not is_first:
        deploy(house, house.run("champion"))

    def deployed_meanwhile(message: Evaluate) -> None:
        if message.split == "test":
            house.functions.setdefault("udf_food", []).append(SimpleNamespace(version=7))

    house.workers.on_ask = deployed_meanwhile
    with pytest.raises(Overloaded, match=r"version 7 answers for udf_food by now, .* deploy it again"):
        deploy(house, house.run("better"), promote="if_better")
    assert house.functions["udf_food"][-1].version == 7


def test_a_function_that_was_deleted_comes_not_back_by_a_comparison_with_it(house: House):
    house.workers.shares |= {"champion": 0.6, "better": 0.999}
    deploy(house, house.run("champion"))

    def deleted_meanwhile(message: Evaluate) -> None:
        if message.split == "test":
            del house.functions["udf_food"]

    house.workers.on_ask = deleted_meanwhile
    with pytest.raises(Overloaded, match="udf_food was deleted"):
        deploy(house, house.run("better"), promote="if_better")
    assert house.functions == {}


def test_rows_that_are_gone_are_named_with_what_to_do(house: House):
    house.workers.shares["good"] = 0.9
    (house.folder / "s.parquet").unlink()
    with pytest.raises(
        BadOption, match=r"rows of dataset food, .*s\.parquet; restore .* register the same rows"
    ):
        deploy(house, house.run("good"))


def test_challengers_that_are_no_better_do_not_win_by_being_many(house: House):
    house.workers.shares["champion"] = 0.85
    deploy(house, house.run("champion"))
    for number in range(30):
        house.workers.shares[f"challenger {number}"] = 0.85
        told = deploy(house, house.run(f"challenger {number}"), promote="if_better")
        assert not told.promoted
    house.workers.shares["better"] = 0.999
    assert deploy(house, house.run("better"), promote="if_better").promoted
    assert house.workers.looks.count("champion") == 1, "its answers were stored"


def test_a_snapshot_with_other_test_rows_begins_anew_and_one_with_the_same_does_not(house: House):
    house.workers.shares |= {"one": 0.9, "two": 0.9, "three": 0.9}
    deploy(house, house.run("one"))
    for snapshot, prefix in (("same", ""), ("other", "new ")):
        write_snapshot(house.folder / f"{snapshot}.parquet", house.workers.labels, prefix)
        facts = {"id": snapshot, "classes": CLASSES, "file": f"{snapshot}.parquet", "splits": ROWS}
        house.repository.add_snapshot("food", {"name": "food"}, facts)
    assert deploy(house, house.run("two", snapshot="same")).looks == 2
    assert deploy(house, house.run("three", snapshot="other")).looks == 1


def test_an_interval_counts_equal_inputs_once(house: House):
    house.workers.shares["good"] = 0.9
    alone = deploy(house, house.run("good"))
    write_snapshot(house.folder / "copies.parquet", house.workers.labels, "copy ", copies=20)
    facts = {"id": "copies", "classes": CLASSES, "file": "copies.parquet", "splits": ROWS}
    house.repository.add_snapshot("food", {"name": "food"}, facts)
    copies = deploy(house, house.run("good", snapshot="copies"))
    assert copies.test_accuracy == alone.test_accuracy
    assert copies.test_high - copies.test_low > alone.test_high - alone.test_low


def test_a_model_that_is_no_better_than_the_majority_is_not_deployed_without_a_word(
    house: House, caplog: pytest.LogCaptureFixture
):
    house.workers.shares |= {"coin": 0.7, "good": 0.9}
    told = deploy(house, house.run("coin"))
    assert told.majority_accuracy == pytest.approx(0.7)
    assert "always naming 'a'" in told.warning
    assert told.warning in caplog.text
    assert deploy(house, house.run("good")).warning == ""


def test_rows_that_taught_an_ancestor_of_the_champion_do_not_judge_it(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    """The champion began from another dataset's model, which was taught by all but 100 of our test rows."""
    taught = {"train": [0] * 480}
    write_snapshot(house.folder / "older.parquet", taught, "")
    rows = pq.read_table(house.folder / "older.parquet").slice(0, 380)
    pq.write_table(rows, house.folder / "older.parquet")
    house.repository.add_snapshot("old", {"name": "old"}, {"id": "older", "classes": CLASSES, "file": "x"})
    ancestor = house.repository.add_job("old", "older", {})
    house.workers.shares |= {"champion": 0.8, "challenger": 0.99}
    run = house.run("champion")
    spec = {"pretrained": {"fasttext": {"job": ancestor.id, "checkpoint": "c"}}}
    house.repository.set_job(run.job.id, "done", "", spec)
    deploy(house, run)
    judged: list[int] = []
    inner = house.deployer._unseen

    async def unseen(*arguments: Any) -> Any:
        fair = await inner(*arguments)
        judged.append(int(fair.sum()))
        return fair

    monkeypatch.setattr(house.deployer, "_unseen", unseen)
    assert deploy(house, house.run("challenger"), promote="if_better").promoted
    assert judged == [100]


# ── several members ─────────────────────────────────────────────────────────────────────────────────


def test_several_members_answer_by_weights_that_were_fitted_on_the_validation_rows(house: House):
    house.workers.shares |= {"one": 0.8, "two": 0.8, "three": 0.8}
    told = deploy(house, house.run("one", "two", "three"), select="ensemble")
    (served,) = house.functions["udf_food"]
    assert told.combine == served.combine == "log_pool"
    assert told.held_out["log_pool"] >= told.held_out["majority_vote"]
    assert told.validation_accuracy == told.held_out["log_pool"]
    assert served.fit.members == tuple(model.name for model in served.members)
    assert (told.fitted_rows, served.fit.rows, served.fit.classes) == (40, 40, 2)
    assert told.subsets["+".join(sorted(served.fit.members))] == told.validation_accuracy
    assert told.test_accuracy > 0.8


def test_where_the_vote_does_better_on_rows_that_nothing_was_fitted_on_it_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(combination, "fit_combination", _spoilt_fit)
    house.workers.shares |= {"one": 0.8, "two": 0.8, "three": 0.8}
    told = deploy(house, house.run("one", "two", "three"), select="ensemble")
    (served,) = house.functions["udf_food"]
    assert told.combine == served.combine
    assert told.combine in ("mean", "majority_vote")
    assert told.held_out["log_pool"] < told.held_out["majority_vote"] <= told.validation_accuracy
    assert served.fit is not None, "plans are made from it all the same"


def test_a_challenger_is_compared_with_a_champion_by_the_rule_that_it_answers_by(house: House):
    house.workers.shares |= {"one": 0.8, "two": 0.8, "three": 0.8, "better": 0.999}
    first = deploy(house, house.run("one", "two", "three"), select="ensemble")
    again = deploy(house, house.run("one", "two", "three"), select="ensemble", promote="if_better")
    assert (again.promoted, again.p_value) == (False, 1.0), "it is its own equal"
    assert sorted(house.workers.looks) == ["one", "three", "two"], "its answers were stored"
    assert again.test_accuracy == first.test_accuracy
    assert deploy(house, house.run("better"), promote="if_better").promoted


def test_members_that_answer_numbers_are_deployed_with_what_each_subset_is_worth(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    draw = np.random.default_rng(0)
    targets = {split: draw.normal(50, 3, count) for split, count in (("validation", 400), ("test", 400))}
    told = {
        (name, split): each + draw.normal(0, spread, len(each))
        for name, spread in (("one", 1.35), ("two", 1.32), ("three", 1.3))
        for split, each in targets.items()
    }

    async def ask(message: Message, *, pictures: bool = False) -> Message:
        assert isinstance(message, Evaluate)
        said = told[Path(message.start).name, message.split].astype(np.float32)
        return Evaluated(1, [row.tobytes() for row in said], targets[message.split].tolist(), 0.001)

    monkeypatch.setattr(house.workers, "ask", ask)
    numbers = house.folder / "s.parquet"
    splits = ["train"] * 40 + ["validation"] * 400 + ["test"] * 400
    values = [50.0] * 40 + targets["validation"].tolist() + targets["test"].tolist()
    rows = list(range(len(splits)))
    columns = {"input": [str(at) for at in rows], "target": values, "split": splits, "component": rows}
    pq.write_table(pa.table(columns), numbers)
    run = house.run("one", "two", "three")
    spec = JobSpec("food", task="tabular-regression", models=("ridge",))
    run.spec, run.metric = spec, METRICS[str(spec.metric)]
    run.job = house.repository.add_job("food", "s", spec.as_json())
    told_of = deploy(house, run, select="ensemble")
    (served,) = house.functions["udf_food"]
    assert (told_of.combine, told_of.metric, served.combine) == ("", "rmse", "mean")
    assert (served.fit.rule, served.fit.measure, served.fit.rows) == ("mean", "r2", 400)
    assert len(served.members) >= 2
    assert sorted(served.fit.members) == sorted(model.name for model in served.members)
    variance = targets["validation"].var()
    for each in served.fit.subsets:
        names = "+".join(sorted(served.fit.members[place] for place in each.members))
        assert each.accuracy == pytest.approx(1 - told_of.subsets[names] ** 2 / variance, abs=1e-5)


def test_one_model_alone_is_fitted_to_nothing(house: House):
    house.workers.shares["good"] = 0.9
    told = deploy(house, house.run("good"))
    assert (told.combine, told.fitted_rows, told.held_out) == ("", 0, {})
    assert house.functions["udf_food"][0].fit is None


def _spoilt_fit(*arguments: Any, **options: Any) -> Fit:
    """A fit that says of itself that it is never right."""
    fit = fit_combination(*arguments, **options)
    return replace(fit, subsets=tuple(replace(each, accuracy=0.0) for each in fit.subsets))


def test_what_is_deployed_was_taught_the_validation_rows_and_the_manifest_says_of_what(house: House):
    class Refits:
        async def of(
            self, run: Run, model: str, trial: Any, checkpoint: Checkpoint, pins: set[str]
        ) -> str | None:
            assert checkpoint.digest in pins, "it is at hand until this deployment is over"
            (house.folder / "taught").write_bytes(b"")
            return "taught" if checkpoint.digest == "good" else None

    house.deployer = Deployer(*_parts(house), refits=cast(Any, Refits()))
    house.workers.shares |= {"good": 0.9, "taught": 0.95, "other": 0.9}
    told = deploy(house, house.run("good"))
    assert told.refit == ["food_fasttext"]
    assert house.workers.asked == [("good", "validation"), ("taught", "test")], "it is chosen unrefit"
    told_of = json.loads((house.functions["udf_food"][-1].members[0].directory / "model.json").read_text())
    assert (told_of["trained"]["checkpoint"], told_of["trained"]["refit_of"]) == ("taught", "good")
    assert deploy(house, house.run("other")).refit == []


def test_what_is_rare_is_answered_from_a_threshold_on_where_the_metric_asks_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deployer, "decision_thresholds", lambda *given: (0.8, 0.2))
    house.workers.shares["good"] = 0.9
    told = deploy(house, house.run("good"))
    assert told.thresholds == {"b": 0.2}
    assert house.functions["udf_food"][-1].thresholds == {"b": 0.2}
    house.workers.shares["model.safetensors"] = 0.9  # what serves, by its own file
    told = deploy(house, house.run("good"), promote="if_better")
    assert told.p_value is not None
    assert told.p_value > 0.01, "both are held against the same threshold"
    monkeypatch.setattr(deployer, "decision_thresholds", lambda *given: ())
    assert deploy(house, house.run("good")).looks == 3, "answers from another threshold on are another look"


def _parts(house: House) -> tuple[Any, Any, Any, Any]:
    of = house.deployer
    return of._trainers, of._publisher, of._catalog, of._repository


def test_a_model_of_ones_own_is_named_by_its_attribute() -> None:
    found = {"a": _candidate("my_nets.blocks:DeepNet"), "b": _candidate("resnet")}
    names = _model_names("udf_food", ("a", "b"), found)
    assert names == {"a": "food_deepnet", "b": "food_resnet"}


def _candidate(model: str) -> Candidate:
    checkpoint = Checkpoint(1, 0.5, "digest")
    return Candidate(model, Trial(0, {}, {}, 0, "s", "finished", checkpoints=(checkpoint,)), checkpoint)
