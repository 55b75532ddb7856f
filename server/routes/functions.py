"""`/v1/functions`: what SQL can call, and how it comes and goes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from server.catalog.function_spec import deployed_form, feedback_form
from server.catalog.functions import INPUT_NAMES, Function
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.classes import asks_for_classes, told_classes
from server.services import Services, ServicesOf

__all__ = ["router"]

router = APIRouter(prefix="/v1/functions", tags=["functions"])


@router.get("")
def list_functions(services: ServicesOf, request: Request) -> Response:
    """Every deployed function in its current version."""
    listed = asks_for_classes(request)
    found = services.catalog.functions()
    return json_reply({"functions": [_described(services, each, with_classes=listed) for each in found]})


@router.get("/{name}")
def show_function(services: ServicesOf, name: str, request: Request) -> Response:
    """One function; a bare model's name is answered too."""
    served = services.catalog.versions(name)
    listed = asks_for_classes(request, by_default=True)
    return json_reply(_described(services, served, with_classes=listed))


@router.put("/{name}")
async def put_function(services: ServicesOf, name: str, request: Request) -> Response:
    """Create a function, or deploy it anew; its models are loaded before it is switched to."""
    listed = asks_for_classes(request)
    await services.publisher.deploy(name, await json_object(request))
    return json_reply(_described(services, services.catalog.versions(name), with_classes=listed))


@router.delete("/{name}")
async def delete_function(services: ServicesOf, name: str) -> Response:
    """Serve it no longer; its models stay."""
    await services.publisher.delete(name)
    return json_reply({"deleted": name})


def _described(services: Services, served: list[Function], *, with_classes: bool = False) -> dict[str, Any]:
    function = served[-1]
    return {
        **deployed_form(function),
        "models": [member.name for member in function.members],
        "versions": [one.version for one in served],
        **told_classes(function.classes, listed=with_classes),
        "inputs": {INPUT_NAMES[form]: form for form in function.forms},
        "select": function.select,
        "selection": services.selections.of(function).to_json(),
        "select_fault": services.dispatcher.select_fault(function),
        "policy": function.policy,
        "policy_options": dict(function.policy_options),
        "max_batch": function.max_batch,
        "batch_sizes": list(function.batch_sizes),
        "feedback": feedback_form(function),
        "is_model": function.bare,
        "ready": services.catalog.is_loaded(function.name)
        and services.residency.is_resident(function.members),
    }
