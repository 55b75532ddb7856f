"""Leakage between jobs: which snapshots have taught a model, and which of our test rows they hold. Blocking.

Public checkpoints are what a job may begin from that another has found (Rafiki §6.2): "The parameters trained
for the same model but different datasets can be shared as long as the privacy setting is public." Never those
that have seen the rows by which the new job will be judged, be it through a checkpoint that they began from
themselves: all ancestors count.

Two rows are the same where their inputs stand for the same content: the same text, or equal pictures under
whatever path. Snapshots are read by DuckDB, within a fixed share of memory.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import duckdb
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from server.catalog.jobs import Job
from server.errors import UnknownFunction
from server.training.recipes import DEFAULT_TASK

__all__ = [
    "MajorityBaseline",
    "Origin",
    "clusters_of",
    "have_common_rows",
    "have_common_tests",
    "majority_baseline",
    "training_lineage",
    "unseen_test_rows",
    "warm_start_jobs",
]

_MEMORY = "384MB"

SnapshotKey = tuple[str, str]  # dataset, id


class Origin(TypedDict):
    """A checkpoint of another job."""

    job: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class MajorityBaseline:
    """The most frequent class of the training rows, and the share of the test rows that are of it."""

    label: str
    share: float


def warm_start_jobs(jobs: Iterable[Job], task: str, dataset: str) -> list[Job]:
    """Jobs whose checkpoints a new one on `dataset` may begin from, the newest first."""

    def is_shared(job: Job) -> bool:
        spec: dict[str, Any] = job.spec
        return (
            spec.get("visibility") == "public"
            and spec.get("task", DEFAULT_TASK) == task
            and job.dataset != dataset
            and job.state in ("done", "cancelled")
        )

    return sorted(filter(is_shared, jobs), key=lambda job: -job.id)


def training_lineage(job: Job, model: str, job_of: Callable[[int], Job]) -> list[SnapshotKey]:
    """The snapshots that taught a job's `model`: its own, and those of the checkpoints it began from.

    job_of: raises `UnknownFunction` for a job that is not known any more; so does this, and for one whose
    spec is damaged.
    """
    taught: dict[SnapshotKey, None] = {}
    seen: set[int] = set()
    while job.id not in seen:
        seen.add(job.id)
        taught[job.dataset, job.snapshot] = None
        if job.damage:
            raise UnknownFunction(f"what taught the models of job {job.id} is not known: {job.damage}")
        origin = (job.spec.get("pretrained") or {}).get(model)
        if origin is None:
            return list(taught)
        job = job_of(origin["job"])
    raise UnknownFunction(f"job {job.id} is its own ancestor; what taught its models is not known")


def have_common_rows(ours: Path, theirs: Path) -> bool:
    """Whether inputs that would validate or test our models are anywhere in the snapshot `theirs`.

    True as well where that is no longer known: the rows are gone.
    """
    return not theirs.exists() or _is_any_common(ours, "split <> 'train'", theirs, "true")


def have_common_tests(ours: Path, theirs: Path) -> bool:
    """Whether two snapshots share test rows; True as well where the rows are gone."""
    return not theirs.exists() or _is_any_common(ours, "split = 'test'", theirs, "split = 'test'")


def unseen_test_rows(ours: Path, theirs: Path) -> NDArray[np.bool_]:
    """For each test row of the snapshot `ours`, in its order, whether no model of `theirs` was taught or
    chosen by its input. Raises `UnknownFunction` where the rows of `theirs` are gone.
    """
    if not theirs.exists():
        raise UnknownFunction(f"the rows of the snapshot {theirs.stem} are gone")
    key = _same_by(ours, theirs)
    with _database() as run:
        found = run(
            f"WITH ours AS (SELECT file_row_number AS n, {key} AS input"
            "  FROM read_parquet(?, file_row_number = true) WHERE split = 'test'),"
            f" theirs AS (SELECT DISTINCT {key} AS input FROM read_parquet(?) WHERE split <> 'test')"
            " SELECT theirs.input IS NULL AS unseen FROM ours LEFT JOIN theirs USING (input) ORDER BY n",
            [str(ours), str(theirs)],
        ).fetchnumpy()
    return np.asarray(found["unseen"], np.bool_)


def clusters_of(ours: Path, split: str) -> NDArray[np.int64]:
    """For each row of a split, in its order, a number: rows of one number are one observation.

    Those are rows of one entity or with the same input; of a snapshot that does not say so, with the same
    input.
    """
    column = (
        "component" if "component" in pq.read_schema(ours).names else "dense_rank() OVER (ORDER BY input)"
    )
    with _database() as run:
        found = run(
            f"SELECT c FROM (SELECT file_row_number AS n, ({column})::BIGINT AS c"
            " FROM read_parquet(?, file_row_number = true) WHERE split = ?) ORDER BY n",
            [str(ours), split],
        ).fetchnumpy()
    return np.asarray(found["c"], np.int64)


def majority_baseline(ours: Path) -> MajorityBaseline:
    """The answer that needs no model. Raises `ValueError` for a snapshot without training rows."""
    with _database() as run:
        first = run(
            "SELECT target FROM read_parquet(?) WHERE split = 'train'"
            " GROUP BY target ORDER BY count(*) DESC, target LIMIT 1",
            [str(ours)],
        ).fetchone()
        if first is None:
            raise ValueError(f"the snapshot {ours.stem} has no training rows")
        shared = run(
            "SELECT avg((target = ?)::INTEGER) FROM read_parquet(?) WHERE split = 'test'",
            [first[0], str(ours)],
        ).fetchone()
    return MajorityBaseline(str(first[0]), float((shared or (0.0,))[0] or 0.0))


def _is_any_common(ours: Path, of_ours: str, theirs: Path, of_theirs: str) -> bool:
    key = _same_by(ours, theirs)
    with _database() as run:
        found = run(
            f"SELECT count(*) > 0 FROM (SELECT 1 FROM read_parquet(?) WHERE {of_ours} AND {key} IN"
            f" (SELECT {key} FROM read_parquet(?) WHERE {of_theirs}) LIMIT 1)",
            [str(ours), str(theirs)],
        ).fetchone()
    return bool(found and found[0])


def _same_by(*snapshots: Path) -> str:
    """The column by which rows of the snapshots are the same: the content of pictures, where all know it."""
    return "content" if all(map(_knows_content, snapshots)) else "input"


def _knows_content(snapshot: Path) -> bool:
    with pq.ParquetFile(snapshot) as file:
        if "content" not in file.schema_arrow.names:
            return False
        first = next(file.iter_batches(1, columns=["content"]), None)
        return first is not None and first.num_rows > 0 and first.column(0).null_count == 0


@contextlib.contextmanager
def _database() -> Iterator[Callable[..., duckdb.DuckDBPyConnection]]:
    with tempfile.TemporaryDirectory(prefix="ml_udf-") as folder:
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": _MEMORY,
            "threads": "1",
            "temp_directory": folder,
        }
        with duckdb.connect(config=config) as database:
            database.execute("SET enable_progress_bar = false")
            yield database.execute
