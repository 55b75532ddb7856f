"""`POST /v1/datasets/D/answers`: what a function answers to a dataset's test rows, and what was right.

The rows themselves stay here: neither inputs nor keys leave. Their order is the snapshot's. With `dealt` the
values of one column are dealt out anew among all of them first, by `seed`, so that every page sees the same
deal.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from gpu_worker.wire.protocol import Column
from server.access.caller import Caller
from server.catalog.functions import Function
from server.catalog.jobs import Snapshot
from server.errors import BadOption
from server.http.body import ClientGone, json_object
from server.http.replies import json_reply
from server.services import ServicesOf
from server.serving.calls import Call
from server.training.recipes import recipe_for

__all__ = ["router"]

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

_MOST_ROWS = 10_000
_FIELDS = {"function", "first", "rows", "scores", "dealt", "seed"}
_GONE = 499  # nobody reads it


@router.post("/{name}/answers")
async def answer_dataset(services: ServicesOf, name: str, request: Request) -> Response:
    """A page of the answers to the newest snapshot's test rows; `next` is where the next one begins, or null.

    A row at fault has null for its answer.
    """
    body = await json_object(request)
    if unknown := sorted(body.keys() - _FIELDS):
        raise BadOption(f"there is no field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    function = services.catalog.resolve(str(body.get("function")))
    first, count = _whole(body, "first", 0), _whole(body, "rows", _MOST_ROWS)
    snapshot = await services.datasets.newest(name)
    _check_fits(function, snapshot)
    rows = await services.datasets.held_out(snapshot)
    inputs = [text for text, _ in rows]
    if body.get("dealt") is not None:
        place = _place(function, str(body["dealt"]))
        inputs = await asyncio.to_thread(_dealt, inputs, place, str(body.get("seed", "")))
    asked = [text.encode() for text in inputs[first : first + min(count, _MOST_ROWS)]]
    targets = [target for _, target in rows[first : first + len(asked)]]
    end = first + len(asked)
    answers: list[Any] = []
    scores: list[Any] | None = [] if body.get("scores") else None
    if asked:
        value = function.task.value.name
        outputs = (value,) if scores is None else (value, "scores")
        caller: Caller = request.scope["ml_udf.caller"]
        call = Call(
            function,
            recipe_for(snapshot.spec["task"]).form,  # type: ignore[arg-type]  # one of the forms
            asked,
            sum(map(len, asked)),
            outputs=outputs,
            row_class="bulk",
            caller=caller.key,
            is_traffic=False,
        )
        try:
            reply = await services.calls.ask(call, request.receive, time.monotonic())
        except ClientGone:
            return Response(status_code=_GONE)
        answers = _by_row(reply.columns[value], reply.errors)
        if scores is not None:
            scores = _by_row(reply.columns["scores"], reply.errors)
    following = end if asked and end < len(rows) else None
    told = {"snapshot": snapshot.id, "targets": targets, "answers": answers, "next": following}
    return json_reply(told | ({} if scores is None else {"scores": scores}))


def _check_fits(function: Function, snapshot: Snapshot) -> None:
    form = recipe_for(snapshot.spec["task"]).form
    if form not in function.forms:
        raise BadOption(
            f"{function.name} takes {' or '.join(function.forms)}, and the rows of dataset "
            f"{snapshot.dataset} are of form {form}"
        )
    columns = [column["name"] for column in snapshot.facts.get("columns", ())]
    own = [name for name, _ in function.columns]
    if columns != own:
        raise BadOption(
            f"{function.name} takes the columns {', '.join(own)}, and dataset {snapshot.dataset} has "
            f"{', '.join(columns)}"
        )


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


def _by_row(column: Column, errors: Any) -> list[Any]:  # noqa: ANN401  # by row
    """The values of a column, null for a row at fault."""
    values = list(column.values)
    width = len(values) // column.rows if column.rows else 1
    if column.shape:
        values = [values[at : at + width] for at in range(0, len(values), width)]
    return [None if row in errors else value for row, value in enumerate(values)]


def _whole(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadOption(f"{name!r} must be a whole number from 0")
    return value
