"""Jobs as one caller sees them: what they do not see was never there."""

from __future__ import annotations

from server.access.view import View
from server.catalog.jobs import Job, unknown_job
from server.training.jobs.run import Run
from server.training.jobs.service import Training

__all__ = ["check_changes_job", "check_sees_job", "last_jobs", "page_of_jobs"]

Known = tuple[Job, Run | None]


async def check_sees_job(training: Training, view: View, job: int) -> None:
    """Raises `UnknownFunction` for a job that is not there for the caller."""
    if not view.sees_job(*await training.whose(job)):
        raise unknown_job(job)


async def check_changes_job(training: Training, view: View, job: int) -> None:
    """Raises `UnknownFunction` as `check_sees_job`, `Forbidden` for another's."""
    dataset, owner = await training.whose(job)
    if not view.sees_job(dataset, owner):
        raise unknown_job(job)
    view.check_changes_job(job, dataset, owner)


async def page_of_jobs(
    training: Training, view: View, after: int, limit: int
) -> tuple[list[Known], int | None]:
    """The next jobs that the caller sees, and after which number there are more of them."""
    found: list[Known] = []
    while len(found) <= limit:
        known = await training.jobs(after, limit + 1)
        found += _seen(view, known)
        if len(known) <= limit:
            break
        after = known[-1][0].id
    return found[:limit], found[limit - 1][0].id if len(found) > limit else None


async def last_jobs(
    training: Training, view: View, limit: int, before: int | None
) -> tuple[list[Known], int | None]:
    """The newest jobs that the caller sees, and before which number there are more of them."""
    found: list[Known] = []
    while len(found) <= limit:
        known = await training.last_jobs(limit + 1, before)
        found += _seen(view, known)
        if len(known) <= limit:
            break
        before = known[-1][0].id
    return found[:limit], found[limit - 1][0].id if len(found) > limit else None


def _seen(view: View, jobs: list[Known]) -> list[Known]:
    return [(job, run) for job, run in jobs if view.sees_job(job.dataset, job.owner)]
