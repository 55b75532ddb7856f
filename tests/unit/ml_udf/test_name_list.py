"""Names as SQL gives them: one text, several in a text, an array."""

from __future__ import annotations

import pytest

from ml_udf.errors import BadOption
from ml_udf.name_list import names_of


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, []),
        ("lightgbm", ["lightgbm"]),
        (" lightgbm, xgboost ", ["lightgbm", "xgboost"]),
        ("my_nets.blocks:DeepNet", ["my_nets.blocks:DeepNet"]),
        (["a", "b, c"], ["a", "b, c"]),
        (("a",), ["a"]),
        ([], []),
        ("{}", []),
        ("{ }", []),
        ("{a,b}", ["a", "b"]),
        ("{ a b , c }", ["a b", "c"]),
        (r'{"a, b","say \"c\"","d\\e","{f}","NULL"}', ["a, b", 'say "c"', "d\\e", "{f}", "NULL"]),
    ],
)
def test_a_text_is_a_name_or_several_or_an_array(given: object, names: list[str]) -> None:
    assert names_of(given, "models") == names


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "is an empty text"),
        ("a,,b", "has an empty name in it"),
        (["a", ""], "has an empty name in it"),
        ("{a,NULL}", "has a NULL in it"),
        (["a", None], "has a NULL in it"),
        (["a", 5], "has 5 in it"),
        ("{a,}", "is '{a,}', which is no array of texts"),
        ("{{a},{b}}", "no array of texts"),
        ('{"a}', "no array of texts"),
        (7, "is 7"),
    ],
)
def test_what_are_no_names_is_refused_with_what_to_write(given: object, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        names_of(given, "models")
    assert said in str(caught.value)
    assert caught.value.hint == "models => 'a', 'a, b', or an array of texts"
