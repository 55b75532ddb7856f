"""What is not deployed: code that the operator has not permitted."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from server.catalog.catalog import Catalog
from server.catalog.function_spec import single_model_function
from server.catalog.functions import Function
from server.errors import BadOption, UnknownFunction
from server.publisher import Publisher
from server.store.repository import Deployment
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
