"""`/register`, `/v1/models`: what there is to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData, UploadFile

from gpu_worker.model_files.file_list import MOST_FILES
from server.access.view import View
from server.catalog.functions import ModelVersion
from server.errors import BadOption
from server.http.body import content_type_of, json_object
from server.http.replies import json_reply
from server.kept_json import check_kept
from server.routes.callers import tell
from server.routes.classes import asks_for_classes, told_classes
from server.routes.lists import list_reply, told_each
from server.services import SeenOf, Services, ServicesOf, ViewOf

__all__ = ["router"]

router = APIRouter(tags=["models"])

_MANIFEST_BYTES = 2 << 20  # read on the event loop


@router.post("/register")
async def register(services: ServicesOf, view: ViewOf, request: Request) -> Response:
    """A model version: multipart (`manifest`, `weights`, `files`), or a JSON `directory` of this host."""
    if content_type_of(request) == "multipart/form-data":
        async with request.form(
            max_files=MOST_FILES + 1, max_fields=4, max_part_size=_MANIFEST_BYTES
        ) as form:
            manifest = await _manifest(form)
            weights = form.get("weights")
            if isinstance(weights, str):
                raise BadOption("the part 'weights' must be a file")
            model = await services.publisher.register(
                manifest, weights.file if weights else None, _others(form), view
            )
    else:
        model = await services.publisher.register_directory(await _directory(request), view)
    tell(request, model.key)
    told = _described(services, view, model, services.resident(), with_classes=asks_for_classes(request))
    return json_reply(told)


@router.get("/v1/models")
async def list_models(services: ServicesOf, view: ViewOf, seen: SeenOf, request: Request) -> Response:
    """Every registered model version."""
    listed = asks_for_classes(request)
    places = services.resident()
    told = await told_each(
        seen.models(), lambda model: _described(services, view, model, places, with_classes=listed)
    )
    return await list_reply({"models": told})


@router.put("/v1/models/{name}/visibility")
async def share_model(
    services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request
) -> Response:
    """Who sees it, in all its versions: `{"visibility": "private"}`; its `owner`, for admins."""
    seen.model(name)
    await services.ownership.share(view, "model", name, await json_object(request))
    return json_reply({"name": name, **view.shown("model", name)})


async def _manifest(form: FormData) -> dict[str, Any]:
    part = form.get("manifest")
    if part is None:
        raise BadOption("the part 'manifest' (model.json) is missing")
    text = await part.read() if isinstance(part, UploadFile) else part
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadOption(f"the part 'manifest' is not JSON: {exc}") from exc
    if not isinstance(manifest, dict):
        raise BadOption("the part 'manifest' must be a JSON object")
    check_kept(manifest, "the part 'manifest'")
    return manifest


def _others(form: FormData) -> dict[str, IO[bytes]]:
    """The files beside the weights, by the names under which they came."""
    others: dict[str, IO[bytes]] = {}
    for part in form.getlist("files"):
        if isinstance(part, str) or not part.filename:
            raise BadOption("each part 'files' must be a file with the name that the manifest lists")
        if part.filename in others:
            raise BadOption(f"the file {part.filename[:100]!r} came twice")
        others[part.filename] = part.file
    return others


async def _directory(request: Request) -> Path:
    directory = (await json_object(request)).get("directory")
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise BadOption("'directory' must be an absolute path on the server's host")
    return Path(directory)


def _described(
    services: Services,
    view: View,
    model: ModelVersion,
    places: Mapping[str, Sequence[str]],
    *,
    with_classes: bool = False,
) -> dict[str, Any]:
    """places: worker → keys of the models that it holds"""
    return {
        "name": model.name,
        **view.shown("model", model.name),
        "version": model.version,
        "task": model.task,
        "runtime": model.runtime,
        "architecture": model.architecture,
        "accuracy": model.accuracy,
        **told_classes(model.classes, listed=with_classes),
        "input": {
            "form": model.input.form,
            "height": model.input.height,
            "width": model.input.width,
            "preprocess": model.input.preprocess.to_json(),
        },
        "sha256": model.sha256,
        "endpoint": model.endpoint or None,
        "unavailable": services.remote.reason(model) or None,
        "files": [file.to_json() for file in model.files],
        "directory": str(model.directory),
        "resident": any(model.key in keys for keys in places.values()),
        "resident_on": [worker for worker, keys in places.items() if model.key in keys],
    }
