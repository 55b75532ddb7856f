"""Public checkpoints: whose may be begun from, and what must not be shared."""

from __future__ import annotations

import asyncio
import functools
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from server.access.caller import Caller, implied
from server.access.permissions import Thing
from server.access.things import Things
from server.access.view import View
from server.catalog.jobs import Job
from server.errors import BadOption, UnknownFunction
from server.store.database import migrate, open_database
from server.store.training import TrainingRepository
from server.training.datasets.leakage import (
    clusters_of,
    have_common_rows,
    have_common_tests,
    majority_baseline,
    training_lineage,
    unseen_test_rows,
    warm_start_jobs,
)
from server.training.jobs.service import Training
from server.training.jobs.spec import JobSpec

TEXTS = "text-classification"


def job(number: int, state: str = "done", dataset: str = "other", **spec: Any) -> Job:
    spec = {"task": TEXTS, "visibility": "public", **spec}
    return Job(number, dataset, "s", spec, state, "", datetime.now(UTC), None)


def test_only_ended_public_jobs_on_other_datasets_of_the_task_are_shared_the_newest_first():
    jobs = [
        job(1),
        job(2, visibility="private"),
        job(3, dataset="mine"),
        job(4, task="image-classification"),
        job(5, "running"),
        job(6, "cancelled"),
    ]
    assert [shared.id for shared in warm_start_jobs(jobs, TEXTS, "mine")] == [6, 1]
    assert warm_start_jobs([Job(1, "old", "s", {}, "done", "", datetime.now(UTC), None)], TEXTS, "mine") == []


def snapshot(path: Path, rows: dict[str, str]) -> Path:
    pq.write_table(pa.table({"input": list(rows), "split": list(rows.values())}), path)
    return path


def test_rows_that_would_judge_our_models_must_not_have_taught_theirs(tmp_path: Path):
    ours = snapshot(tmp_path / "ours", {"a": "train", "b": "validation", "c": "test"})
    for theirs, common in (("a", False), ("b", True), ("c", True), ("z", False)):
        other = snapshot(tmp_path / theirs, {theirs: "train", "y": "test"})
        assert have_common_rows(ours, other) is common, theirs


def test_test_rows_that_taught_or_chose_another_snapshots_models_are_known(tmp_path: Path):
    ours = snapshot(
        tmp_path / "ours",
        {"a": "test", "b": "train", "c": "test", "d": "test", "e": "test", "f": "validation"},
    )
    theirs = snapshot(tmp_path / "theirs", {"d": "validation", "a": "test", "c": "train", "b": "test"})
    assert unseen_test_rows(ours, theirs).tolist() == [True, False, False, True], "of a, c, d, e"
    assert unseen_test_rows(ours, ours).all()


def test_the_snapshots_of_all_ancestors_have_taught_a_model():
    def from_job(number: int, parent: int | None) -> Job:
        origin = {} if parent is None else {"fasttext": {"job": parent, "checkpoint": "c"}}
        return Job(number, f"d{number}", f"s{number}", {"pretrained": origin}, "done", "", utc_now(), None)

    jobs = {number: from_job(number, number - 1 or None) for number in (1, 2, 3)}
    assert training_lineage(jobs[3], "fasttext", jobs.__getitem__) == [
        ("d3", "s3"),
        ("d2", "s2"),
        ("d1", "s1"),
    ]
    assert training_lineage(jobs[3], "temporal_cnn", jobs.__getitem__) == [("d3", "s3")]
    jobs[1] = from_job(1, 3)
    with pytest.raises(UnknownFunction, match="its own ancestor"):
        training_lineage(jobs[3], "fasttext", jobs.__getitem__)


