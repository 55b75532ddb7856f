"""`POST /v1/feedback`: labels for inputs of a function, which learns from them."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from gpu_worker.wire.protocol import RowError
from server.access.view import View
from server.catalog.functions import INPUT_NAMES, Form, Function
from server.errors import BadOption, BodyTooLarge
from server.http.body import ClientGone
from server.http.replies import json_reply
from server.routes.callers import tell
from server.services import SeenOf, Services, ServicesOf, ViewOf
from server.serving.feedback import Given

__all__ = ["router"]

router = APIRouter(prefix="/v1/feedback", tags=["feedback"])

_FIELDS = {"function", "inputs", "labels", "input", "context", "predictions"}
_FORMS: Mapping[str, Form] = {name: form for form, name in INPUT_NAMES.items()}  # type: ignore[misc]  # keys are Forms
_INVALID = "input_invalid"


@router.post("")
async def give_feedback(services: ServicesOf, view: ViewOf, seen: SeenOf, request: Request) -> Response:
    """Keep a label for each input: of all members' answers the function learns whom to believe."""
    body = await services.large.json_object(request)
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise BadOption(f"unknown field {unknown[0][:100]!r}; there are {', '.join(sorted(_FIELDS))}")
    if not isinstance(body.get("function"), str):
        raise BadOption("'function' must name a function")
    function = seen.resolve(body["function"])
    try:
        given = await (_by_id if "predictions" in body else _by_input)(
            services, view, request, function, body
        )
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    tell(request, function.name, count=len(given.outcomes))
    return json_reply(
        {
            "function": function.name,
            "version": function.version,
            "learns": function.is_taught,
            "outcomes": list(given.outcomes),
            "errors": [
                {"row": row, "code": error.code, "message": error.message}
                for row, error in sorted(given.errors.items())
            ],
        }
    )


async def _by_input(
    services: Services, view: View, request: Request, function: Function, body: dict[str, Any]
) -> Given:
    form = _form(function, body.get("input"))
    if function.answers_numbers and isinstance(body.get("labels"), list):
        body["labels"] = [repr(each) if type(each) in (int, float) else each for each in body["labels"]]
    inputs, labels = _columns(services, body, "inputs")
    context = services.contexts.digest(function.name, body.get("context"))
    rows = await asyncio.to_thread(_rows, form, inputs)
    del inputs  # of images a third more than they are; rows may wait long for idle places
    return await services.feedback.give(
        function, form, rows, labels, request.receive, view.caller.key, context, view.media_roots
    )


async def _by_id(services: Services, _: View, __: Request, function: Function, body: dict[str, Any]) -> Given:
    for field in ("inputs", "input", "context"):
        if body.get(field) is not None:
            raise BadOption(f"'predictions' say what was asked, and in which context; leave {field!r} out")
    return await services.feedback.give_by_id(function, *_columns(services, body, "predictions"))


def _form(function: Function, name: object) -> Form:
    forms = [form for form in function.forms if form != "tensor"]
    form = function.form if name is None else _FORMS.get(name) if isinstance(name, str) else None
    if form not in forms:
        names = ", ".join(INPUT_NAMES[form] for form in forms)
        raise BadOption(f"feedback on {function.name} takes 'input' as one of {names}, not {name!r}")
    return form


def _columns(
    services: Services, body: dict[str, Any], field: str
) -> tuple[Sequence[Any], Sequence[str | None]]:
    """The inputs, or ids, and the labels: taken out of the body, so that it keeps none of them."""
    inputs, labels = body.pop(field, None), body.pop("labels", None)
    if not isinstance(inputs, list) or not isinstance(labels, list) or len(inputs) != len(labels):
        raise BadOption(f"{field!r} and 'labels' must be lists of one length")
    most = services.settings.max_rows
    if len(inputs) > most:
        raise BodyTooLarge(
            f"{len(inputs)} rows in one request, and the limit is {most}; send fewer at a time"
        )
    if any(label is not None and not isinstance(label, str) for label in labels):
        raise BadOption("'labels' must be texts, or null")
    return inputs, labels


def _rows(form: Form, inputs: Sequence[object]) -> list[bytes | RowError | None]:
    """Blocking: images are much base64."""
    return [_row(form, place, value) for place, value in enumerate(inputs)]


def _row(form: Form, place: int, value: object) -> bytes | RowError | None:
    if value is None:
        return None
    if not isinstance(value, str):
        return RowError(
            place, _INVALID, f"an input must be a text{_IN_TEXT.get(form, '')}, not {value!r:.100}"
        )
    try:
        return _READ.get(form, str.encode)(value)
    except (ValueError, binascii.Error) as exc:
        return RowError(place, _INVALID, f"the input is no text{_IN_TEXT.get(form, '')}: {exc}")


def _image(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READ: Mapping[str, Callable[[str], bytes]] = {"image": _image}
_IN_TEXT = {"image": " in base64", "row": " with a JSON array"}
