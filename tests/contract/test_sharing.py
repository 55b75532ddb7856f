"""`ml_udf.share`, and whose things are in views: the same on both engines as by REST and `ml-udf share`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ml_udf.client import Client
from ml_udf.tokens import TokenCalls
from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model

pytestmark = pytest.mark.security

Ask = Callable[[str, str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InferenceServer, dict[str, str]]]:
    """A server with a model that everybody sees, and the secrets of its tokens."""
    folder: Path = tmp_path_factory.mktemp("sharing")
    with inference_server(folder / "home") as server:
        secrets: dict[str, str] = {}
        with closing(Client(server.url)) as client:
            secrets["root"] = TokenCalls(client).create("root", ["admin"])["secret"]
        with closing(Client(server.url, token=secrets["root"])) as client:
            for name in ("ann", "ben"):
                made = TokenCalls(client).create(name, ["infer", "train", "deploy"])
                secrets[name] = made["secret"]
            client.post("/register", {"directory": str(hashing_model(folder, "words"))})
        yield server, secrets


@pytest.fixture
def ask(
    engine_name: str,
    guarded: tuple[InferenceServer, dict[str, str]],
    request: pytest.FixtureRequest,
) -> Iterator[Ask]:
    """What an engine answers to a statement whose token has this name."""
    engines: list[tuple[str, Engine]] = []
    server, secrets = guarded

    def asked(token: str, statement: str) -> list[tuple[Any, ...]]:
        if not engines or engines[-1][0] != token:  # in PostgreSQL a user has one mapping
            made = make_engine(engine_name, server.url, request, (), {"token": secrets[token]})
            engines.append((token, made))
        return engines[-1][1].query(statement)

    yield asked
    for _, engine in engines:
        engine.close()


@pytest.fixture
def function(guarded: tuple[InferenceServer, dict[str, str]], engine_name: str) -> str:
    """One of ann's."""
    server, secrets = guarded
    name = f"udf_{engine_name.replace('-', '_')}"
    with closing(Client(server.url, token=secrets["root"])) as client:
        client.put(f"/v1/functions/{name}", {"models": ["words"]})
        client.put(f"/v1/functions/{name}/visibility", {"owner": "ann", "visibility": "private"})
    return name


def seen(ask: Ask, token: str, function: str) -> list[tuple[Any, ...]]:
    return ask(token, f"SELECT owner, visibility FROM ml_udf.functions WHERE name = '{function}'")


def shared(ask: Ask, token: str, *arguments: str) -> Any:  # of the function's type
    ((told,),) = ask(token, f"SELECT ml_udf.share({', '.join(arguments)})")
    return told


def test_an_owner_shares_and_everybody_reads_whose_it_is(ask: Ask, function: str) -> None:
    own = ("'function'", f"'{function}'")
    assert seen(ask, "ann", function) == [("ann", "private")]
    assert seen(ask, "ben", function) == []
    assert shared(ask, "ann", *own, "shared_with => ARRAY['ben', 'bi']") == "shared"
    assert seen(ask, "ben", function) == [("ann", "shared")]
    assert shared(ask, "ann", *own, "'public'") == "public"
    assert seen(ask, "ben", function) == [("ann", "public")]
    assert shared(ask, "ann", *own, "visibility => 'private'") == "private"
    assert seen(ask, "ben", function) == []
    assert shared(ask, "ann", *own, "shared_with => 'ben'") == "shared"
    assert seen(ask, "ben", function) == [("ann", "shared")]
    assert shared(ask, "ann", *own, "shared_with => 'bi, ann'") == "shared"
    assert seen(ask, "ben", function) == []


def test_models_and_datasets_have_owners_too(ask: Ask, engine_name: str) -> None:
    name = f"texts_{engine_name.replace('-', '_')}"
    found = ask("ann", "SELECT owner, visibility FROM ml_udf.models WHERE name = 'words'")
    assert found == [("root", "public")]
    ask("ann", "DROP TABLE IF EXISTS texts")
    ask("ann", "CREATE TABLE texts (id int, text text, label text)")
    rows = ", ".join(f"({n}, 'text {n}', '{'ab'[n % 2]}')" for n in range(40))
    ask("ann", f"INSERT INTO texts VALUES {rows}")
    ask(
        "ann",
        f"SELECT ml_udf.create_dataset('{name}', 'SELECT id, text, label FROM texts', target => 'label',"
        " key => 'id', task => 'text-classification')",
    )
    own = f"SELECT owner, visibility FROM ml_udf.datasets WHERE name = '{name}'"
    assert ask("ann", own) == [("ann", "private")]
    assert ask("ben", own) == []
    assert shared(ask, "ann", "'dataset'", f"'{name}'", "shared_with => ARRAY['ben']") == "shared"
    assert ask("ben", own) == [("ann", "shared")]


def test_who_may_not_is_refused_as_by_rest(ask: Ask, function: str) -> None:
    own = ("'function'", f"'{function}'")
    with pytest.raises(SqlError, match="only an admin's token gives a thing"):
        shared(ask, "ann", *own, "owner => 'ben'")
    shared(ask, "ann", *own, "'public'")
    with pytest.raises(SqlError, match="is ann's"):
        shared(ask, "ben", *own, "'private'")
    shared(ask, "ann", *own, "'private'")
    for name in (function, "udf_that_never_was"):
        with pytest.raises(SqlError) as caught:
            shared(ask, "ben", "'function'", f"'{name}'", "'private'")
        assert caught.value.sqlstate == "42704"
        assert f"there is no function '{name}' here" in caught.value.text
    assert shared(ask, "root", *own, "owner => 'ben'") == "private"
    assert seen(ask, "ben", function) == [("ben", "private")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("'token'", "'root'", "'public'"), "nothing to share of the kind"),
        (("'function'", "'udf_x'"), "who may see it?"),
        (("'function'", "'{function}'", "'everybody'"), "must be one of private, shared, public"),
        (("'function'", "'{function}'", "'shared'"), "must name the tokens"),
    ],
)
def test_what_makes_no_sense_is_said(ask: Ask, function: str, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(SqlError) as caught:
        shared(ask, "ann", *(each.replace("{function}", function) for each in arguments))
    assert caught.value.sqlstate == "22023"
    assert said in caught.value.text
