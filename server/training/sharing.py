"""What models of another snapshot have seen of ours. Reads files, blocking.

Public checkpoints are what a job may begin from that another has found (Rafiki §6.2): "The parameters trained
for the same model but different datasets can be shared as long as the privacy setting is public." Never those
that have seen the rows by which the new job will be judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from server.store.training import Job
from server.training.tasks import IMAGES

__all__ = ["Origin", "have_common_rows", "may_share", "unseen_tests"]


class Origin(TypedDict):
    """A checkpoint of another job."""

    job: int
    checkpoint: str


def may_share(jobs: Iterable[Job], task: str, dataset: str) -> list[Job]:
    """Jobs whose checkpoints a new one on `dataset` may begin from, the newest first."""

    def is_shared(job: Job) -> bool:
        spec: dict[str, Any] = job.spec
        return (
            spec.get("visibility") == "public"
            and spec.get("task", IMAGES) == task
            and job.dataset != dataset
            and job.state in ("done", "cancelled")
        )

    return sorted(filter(is_shared, jobs), key=lambda job: -job.id)


def have_common_rows(ours: Path, theirs: Path) -> bool:
    """Whether inputs that would validate or test our models are anywhere in the snapshot `theirs`."""
    judged = pq.read_table(ours, columns=["input"], filters=[("split", "!=", "train")])["input"]
    seen = pq.read_table(theirs, columns=["input"])["input"].combine_chunks()
    return bool(pc.any(pc.is_in(judged, value_set=seen)).as_py())


def unseen_tests(ours: Path, theirs: Path) -> NDArray[np.bool_]:
    """For each test row of the snapshot `ours`, in its order, whether no model of `theirs` was taught or
    chosen by its input.
    """
    tests = pq.read_table(ours, columns=["input"], filters=[("split", "==", "test")])["input"]
    seen = pq.read_table(theirs, columns=["input"], filters=[("split", "!=", "test")])["input"]
    known = pc.is_in(tests, value_set=seen.combine_chunks())
    unseen: NDArray[np.bool_] = ~np.asarray(known.to_numpy(), np.bool_)
    return unseen
