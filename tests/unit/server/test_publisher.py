"""What is not deployed, as code that the operator has not permitted, and what is deployed by itself."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from server.catalog.catalog import Catalog
from server.catalog.function_spec import function_of, single_model_function
from server.catalog.functions import Function
from server.errors import BadOption, Overloaded, UnknownFunction
from server.publisher import Publisher
from server.store.repository import Deployment
from server.supervision import Tasks
from tests.unit.server.served import text_model
from tests.unit.server.test_plans import FIT, MEMBERS

DEFAULTS = {"slo_ms": 500.0, "max_batch": 64, "policy": "greedy"}
MODULE = "own_policies_of_a_stranger"


class Reached(Exception):
    """The policy would be asked for now."""


class Dispatcher:
    checked: Function

    def check(self, function: Function) -> None:
        self.checked = function
        raise Reached


@pytest.mark.parametrize("spec", [{"models": 5}, {}, {"pipeline": 3}, {"models": ["net/1"], "slo_ms": {}}])
def test_a_deployment_that_cannot_be_read_is_refused_by_name_and_nothing_else_is(
    spec: dict[str, Any],
) -> None:
    stored = Deployment("udf_food", 3, spec, datetime.now(UTC))
    with pytest.raises((BadOption, UnknownFunction)):
        asyncio.run(publisher(allow_import=False)._restored(stored))


WISH = {"wants": {"task": "text-classification"}, "candidates": ["right/1"]}


class Wished:
    """All that is asked where a wish is renewed; what the registry and the workers do is said one by one.

    newest: the function's version in the registry, of that specification.
    """

    def __init__(
        self, registry: list[Exception], loads: list[Exception], newest: int = 1, spec: Any = WISH
    ) -> None:
        self.registry, self.loads, self.newest, self.spec = registry, loads, newest, spec
        self.deployed = asyncio.Event()
        self.instead_of: list[int | None] = []

    def deployments(self, name: str, limit: int) -> list[Any]:
        if self.registry:
            raise self.registry.pop(0)
        return [SimpleNamespace(spec=self.spec, version=self.newest)]

    async def look_for_files(self, models: object) -> None: ...

    def has_its_files(self, model: object) -> bool:
        return True

    def is_measured(self, model: object) -> bool:
        return False

    async def load(self, members: object) -> None:
        if self.loads:
            raise self.loads.pop(0)

    def at_rest(self, draft: Function) -> Any:
        return SimpleNamespace(chosen=draft.members[0].key)

    def check(self, function: Function) -> None: ...

    def deploy(self, name: str, spec: object, prepare: object, fit: object, instead_of: int | None) -> None:
        self.instead_of.append(instead_of)
        raise BadOption("that is enough")

    def unstage_function(self, name: str) -> None:
        self.deployed.set()


@pytest.mark.parametrize(
    ("registry", "loads"),
    [
        ([OperationalError("SELECT", None, Exception("it is locked"))], []),
        ([], [Overloaded("no worker loaded it in time")]),
    ],
)
def test_a_model_becomes_a_candidate_though_nothing_could_be_deployed_when_it_came(
    registry: list[Exception], loads: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.publisher._RENEW_AGAIN_S", 0.01)

    async def scene() -> None:
        told = Wished(registry, loads)
        await renewing(told, wished(), told.deployed)
        assert told.instead_of == [1]

    asyncio.run(scene())


def test_a_wish_that_another_server_has_deployed_anew_is_renewed_as_that_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.publisher._RENEW_AGAIN_S", 0.01)

    async def scene() -> None:
        told, catalog = Wished([], [], newest=2), wished()
        following = asyncio.create_task(renewing(told, catalog, told.deployed))
        await asyncio.sleep(0.1)
        assert not told.instead_of
        catalog.add_function(function_of("f", 2, WISH, catalog, DEFAULTS), 2)  # it is followed by now
        await following
        assert told.instead_of == [2]

    asyncio.run(scene())


def test_a_wish_goes_on_though_what_it_named_as_its_purpose_is_gone() -> None:
    async def scene() -> None:
        spec = {"wants": {"purpose": "udf_before"}, "candidates": ["right/1"]}
        told: Any = Wished([], [], spec=spec)
        await renewing(told, wished(spec), told.deployed)
        assert told.instead_of == [1]
        here = Publisher(told, told, wished(spec), told, told, DEFAULTS, 1.0, wishes=told)
        with pytest.raises(UnknownFunction, match="udf_else"):
            await here.deploy("f", {"wants": {"purpose": "udf_else"}})

    asyncio.run(scene())


def wished(spec: Any = WISH) -> Catalog:
    """With a function by wish, and a model that came after it."""
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    for model in (text_model("right"), text_model("newcomer")):
        catalog.add_model(model)
    catalog.add_function(function_of("f", 1, spec, catalog, DEFAULTS), 2)
    return catalog


async def renewing(told: Any, catalog: Catalog, until: asyncio.Event) -> None:
    """Follow wishes until something has happened."""
    tasks = Tasks()
    publisher = Publisher(told, told, catalog, told, told, DEFAULTS, 1.0, tasks=tasks, wishes=told)
    publisher.follow_wishes()
    try:
        async with asyncio.timeout(5.0):
            await until.wait()
    finally:
        await tasks.close()


@pytest.mark.parametrize("keeps_fit", [True, False])
def test_what_was_fitted_goes_on_with_the_same_members_unless_a_deployment_without_it_is_put_back(
    keeps_fit: bool,
) -> None:
    dispatcher = Dispatcher()
    here = publisher(dispatcher)
    body = {"models": [model.key for model in MEMBERS], "combine": "mean"}
    here._catalog.add_function(function_of("f", 1, body, here._catalog, DEFAULTS, FIT), 1)
    with pytest.raises(Reached):
        asyncio.run(here.deploy("f", body, keeps_fit=keeps_fit))
    assert dispatcher.checked.fit == (FIT if keeps_fit else None)


def publisher(dispatcher: Dispatcher | None = None, *, allow_import: bool = False) -> Publisher:
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    for model in MEMBERS:
        catalog.add_model(model)
    nothing: Any = None
    told = cast(Any, dispatcher or Dispatcher())
    return Publisher(nothing, nothing, catalog, told, nothing, DEFAULTS, 1.0, allow_import=allow_import)


@pytest.mark.security
@pytest.mark.parametrize("field", ["select", "policy"])
def test_an_import_path_is_neither_deployed_nor_imported_unless_that_is_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    (tmp_path / f"{MODULE}.py").write_text("def policy(*given):\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    body = {"models": [model.name for model in MEMBERS], "combine": "log_pool", field: f"{MODULE}:policy"}
    with pytest.raises(BadOption, match="--allow-import"):
        asyncio.run(publisher(allow_import=False).deploy("f", body, FIT))
    assert MODULE not in sys.modules
    with pytest.raises(Reached):
        asyncio.run(publisher(allow_import=True).deploy("f", body, FIT))
