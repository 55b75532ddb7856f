"""`ml_udf.tokens` and `ml_udf.audit`: for admins, on both engines."""

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

pytestmark = pytest.mark.security


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InferenceServer, dict[str, str]]]:
    """A server, and the secrets of its tokens."""
    folder: Path = tmp_path_factory.mktemp("admins")
    with inference_server(folder / "home") as server:
        secrets: dict[str, str] = {}
        with closing(Client(server.url)) as client:
            secrets["root"] = TokenCalls(client).create("root", ["admin"])["secret"]
        with closing(Client(server.url, token=secrets["root"])) as client:
            made = TokenCalls(client).create(
                "app",
                ["infer", "read"],
                patterns={"functions": ["udf_*"]},
                shares={"rows_per_s": 100},
                expires="90d",
            )
            secrets["app"] = made["secret"]
        yield server, secrets


@pytest.fixture
def connected(
    engine_name: str,
    guarded: tuple[InferenceServer, dict[str, str]],
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Engine]]:
    """Makes engines that ask with a token, by its name."""
    made: list[Engine] = []
    server, secrets = guarded

    def new(token: str) -> Engine:
        made.append(make_engine(engine_name, server.url, request, (), {"token": secrets[token]}))
        return made[-1]

    yield new
    for engine in made:
        engine.close()


def test_an_admin_reads_tokens_and_the_audit_trail_in_sql(
    connected: Callable[[str], Engine], guarded: tuple[InferenceServer, dict[str, str]]
) -> None:
    secrets = guarded[1]
    engine = connected("root")
    listed = engine.query("SELECT name, state, created_by FROM ml_udf.tokens ORDER BY name")
    assert [tuple(row) for row in listed] == [("app", "valid", "root"), ("root", "valid", "")]
    (reaches,) = engine.query("SELECT functions[1], scopes[2] FROM ml_udf.tokens WHERE name = 'app'")
    assert tuple(reaches) == ("udf_*", "read")
    counted: Any = engine.query("SELECT count(*) FROM ml_udf.tokens WHERE expires_at > now()")
    assert counted[0][0] == 1
    found = engine.query(
        "SELECT token, what, outcome FROM ml_udf.audit WHERE action = 'create token' ORDER BY id DESC"
    )
    assert [tuple(row) for row in found] == [("root", "app", "done"), ("", "root", "done")]
    everything = str(engine.query("SELECT * FROM ml_udf.tokens"))
    assert not any(secret in everything for secret in secrets.values())


def test_others_are_refused(connected: Callable[[str], Engine]) -> None:
    engine = connected("app")
    for view in ("tokens", "audit"):
        if engine.name == "duckdb":
            with pytest.raises(SqlError, match="scope admin"):
                engine.query(f"SELECT * FROM ml_udf.{view}")
        else:
            assert engine.query(f"SELECT * FROM ml_udf.{view}") == []
            assert "scope admin" in engine.warned()[0]


def test_in_postgresql_the_roles_of_readers_and_trainers_do_not_look(
    connected: Callable[[str], Engine], engine_name: str
) -> None:
    engine = connected("root")
    if engine_name == "duckdb":
        return
    engine.query("DO $$ BEGIN CREATE ROLE looker; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    engine.query("GRANT ml_udf_trainer TO looker; SET ROLE looker")
    for what in ("ml_udf.tokens", "ml_udf.audit", "ml_udf._tokens()", "ml_udf._audit()"):
        with pytest.raises(SqlError, match="permission denied"):
            engine.query(f"SELECT * FROM {what}")
