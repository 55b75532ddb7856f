"""`/training`: datasets, jobs, what is trained again, and what has drifted."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.dashboard.job_view import job_line
from server.dashboard.live_reply import live_reply
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.training_view import TrainingView, dataset_line
from server.training.drift import seen_drift
from server.training.jobs.described import described
from server.training.jobs.seen import last_jobs
from server.training.retraining import seen_retrainings

__all__ = ["router"]

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_PARTS = {"jobs": "training/jobs.html"}
_EVERY = 2  # ticks
_JOBS = 25  # of a page


@router.get("/training")
async def show_training(page: PageOf, before: int | None = None) -> Response:
    """All of it. before: jobs with smaller numbers."""
    return await page.reply("training.html", view=await _view(page, before), is_first=before is None)


@router.get("/live/training")
async def watch_training(page: PageOf) -> Response:
    """The newest jobs, whenever they change."""
    page = page.seen_from("./")
    return live_reply(page, ("training", page.sight), lambda: _view(page, None), _PARTS, every=_EVERY)


async def _view(page: Page, before: int | None) -> TrainingView:
    services = page.services
    jobs, following = await last_jobs(services.training, page.view, _JOBS, before)
    lines = [job_line(await described(services.training, job, run)) for job, run in jobs]
    datasets = None
    if page.may_train:
        datasets = tuple(dataset_line(each) for each in await page.datasets())
    return TrainingView(
        datasets,
        tuple(lines),
        following,
        tuple(seen_retrainings(await services.retrainings.all(), page.seen)),
        tuple(seen_drift(services.drift.latest, page.seen, page.view)),
    )
