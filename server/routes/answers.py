"""`POST /v1/datasets/D/answers`: what a function answers to a dataset's test rows, and what was right.

The rows themselves stay here: neither inputs nor keys leave. Their order is the snapshot's. With `dealt` the
values of one column are dealt out anew among all of them first, by `seed`, so that every page sees the same
deal.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from fastapi import APIRouter, Request, Response

from server.catalog.functions import Function
from server.errors import BadOption
from server.http.body import ClientGone, json_object
from server.http.replies import json_reply
from server.services import SeenOf, ServicesOf, ViewOf
from server.training.datasets.asking import answers_to, check_fits

__all__ = ["router"]

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

_MOST_ROWS = 10_000
_FIELDS = {"function", "first", "rows", "scores", "dealt", "seed"}
_GONE = 499  # nobody reads it


@router.post("/{name}/answers")
async def answer_dataset(
    services: ServicesOf, view: ViewOf, seen: SeenOf, name: str, request: Request
) -> Response:
    """A page of the answers to the newest snapshot's test rows; `next` is where the next one begins, or null.

    A row at fault has null for its answer.
    """
    body = await json_object(request)
    if unknown := sorted(body.keys() - _FIELDS):
        raise BadOption(f"there is no field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    function = seen.resolve(str(body.get("function")))
    first, count = _whole(body, "first", 0), _whole(body, "rows", _MOST_ROWS)
    snapshot = await services.datasets.newest(name, view)
    check_fits(function, snapshot)
    rows = await services.datasets.held_out(snapshot)
    inputs = [text for text, _ in rows]
    if body.get("dealt") is not None:
        place = _place(function, str(body["dealt"]))
        inputs = await asyncio.to_thread(_dealt, inputs, place, str(body.get("seed", "")))
    asked = inputs[first : first + min(count, _MOST_ROWS)]
    targets = [target for _, target in rows[first : first + len(asked)]]
    end = first + len(asked)
    answers: list[Any] = []
    scores: list[Any] | None = [] if body.get("scores") else None
    if asked:
        value = function.task.value.name
        columns = (value,) if scores is None else (value, "scores")
        try:
            told = await answers_to(
                services.calls,
                function,
                snapshot,
                asked,
                columns,
                view.caller.key,
                request.receive,
                view.media_roots,
            )
        except ClientGone:
            return Response(status_code=_GONE)
        answers = told[value]
        if scores is not None:
            scores = told["scores"]
    following = end if asked and end < len(rows) else None
    reply = {"snapshot": snapshot.id, "targets": targets, "answers": answers, "next": following}
    return json_reply(reply | ({} if scores is None else {"scores": scores}))


def _place(function: Function, column: str) -> int:
    names = [name for name, _ in function.columns]
    if column not in names:
        raise BadOption(f"{function.name} takes no column {column!r}; there are {', '.join(names) or 'none'}")
    return names.index(column)


def _dealt(inputs: list[str], place: int, seed: str) -> list[str]:
    rows = [json.loads(text) for text in inputs]
    column = [row[place] for row in rows]
    random.Random(seed).shuffle(column)
    for row, value in zip(rows, column, strict=True):
        row[place] = value
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def _whole(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadOption(f"{name!r} must be a whole number from 0")
    return value
