"""`ml-udf import`: a model as its owner has it → a registered model, with all that was guessed shown."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ml_udf.cli.console import console, fail
from ml_udf.cli.import_remote import is_url, manifest_of, metadata_of, name_of
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.cli.try_model import show_answers
from ml_udf.client import Client
from ml_udf.registration import register_model

__all__ = ["import_model", "registered"]

_NUMBERS = ("mean", "std", "fill")
_PIXELS = ("height", "width", "mean", "std")
_TRIED_MODEL = "model"
_SHOWN_CLASSES = 5
_TRIED = {"row": "'[…]'", "text": "'…'"}  # by the form of its rows; of pictures, files


@asks_a_server
def import_model(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH|URL",
            help="a model's file or directory, or http://host:port/v2/models/NAME of an OIP server",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="of the model; default: the file's")] = None,
    task: Annotated[str | None, typer.Option(help="such as image-classification, object-detection")] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="a file that names the classes: a line each, or a JSON list; or a few names: cat,dog"
        ),
    ] = None,
    architecture: Annotated[str | None, typer.Option(help="of a PyTorch checkpoint: one of the zoo")] = None,
    runtime: Annotated[str | None, typer.Option(help="where a path could be several things")] = None,
    size: Annotated[str | None, typer.Option(help="of pictures, as HEIGHTxWIDTH")] = None,
    preprocess: Annotated[
        list[str] | None,
        typer.Option(
            help="FIELD=VALUE, repeated: resize=short_side, size=256, interpolation=bicubic, channels=bgr, "
            "scale=1, mean=0.5,0.5,0.5, std=…, fill=…, place=corner; of texts prefix, length, lower_case; "
            "of files first_bytes=1024, last_bytes=1024, padding=256, strip_bytes=4096, least_bytes=8"
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            help="WHAT=NAME, repeated: scores, features, values or boxes (the graph's outputs), "
            "activation=softmax|sigmoid|none, layout=NAME, threshold=0.5, overlap=0.3"
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="of a table's row: age:number,city:text,member:boolean")
    ] = None,
    openai: Annotated[
        str | None, typer.Option(metavar="URL", help="of an OpenAI-compatible server, such as http://host/v1")
    ] = None,
    remote_model: Annotated[str, typer.Option("--model", help="what that server calls the model")] = "",
    prompt: Annotated[
        str, typer.Option(help="of a chat model: a template with {{text}}, or {{name}} of each column")
    ] = "",
    system: Annotated[str, typer.Option(help="of a chat model: its system text")] = "",
    schema: Annotated[
        Path | None, typer.Option(help="of a chat model: a file with the JSON Schema of what it writes")
    ] = None,
    remote_input: Annotated[
        str, typer.Option("--input", help="of an OIP server: which input the rows are")
    ] = "",
    width: Annotated[int | None, typer.Option(help="of an embedding: how many numbers it has")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="the key with which this command asks an OIP server for its metadata")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be registered, and stop")
    ] = False,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="FILE|TEXT|ROW",
            help="show what it answers to this, here, before it is registered; repeated",
        ),
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Register a model that was made elsewhere. What was guessed is shown; it is compared with its source.

    ml-udf import squeezenet.onnx --classes imagenet.txt --preprocess resize=short_side

    ml-udf import squeezenet.onnx --classes imagenet.txt --dry-run --try china.jpg

    ml-udf import http://127.0.0.1:8000/v2/models/food --task text-classification --classes laksa,pizza

    ml-udf import --openai http://127.0.0.1:8000/v1 --model small --task text-classification --classes yes,no
    """
    wishes = _wishes(task, classes, architecture, runtime, size, preprocess, output, columns)
    if width is not None:
        wishes["features"] = {"width": width}
    if openai is not None or (place is not None and is_url(place)):
        if tries:
            fail(
                "--try asks a model's own files, and this one is elsewhere",
                "import it, then: ml-udf try NAME …",
            )
        url = openai or place or ""
        remote: dict[str, Any] = {"model": remote_model, "prompt": prompt, "system": system}
        remote |= {"input": remote_input, "schema": None if schema is None else _schema(schema)}
        metadata = None if openai is not None else metadata_of(url, key_file)
        elsewhere = manifest_of(url, name or name_of(url, remote_model), wishes, remote, metadata)
        _show(elsewhere, ())
        if not dry_run:
            with server.asking() as client:
                reply = registered(client, elsewhere, Path())
                client.post(f"/v2/repository/models/{reply['name']}/load", {})  # it is asked from there, too
            _say_registered(reply, elsewhere)
        return
    if place is None:
        fail("which model is missing", "ml-udf import PATH, ml-udf import URL, or ml-udf import --openai URL")
    path = Path(place)
    try:
        from gpu_worker.errors import WorkerError
        from gpu_worker.importing import checked, recognised, staged
    except ModuleNotFoundError as exc:
        fail(f"{exc.name} is missing", "pip install 'ml_udf[worker,import]'")
    model = name or _name_of(path)
    with tempfile.TemporaryDirectory(prefix="ml-udf-import-") as home:
        folder = Path(home) / "models" / _TRIED_MODEL / "1"  # as `local:` has a model
        folder.mkdir(parents=True)
        guesses: Sequence[str] = ()
        try:
            found = recognised(path, wishes)
            guesses = found.guesses
            manifest = staged(found, model, folder)
            told = checked(manifest, found)
        except WorkerError as exc:
            said = (
                str(exc).replace(f"{folder}{os.sep}", "").replace(str(folder), str(path))
            )  # it will be gone
            fail(said, "\n  ".join(f"guessed: {guess}" for guess in guesses))
        content = manifest.to_json()
        _show(content, found.guesses)
        if told.difference is None:
            console.print("it loads and answers; its source's library is not here to compare with")
        else:
            console.print(
                f"as its source: {told.rows} rows differ by {told.difference:.2g}, and {told.bound:g} may be"
            )
        if tries:
            with ServerOptions(f"local:{quote(home)}?device=cpu").asking() as client:
                show_answers(client, _TRIED_MODEL, tries, _SHOWN_CLASSES)
        if dry_run:
            return
        with server.asking() as client:
            reply = registered(client, content, folder)
    _say_registered(reply, content)


