"""`/v1/functions`: what SQL can call, and how it comes and goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from server.access.masking import masked, masked_text
from server.access.view import View
from server.catalog.cascade_spec import CascadeAsked, cascade_asked
from server.catalog.function_spec import deployed_form, feedback_form
from server.catalog.functions import INPUT_NAMES, Function
from server.errors import BadOption
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.classes import asks_for_classes, told_classes
from server.routes.lists import list_reply, told_each
from server.services import SeenOf, Services, ServicesOf, ViewOf
from server.serving.proxies import RowsFor

__all__ = ["router"]

router = APIRouter(prefix="/v1/functions", tags=["functions"])


@router.get("")
async def list_functions(services: ServicesOf, view: ViewOf, seen: SeenOf, request: Request) -> Response:
    """Every deployed function in its current version."""
    listed = asks_for_classes(request)
    told = await told_each(
        seen.functions(), lambda served: _described(services, view, served, with_classes=listed)
    )
    return await list_reply({"functions": told})


@router.get("/{name}")
async def show_function(
    services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request
) -> Response:
    """One function; a bare model's name is answered too."""
    served = seen.versions(name)
    listed = asks_for_classes(request, by_default=True)
    return json_reply(_described(services, view, served, with_classes=listed))


@router.put("/{name}")
async def put_function(services: ServicesOf, view: ViewOf, name: str, request: Request) -> Response:
    """Create a function, or deploy it anew; its models are loaded before it is switched to."""
    listed = asks_for_classes(request)
    body = await json_object(request)
    asked = cascade_asked(name, body.get("cascade"))
    rows_for = None if asked is None else await _rows_for(services, view, name, asked)
    await services.publisher.deploy(name, body, view=view, rows_for=rows_for)
    return json_reply(_described(services, view, services.catalog.versions(name), with_classes=listed))


@router.delete("/{name}")
async def delete_function(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str) -> Response:
    """Serve it no longer; its models stay."""
    seen.check_function(name)
    view.check_changes("function", name)
    await services.publisher.delete(name)
    return json_reply({"deleted": name})


@router.put("/{name}/visibility")
async def share_function(
    services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request
) -> Response:
    """Who sees it: `{"visibility": "shared", "shared_with": ["bi"]}`; its `owner`, for admins."""
    seen.check_function(name)
    await services.ownership.share(view, "function", name, await json_object(request))
    return json_reply({"name": name, **view.shown("function", name)})


async def _rows_for(services: Services, view: View, name: str, asked: CascadeAsked) -> RowsFor:
    """Where the rows come from that show whether the function's cascade holds. Raises `BadOption`."""
    if asked.dataset is None:
        raise BadOption(
            f"function {name}: whether its cascade holds is shown by rows that taught none of its models: "
            "say of which dataset, as 'dataset' of 'cascade'"
        )
    snapshot = await services.datasets.newest(asked.dataset, view)
    return services.datasets.rows_that_taught_none(snapshot)


def _described(
    services: Services, view: View, served: list[Function], *, with_classes: bool = False
) -> dict[str, Any]:
    function = served[-1]
    told = deployed_form(function)
    hidden = services.seen_by(view).hidden_members(function)
    return {
        **told,
        **view.shown("model" if function.bare else "function", function.name),
        "members": masked(told["members"], hidden),
        "cascade": masked(told["cascade"], hidden),
        "wants": masked(told["wants"], hidden),
        "candidates": [masked_text(model.key, hidden) for model in function.candidates],
        "decisions": [masked(one.told(), hidden) for one in services.wishes.decided(function)],
        "models": [masked_text(member.name, hidden) for member in function.members],
        "versions": [one.version for one in served],
        **told_classes(function.classes, listed=with_classes),
        "inputs": {INPUT_NAMES[form]: form for form in function.forms},
        "select": masked(function.select, hidden),
        "selection": masked(services.selections.of(function).to_json(), hidden),
        "select_fault": masked(services.dispatcher.select_fault(function), hidden),
        "policy": function.policy,
        "policy_options": dict(function.policy_options),
        "max_batch": function.max_batch,
        "batch_sizes": list(function.batch_sizes),
        "feedback": masked(feedback_form(function), hidden),
        "is_model": function.bare,
        "ready": services.catalog.is_loaded(function.name) and services.is_resident(function),
        **_pipeline_form(services, function, hidden),
    }


def _pipeline_form(services: Services, function: Function, hidden: Mapping[str, str]) -> dict[str, Any]:
    """Of a pipeline: its stages, with the versions that have their names now, and what calls were like."""
    pipeline = function.pipeline
    if pipeline is None:
        return {}
    stages: list[dict[str, Any]] = []
    for number, stage in zip(pipeline.numbers, pipeline.stages, strict=True):
        current = services.catalog.versions(stage.name)[-1].version
        told = {"stage": number, "function": stage.name, "version": stage.version, "task": stage.task.name}
        stages.append({**told, "current_version": current})
    known = services.pipelines.times(function)
    crops = {
        "objects_per_row": known.found / known.rows if known.rows else None,
        "crop_ms": known.cut_s * 1000,
    }
    return {
        "pipeline": masked(pipeline.told(), hidden),
        "stages": masked(stages, hidden),
        **({} if pipeline.crop is None else crops),
    }
