"""From a filled form to a row; and how large a photo is."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import pytest
from PIL import Image
from starlette.datastructures import FormData, UploadFile

from server.catalog.functions import Function, InputShape
from server.dashboard.image_size import image_size, media_type_of
from server.dashboard.try_inputs import Asked, fields_of, from_form, from_row, takes
from server.errors import BadOption, BodyTooLarge
from tests.unit.server.served import function, image_model, text_model

COLUMNS = (("grams", "number"), ("is_hot", "boolean"), ("name", "text"))


def table_function() -> Function:
    shape = InputShape("row", columns=COLUMNS)
    return function(replace(text_model(), task="tabular-classification", input=shape))


def asked(of: Function, form: dict[str, str | UploadFile], limit: int = 1 << 20) -> Asked:
    return asyncio.run(from_form(of, FormData(form), limit))


def picture(width: int, height: int, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 20}])
def test_the_size_of_a_photo_is_what_a_browser_shows(kind: str, options: dict[str, object]) -> None:
    content = picture(123, 45, kind, **options)
    assert image_size(content) == (123, 45)
    assert media_type_of(content) == f"image/{kind.lower()}"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_photo_that_lies_on_its_side_is_as_high_as_it_is_wide(orientation: int, order: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif.endian = order
    expected = (45, 123) if orientation >= 5 else (123, 45)
    assert image_size(picture(123, 45, "JPEG", exif=exif)) == expected


def test_of_what_is_no_photo_and_of_a_cut_one_nothing_is_known() -> None:
    whole = picture(10, 10, "JPEG")
    for content in (b"", b"text", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", *(whole[:cut] for cut in range(20))):
        assert image_size(content) is None
    assert media_type_of(b"<svg onload=alert(1)>") == ""


def test_a_photo_comes_with_its_picture_unless_that_is_large() -> None:
    content = picture(8, 6, "PNG")
    small = asked(function(image_model()), {"file": UploadFile(io.BytesIO(content))})
    assert (small.form, small.row, small.width, small.height) == ("image", content, 8, 6)
    assert small.shown.startswith("data:image/png;base64,")
    large = asked(
        function(image_model()), {"file": UploadFile(io.BytesIO(content + bytes(5 << 20)))}, 1 << 24
    )
    assert large.shown == ""


def test_what_is_missing_and_what_is_too_large_is_said() -> None:
    photo, text, row = function(image_model()), function(), table_function()
    with pytest.raises(BadOption, match="no photo came"):
        asked(photo, {})
    with pytest.raises(BodyTooLarge, match="over the limit of 3 bytes"):
        asked(photo, {"file": UploadFile(io.BytesIO(b"1234"))}, 3)
    with pytest.raises(BadOption, match="no text came"):
        asked(text, {})
    with pytest.raises(BadOption, match="grams is a number"):
        asked(row, {"column-0": "many"})
    with pytest.raises(BadOption, match="is_hot is true or false"):
        asked(row, {"column-1": "perhaps"})


def test_a_filled_row_has_its_types_and_what_is_empty_is_null() -> None:
    filled = asked(table_function(), {"column-0": "12,5", "column-1": "Yes", "column-2": ""})
    assert json.loads(filled.row) == [12.5, True, None]
    assert json.loads(asked(table_function(), {"column-0": "-3"}).row) == [-3, None, None]


def test_a_text_keeps_its_lines_as_a_database_has_them() -> None:
    assert asked(function(), {"text": "one\r\ntwo"}).row == b"one\ntwo"


def test_a_row_of_a_dataset_fills_the_form() -> None:
    found = from_row(table_function(), "row", '[1, null, "x"]', "laksa", "row 3 of food")
    assert found.values == ("1", "", "x")
    assert [field.value for field in fields_of(table_function(), found.values)] == ["1", "", "x"]
    assert (found.expected, found.origin) == ("laksa", "row 3 of food")


def test_what_a_function_takes_decides_what_is_asked_for() -> None:
    assert [takes(each) for each in (function(image_model()), function(), table_function())] == [
        "photo",
        "text",
        "row",
    ]
