"""The Open Inference Protocol's routes but infer: server and model metadata, and Triton's additions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.access.masking import masked_text
from server.access.seen_catalog import SeenCatalog
from server.access.view import View
from server.catalog.functions import Function
from server.errors import Unsupported
from server.http.body import json_object
from server.http.replies import json_reply
from server.routes.description import EXTENSIONS, config_of, metadata_of, statistics_of
from server.routes.lists import list_reply
from server.services import SeenOf, Services, ServicesOf, ViewOf
from server.version import VERSION

__all__ = ["router"]

router = APIRouter(prefix="/v2", tags=["open inference protocol"])


@router.get("")
@router.get("/", include_in_schema=False)
async def server_metadata() -> Response:
    """The server's name, version and extensions."""
    return json_reply({"name": "ml_udf", "version": VERSION, "extensions": EXTENSIONS})


# Before "/models/{name}": `stats` there would be a model's name.
@router.get("/models/stats")
async def all_statistics(services: ServicesOf, seen: SeenOf) -> Response:
    """The counts of everything that is served."""
    return await list_reply(statistics_of((f, services.metrics.of(f)) for f in seen))


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready")
async def model_ready(services: ServicesOf, seen: SeenOf, name: str, version: str | None = None) -> Response:
    """Whether rows for it would be answered without loading it first."""
    function = seen.resolve(name, version)
    ready = not services.dispatcher.is_draining and services.is_resident(function)
    return Response(status_code=200 if ready else 503)


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}")
async def model_metadata(seen: SeenOf, name: str, version: str | None = None) -> Response:
    """Inputs, outputs, versions, classes."""
    function = seen.resolve(name, version)
    hidden = seen.hidden_members(function)
    members = [masked_text(model.key, hidden) for model in function.members]
    return json_reply(metadata_of(function, seen.versions(name), members))


@router.get("/models/{name}/config")
@router.get("/models/{name}/versions/{version}/config")
async def model_config(seen: SeenOf, name: str, version: str | None = None) -> Response:
    """Triton's configuration of it."""
    return json_reply(config_of(seen.resolve(name, version)))


@router.get("/models/{name}/stats")
@router.get("/models/{name}/versions/{version}/stats")
async def model_statistics(
    services: ServicesOf, seen: SeenOf, name: str, version: str | None = None
) -> Response:
    """Its counts, by version."""
    if version is None:
        seen.resolve(name)
        functions = seen.versions(name)
    else:
        functions = [seen.resolve(name, version)]
    return json_reply(statistics_of((f, services.metrics.of(f)) for f in functions))


@router.post("/repository/index")
async def repository_index(services: ServicesOf, seen: SeenOf, request: Request) -> Response:
    """Everything there is, by name and version, and whether it is loaded."""
    body = await json_object(request, may_be_empty=True)
    entries = [_index_entry(services, function) for function in seen]
    if body.get("ready"):
        entries = [entry for entry in entries if entry["state"] == "READY"]
    return json_reply(entries)


@router.post("/repository/models/{name}/load")
async def load(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request) -> Response:
    """Make it resident on a worker now."""
    parameters = (await json_object(request, may_be_empty=True)).get("parameters") or {}
    if not isinstance(parameters, dict) or parameters.keys() - {"unload_dependents"}:
        raise Unsupported("a load takes no configuration or files here; POST /register registers models")
    _check_changes(seen, view, name)
    await services.publisher.load(name)
    return Response()


@router.post("/repository/models/{name}/unload")
async def unload(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str) -> Response:
    """Answer for it no longer, until it is loaded again."""
    _check_changes(seen, view, name)
    await services.publisher.unload(name)
    return Response()


@router.api_route("/systemsharedmemory/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
@router.api_route("/cudasharedmemory/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
@router.api_route("/trace/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
@router.api_route("/models/{_name}/trace/setting", methods=["GET", "POST"], include_in_schema=False)
@router.api_route("/logging", methods=["GET", "POST"], include_in_schema=False)
async def not_here(request: Request) -> Response:
    """Triton's shared memory, trace and log settings."""
    raise Unsupported(f"{request.url.path} is not part of this server; GET /v2 lists its extensions")


def _check_changes(seen: SeenCatalog, view: View, name: str) -> None:
    """Raises `UnknownFunction` for what the caller does not see, `Forbidden` for what is another's."""
    seen.versions(name)
    view.check_changes("function" if seen.is_function(name) else "model", name)


def _index_entry(services: Services, function: Function) -> dict[str, str]:
    entry = {"name": function.name, "version": str(function.version)}
    if not services.catalog.is_loaded(function.name):
        return {**entry, "state": "UNAVAILABLE", "reason": "unloaded"}
    if services.is_resident(function):
        return {**entry, "state": "READY", "reason": ""}
    return {**entry, "state": "UNAVAILABLE", "reason": "not resident; loaded when rows come"}
