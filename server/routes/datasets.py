"""`/v1/datasets`: registered queries and their snapshots, from a connection or pushed in parts."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response

from server.access.seen_catalog import SeenCatalog
from server.access.view import View
from server.catalog.jobs import Look, Snapshot
from server.errors import BodyTooLarge
from server.http.body import ClientGone, content_type_of, json_object
from server.http.disconnects import while_connected
from server.http.replies import json_reply
from server.routes.callers import tell
from server.routes.roles import roles_of
from server.services import SeenOf, ServicesOf, ViewOf
from server.training.datasets.split import BY_SMALLEST_ROW

__all__ = ["router"]

_JSON_PART_BYTES = 8 << 20

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

_GONE = 499  # nobody reads it


@router.get("")
async def list_datasets(services: ServicesOf, view: ViewOf) -> Response:
    """Every dataset with its newest snapshot."""
    return json_reply({"datasets": [_described(view, each) for each in await services.datasets.all(view)]})


@router.post("")
async def create_dataset(services: ServicesOf, view: ViewOf, request: Request) -> Response:
    """Register a query over a connection of the server's, `source`, and take its first snapshot."""
    form = await json_object(request)
    roles = roles_of(form.pop("roles", None))
    taking = services.datasets.pull(form, roles, _share(view, roles), view)
    return await _taken(request, view, taking, 201)


@router.post("/uploads")
async def begin_upload(services: ServicesOf, view: ViewOf, request: Request) -> Response:
    """Announce a dataset whose rows this client sends; the name of the upload."""
    form = await json_object(request)
    return json_reply({"upload": await services.datasets.begin(form, view.caller.key, view)}, 201)


@router.put("/uploads/{upload}/{part}")
async def add_part(services: ServicesOf, view: ViewOf, upload: str, part: int, request: Request) -> Response:
    """Rows: an Arrow IPC stream, or JSON. Part 0, 1, …; one that is sent again is not taken twice."""
    is_json = content_type_of(request) == "application/json"
    body = await request.body()
    if is_json and len(body) > _JSON_PART_BYTES:  # its parser lets nothing else run, in whatever thread
        raise BodyTooLarge(f"a part in JSON has at most {_JSON_PART_BYTES} bytes; send fewer rows at a time")
    number = await services.datasets.add(upload, part, body, is_json=is_json, view=view)
    return json_reply({"next": number})


@router.post("/uploads/{upload}/finish")
async def finish_upload(services: ServicesOf, view: ViewOf, upload: str, request: Request) -> Response:
    """That was all: take the snapshot."""
    snapshot = await services.datasets.finish(upload, view)
    tell(request, snapshot.dataset)
    return json_reply(_described(view, snapshot), 201)


@router.delete("/uploads/{upload}")
async def drop_upload(services: ServicesOf, view: ViewOf, upload: str) -> Response:
    """Forget what was sent."""
    await services.datasets.drop(upload, view)
    return json_reply({"dropped": upload})


@router.get("/{name}")
async def show_dataset(services: ServicesOf, view: ViewOf, seen: SeenOf, name: str) -> Response:
    """A dataset as it is registered, and every snapshot of it and every look at their test rows, by age."""
    newest = await services.datasets.newest(name, view)
    snapshots = [_described(view, snapshot) for snapshot in await services.datasets.snapshots(name)]
    looks = [_looked(seen, look) for look in await services.datasets.looks(name)]
    return json_reply({**_described(view, newest), "snapshots": snapshots, "looks": looks})


@router.post("/{name}/refresh")
async def refresh_dataset(services: ServicesOf, view: ViewOf, name: str, request: Request) -> Response:
    """Run the registered query again; what jobs and models were trained on stays as it was."""
    form = await json_object(request, may_be_empty=True)
    roles = roles_of(form.get("roles"))
    taking = services.datasets.refresh(name, roles, _share(view, roles), view)
    return await _taken(request, view, taking, 200)


@router.put("/{name}/visibility")
async def share_dataset(services: ServicesOf, view: ViewOf, name: str, request: Request) -> Response:
    """Who sees it and its jobs: `{"visibility": "shared", "shared_with": ["bi"]}`; admins: its `owner`."""
    await services.datasets.newest(name, view)
    await services.ownership.share(view, "dataset", name, await json_object(request))
    return json_reply({"name": name, **view.shown("dataset", name)})


async def _taken(
    request: Request, view: View, taking: Coroutine[Any, Any, Snapshot], status: int
) -> Response:
    """The snapshot; its query ends where the client hangs up."""
    try:
        snapshot = await while_connected(request.receive, taking)
    except ClientGone:
        return Response(status_code=_GONE)
    tell(request, snapshot.dataset)
    return json_reply(_described(view, snapshot), status)


def _share(view: View, roles: list[str] | None) -> str:
    """Whose share of the queries a request takes: a token's, or that of a database's session role with it."""
    return f"{view.caller.key} {roles[0] if roles else ''}"


def _looked(seen: SeenCatalog, look: Look) -> dict[str, Any]:
    """A look at test rows, and what was deployed of it, as far as the caller sees that."""
    is_seen = look.function is not None and seen.sees(look.function)
    return {
        "snapshot": look.snapshot,
        "number": look.number,
        "job": look.job,
        "function": look.function if is_seen else None,
        "version": look.version if is_seen else None,
        "test_accuracy": float(look.answered_rightly().mean()) if look.right else None,
        "metric": look.metric,
        "test_score": look.score,
        "test_rows": look.rows,
        "looked_at": None if look.looked_at is None else look.looked_at.isoformat(),
    }


def _described(view: View, snapshot: Snapshot) -> dict[str, Any]:
    facts = snapshot.facts
    return {
        "name": snapshot.dataset,
        **view.shown("dataset", snapshot.dataset),
        "snapshot": snapshot.id,
        "task": snapshot.spec["task"],
        "source": snapshot.spec["source"],
        "query": snapshot.spec["query"],
        "target": snapshot.spec["target"],
        "key": snapshot.spec["key"],
        **{name: snapshot.spec.get(name) for name in ("input", "entity", "time", "validation", "test")},
        "rows": facts["rows"],
        "columns": facts.get("columns", []),
        "classes": facts["classes"],
        "splits": facts["splits"],
        "split_rule": facts.get("split_rule", BY_SMALLEST_ROW),
        "untaught": facts.get("untaught", {}),
        "left_out": facts.get("left_out", 0),
        "unreadable": facts["unreadable"],
        "unreadable_rows": facts["unreadable_rows"],
        "content_sha256": facts["content_sha256"],
        "taken_at": snapshot.taken_at.isoformat(),
    }