def test_a_model_whose_ancestor_has_seen_our_test_rows_is_not_begun_from(tmp_path: Path):
    """Ours tests what taught the grandparent; the parent alone has seen none of it."""
    (tmp_path / "datasets").mkdir()
    ours = {"a": "test", "b": "validation", "c": "train"}
    for name, rows in (("ours", ours), ("parent", {"x": "train"}), ("grandparent", {"a": "train"})):
        snapshot(tmp_path / "datasets" / name, rows)
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    repository = TrainingRepository(engine)
    for name in ("ours", "parent", "grandparent"):
        repository.add_snapshot(name, {"name": name}, {"id": name, "file": name})
    first = repository.add_job("grandparent", "grandparent", {})
    origin = {"pretrained": {"fasttext": {"job": first.id, "checkpoint": "c"}}}
    second = repository.add_job("parent", "parent", origin)
    training = cast("Training", SimpleNamespace(_folder=tmp_path, _repository=repository))
    judged = repository.snapshot("ours")
    assert Training._has_seen(training, second, "fasttext", judged)
    assert not Training._has_seen(training, second, "temporal_cnn", judged), "it began from nothing"


def test_nothing_is_begun_from_a_job_that_whoever_asks_does_not_see(tmp_path: Path):
    """Public checkpoints are public among those who see the job, by its dataset or as its owner."""
    (tmp_path / "datasets").mkdir()
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    repository = TrainingRepository(engine)
    things = Things()
    for name, owner, visibility in (
        ("ours", "ben", "private"),
        ("hers", "ann", "private"),
        ("everybodys", "ann", "public"),
    ):
        snapshot(tmp_path / "datasets" / name, {name: "train"})
        repository.add_snapshot(name, {"name": name}, {"id": name, "file": name})
        things.keep(Thing("dataset", name, owner, visibility))  # type: ignore[arg-type]  # a visibility
    shared: dict[str, Any] = {"task": TEXTS, "visibility": "public"}
    public = repository.add_job("everybodys", "everybodys", shared, "ann")
    hers = repository.add_job("hers", "hers", shared, "ann")
    for job in (public, hers):
        repository.set_job(job.id, "done")

    def begun_from(token: str) -> Any:
        spec = JobSpec("ours", task=TEXTS, models=("fasttext",))
        view = View(Caller(token, scopes=implied(["train"])), things)
        return asyncio.run(
            Training._pretrained(training_over(tmp_path, repository), spec, repository.snapshot("ours"), view)
        )

    assert begun_from("ben")["fasttext"]["job"] == public.id, "and not the newer one"
    assert begun_from("ann")["fasttext"]["job"] == hers.id
    things.keep(Thing("dataset", "everybodys", "ann", "private"))
    with pytest.raises(BadOption, match="no public job on another dataset"):
        begun_from("ben")


def training_over(folder: Path, repository: TrainingRepository) -> Training:
    """What looks for checkpoints, over a registry; each job has one of fasttext."""

    async def looked_at(job: Job) -> Any:
        async def progress() -> Any:
            return {"fasttext": SimpleNamespace(best_checkpoint=f"of {job.id}")}

        return SimpleNamespace(progress=progress)

    parts = SimpleNamespace(_folder=folder, _repository=repository, _looked_at=looked_at)
    training = cast("Training", parts)
    parts._has_seen = functools.partial(Training._has_seen, training)
    return training


def test_the_newest_job_whose_model_has_seen_none_of_our_test_rows_is_begun_from(tmp_path: Path):
    (tmp_path / "datasets").mkdir()
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    repository = TrainingRepository(engine)
    for name, rows in (
        ("ours", {"a": "test", "b": "validation", "c": "train"}),
        ("clean", {"x": "train"}),
        ("taught", {"a": "train"}),
    ):
        snapshot(tmp_path / "datasets" / name, rows)
        repository.add_snapshot(name, {"name": name}, {"id": name, "file": name})
    spec = JobSpec("ours", task=TEXTS, models=("fasttext",))
    shared: dict[str, Any] = {"task": TEXTS, "visibility": "public"}
    taught = repository.add_job("taught", "taught", shared)

    def begun_from() -> Any:
        training = training_over(tmp_path, repository)
        return asyncio.run(Training._pretrained(training, spec, repository.snapshot("ours")))

    repository.set_job(taught.id, "done")
    with pytest.raises(BadOption, match="without rows by which this one is judged"):
        begun_from()
    clean = repository.add_job("clean", "clean", shared)
    repository.set_job(clean.id, "done")
    origin = {"pretrained": {"fasttext": {"job": taught.id, "checkpoint": "c"}}}
    child = repository.add_job("clean", "clean", {**shared, **origin})
    repository.set_job(child.id, "done")
    assert begun_from() == {"fasttext": {"job": clean.id, "checkpoint": f"of {clean.id}"}}


