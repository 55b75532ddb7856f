"""A token that may speak for some users of a database refuses the others, in the same words everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ml_udf.client import Client
from ml_udf.client.claim import Claim
from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of

pytestmark = pytest.mark.security

ADMIN = "a-token-for-the-tests-0123456789"
ROLES = ("shop_ana", "shop_bob", "guest")
REFUSED = "the token 'shop' may speak for the users postgres, shop_*, not for "


@pytest.fixture(scope="module")
def guarded(open_folder: Path) -> Iterator[InferenceServer]:
    made = open_folder / "users"
    made.mkdir()
    (made / "token").write_text(ADMIN)
    flags = [f"--token-file={made / 'token'}"]
    with inference_server(made / "home", flags=flags, connect={"token": ADMIN}) as server:
        server.deploy(hashing_model(made), "udf_text")
        yield server


@pytest.fixture(scope="module")
def secret(guarded: InferenceServer) -> str:
    """A token for `postgres`, and for users whose names begin with shop_."""
    form = {"name": "shop", "scopes": ["infer", "read"], "users": ["postgres", "shop_*"]}
    with guarded.client() as client:
        return str(client.post("/v1/tokens", form)["secret"])


@pytest.fixture
def as_user(
    engine_name: str, guarded: InferenceServer, secret: str, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Engine]]:
    """Makes engines whose session is that user's."""
    made: list[Engine] = []

    def new(user: str) -> Engine:
        options = {"token": secret}
        if engine_name == "duckdb":
            options["user"] = user
        engine = make_engine(engine_name, guarded.url, request, ["udf_text"], options)
        made.append(engine)
        if engine_name != "duckdb":
            engine.query(f"DO $$ BEGIN CREATE ROLE {user}; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
            engine.query(f"GRANT ml_udf_reader TO {user}; SET ROLE {user}")
        return engine

    yield new
    for engine in made:
        engine.close()


@pytest.mark.parametrize("user", ["shop_ana", "shop_bob"])
def test_those_whom_the_token_is_for_are_answered(as_user: Callable[[str], Engine], user: str) -> None:
    assert as_user(user).query("SELECT udf_text('x')") == [(label_of("x"),)]


def test_an_operator_sees_who_asked_in_whose_name(
    as_user: Callable[[str], Engine], guarded: InferenceServer
) -> None:
    engine = as_user("shop_eve")
    engine.query("SELECT udf_text('y')")
    said = "shop_eve" if engine.name == "duckdb" else "shop_eve of contract"
    headers = {"Authorization": f"Bearer {ADMIN}"}
    page = httpx.get(f"{guarded.url}/functions/udf_text", headers=headers, timeout=60).text
    assert re.search(rf'<th scope="row">shop</th><td>{said}</td><td class="n">\d', page), page


def test_another_is_refused_and_named(as_user: Callable[[str], Engine], secret: str) -> None:
    with pytest.raises(SqlError) as caught:
        as_user("guest").query("SELECT udf_text('x')")
    assert caught.value.sqlstate == "28000"
    assert REFUSED + "'guest'" in caught.value.text
    assert secret not in caught.value.text


def test_the_audit_log_says_who_was_refused_in_whose_name(
    as_user: Callable[[str], Engine], guarded: InferenceServer
) -> None:
    with pytest.raises(SqlError):
        as_user("guest").query("SELECT udf_text('x')")
    with guarded.client() as client:
        entries = client.get("/v1/audit?token=shop&outcome=refused")["audit"]
    assert ("shop", "guest") in {(entry["token"], entry["claimed_user"]) for entry in entries}


def test_what_is_changed_stands_in_the_audit_log_with_the_user(guarded: InferenceServer) -> None:
    with guarded.client() as client:
        admin = client.on_behalf_of(Claim("shop_ana", "food"))
        admin.put("/v1/functions/udf_more", {"models": ["text_hash"]})
        entries = client.get("/v1/audit?token=admin")["audit"]
    assert ("shop_ana", "food", "done") in {
        (entry["claimed_user"], entry["claimed_database"], entry["outcome"]) for entry in entries
    }


def test_who_says_no_name_is_refused_too(guarded: InferenceServer, secret: str) -> None:
    client = Client(guarded.url, token=secret)
    try:
        with pytest.raises(Exception, match="not for ''"):
            client.get("/v1/functions")
        for user, database in (("shop_ana", "food"), ("postgres", "")):
            assert client.on_behalf_of(Claim(user, database)).get("/v1/functions")["functions"]
    finally:
        client.close()
