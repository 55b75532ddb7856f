"""Labels for inputs of a function, told to its server: what both engines share.

    columns of inputs and labels → requests of many rows → what became of each row

NULLs are not sent. Standard library only. Knows no database.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_udf.client import Client, FunctionInfo
from ml_udf.client.column import MAX_VALUE_BYTES, Value
from ml_udf.client.prediction import short
from ml_udf.client.retry import left_s
from ml_udf.client.statement import Statement
from ml_udf.client.transport import HttpRequest
from ml_udf.errors import (
    BadOption,
    InputInvalid,
    InputTooLarge,
    MlUdfError,
    UnknownPrediction,
    error_from_code,
)

__all__ = ["give_feedback"]

_PATH = "/v1/feedback"
_MOST_BYTES = 512 << 10  # of the inputs of one request
_MOST_ROWS = 2048
_LONGEST_ID = 10_000


def give_feedback(
    client: Client,
    statement: Statement,
    inputs: Sequence[Value],
    labels: Sequence[str | None],
    on_wait: Callable[[], None] | None = None,
    *,
    by_id: bool = False,
) -> list[str | None]:
    """Say that these inputs of the statement's function have these labels.

    by_id: the inputs are ids of predictions, as answers' details have them.

    `counted`, `changed` or `repeated` for each row; None for NULL, and with `on_error='null'` for a row at
    fault, of which the statement then warns. With `'error'` the first such row raises its error; what was
    sent with it or before it has counted. One request after another, so that the last label is the last.
    on_wait: as in `Client.predict`. Raises the errors of `ml_udf.errors`.
    """
    function = statement.binding.function
    outcomes: list[str | None] = [None] * len(inputs)
    given = [row for row, pair in enumerate(zip(inputs, labels, strict=True)) if None not in pair]
    if not given:
        return outcomes
    if client.endpoint.startswith("local:"):
        raise BadOption(
            f"feedback on {function} is given to a server, and {client.endpoint[:100]} is none",
            hint="start one over the same home folder (ml-udf serve --home), and give it the feedback",
        )
    info = client.look_up(function, deadline_s=statement.deadline_s, on_wait=on_wait)
    if not info.ours:
        raise BadOption(
            f"the server of {function} takes no feedback", hint="only a server of ml_udf learns from labels"
        )
    faults: dict[int, MlUdfError] = {}
    texts: dict[int, str] = {}
    for row in given:
        try:
            texts[row] = _id(inputs[row]) if by_id else _text(info, inputs[row])
        except MlUdfError as error:
            faults[row] = error
    for name, rows in _parts(info, inputs, texts, statement.options.batch_rows):
        body: dict[str, Any] = {
            "function": function,
            "predictions" if by_id else "inputs": [texts[row] for row in rows],
            "labels": [labels[row] for row in rows],
        }
        if name:
            body["input"] = name
        if statement.options.context and not by_id:  # a prediction has its own
            body["context"] = statement.options.context
        reply = _asked(client, statement, body, on_wait)
        for row, outcome in zip(rows, reply["outcomes"], strict=True):
            outcomes[row] = outcome
        for told in reply["errors"]:
            faults[rows[told["row"]]] = error_from_code(told["code"], told["message"])
    for row, fault in sorted(faults.items()):
        if statement.options.on_error == "error":
            place = f"first at row {row + 1} of the call: feedback on {function}({short(inputs[row])})"
            fault.detail = fault.detail or place
            raise fault
        statement.made_null(inputs[row], fault)
    return outcomes


def _asked(
    client: Client, statement: Statement, body: dict[str, Any], on_wait: Callable[[], None] | None
) -> dict[str, Any]:
    # Labels that arrive twice count once: a request may be sent again.
    request = HttpRequest(
        "POST", _PATH, json.dumps(body).encode(), {"Content-Type": "application/json"}, may_repeat=True
    )
    ends_s = math.inf if statement.deadline_s is None else statement.deadline_s
    ends_s = min(ends_s, time.monotonic() + statement.options.timeout_ms / 1000)
    return client.ask(request, timeout_s=left_s(ends_s), on_wait=on_wait, tries_again=True)


def _parts(
    info: FunctionInfo, inputs: Sequence[Value], texts: dict[int, str], batch_rows: int
) -> Iterator[tuple[str, list[int]]]:
    """(name of the input, rows) of each request. "": the function's own input."""
    most = min(batch_rows, _MOST_ROWS, info.max_batch_rows or _MOST_ROWS)
    part: list[int] = []
    name, nbytes = "", 0
    for row, text in texts.items():
        own = "image" if isinstance(inputs[row], bytes) and info.form == "path" else ""
        if part and (own != name or len(part) >= most or nbytes + len(text) > _MOST_BYTES):
            yield name, part
            part, nbytes = [], 0
        part.append(row)
        name, nbytes = own, nbytes + len(text)
    if part:
        yield name, part


def _id(value: Value) -> str:
    if not isinstance(value, str):
        raise UnknownPrediction(f"the id of a prediction is a text, not {type(value).__name__}")
    if len(value) > _LONGEST_ID:
        raise UnknownPrediction(f"a text of {len(value):,} characters is no id of a prediction")
    return value


def _text(info: FunctionInfo, value: Value) -> str:
    """An input as the route takes it."""
    if not isinstance(value, str | bytes):
        raise InputInvalid(f"feedback is given on texts or images, not {type(value).__name__}")
    if len(value) > MAX_VALUE_BYTES:
        raise InputTooLarge(f"a value of {len(value):,} bytes is over the limit of {MAX_VALUE_BYTES:,}")
    if info.form == "image" or (info.form == "path" and isinstance(value, bytes)):
        content = value.encode("utf-8", "replace") if isinstance(value, str) else value
        return base64.b64encode(content).decode()
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as exc:
        raise InputInvalid("the text is not valid Unicode") from exc
