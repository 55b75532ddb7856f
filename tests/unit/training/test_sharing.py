"""Public checkpoints: whose may be begun from, and what must not be shared."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from server.errors import BadOption
from server.store.training import Job
from server.training.jobs import JobSpec
from server.training.sharing import have_common_rows, may_share, unseen_tests

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
    assert [shared.id for shared in may_share(jobs, TEXTS, "mine")] == [6, 1]
    assert may_share([Job(1, "old", "s", {}, "done", "", datetime.now(UTC), None)], TEXTS, "mine") == []


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
    assert unseen_tests(ours, theirs).tolist() == [True, False, False, True], "of a, c, d, e"
    assert unseen_tests(ours, ours).all()


def test_a_jobs_visibility_is_private_unless_it_says_otherwise():
    assert JobSpec("d").visibility == "private"
    with pytest.raises(BadOption, match="'visibility' must be one of private, public"):
        JobSpec.from_json({"dataset": "d", "visibility": "everybody"})
