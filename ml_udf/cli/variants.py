"""`ml-udf variants MODEL`: other ways to run a model, made and measured on the server, shown as a table."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ml_udf.cli.console import console, fail, note
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.client import Client

__all__ = ["variants"]

_LOOK_S = 0.5
_SIZES = (1, 4, 16, 64)


@asks_a_server
def variants(
    model: Annotated[str, typer.Argument(help="the model, without a version")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="a variant, such as int8; may be repeated")
    ] = None,
    max_accuracy_loss: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="of held-out accuracy; what loses more is refused"),
    ] = 0.01,
    threads: Annotated[
        list[int] | None, typer.Option("--threads", min=1, help="cores of one pass, of ONNX; may be repeated")
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="whose labelled rows calibrate and judge; else those that taught the model")
    ] = "",
    version: Annotated[int | None, typer.Option(min=1, help="of the model; else the newest")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="show what is known, and make nothing")] = False,
    *,
    server: ServerOptions,
) -> None:
    """Make other ways to run a model, measure them beside it, and show what each is worth."""
    if server.endpoint.startswith("local:"):
        fail(
            "local: runs models as they are; a server makes variants of them",
            "ml-udf variants MODEL --endpoint http://…",
        )
    with server.asking() as client:
        if not list_only:
            body: dict[str, Any] = {"max_accuracy_loss": max_accuracy_loss}
            if only:
                body["only"] = only
            if threads:
                body["threads"] = threads
            if dataset:
                body["dataset"] = dataset
            if version is not None:
                body["version"] = version
            ordered = client.post(f"/v1/models/{model}/variants", body)["ordered"]
            wanted = {each["variant"] for each in ordered}
            failed = _waited_for(client, model, wanted)
        told = client.get(f"/v1/variants?model={model}")
        newest = max((each["version"] for each in told["variants"]), default=0)
        rows = [each for each in told["variants"] if each["version"] == (version or newest)]
        console.print(_table(rows) if rows else f"nothing is known of variants of {model} yet")
        if not list_only and failed:
            fail(
                "; ".join(f"{name}: {reason}" for name, reason in sorted(failed.items())),
                "the table shows what was made",
            )


def _waited_for(client: Client, model: str, wanted: set[str]) -> dict[str, str]:
    """What failed of those wanted, and why, once none is under way."""
    began = time.time()
    said = ""
    with console.status(f"making {', '.join(sorted(wanted))} of {model}") as status:
        while True:
            told = client.get(f"/v1/variants?model={model}")
            mine = [each for each in told["under_way"] if each["variant"] in wanted]
            if not mine:
                break
            current = mine[0]
            left = f"{current['variant']}: {current['state']} · {len(mine)} of {len(wanted)} left"
            if console.is_terminal:
                status.update(f"{left} · {time.time() - began:.0f} s")
            elif left != said:  # no status is drawn there
                note(left)
                said = left
            time.sleep(_LOOK_S)
    made = {each["variant"]: each["measured_at"] for each in told["variants"]}
    return {
        each["variant"]: each["reason"]
        for each in told["failed"]
        if each["variant"] in wanted and each["ordered_at"] > made.get(each["variant"], "")
    }


def _table(rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401  # a rich renderable; imported late
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("variant", "runtime", "MB", "load s", *map(str, _SIZES), "accuracy"):
        table.add_column(heading, no_wrap=True)
    sizes = ", ".join(map(str, _SIZES))
    table.caption = f"ms of a batch of {sizes} rows, and how many times as fast as the original"
    original = next((row for row in rows if row["is_original"]), None)
    for row in rows:
        precision = "" if row["precision"] == "float32" else f", {row['precision']}"
        threads = "" if row["threads"] == 1 else f", {row['threads']} threads"
        table.add_row(
            row["variant"],
            f"{row['runtime']}{precision}{threads}",
            f"{row['bytes'] / 1e6:.2f}",
            "" if row["load_s"] is None else f"{row['load_s']:.2f}",
            *(_batch(row, original, size) for size in _SIZES),
            _accuracy(row),
        )
    why = [f"{row['variant']}: {said}" for row in rows if (said := row["refused"] or row["gone"])]
    return Group(table, *map(Text, why))


def _batch(row: dict[str, Any], original: dict[str, Any] | None, size: int) -> str:
    took_s = _seconds(row, size)
    if took_s is None:
        return ""
    before_s = None if original is None or row["is_original"] else _seconds(original, size)
    times = "" if before_s is None else f"\n{before_s / took_s:.1f}×"
    took_ms = took_s * 1000
    return f"{took_ms:.{2 if took_ms < 100 else 0}f}{times}"


def _seconds(row: dict[str, Any], size: int) -> float | None:
    """On the kind of device that is fastest."""
    found = [point["s"] for point in row["profile"] if point["rows"] == size]
    return min(found, default=None)


def _accuracy(row: dict[str, Any]) -> str:
    if row["accuracy"] is None:
        return "not known"
    return (
        f"{row['accuracy']:.3f} of {row['accuracy_rows']}\n"
        f"{row['accuracy_low']:.3f}–{row['accuracy_high']:.3f}"
    )
