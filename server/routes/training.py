"""`/v1/jobs`, and how a function is deployed from one and rolled back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from server.catalog.function_spec import deployed_form
from server.catalog.jobs import ACTIVE, PAUSED, Job
from server.catalog.retraining import Retraining
from server.errors import BadOption, ServiceError
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.callers import CallerOf, tell
from server.routes.roles import roles_of
from server.services import SeenOf, Services, ServicesOf, ViewOf
from server.training.drift import DriftOf, seen_drift
from server.training.jobs.described import described, trials_of
from server.training.jobs.seen import check_changes_job, check_sees_job, page_of_jobs
from server.training.retraining import no_retraining, seen_retrainings

__all__ = ["router"]

router = APIRouter(tags=["training"])

_PAGE = 1_000
_PAGE_OF_TRIALS = 50
_MEMBERS_IN_FULL = 3
_DEPLOYMENT = {"function", "select", "slo_ms", "promote", "task", "cascade"}


@router.get("/v1/jobs")
async def list_jobs(services: ServicesOf, view: ViewOf, after: int = 0, limit: int = _PAGE) -> Response:
    """Jobs by number, how far they are, and the best that they have found: a page of those after `after`.

    `next` is where the next page begins; null on the last one.
    """
    jobs, following = await page_of_jobs(services.training, view, after, _within(limit))
    told = [await described(services.training, job, run) for job, run in jobs]
    return json_reply({"jobs": told, "next": following})


@router.post("/v1/jobs")
async def start_job(services: ServicesOf, view: ViewOf, request: Request) -> Response:
    """Begin to train on a dataset's newest snapshot; returns at once."""
    form = await json_object(request)
    if "retrains" in form:
        raise BadOption("'retrains' is said by the server alone; POST /v1/functions/F/retrain asks for it")
    await services.datasets.newest(str(form.get("dataset")), view)
    started = await services.training.start(form, view)
    tell(request, f"{started.dataset} job {started.id}")
    return json_reply(await _now(services, started), 201)


@router.get("/v1/jobs/{job}")
async def show_job(services: ServicesOf, view: ViewOf, job: int) -> Response:
    """One job, with its studies."""
    await check_sees_job(services.training, view, job)
    return json_reply(await described(services.training, *await services.training.shown(job)))


@router.post("/v1/jobs/{job}/cancel")
async def cancel_job(services: ServicesOf, view: ViewOf, job: int) -> Response:
    """Stop it; what it has found stays."""
    await check_changes_job(services.training, view, job)
    return json_reply(await _now(services, await services.training.cancel(job)))


@router.post("/v1/jobs/{job}/pause")
async def pause_job(services: ServicesOf, view: ViewOf, job: int) -> Response:
    """Let it rest; epochs under way end first."""
    await check_changes_job(services.training, view, job)
    return json_reply(await _now(services, await services.training.pause(job)))


@router.post("/v1/jobs/{job}/resume")
async def resume_job(services: ServicesOf, view: ViewOf, job: int) -> Response:
    """Go on with a paused one."""
    await check_changes_job(services.training, view, job)
    return json_reply(await _now(services, await services.training.resume(job)))


@router.post("/v1/jobs/{job}/extend")
async def extend_job(services: ServicesOf, view: ViewOf, job: int, request: Request) -> Response:
    """Go on with a job that has ended, `{"budget": "10 minutes"}` in all; `budget_epochs`: so many epochs."""
    await check_changes_job(services.training, view, job)
    form = await json_object(request)
    budget = form.get("budget", form.get("budget_epochs"))
    return json_reply(await _now(services, await services.training.extend(job, budget)))


@router.get("/v1/jobs/{job}/events")
async def watch_job(services: ServicesOf, view: ViewOf, caller: CallerOf, job: int) -> Response:
    """What happens in a job, as server-sent events, until it ends, or the token that asks."""
    await check_sees_job(services.training, view, job)
    known, run = await services.training.job(job)

    async def stream() -> AsyncIterator[str]:
        told = await described(services.training, known, run)
        yield _event({"job": job, "event": "job", **told})
        if known.state in (*ACTIVE, PAUSED) or run.ending:
            async for event in services.training.events.watch(job):
                yield _event(event)

    events = services.tokens.endings.stream(caller, stream())
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.get("/v1/trials")
async def list_trials(
    services: ServicesOf,
    view: ViewOf,
    job: int | None = None,
    after: int = 0,
    limit: int = _PAGE_OF_TRIALS,
) -> Response:
    """The trials of one job, or of every one: those of a page of jobs, as `GET /v1/jobs` has them."""
    limit = _within(limit)
    if job is not None:
        await check_sees_job(services.training, view, job)
        wanted, more = [job], None
    else:
        jobs, more = await page_of_jobs(services.training, view, after, limit)
        wanted = [known.id for known, _ in jobs]
    trials: list[dict[str, Any]] = []
    for number in wanted:
        trials += await _trials(services, number, strict=job is not None)
    return json_reply({"trials": trials, "next": more})


