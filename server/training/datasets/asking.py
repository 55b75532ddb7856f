"""What a function answers to the held-out rows of a snapshot: which fit, how they are asked, row by row."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from gpu_worker.wire.protocol import Column
from server.catalog.functions import Function
from server.catalog.jobs import Snapshot
from server.errors import BadOption
from server.http.body import Receive
from server.serving.call_service import CallService
from server.serving.calls import Call
from server.training.recipes import recipe_for

__all__ = ["answers_to", "check_fits"]


def check_fits(function: Function, snapshot: Snapshot) -> None:
    """Raises `BadOption` where the function does not take what the rows are."""
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


async def answers_to(
    calls: CallService,
    function: Function,
    snapshot: Snapshot,
    inputs: Sequence[str],
    columns: Collection[str],
    caller: str,
    receive: Receive,
    media_roots: tuple[str, ...] | None = None,
) -> dict[str, list[Any]]:
    """The wanted columns of the answers, None for a row at fault. Asked in the bulk class, and no traffic.

    caller: whose share of the queue it takes. media_roots: below which the caller's paths must lie; None =
    anywhere that the function reads. Raises `ServiceError`, and `ClientGone` when `receive` says so.
    """
    rows = [text.encode() for text in inputs]
    call = Call(
        function,
        recipe_for(snapshot.spec["task"]).form,  # type: ignore[arg-type]  # one of the forms
        rows,
        sum(map(len, rows)),
        outputs=tuple(columns),
        row_class="bulk",
        caller=caller,
        is_traffic=False,
        media_roots=media_roots,
    )
    reply = await calls.ask(call, receive, time.monotonic())
    return {name: _by_row(reply.columns[name], reply.errors) for name in columns}


def _by_row(column: Column, errors: Collection[int]) -> list[Any]:
    """The values of a column, None for a row at fault."""
    values = list(column.values)
    width = len(values) // column.rows if column.rows else 1
    if column.shape:
        values = [values[at : at + width] for at in range(0, len(values), width)]
    return [None if row in errors else value for row, value in enumerate(values)]
