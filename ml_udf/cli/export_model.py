"""`ml-udf export`: a registered model as ONNX, with the manifest that says how to feed it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from ml_udf.cli.console import console, fail
from ml_udf.cli.server_options import ServerOptions, asks_a_server

__all__ = ["export_model"]

_LOCAL = "local:"


@asks_a_server
def export_model(
    model: Annotated[str, typer.Argument(help="a registered model: NAME, or NAME/VERSION")],
    folder: Annotated[Path, typer.Argument(help="folder to be made")],
    *,
    server: ServerOptions,
) -> None:
    """Write a model as ONNX, what was trained here too; run on the server's host, which has its files.

    ml-udf export food_squeezenet exported/
    """
    try:
        from gpu_worker.errors import WorkerError
        from gpu_worker.exporting import exported
        from ml_udf.local.transport import DEFAULT_HOME
    except ModuleNotFoundError as exc:
        fail(f"{exc.name} is missing", "pip install 'ml_udf[worker,import]'")
    name, _, version = model.partition("/")
    if server.endpoint.startswith(_LOCAL):
        place = unquote(urlsplit(server.endpoint).path) or DEFAULT_HOME
        stored = _in_home(Path(place).expanduser(), name, version)
    else:
        with server.asking() as client:
            models = client.get("/v1/models")["models"]
        found = [each for each in models if each["name"] == name and version in ("", str(each["version"]))]
        if not found:
            fail(f"the server has no model {model!r}", "ml-udf sql 'FROM ml_udf.models' lists those it has")
        stored = Path(max(found, key=lambda each: int(each["version"]))["directory"])
    if not (stored / "model.json").exists():
        fail(
            f"the files of {model} are not here: {stored}",
            "run it on the server's host, or with --endpoint local:/path/to/home",
        )
    try:
        told = exported(stored, folder)
    except (WorkerError, OSError) as exc:
        fail(str(exc))
    compared = (
        "copied as it is"
        if told.difference is None
        else f"its answers differ by {told.difference:.2g} at most"
    )
    below = told.manifest.backbone
    if below is not None:
        compared += f"; it is a head on {below.key}: export and register that too, by that name"
    written = ", ".join([*(file.name for file in told.manifest.files), "model.json"])
    console.print(f"{folder}: {written}; {compared}", highlight=False, soft_wrap=True)


def _in_home(home: Path, name: str, version: str) -> Path:
    folders = (home / "models" / name).glob("[0-9]*")
    versions = sorted(int(path.name) for path in folders if path.is_dir() and path.name.isdecimal())
    if not versions:
        fail(f"{home} has no model {name!r}")
    return home / "models" / name / (version or str(versions[-1]))