def utc_now() -> datetime:
    return datetime.now(UTC)


def pictures(path: Path, rows: list[tuple[str, int, str]]) -> Path:
    columns = {"input": [row[0] for row in rows], "split": [row[2] for row in rows]}
    contents = pa.array([row[1] for row in rows], pa.uint64())
    pq.write_table(pa.table({**columns, "content": contents}), path)
    return path


def test_equal_pictures_under_other_paths_are_the_same_rows(tmp_path: Path):
    ours = pictures(tmp_path / "ours", [("a.jpg", 1, "test"), ("b.jpg", 2, "test"), ("c.jpg", 3, "train")])
    theirs = pictures(tmp_path / "theirs", [("x.jpg", 2, "train"), ("a.jpg", 9, "train")])
    assert have_common_rows(ours, theirs)
    assert unseen_test_rows(ours, theirs).tolist() == [True, False]
    old = snapshot(tmp_path / "old", {"a.jpg": "train"})
    assert unseen_test_rows(ours, old).tolist() == [False, True], "one that knows no contents goes by paths"


def test_rows_that_are_gone_are_taken_for_seen(tmp_path: Path):
    ours = snapshot(tmp_path / "ours", {"a": "test"})
    assert have_common_rows(ours, tmp_path / "gone")
    assert have_common_tests(ours, tmp_path / "gone")
    with pytest.raises(UnknownFunction, match="are gone"):
        unseen_test_rows(ours, tmp_path / "gone")


def test_snapshots_share_test_rows_where_one_row_tests_in_both(tmp_path: Path):
    ours = snapshot(tmp_path / "ours", {"a": "test", "b": "train"})
    assert have_common_tests(ours, snapshot(tmp_path / "same", {"a": "test"}))
    assert not have_common_tests(ours, snapshot(tmp_path / "other", {"a": "train", "b": "test"}))


def test_the_observations_of_the_test_rows_are_the_components_or_equal_inputs(tmp_path: Path):
    rows = {"input": list("aabc"), "split": ["test", "test", "train", "test"], "component": [7, 7, 8, 7]}
    pq.write_table(pa.table(rows), tmp_path / "ours")
    assert clusters_of(tmp_path / "ours", "test").tolist() == [7, 7, 7]
    del rows["component"]
    pq.write_table(pa.table(rows), tmp_path / "old")
    first, second, third = clusters_of(tmp_path / "old", "test").tolist()
    assert first == second != third


def test_the_majority_is_the_training_rows_and_counted_among_the_test_rows(tmp_path: Path):
    rows = {"target": list("abbbaa"), "split": ["train"] * 3 + ["test"] * 3}
    pq.write_table(pa.table(rows), tmp_path / "ours")
    found = majority_baseline(tmp_path / "ours")
    assert found.label == "b"
    assert found.share == pytest.approx(1 / 3)


def test_looking_through_many_rows_takes_a_fixed_share_of_memory(tmp_path: Path):
    """The server reads no column whole: as Arrow, these two would be 60 MB."""
    for name, offset in (("ours", 0), ("theirs", 299_999)):
        numbers = range(offset, offset + 300_000)
        texts = [f"text number {number} of a snapshot, which is not short {'.' * 40}" for number in numbers]
        pq.write_table(pa.table({"input": texts, "split": ["test"] * 300_000}), tmp_path / name)
    before = pa.total_allocated_bytes()
    pa.default_memory_pool().release_unused()
    assert have_common_rows(tmp_path / "ours", tmp_path / "theirs")
    assert unseen_test_rows(tmp_path / "ours", tmp_path / "theirs").all(), "their test rows taught nobody"
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_jobs_visibility_is_private_unless_it_says_otherwise():
    assert JobSpec("d").visibility == "private"
    with pytest.raises(BadOption, match="'visibility' must be one of private, public"):
        JobSpec.from_json({"dataset": "d", "visibility": "everybody"})
