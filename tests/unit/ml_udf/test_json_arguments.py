"""Arguments that SQL gives as JSON: what is none is refused with an example of that argument."""

from __future__ import annotations

import pytest

from ml_udf.errors import BadOption
from ml_udf.training import json_of


@pytest.mark.parametrize(
    ("name", "hint"),
    [("wants", "min_accuracy"), ("knobs", "learning_rate"), ("stages", "crop"), ("other", "double quotes")],
)
def test_the_hint_shows_the_argument_that_was_given(name: str, hint: str):
    with pytest.raises(BadOption, match=f"'{name}' is not JSON") as refused:
        json_of("{'single': 'quotes'}", name)
    assert hint in str(refused.value.hint)


def test_what_is_json_already_is_left_as_it_is():
    assert json_of({"a": 1}, "wants") == json_of('{"a": 1}', "wants") == {"a": 1}
    assert json_of(None, "wants") is None
