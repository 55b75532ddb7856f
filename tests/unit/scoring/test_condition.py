"""What can be nothing but one condition, and what is refused since it may be more."""

from __future__ import annotations

import pytest

from ml_udf.errors import BadOption
from ml_udf.scoring.condition import check_condition


@pytest.mark.parametrize(
    "text",
    [
        "age > 30",
        "(age > 30 AND name = 'it''s (a; \"test\"') OR \"odd ) name;\" IS NULL",
        "name LIKE $$a;)'$$ OR name = $q$ $$ ) $q$",
        "age > 30 -- adults; only )",
        "age /* of (the; */ > 30",
        "tags[1] = 'a' AND id IN (SELECT id FROM other WHERE (x))",
        "naïve = 'ü🍜'",
        "name ~ '^\\d+\\\\' AND id = 1",
    ],
)
def test_a_condition_is_let_through(text: str) -> None:
    check_condition(text)


@pytest.mark.security
@pytest.mark.parametrize(
    "text",
    [
        "true)) AS x) AS due; DROP TABLE victim; --",
        "true; DROP TABLE victim",
        "true) OR (true",
        "(true",
        "true)",
        "name = 'open",
        'name = "open',
        "name = '\\'; DROP TABLE victim; --'",
        "name = E'\\') OR (true --'",
        "name = $a$ ; $b$",
        "true /* open",
        "true /* /* */ ) OR ( */ true",
        "true */",
        "a$b$ ) OR ( $b$ = 1",
        "🍜$$ ) OR ( $$ = 1",
        "\\x",
        "name = 'a\x00b' \x00",
        "[true)",
        "  ",
    ],
)
def test_what_could_be_more_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="is not one condition"):
        check_condition(text)
