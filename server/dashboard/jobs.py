"""`/jobs/N`: how a job fares, its trials, and what may be done with it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from starlette.responses import RedirectResponse

from server.dashboard.job_view import JobView, job_view
from server.dashboard.live_reply import live_reply
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.security import PAGE_HEADERS
from server.errors import BadOption
from server.routes.callers import tell
from server.training.jobs.described import described, trials_of
from server.training.jobs.seen import check_changes_job, check_sees_job

__all__ = ["live", "router"]

router = APIRouter(prefix="/jobs/{job}", route_class=PageRoute, include_in_schema=False)
live = APIRouter(route_class=PageRoute, include_in_schema=False)

_PARTS = {
    "state": "training/state.html",
    "curves": "training/curves.html",
    "studies": "training/studies.html",
}
_EVERY = 2  # ticks


@router.get("")
async def show_job(page: PageOf, job: int, knobs: str = "", trials: str = "") -> Response:
    """The job. knobs: "all" shows those too that are the same in every trial; trials: "all", not the newest
    few alone.
    """
    view = await _view(page, job, all_knobs=knobs == "all", all_trials=trials == "all")
    return await page.reply("job.html", view=view, functions=[each.name for each in page.functions()])


@live.get("/live/jobs/{job}")
async def watch_job(page: PageOf, job: int, knobs: str = "", trials: str = "") -> Response:
    """Its state, its curves and its trials, whenever they change."""
    await _check_seen(page, job)
    page = page.seen_from("../")
    all_knobs, all_trials = knobs == "all", trials == "all"
    return live_reply(
        page,
        ("job", job, all_knobs, all_trials, page.sight),
        lambda: _view(page, job, all_knobs=all_knobs, all_trials=all_trials),
        _PARTS,
        every=_EVERY,
    )


@router.post("/pause")
async def pause_job(page: PageOf, job: int) -> Response:
    """Let it rest."""
    await _check_changes(page, job)
    await page.services.training.pause(job)
    return _to_job(page, job)


@router.post("/resume")
async def resume_job(page: PageOf, job: int) -> Response:
    """Go on."""
    await _check_changes(page, job)
    await page.services.training.resume(job)
    return _to_job(page, job)


@router.post("/cancel")
async def cancel_job(page: PageOf, job: int) -> Response:
    """Stop it; what it has found stays."""
    await _check_changes(page, job)
    await page.services.training.cancel(job)
    return _to_job(page, job)


@router.post("/extend")
async def extend_job(page: PageOf, job: int, budget: Annotated[str, Form()]) -> Response:
    """Give it so much in all."""
    await _check_changes(page, job)
    await page.services.training.extend(job, budget)
    return _to_job(page, job)


@router.post("/deploy")
async def deploy_job(
    page: PageOf,
    request: Request,
    job: int,
    function: Annotated[str, Form()],
    select: Annotated[str, Form()] = "ensemble",
    slo_ms: Annotated[str, Form()] = "",
    promote: Annotated[str, Form()] = "if_better",
) -> Response:
    """Make a function answer with what it has found, if that is better; shows what came of the test."""
    await _check_seen(page, job)
    page.services.publisher.check_may_deploy(function, page.view)
    goal_ms = _milliseconds(slo_ms)
    known, run = await page.services.training.job(job)
    deployed = await page.services.deployer.deploy(
        run, function, select=select, slo_ms=goal_ms, promote=promote, view=page.view
    )
    tell(request, f"{function} job {job}")
    return await page.reply("deployed.html", told=deployed, job=known)


async def _view(page: Page, job: int, *, all_knobs: bool, all_trials: bool) -> JobView:
    training = page.services.training
    await _check_seen(page, job)
    known, run = await training.job(job)
    told = await described(training, known, run)
    trials = await trials_of(run, with_scores=True)
    return await asyncio.to_thread(
        job_view, told, trials, run.metric, all_knobs=all_knobs, all_trials=all_trials
    )


async def _check_seen(page: Page, job: int) -> None:
    await check_sees_job(page.services.training, page.view, job)


async def _check_changes(page: Page, job: int) -> None:
    await check_changes_job(page.services.training, page.view, job)


def _milliseconds(given: str) -> float | None:
    try:
        return float(given) if given.strip() else None
    except ValueError:
        raise BadOption("the goal must be a number of milliseconds") from None


def _to_job(page: Page, job: int) -> Response:
    return RedirectResponse(f"{page.base}jobs/{job}", 303, PAGE_HEADERS)
