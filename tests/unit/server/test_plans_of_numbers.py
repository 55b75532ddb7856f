"""Functions of numbers that follow plans, live: who is asked, what is answered, and which limits hold."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_worker.tasks import TEXT_REGRESSION
from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.catalog.catalog import Catalog
from server.catalog.function_spec import (
    deployed_form,
    file_form,
    function_of,
    single_model_function,
    spec_from,
)
from server.catalog.functions import Function, ModelVersion
from server.catalog.selections import selection_of
from server.ensemble.fit import Fit
from server.ensemble.places import MemberPlace
from server.ensemble.plan import solve
from server.ensemble.policies.geared import Value
from server.errors import BadOption
from server.routes.codec import Codec
from server.serving.answers import expected_accuracies
from server.serving.plans import ensemble_of
from server.training.promotion.worth import worths_fit
from tests.unit.server.fake_worker import FakeWorker, settle
from tests.unit.server.served import text_model
from tests.unit.server.test_codec import NOW_S, texts
from tests.unit.server.test_deploying import DEFAULTS
from tests.unit.server.test_plans import Planned, runs

SAYS = {"a/1": 10.0, "b/1": 20.0, "c/1": 30.0}
PLACES = (MemberPlace(0, ("cpu",)),) * 3


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(info=replace(FakeWorker().info, device_name="cpu"))


def model(name: str, rmse: float) -> ModelVersion:
    return replace(
        text_model(name, accuracy=0.0),
        task="text-regression",
        classes=(),
        score={"metric": "rmse", "value": rmse},
    )


MEMBERS = (model("a", 2.2), model("b", 2.0), model("c", 1.6))


def fitted() -> Fit:
    draw = np.random.default_rng(0)
    targets = draw.normal(50, 3, 400)
    told = {
        name: (targets + draw.normal(0, spread, 400)).astype(np.float32)[:, None]
        for name, spread in zip("abc", (2.2, 2.0, 1.6), strict=True)
    }
    fit = worths_fit(TEXT_REGRESSION, told, targets)
    assert fit is not None
    return fit


FIT = fitted()


def deployed(fit: Fit | None = FIT, **body: Any) -> Function:
    catalog = Catalog(lambda model: single_model_function(model, DEFAULTS))
    for each in MEMBERS:
        catalog.add_model(each)
    spec = spec_from("f", {"models": ["a", "b", "c"], **body}, catalog)
    return function_of("f", 1, spec, catalog, {**DEFAULTS, "policy": "goodput"}, fit)


class Numbers(Planned):
    def __init__(self, *workers: FakeWorker, **fields: Any) -> None:
        super().__init__(*workers)
        given = {"name": "plan", "slo_ms": 500.0, "max_batch": 4, "batch_sizes": (1, 4), **fields}
        self.function = replace(deployed(), **given)

    def follow(self, price: float) -> None:
        ensemble = ensemble_of(self.function, self.latency_of, PLACES, "text")
        policy = Value(ensemble, [solve(ensemble, (price,))])
        self.house.dispatcher._selecting.follow(self.function, "text", ensemble, policy)


def answer(worker: FakeWorker) -> str:
    message, on_reply = worker.batches.pop(0)
    told = []
    for key in message.models:
        values = struct.pack(f"<{len(message.rows)}d", *[SAYS[key]] * len(message.rows))
        told.append(MemberAnswer(key, [Column("value", "FP64", (), values)]))
    on_reply(Answer(message.id, told, [], 0.001, 0.002))
    return ",".join(message.models)


async def answered(worker: FakeWorker, pending: Any) -> list[str]:
    asked = []
    for _ in range(5000):
        await asyncio.sleep(0.002)
        if pending.done:
            break
        if worker.batches:
            asked.append(answer(worker))
    assert pending.done
    return asked


@pytest.mark.parametrize(("price", "who", "value"), [(0.0, "a,b,c", 20.0), (1000.0, "a", 10.0)])
@runs
async def test_numbers_are_the_mean_of_those_that_the_price_of_time_has_asked(
    worker: FakeWorker,
    price: float,
    who: str,
    value: float,
) -> None:
    served = Numbers(worker)
    await served.start()
    served.follow(price)
    pending = served.ask("one", "two")
    await answered(worker, pending)
    reply = pending.future.result()
    by_row = {members for _, _, members in reply.answered_by}
    assert {",".join(sorted(each.split(","))) for each in by_row} == {who}
    assert list(reply.columns["value"].values) == [value, value]
    subset = sum(1 << "abc".index(name) for name in who.split(","))
    assert FIT.evidence is not None
    assert expected_accuracies(reply) == [FIT.evidence.accuracy(subset)] * 2
    served.house.dispatcher.end(pending)


@runs
async def test_at_the_goal_a_number_is_that_of_those_that_came(worker: FakeWorker) -> None:
    served = Numbers(worker, slo_ms=100.0, select="gear")
    await served.start()
    pending = served.ask("one")
    await settle()
    first = answer(worker)
    for _ in range(500):
        await asyncio.sleep(0.01)
        if pending.done:
            break
    reply = pending.future.result()
    assert reply.answered_by == [(0, 1, first.removesuffix("/1"))]
    assert list(reply.columns["value"].values) == [SAYS[first]]
    while worker.batches:
        answer(worker)
    served.house.dispatcher.end(pending)


@runs
async def test_rows_without_a_goal_are_answered(worker: FakeWorker) -> None:
    served = Numbers(worker)
    await served.start()
    pending = served.ask("one", "two", "three", row_class="bulk")
    await answered(worker, pending)
    assert list(pending.future.result().columns["value"].values) == [20.0] * 3
    served.house.dispatcher.end(pending)


# ── what is deployed ──────────────────────────────────────────────────────────────────────────────────────


def test_numbers_that_were_measured_follow_plans_and_others_ask_all() -> None:
    assert (deployed().select, deployed().follows_plans) == ("value", True)
    assert (deployed(None).select, deployed(None).follows_plans) == ("all", False)
    by_error = deployed(combine="weighted_mean")
    assert (by_error.select, by_error.held_out) == ("all", {}), "it was measured by their mean"


@pytest.mark.parametrize(
    ("body", "fit", "said"),
    [
        ({"select": "exp3"}, FIT, "say select: 'all', or one of value, gear, slackfit, async"),
        ({"select": "value"}, None, "that was not counted"),
        ({"select": "value", "combine": "weighted_mean"}, FIT, "by combine: 'mean', not by 'weighted_mean'"),
        ({"select": "value", "models": ["a", "b"]}, FIT, "name all of them and no other"),
    ],
)
def test_a_policy_that_cannot_select_among_numbers_is_refused(
    body: dict[str, Any], fit: Fit | None, said: str
) -> None:
    with pytest.raises(BadOption, match=said):
        deployed(fit, **body)


def test_the_best_of_models_of_numbers_is_the_one_that_errs_least() -> None:
    assert [each.name for each in deployed(select="best").members] == ["c"]


def test_what_is_expected_of_numbers_is_said_with_its_measure() -> None:
    told = selection_of(deployed(select="all"), None, lambda model: lambda rows: 0.001 * rows).to_json()
    together = FIT.of((0, 1, 2))
    assert together is not None
    assert (told["measure"], told["expected_accuracy"]) == ("r2", together.accuracy)
    assert deployed_form(deployed())["fitted"] == {
        "rows": 400,
        "subsets": 7,
        "measure": "r2",
        "value": together.accuracy,
    }


def test_without_a_server_all_members_answer_numbers() -> None:
    told = file_form(deployed())
    assert told["plan"] == [], "nobody waits there, and how sure a number is tells nothing"
    assert Fit.from_json(told["fit"]).measure == "r2"


# ── limits of a query ─────────────────────────────────────────────────────────────────────────────────────

CODEC = Codec(max_rows=10, latency_of=lambda model, form: lambda rows: rows * 0.001)


def test_an_accuracy_asked_of_numbers_is_the_share_of_the_variance_that_is_explained() -> None:
    function = deployed(select="all")
    alone = FIT.of((2,))
    together = FIT.of((0, 1, 2))
    assert alone is not None
    assert together is not None
    call = CODEC.call_of(function, texts(b"x", ml_udf_min_accuracy=alone.accuracy, ml_udf_slo_ms=1.5), NOW_S)
    assert call.members == ("c/1",), "one member is all that there is time for"
    least = together.accuracy + 0.01
    with pytest.raises(BadOption, match=r"the best, a \+ b \+ c, has .* \(its accuracy is its r2\)"):
        CODEC.call_of(function, texts(b"x", ml_udf_min_accuracy=least), NOW_S)


def test_an_accuracy_asked_of_numbers_that_nobody_measured_is_refused() -> None:
    with pytest.raises(BadOption, match="was not measured on held-out rows; ask for no accuracy"):
        CODEC.call_of(deployed(None), texts(b"x", ml_udf_min_accuracy=0.5), NOW_S)
