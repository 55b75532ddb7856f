"""A model behind another server → its manifest: what the endpoint says of it, and what the command line does.

`manifest_of` is pure; `metadata_of` asks an OIP server, from here, as the inference server will ask it from
where it is. Knows no weights: there are none.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpu_worker.model_files.remote_spec import inputs_of
from ml_udf.cli.console import fail, token_of

__all__ = ["is_url", "manifest_of", "metadata_of", "name_of"]

_PATIENCE_S = 10.0
_MOST_BYTES = 4 << 20
_PIXELS = ("FP32", "UINT8")


def is_url(place: str) -> bool:
    """Whether that is no path of a file."""
    return place.startswith(("http://", "https://"))


def name_of(url: str, model: str) -> str:
    """A name that the model may have here."""
    said = model or url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", said).lstrip("-.")[:100] or "model"


def metadata_of(url: str, key_file: Path | None) -> dict[str, Any]:
    """What an OIP server says of the model at that URL; fails with what to do where it does not."""
    request = urllib.request.Request(url, headers=_key_header(token_of(key_file)))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirects,
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    )
    try:
        with opener.open(request, timeout=_PATIENCE_S) as reply:
            told = json.loads(reply.read(_MOST_BYTES))
    except urllib.error.HTTPError as exc:
        hint = "its key: --key-file FILE" if exc.code in (401, 403) else "…/v2/models/NAME is a model's URL"
        fail(f"{url} answers {exc.code}", hint)
    except (OSError, ValueError) as exc:
        fail(
            f"{url} says nothing of a model: {exc}", "is it running there? …/v2/models/NAME is a model's URL"
        )
    if not isinstance(told, dict) or not told.get("inputs") or not told.get("outputs"):
        fail(f"{url} names no inputs and outputs", "…/v2/models/NAME is a model's URL")
    return told


def _key_header(key: str | None) -> dict[str, str]:
    """Of what a key file holds: a word is a bearer's token, `header: word` says its header."""
    header, colon, word = (key or "").partition(": ")
    if colon:
        return {header: word.strip()}
    return {"Authorization": f"Bearer {key}"} if key else {}


def manifest_of(
    url: str,
    name: str,
    wishes: Mapping[str, Any],
    remote: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The manifest. wishes: its fields that were said; remote: those of `remote`; metadata: None of OpenAI's.

    Fails where something must be said.
    """
    if "task" not in wishes:
        fail(
            "what it does must be said", "--task text-classification, tabular-regression, text-generation, …"
        )
    said = {field: value for field, value in remote.items() if value not in (None, "")}
    manifest: dict[str, Any] = {"format": 1, "name": name, "runtime": "openai", **wishes}
    given = dict(wishes.get("input") or {})
    if metadata is None:
        if not said.get("model"):
            fail("the model's name at the endpoint must be said", "--model NAME")
        form = "row" if "columns" in given else "text" if wishes["task"].startswith("text") else "path"
        manifest["input"] = {"form": form, **given}
    else:
        manifest["runtime"] = "oip"
        inputs = inputs_of(metadata)
        chosen = said.setdefault("input", next(iter(inputs)) if len(inputs) == 1 else "")
        if chosen not in inputs:
            fail(f"it has the inputs {', '.join(inputs)}", "say which one the rows are: --input NAME")
        manifest["input"] = {**_input(inputs[chosen], wishes["task"]), **given}
        _check_output(metadata, said, wishes)
    manifest["remote"] = {"url": url, **said}
    return manifest


def _input(tensor: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The form of its rows, by its datatype and shape."""
    shape = list(tensor.get("shape") or [-1])
    if tensor.get("datatype") in _PIXELS and len(shape) == 4:
        height, width = shape[1:3] if shape[-1] == 3 else shape[2:4]
        sizes = {"height": height, "width": width} if min(height, width) > 0 else {}
        return {"form": "path", **sizes, "mean": [0, 0, 0], "std": [1, 1, 1]}
    if len(shape) == 2 and tensor.get("datatype") in ("FP32", "FP64"):
        return {"form": "row"}
    return {"form": "path" if task.startswith("image") else "text"}


def _check_output(metadata: Mapping[str, Any], said: dict[str, Any], wishes: Mapping[str, Any]) -> None:
    outputs = {each["name"]: each for each in metadata["outputs"]}
    named = [
        each for each in (wishes.get("outputs") or {}).values() if isinstance(each, str) and each in outputs
    ]
    chosen = said.setdefault(
        "output", named[0] if named else next(iter(outputs)) if len(outputs) == 1 else ""
    )
    if chosen not in outputs:
        fail(f"it has the outputs {', '.join(outputs)}", "say which one answers: --output scores=NAME")
    shape, classes = list(outputs[chosen].get("shape") or ()), wishes.get("classes")
    if classes and len(shape) == 2 and shape[1] > 0 and shape[1] != len(classes):
        _odd(chosen, shape[1], len(classes))


def _odd(output: str, width: int, classes: int) -> NoReturn:
    fail(f"its output {output} has {width} numbers a row, and {classes} classes are named", "--classes FILE")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Where it is redirected to, nobody has named."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401  # the library's
        """None: the redirect is the answer."""
