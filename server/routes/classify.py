"""`POST /classify`: Rafiqi's route, an image in, its most likely labels out (Rafiqi §3.1).

The same call as an infer request with one row, on the same scheduler.
"""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import UploadFile

from server.access.masking import masked_text
from server.access.seen_catalog import SeenCatalog
from server.catalog.functions import Function
from server.errors import BadInput, BadOption, BodyTooLarge
from server.http.body import ClientGone, content_type_of
from server.http.replies import json_reply
from server.scheduling.policy import RowClass
from server.services import SeenOf, ServicesOf, ViewOf
from server.serving.calls import Call, Reply

__all__ = ["router"]

router = APIRouter(tags=["classify"])

_OUTPUTS = ("label", "confidence", "scores")


@router.post("/classify")
async def classify(
    services: ServicesOf,
    view: ViewOf,
    seen: SeenOf,
    request: Request,
    function: str | None = None,
    k: Annotated[int, Query(ge=1, le=1000)] = 5,
) -> Response:
    """The k most likely labels of one image: multipart `file`, or the raw body."""
    chosen = _function(seen, function)
    image = await _image(request, services.settings.max_input_bytes)
    began_s = time.monotonic()
    caller = view.caller
    row_class: RowClass = "bulk" if caller.bulk_only else "interactive"
    call = Call(
        chosen,
        "image",
        [image],
        len(image),
        _OUTPUTS,
        row_class=row_class,
        caller=caller.key,
        in_name_of=caller.in_name_of,
        shares=caller.shares,
    )
    try:
        reply = await services.calls.ask(call, request.receive, began_s)
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    for error in reply.errors.values():
        raise BadInput(error.code, error.message)
    hidden = seen.hidden_members(chosen)
    return json_reply(
        {
            "function": chosen.name,
            "version": chosen.version,
            "label": reply.columns["label"].values[0],
            "confidence": reply.columns["confidence"].values[0],
            "predictions": _best(reply, k),
            "answered_by": masked_text(reply.answered_by[0][2], hidden).split(","),
        }
    )


def _function(seen: SeenCatalog, name: str | None) -> Function:
    if name is None:
        able = [served[-1] for served in seen.functions() if _classifies_images(served[-1])]
        if len(able) != 1:
            raise BadOption(f"say which function classifies: ?function=…; {len(able)} here take images")
        return able[0]
    function = seen.resolve(name)
    if "image" not in function.forms:
        raise BadOption(f"{name} takes {', '.join(function.forms)}, not images")
    if not _classifies_images(function):
        raise BadOption(f"{name} answers {function.task.value.name}, no label; ask for it by the protocol")
    return function


def _classifies_images(function: Function) -> bool:
    return "image" in function.forms and all(function.task.column(name) for name in _OUTPUTS)


async def _image(request: Request, limit_bytes: int) -> bytes:
    if content_type_of(request) == "multipart/form-data":
        async with request.form(max_files=1, max_fields=4) as form:
            part = form.get("file")
            if not isinstance(part, UploadFile):
                raise BadOption("the multipart part 'file' is missing")
            image = await part.read(limit_bytes + 1)
    else:
        image = await request.body()
    if len(image) > limit_bytes:
        raise BodyTooLarge(f"the image is over the limit of {limit_bytes} bytes")
    if not image:
        raise BadOption("the request holds no image")
    return image


def _best(reply: Reply, k: int) -> list[dict[str, object]]:
    classes = reply.function.classes
    if "scores" not in reply.columns:
        found = reply.columns
        return [{"label": found["label"].values[0], "score": found["confidence"].values[0]}]
    ranked = sorted(zip(reply.columns["scores"].values, classes, strict=True), key=lambda pair: -pair[0])
    return [{"label": label, "score": score} for score, label in ranked[:k]]