def _say_registered(reply: dict[str, Any], manifest: dict[str, Any]) -> None:
    what = _TRIED.get((manifest.get("input") or {}).get("form", ""), "FILE…")
    console.print(
        f"registered as {reply['name']} version {reply['version']}; "
        f"try it: ml-udf try {reply['name']} {what}",
        highlight=False,
        soft_wrap=True,
    )


def registered(client: Client, manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Uploads a model's folder as the next version of its name. Raises the errors of `ml_udf.errors`."""
    return register_model(client, manifest, lambda name: (folder / name).read_bytes())


def _name_of(path: Path) -> str:
    """A name that a model may have, of its file's or directory's."""
    stem = path.resolve().name
    stem = stem.rpartition(".")[0] or stem if path.is_file() else stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).lstrip("-.")[:100] or "model"


def _wishes(
    task: str | None,
    classes: str | None,
    architecture: str | None,
    runtime: str | None,
    size: str | None,
    preprocess: Sequence[str] | None,
    output: Sequence[str] | None,
    columns: str | None,
) -> dict[str, Any]:
    """What was said, as fields of a manifest."""
    said: dict[str, Any] = {}
    for field, value in (("task", task), ("architecture", architecture), ("runtime", runtime)):
        if value is not None:
            said[field] = value
    if classes is not None:
        said["classes"] = _classes(classes)
    given: dict[str, Any] = {}
    if size is not None:
        sides = re.fullmatch(r"(\d{1,5})[x×](\d{1,5})", size)
        if sides is None:
            fail(f"--size {size} is not HEIGHTxWIDTH", "such as --size 224x224")
        given |= {"height": int(sides[1]), "width": int(sides[2])}
    how = {field: _value(field, value) for field, value in _pairs("--preprocess", preprocess)}
    given |= {field: how.pop(field) for field in ("mean", "std") if field in how}
    if how:
        given["preprocess"] = how
    if columns is not None:
        given["columns"] = _columns(columns)
    if given:
        said["input"] = given
    outputs: dict[str, Any] = {}
    for field, value in _pairs("--output", output):
        if field == "boxes":
            outputs[field] = value.split(",")
        else:
            outputs[field] = _value(field, value) if field in ("threshold", "overlap") else value
    if outputs:
        said["outputs"] = outputs
    return said


def _pairs(option: str, given: Sequence[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for each in given or ():
        field, equals, value = each.partition("=")
        if not equals:
            fail(f"{option} {each} is not FIELD=VALUE")
        pairs.append((field.strip(), value.strip()))
    return pairs


def _value(field: str, text: str) -> Any:  # noqa: ANN401  # of a manifest's field
    if field in _NUMBERS:
        try:
            numbers = [json.loads(each) for each in text.split(",")]
        except ValueError:
            fail(f"--preprocess {field}={text}: numbers are needed, with commas between them")
        return numbers * 3 if len(numbers) == 1 else numbers
    try:
        return json.loads(text) if field not in ("prefix", "tokenizer") else text
    except ValueError:
        return text


def _classes(given: str) -> list[str]:
    path = Path(given)
    if not path.exists() and path.suffix == "" and os.sep not in given:
        return [each.strip() for each in given.split(",") if each.strip()]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        fail(f"the classes {path} cannot be read: {exc}")
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as exc:
            fail(f"the classes {path} are not a JSON list: {exc}")
    else:
        found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found or not all(isinstance(each, str) for each in found):
        fail(f"the classes {path} must be texts, a line each or a JSON list")
    return list(found)


def _schema(path: Path) -> Any:  # noqa: ANN401  # JSON
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        fail(f"the schema {path} cannot be read: {exc}")


def _columns(text: str) -> list[dict[str, str]]:
    columns = []
    for each in text.split(","):
        name, _, kind = each.strip().rpartition(":")
        if not name or kind not in ("number", "text", "boolean"):
            fail(f"--columns {each.strip()} is not NAME:KIND", "a kind is number, text or boolean")
        columns.append({"name": name, "kind": kind})
    return columns


def _show(content: dict[str, Any], guesses: Sequence[str]) -> None:
    """What will be registered, and what of it nobody said."""
    classes = content.get("classes") or []
    for field in ("task", "runtime", "architecture", "remote", "input", "outputs", "features"):
        if content.get(field):
            value = content[field]
            if field == "input" and not value.get("height"):  # no picture, so nothing of pixels
                value = {name: each for name, each in value.items() if name not in _PIXELS}
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            console.print(f"{field:>12}  {shown}", highlight=False, markup=False, soft_wrap=True)
    if classes:
        few = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        console.print(
            f"{'classes':>12}  {len(classes)}: {few}", highlight=False, markup=False, soft_wrap=True
        )
    for guess in guesses:
        console.print(f"{'guessed':>12}  {guess}", highlight=False, markup=False, soft_wrap=True)
