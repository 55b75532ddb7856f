"""What the SQL side says of its user: a claim of the token, which narrows and never widens."""

from __future__ import annotations

import pytest

from server.access.caller import Caller, implied
from server.access.door import Access
from server.access.sessions import Sessions
from server.access.token import Token, digest_of
from server.access.tokens import Tokens
from server.errors import BadOption, Forbidden, Unauthorized
from server.http.request_head import MalformedRequest, parse_head

pytestmark = pytest.mark.security

SECRET = b"mludf_of-the-tests"


def access(**fields: object) -> Access:
    """A door with one token, which may ask for rows and read lists."""
    scopes = implied(["infer", "read"])
    tokens = Tokens([Token("shop", digest_of(SECRET), scopes, **fields)])  # type: ignore[arg-type]  # its fields
    return Access(tokens, Sessions(tokens, b"a key"))


def caller(door: Access, *headers: str, secret: bytes = SECRET) -> Caller:
    lines = ["GET /v1/functions HTTP/1.1", "Host: localhost", *headers]
    lines.append(f"Authorization: Bearer {secret.decode()}")
    return door.check(parse_head("\r\n".join([*lines, "", ""]).encode()), "/v1/functions", "192.0.2.1")


def test_the_claim_is_the_callers() -> None:
    found = caller(access(), "ML-UDF-User: Gr%C3%B6%C3%9Fe%2C%2050%25", "ML-UDF-Database: shop")
    assert (found.token, found.user, found.database) == ("shop", "Größe, 50%", "shop")
    assert caller(access()).user == ""


def test_a_token_for_some_users_is_for_no_other_and_for_nobody_unnamed() -> None:
    door = access(users=("app_*", "ana"))
    for user in ("app_1", "ana"):
        assert caller(door, f"ML-UDF-User: {user}").user == user
    for refused in (["ML-UDF-User: postgres"], ["ML-UDF-User: anaa"], ["ML-UDF-User: "], []):
        with pytest.raises(Forbidden, match="may speak for the users"):
            caller(door, *refused)


def test_a_claim_gives_no_right_that_the_token_has_not() -> None:
    door = access()
    plain = caller(door)
    for user in ("admin", "postgres", "shop"):
        found = caller(door, f"ML-UDF-User: {user}", "ML-UDF-Database: admin")
        assert (found.scopes, found.grants, found.shares) == (plain.scopes, plain.grants, plain.shares)
        assert found.key == plain.key  # nor a share of its own
    with pytest.raises(Unauthorized):
        caller(door, "ML-UDF-User: shop", secret=b"mludf_another")


@pytest.mark.parametrize("value", ["x" * 401, "%FF%FE", "%C3", "ana%00"])
def test_what_is_no_name_is_refused(value: str) -> None:
    with pytest.raises(BadOption, match="no name in percent-encoded UTF-8"):
        caller(access(), f"ML-UDF-User: {value}")


def test_two_names_are_none() -> None:
    with pytest.raises(MalformedRequest, match="came twice"):
        caller(access(), "ML-UDF-User: ana", "ML-UDF-User: postgres")
