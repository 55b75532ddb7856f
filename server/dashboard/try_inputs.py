"""From a filled form to the row that a function is asked about. Raises `BadOption` for what is missing."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from starlette.datastructures import FormData, UploadFile

from server.catalog.functions import Form, Function
from server.dashboard.image_size import image_size, media_type_of
from server.errors import BadOption, BodyTooLarge

__all__ = ["Asked", "Field", "fields_of", "from_form", "from_row", "takes"]

_MOST_SHOWN = 4 << 20  # bytes of a photo that a page sends back
_TRUE, _FALSE = ("true", "t", "yes", "1"), ("false", "f", "no", "0")

Takes = Literal["photo", "text", "row", "nothing"]


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a row: `name` of the form's element, its column, and its kind."""

    name: str
    column: str
    kind: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One row. shown: the photo as a URL that holds it, "" where it is too large or none

    expected: what a dataset has as its label; "" = nothing is known
    """

    form: Form
    row: bytes
    shown: str = ""
    width: int = 0
    height: int = 0
    text: str = ""
    values: tuple[str, ...] = ()
    expected: str = ""
    origin: str = ""


def takes(function: Function) -> Takes:
    """What a person can give it."""
    if "image" in function.forms:
        return "photo"
    if function.form == "row":
        return "row"
    if function.form in ("text", "path"):
        return "text"
    return "nothing"


def fields_of(function: Function, values: Sequence[str] = ()) -> tuple[Field, ...]:
    """The values of a row, in their order."""
    given = (*values, *("" for _ in range(len(function.columns) - len(values))))
    return tuple(
        Field(f"column-{place}", name, kind, value)
        for place, ((name, kind), value) in enumerate(zip(function.columns, given, strict=False))
    )


async def from_form(function: Function, form: FormData, limit_bytes: int) -> Asked:
    """What was uploaded, typed or filled in. Raises `BadOption`, `BodyTooLarge`."""
    wanted = takes(function)
    if wanted == "photo":
        part = form.get("file")
        content = await part.read(limit_bytes + 1) if isinstance(part, UploadFile) else b""
        if len(content) > limit_bytes:
            raise BodyTooLarge(f"the photo is over the limit of {limit_bytes} bytes; choose a smaller one")
        if not content:
            raise BadOption("no photo came: choose one, or drop it on the page")
        return _photo(content)
    if wanted == "row":
        values = tuple(str(form.get(field.name, "")) for field in fields_of(function))
        typed = [
            _typed(text, kind, name) for text, (name, kind) in zip(values, function.columns, strict=True)
        ]
        return Asked("row", json.dumps(typed, ensure_ascii=False).encode(), values=values)
    text = str(form.get("text", "")).replace("\r\n", "\n")  # as browsers send line ends
    if not text:
        raise BadOption("no text came: type one")
    return Asked(function.form, text.encode(), text=text)


def from_row(function: Function, form: Form, text: str, expected: str, origin: str) -> Asked:
    """A row of a dataset. origin: which."""
    if form == "row":
        known = json.loads(text)
        values = tuple("" if each is None else str(each) for each in known)
        return Asked(form, text.encode(), values=values, expected=expected, origin=origin)
    return Asked(form, text.encode(), text=text, expected=expected, origin=origin)


def _photo(content: bytes) -> Asked:
    kind = media_type_of(content)
    width, height = image_size(content) or (0, 0)
    shown = ""
    if kind and len(content) <= _MOST_SHOWN:
        shown = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return Asked("image", content, shown, width, height)


def _typed(text: str, kind: str, column: str) -> object:
    """A value as rows have it; nothing typed is nothing known."""
    if not text:
        return None
    if kind == "number":
        try:
            return int(text) if text.lstrip("+-").isdecimal() else float(text.replace(",", "."))
        except ValueError as exc:
            raise BadOption(f"{column} is a number, and {text[:40]!r} is none") from exc
    if kind == "boolean":
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise BadOption(f"{column} is true or false, not {text[:40]!r}")
    return text
