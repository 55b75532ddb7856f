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
    def check(self, function: Function) -> None:
        raise Reached


@pytest.mark.parametrize("spec", [{"models": 5}, {}, {"pipeline": 3}, {"models": ["net/1"], "slo_ms": {}}])
def test_a_deployment_that_cannot_be_read_is_refused_by_name_and_nothing_else_is(
    spec: dict[str, Any],
) -> None:
    stored = Deployment("udf_food", 3, spec, datetime.now(UTC))
    with pytest.raises((BadOption, UnknownFunction)):
        asyncio.run(publisher(allow_import=False)._restored(stored))


class Wished:
    """All that is asked where a wish is renewed; what the registry and the workers do is said one by one."""

    def __init__(self, registry: list[Exception], loads: list[Exception]) -> None:
        self.registry, self.loads = registry, loads
        self.deployed = asyncio.Event()

    def deployments(self, name: str, limit: int) -> list[Any]:
        if self.registry:
            raise self.registry.pop(0)
        return [SimpleNamespace(spec={"wants": {"task": "text-classification"}, "candidates": ["right/1"]})]

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

    def check(self, function: Function) -> None:
        self.deployed.set()
        raise BadOption("that is enough")


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
        catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
        models = text_model("right"), text_model("newcomer")
        for model in models:
            catalog.add_model(model)
        spec = {"wants": {"task": "text-classification"}, "candidates": ["right/1"]}
        catalog.add_function(function_of("f", 1, spec, catalog, DEFAULTS), 2)
        told: Any = Wished(registry, loads)
        tasks = Tasks()
        publisher = Publisher(told, told, catalog, told, told, DEFAULTS, 1.0, tasks=tasks, wishes=told)
        publisher.follow_wishes()
        try:
            async with asyncio.timeout(5.0):
                await told.deployed.wait()
        finally:
            await tasks.close()

    asyncio.run(scene())


def publisher(*, allow_import: bool) -> Publisher:
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    for model in MEMBERS:
        catalog.add_model(model)
    nothing: Any = None
    return Publisher(
        nothing, nothing, catalog, cast(Any, Dispatcher()), nothing, DEFAULTS, 1.0, allow_import=allow_import
    )


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