@router.post("/v1/jobs/{job}/deploy")
async def deploy_job(services: ServicesOf, view: ViewOf, job: int, request: Request) -> Response:
    """Make `{"function": F}` answer with what the job has found; the other fields as wanted."""
    await check_sees_job(services.training, view, job)
    body = await json_object(request)
    unknown = sorted(body.keys() - _DEPLOYMENT)
    if unknown:
        raise BadOption(
            f"a deployment has no field {unknown[0]!r}; there are {', '.join(sorted(_DEPLOYMENT))}"
        )
    function, slo_ms = body.get("function"), body.get("slo_ms")
    if not isinstance(function, str):
        raise BadOption("a deployment needs a 'function'")
    if slo_ms is not None and (isinstance(slo_ms, bool) or not isinstance(slo_ms, int | float)):
        raise BadOption("'slo_ms' must be a number")
    task = body.get("task")
    if task is not None and not isinstance(task, str):
        raise BadOption("'task' must be a text")
    services.publisher.check_may_deploy(function, view)
    _, run = await services.training.job(job)
    select = body.get("select") or "ensemble"
    promote = body.get("promote") or "always"
    deployed = await services.deployer.deploy(
        run,
        function,
        select=str(select),
        slo_ms=slo_ms,
        promote=str(promote),
        task=task,
        view=view,
        cascade=body.get("cascade"),
    )
    tell(request, f"{function} job {job}")
    return json_reply(asdict(deployed) | {"subsets": _telling(deployed.subsets)})


@router.post("/v1/functions/{name}/rollback")
async def roll_back(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str) -> Response:
    """Deploy what the function was before its current deployment; twice is back and forth."""
    seen.check_function(name)
    view.check_changes("function", name)
    return json_reply(deployed_form(await services.deployer.roll_back(name)))


@router.get("/v1/retrainings")
async def list_retrainings(services: ServicesOf, seen: SeenOf) -> Response:
    """The functions that are trained again, when, and what came of it the last time."""
    known = seen_retrainings(await services.retrainings.all(), seen)
    return json_reply({"retrainings": [_retraining(each) for each in known]})


@router.get("/v1/drift")
async def list_drift(services: ServicesOf, view: ViewOf, seen: SeenOf) -> Response:
    """How far what functions are asked and answer has moved from what they were trained on."""
    known = seen_drift(await services.drift.look(), seen, view)
    return json_reply({"drift": [_drift(each) for each in known]})


@router.post("/v1/functions/{name}/retrain")
async def retrain(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request) -> Response:
    """Train a function again, now and `{"every": "1 day"}`; promoted only where that is better."""
    seen.check_function(name)
    view.check_changes("function", name)
    form = await json_object(request, may_be_empty=True)
    unknown = sorted(form.keys() - {"every", "budget", "roles"})
    if unknown:
        raise BadOption(f"a retraining has no field {unknown[0]!r}; there are budget, every, roles")
    roles = roles_of(form.get("roles"))
    asked = await services.retrainings.ask(name, form.get("every"), form.get("budget"), roles, view)
    return json_reply(_retraining(asked), 201)


@router.delete("/v1/functions/{name}/retrain")
async def stop_retraining(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str) -> Response:
    """Train it no more by itself; a job that runs goes on."""
    if seen.is_function(name):
        view.check_changes("function", name)
    elif not seen.sees(name):
        raise no_retraining(name)
    await services.retrainings.forget(name)
    return json_reply({"function": name, "state": "forgotten"})


def _drift(each: DriftOf) -> dict[str, Any]:
    told = asdict(each) | {"is_much": each.is_much}
    del told["dataset"]
    return told


def _retraining(known: Retraining) -> dict[str, Any]:
    return {
        "function": known.function,
        "state": known.state,
        "every_s": known.every_s,
        "budget": known.budget or None,
        "next_at": None if known.next_at is None else known.next_at.isoformat(),
        "job": known.job,
        "outcome": known.outcome,
        "ended_at": None if known.ended_at is None else known.ended_at.isoformat(),
    }


def _telling(subsets: Mapping[str, float]) -> dict[str, float]:
    """Every subset of a few members; of more, each member alone, all but each, and all together."""
    sizes = {subset: subset.count("+") + 1 for subset in subsets}
    most = max(sizes.values(), default=0)
    told = range(1, most + 1) if most <= _MEMBERS_IN_FULL else (1, most - 1, most)
    return {subset: accuracy for subset, accuracy in subsets.items() if sizes[subset] in told}


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


async def _trials(services: Services, job: int, *, strict: bool) -> list[dict[str, Any]]:
    """Of one job; none where they cannot be read, unless it was asked for by itself."""
    try:
        _, run = await services.training.job(job)
    except ServiceError:
        if strict:
            raise
        return []
    return await trials_of(run, with_scores=strict)  # of one job alone: they are many


def _within(limit: int) -> int:
    if not 1 <= limit <= _PAGE:
        raise BadOption(f"'limit' must be from 1 to {_PAGE}, not {limit}")
    return limit


async def _now(services: Services, job: Job) -> dict[str, Any]:
    """A job as an order has left it: nothing is asked of the registry again, which may be gone by now."""
    return await described(services.training, job, await services.training.run_of(job))
