"""`/v1/jobs`, and how a function is deployed from one and rolled back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from server.deploying import deployed_form
from server.errors import BadOption, UnknownFunction
from server.routes.body import json_object
from server.routes.replies import json_reply
from server.services import ServicesOf
from server.store.training import ACTIVE, PAUSED, Job
from server.training.run import Run
from server.training.snapshot import said_of
from server.training.tasks import IMAGES

__all__ = ["router"]

router = APIRouter(tags=["training"])


@router.get("/v1/jobs")
async def list_jobs(services: ServicesOf) -> Response:
    """Every job, how far it is, and the best that it has found."""
    return json_reply({"jobs": [await _described(job, run) for job, run in await services.training.jobs()]})


@router.post("/v1/jobs")
async def start_job(services: ServicesOf, request: Request) -> Response:
    """Begin to train on a dataset's newest snapshot; returns at once."""
    job = await services.training.start(await json_object(request))
    return json_reply(await _described(*await services.training.job(job.id)), 201)


@router.get("/v1/jobs/{job}")
async def show_job(services: ServicesOf, job: int) -> Response:
    """One job, with its studies."""
    return json_reply(await _described(*await services.training.job(job)))


@router.post("/v1/jobs/{job}/cancel")
async def cancel_job(services: ServicesOf, job: int) -> Response:
    """Stop it; what it has found stays."""
    await services.training.cancel(job)
    return json_reply(await _described(*await services.training.job(job)))


@router.post("/v1/jobs/{job}/pause")
async def pause_job(services: ServicesOf, job: int) -> Response:
    """Let it rest; epochs under way end first."""
    await services.training.pause(job)
    return json_reply(await _described(*await services.training.job(job)))


@router.post("/v1/jobs/{job}/resume")
async def resume_job(services: ServicesOf, job: int) -> Response:
    """Go on with a paused one."""
    await services.training.resume(job)
    return json_reply(await _described(*await services.training.job(job)))


@router.post("/v1/jobs/{job}/extend")
async def extend_job(services: ServicesOf, job: int, request: Request) -> Response:
    """Go on with a job that has ended, `{"budget_epochs": n}` in all."""
    budget = (await json_object(request)).get("budget_epochs")
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise BadOption("'budget_epochs' must be a whole number")
    await services.training.extend(job, budget)
    return json_reply(await _described(*await services.training.job(job)))


@router.get("/v1/jobs/{job}/events")
async def watch_job(services: ServicesOf, job: int) -> Response:
    """What happens in a job, as server-sent events, until it ends."""
    known, run = await services.training.job(job)

    async def stream() -> AsyncIterator[str]:
        described = await _described(known, run)
        yield _event({"job": job, "event": "job", **described})
        if known.state in (*ACTIVE, PAUSED):
            async for event in services.training.events.watch(job):
                yield _event(event)

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.get("/v1/trials")
async def list_trials(services: ServicesOf, job: int | None = None) -> Response:
    """The trials of every job, or of one."""
    jobs = await services.training.jobs() if job is None else [await services.training.job(job)]
    trials: list[dict[str, Any]] = []
    for known, run in jobs:
        for model, records in (await run.trials()).items() if run is not None else ():
            for trial in records:
                best = trial.best_checkpoint
                progress = asdict(trial.progress())
                trials.append(
                    {
                        "job_id": known.id,
                        "model": model,
                        **progress,
                        "checkpoint": best.digest if best is not None else None,
                    }
                )
    return json_reply({"trials": trials})


@router.post("/v1/jobs/{job}/deploy")
async def deploy_job(services: ServicesOf, job: int, request: Request) -> Response:
    """Make `{"function": F}` answer with what the job has found; `select`, `slo_ms`, `promote` as wanted."""
    body = await json_object(request)
    unknown = sorted(body.keys() - {"function", "select", "slo_ms", "promote"})
    if unknown:
        raise BadOption(
            f"a deployment has no field {unknown[0]!r}; there are function, select, slo_ms, promote"
        )
    function, slo_ms = body.get("function"), body.get("slo_ms")
    if not isinstance(function, str):
        raise BadOption("a deployment needs a 'function'")
    if slo_ms is not None and (isinstance(slo_ms, bool) or not isinstance(slo_ms, int | float)):
        raise BadOption("'slo_ms' must be a number")
    _, run = await services.training.job(job)
    select = body.get("select") or "ensemble"
    promote = body.get("promote") or "always"
    deployed = await services.deployment.deploy(
        run, function, select=str(select), slo_ms=slo_ms, promote=str(promote)
    )
    return json_reply(asdict(deployed))


@router.post("/v1/functions/{name}/rollback")
async def roll_back(services: ServicesOf, name: str) -> Response:
    """Deploy what the function was before its current deployment; twice is back and forth."""
    if not services.catalog.is_function(name):
        raise UnknownFunction(f"there is no function {name!r} here")
    return json_reply(deployed_form(await services.deployment.roll_back(name)))


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


async def _described(job: Job, run: Run | None) -> dict[str, Any]:
    studies = await run.progress() if run is not None else {}
    best = max(
        ((found.best_score, model) for model, found in studies.items() if found.best_score is not None),
        default=(None, None),
    )
    return {
        "id": job.id,
        "dataset": job.dataset,
        "task": job.spec.get("task", IMAGES),
        "snapshot": job.snapshot,
        "state": job.state,
        "reason": "; ".join(filter(None, (job.reason, said_of(run.snapshot.facts) if run else ""))),
        "models": job.spec["models"],
        "policy": job.spec["policy"],
        "advisor": job.spec["advisor"],
        "epochs_used": sum(found.epochs_used for found in studies.values()),
        "epochs_budget": job.spec["budget_epochs"],
        "trials": sum(len(found.trials) for found in studies.values()),
        "best_score": best[0],
        "best_model": best[1],
        "created_at": job.created_at.isoformat(),
        "ended_at": None if job.ended_at is None else job.ended_at.isoformat(),
        "studies": {
            model: {
                "epochs_used": found.epochs_used,
                "epochs_budget": found.epochs_budget,
                "trials": len(found.trials),
                "best_score": found.best_score,
                "best_trial": found.best_trial,
                "best_checkpoint": found.best_checkpoint,
            }
            for model, found in studies.items()
        },
    }
