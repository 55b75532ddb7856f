"""`ml-udf try`: what a registered model answers, before anything is deployed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ml_udf.cli.console import console, fail
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.client import Client
from ml_udf.client.transport import HttpRequest
from ml_udf.oip import InferRequest, RequestedOutput, Tensor, encode_request

__all__ = ["show_answers", "try_model"]

_FILES = ("image", "image_path")  # inputs of which the command line names files
_LOAD_S = 120.0
_SHOWN_NUMBERS = 6


@asks_a_server
def try_model(
    model: Annotated[str, typer.Argument(help="a model, or a function, of the inference server")],
    inputs: Annotated[
        list[str], typer.Argument(help="pictures' files; texts; or rows as JSON arrays", metavar="FILE…")
    ],
    top: Annotated[int, typer.Option(help="classes shown of each", min=1)] = 5,
    *,
    server: ServerOptions,
) -> None:
    """Show what a model answers for some files, texts or rows.

    ml-udf try squeezenet china.jpg flower.jpg
    """
    with server.asking() as client:
        show_answers(client, model, inputs, top)


def show_answers(client: Client, model: str, inputs: Sequence[str], top: int) -> None:
    """Prints what a model answers: of each input the columns of its task. Raises `MlUdfError`."""
    told = client.get(f"/v2/models/{quote(model, safe='')}")
    takes = {told["inputs"][0]["name"], *(told.get("parameters") or {}).get("inputs", {})}
    name = next((each for each in ("image", "text", "row") if each in takes), told["inputs"][0]["name"])
    rows = [_file(each) if name in _FILES else os.fsencode(each) for each in inputs]
    answers = _answers(client, model, told, name, rows)
    classes = (told.get("parameters") or {}).get("classes") or []
    for place, given in enumerate(inputs):
        console.print(_shown(given), style="bold", highlight=False, markup=False, soft_wrap=True)
        for line in _lines(answers, place, classes, top):
            console.print("  " + line, highlight=False, markup=False, soft_wrap=True)


def _answers(
    client: Client, model: str, told: dict[str, Any], name: str, rows: Sequence[bytes]
) -> dict[str, list[Any]]:
    """By column, a value for each row; vectors as lists."""
    columns = [output["name"] for output in told["outputs"]]
    request = InferRequest(
        [Tensor.of_bytes(name, list(rows))],
        [RequestedOutput(each, binary=False) for each in (*columns, "error")],
        parameters={"binary_data_output": False},
    )
    body, headers = encode_request(request)
    path = f"/v2/models/{quote(model, safe='')}/infer"
    reply = client.ask(HttpRequest("POST", path, body, headers, may_repeat=True), timeout_s=_LOAD_S)
    found: dict[str, list[Any]] = {}
    for output in reply["outputs"]:
        if output["name"] not in (*columns, "error"):
            continue
        data, width = output["data"], max(1, len(output["data"]) // max(1, len(rows)))
        is_vector = len(output["shape"]) > 1
        found[output["name"]] = (
            [data[at * width : (at + 1) * width] for at in range(len(rows))] if is_vector else data
        )
    return found


def _lines(answers: dict[str, list[Any]], place: int, classes: Sequence[str], top: int) -> list[str]:
    if answers.get("error", [""] * (place + 1))[place]:
        return [f"error: {answers['error'][place]}"]
    lines = []
    for column, values in answers.items():
        value = values[place]
        if column == "error":
            continue
        if column == "scores" and len(value) == len(classes):
            best = sorted(zip(value, classes, strict=True), reverse=True)[:top]
            lines += [f"{score:8.4f}  {label}" for score, label in best]
        elif isinstance(value, list):
            shown = ", ".join(f"{number:.4g}" for number in value[:_SHOWN_NUMBERS])
            more = f", … ({len(value)} numbers)" if len(value) > _SHOWN_NUMBERS else ""
            lines.append(f"{column}: [{shown}{more}]")
        else:
            lines.append(f"{column}: {value:.4f}" if isinstance(value, float) else f"{column}: {value}")
    return lines


def _shown(argument: str) -> str:
    """As a terminal can show it: a file's name may be any bytes."""
    return os.fsencode(argument).decode(errors="replace")


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        fail(f"{_shown(path)} cannot be read: {exc.strerror}")
