"""Which variants are tried, which are refused, and what an order of one comes to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.wire.protocol import Failed, MakeVariant, Message, VariantMade
from server.catalog.catalog import Catalog
from server.catalog.function_spec import single_model_function
from server.catalog.functions import ModelVersion
from server.catalog.variants import ORIGINAL, Variant, Variants
from server.errors import BadOption, Overloaded, UnknownFunction
from server.store.manifest import model_from_manifest
from server.store.variant_orders import KeptOrder
from server.supervision import Tasks
from server.training.variants.candidates import Candidate, VariantWishes, candidates_of, wishes_from
from server.training.variants.measuring import Measured
from server.training.variants.orders import VariantOrders
from server.training.variants.verdict import accuracy_of, refusal
from tests.unit.server.manifests import manifest
from tests.waiting import until

PICTURES = {
    "task": "image-classification",
    "architecture": "squeezenet",
    "input": {"form": "path", "height": 64, "width": 64, "mean": [0, 0, 0], "std": [1, 1, 1]},
}
INT8 = Candidate("int8", "int8")
ONNX = Candidate("onnx", "onnx")


def picture_model(directory: Path = Path("/nowhere"), name: str = "net", **fields: Any) -> ModelVersion:
    return model_from_manifest(manifest(name, 1, **{**PICTURES, **fields}), directory)


# ── which ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_tried_depends_on_the_runtime_and_the_threads() -> None:
    def named(wishes: VariantWishes, **fields: Any) -> list[str]:
        return [each.name for each in candidates_of(picture_model(**fields), wishes)]

    assert named(VariantWishes()) == ["onnx", "int8", "bf16"]
    assert named(VariantWishes(threads=(1, 2))) == ["onnx", "int8", "bf16", "onnx-2t", "int8-2t"]
    assert named(VariantWishes(only=("int8",))) == ["int8"]
    assert named(VariantWishes(), runtime="onnx") == ["int8"]
    assert named(VariantWishes(threads=(2,)), runtime="onnx") == ["int8-2t", "onnx-2t"]
    assert named(VariantWishes(), runtime="timm") == ["traced"]


def test_what_cannot_be_is_said_with_what_can() -> None:
    with pytest.raises(BadOption, match=r"no variant 'fp4'.*onnx, int8, bf16"):
        candidates_of(picture_model(), VariantWishes(only=("fp4",)))
    with pytest.raises(BadOption, match="does text-classification"):
        candidates_of(model_from_manifest(manifest(), Path("/nowhere")), VariantWishes())
    with pytest.raises(BadOption, match="a variant itself"):
        candidates_of(picture_model(name="net~int8"), VariantWishes())
    with pytest.raises(BadOption, match="no variants are made of models of hashing"):
        candidates_of(picture_model(architecture="hashing"), VariantWishes())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"onyl": []}, "unknown field 'onyl'"),
        ({"only": "int8"}, "'only' must be a list"),
        ({"threads": [0]}, "'threads' must be"),
        ({"threads": [True]}, "'threads' must be"),
        ({"max_accuracy_loss": 2}, "from 0 to 1"),
        ({"max_accuracy_loss": None}, "from 0 to 1"),
        ({"dataset": 1}, "'dataset' must be"),
        ({"version": 0}, "'version' must be"),
    ],
)
def test_a_wish_that_is_none_is_refused_with_its_field(body: dict[str, Any], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        wishes_from(body)


# ── whether ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_variant_that_loses_too_much_is_refused_with_the_numbers() -> None:
    original = accuracy_of([1] * 90 + [0] * 10, 100)
    found = accuracy_of([1] * 85 + [0] * 15, 93, dataset="meals", split="validation")
    assert original is not None
    assert found is not None
    assert (found.accuracy, found.rows, found.agreement, found.dataset) == (0.85, 100, 0.93, "meals")
    assert found.low < 0.85 < found.high
    said = refusal(INT8, found, original, 0.01)
    assert "0.8500 of 100 held-out rows" in said
    assert "loses 0.0500, and may lose 0.01" in said
    assert refusal(INT8, found, original, 0.05) == ""


def test_only_what_answers_as_its_original_does_is_offered_without_rows() -> None:
    assert refusal(ONNX, None, None, 0.01) == ""
    assert "name a dataset" in refusal(INT8, None, None, 0.01)
    assert accuracy_of([-1, -1], 0) is None


def test_rows_that_could_not_be_read_and_rows_that_are_one_observation_count_for_what_they_show() -> None:
    found = accuracy_of([1, 0, -1, 1], 2)
    assert found is not None
    assert found.rows == 3
    assert found.accuracy == pytest.approx(2 / 3, abs=1e-6)
    apart = accuracy_of([1, 0] * 50, 100)
    alike = accuracy_of([1, 0] * 50, 100, np.arange(100) // 10)
    assert apart is not None
    assert alike is not None
    assert alike.high - alike.low >= apart.high - apart.low


# ── orders ──────────────────────────────────────────────────────────────────────────────────────────


class KeptInMemory:
    """The registry's orders; a fault is raised where one is set."""

    def __init__(self) -> None:
        self.orders: list[KeptOrder] = []
        self.fault: Exception | None = None

    def all(self) -> list[KeptOrder]:
        return list(self.orders)

    def put(self, orders: Sequence[KeptOrder]) -> None:
        if self.fault:
            raise self.fault
        self.orders += orders

    def remove(self, model: str, version: int, variant: str) -> None:
        self.orders = [one for one in self.orders if (one.model, one.variant) != (model, variant)]


class Shop:
    """Orders whose worker, residency and registry are the test's."""

    def __init__(
        self, tmp_path: Path, *, by_itself: bool = False, kept_orders: KeptInMemory | None = None
    ) -> None:
        self.catalog = Catalog(
            lambda each: single_model_function(each, {"slo_ms": 1.0, "max_batch": 4, "policy": "greedy"})
        )
        (tmp_path / "net").mkdir(exist_ok=True)
        (tmp_path / "net" / "model.json").write_text('{"trained": {"job": 1, "snapshot": "s1"}}')
        self.model = picture_model(tmp_path / "net")
        self.catalog.add_model(self.model)
        self.variants = Variants()
        self.kept: list[Variant] = []
        self.is_at_rest = True
        self.users: list[str] = []
        self.sent: list[MakeVariant] = []
        self.cancelled: list[int] = []
        self.reply: Message | None = VariantMade(
            1, "onnx", "int8", 100, 1.0, right=[1] * 9 + [0], original_right=[1] * 10, agreed=9
        )
        self.waits_for_reply: Any = None
        shop: Any = self
        self.kept_orders = kept_orders or KeptInMemory()
        self.orders = VariantOrders(
            tmp_path / "home",
            self.variants,
            shop,
            self.kept_orders,  # type: ignore[arg-type]  # what is asked of it
            self.catalog,
            shop,
            shop,
            shop,
            shop,
            shop,
            Tasks(),
            at_rest=lambda: self.is_at_rest,
            by_itself=by_itself,
            rest_s=0.0,
            look_s=0.01,
        )

    # the registry, the publisher
    def put(self, variant: Variant) -> None:
        self.kept.append(variant)

    def users_of(self, model: ModelVersion) -> list[str]:
        return self.users

    async def remove_variant(self, model: ModelVersion) -> None:
        self.catalog.remove_model(model)

    async def register_variant(self, folder: Path) -> ModelVersion:
        model = replace(self.model, name=self.sent[-1].name)
        self.catalog.add_model(model)
        return model

    # the residency
    def is_resident(self, group: object) -> bool:
        return True

    async def load(self, group: object) -> None:
        pass

    spread = load

    async def unload(self, keys: object) -> None:
        pass

    # the workers, and what is measured on them
    def alive(self) -> list[object]:
        return [self]

    async def anyone(self, *, pictures: bool = False) -> Shop:
        return self

    def busy(self, worker: object) -> Any:
        return contextlib.nullcontext()

    def send(self, message: Message, on_reply: Any) -> int:
        assert isinstance(message, MakeVariant)
        self.sent.append(message)
        self.waits_for_reply = on_reply
        if self.reply is not None:
            on_reply(self.reply)
        return len(self.sent)

    def cancel(self, message_id: int) -> None:
        self.cancelled.append(message_id)

    async def of(self, *models: ModelVersion) -> dict[str, Measured]:
        return {model.key: Measured(1000, 0.5, {"cpu": {1: 0.001}}) for model in models}

    # the datasets
    async def of_job(self, job: int, snapshot: str) -> Any:
        raise UnknownFunction("no job")


def run(shop: Shop, work: Any) -> None:
    async def main() -> None:
        shop.orders.start()
        try:
            await work()
        finally:
            await shop.orders.close()

    asyncio.run(main())


def test_an_order_ends_with_the_variant_and_its_original_measured(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def work() -> None:
        ordered = await shop.orders.order(
            "net", VariantWishes(only=("int8",), max_accuracy_loss=0.1), shop.catalog
        )
        assert [each.candidate.name for each in ordered] == ["int8"]
        await until(lambda: len(shop.kept) == 2 and not shop.orders.orders())

    run(shop, work)
    assert [(each.name, each.refused) for each in shop.kept] == [("int8", ""), (ORIGINAL, "")]
    found = shop.variants.named("net~int8/1")
    assert found is not None
    assert (found.profile_s, found.resident_bytes, found.load_s) == ({"cpu": {1: 0.001}}, 1000, 0.5)
    assert list((tmp_path / "home").iterdir()) == []


def test_a_refused_one_is_known_with_its_reason_and_serves_nobody(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.reply = VariantMade(1, "onnx", "int8", 100, 1.0)

    async def work() -> None:
        await shop.orders.order("net", VariantWishes(only=("int8",)), shop.catalog)
        await until(lambda: bool(shop.kept))

    run(shop, work)
    assert "name a dataset" in shop.kept[0].refused
    assert [model.key for model in shop.catalog.models()] == ["net/1"]


def test_what_cannot_be_made_is_told_and_the_next_one_is_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.reply = Failed(1, "bad_option", "it has an operator of its own")

    async def work() -> None:
        await shop.orders.order("net", VariantWishes(), shop.catalog)
        await until(lambda: len(shop.orders.ended) == 3)

    run(shop, work)
    assert {each.failed for each in shop.orders.ended} == {"it has an operator of its own"}


def test_what_nobody_asked_for_is_given_up_when_rows_come_and_begun_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, by_itself=True)
    shop.reply = None

    async def work() -> None:
        await until(lambda: bool(shop.sent))
        shop.is_at_rest = False
        await until(lambda: bool(shop.cancelled))
        assert shop.kept == []
        shop.reply = VariantMade(1, "onnx", "float32", 100, 1.0)
        shop.is_at_rest = True
        await until(lambda: {each.name for each in shop.kept} >= {"onnx", ORIGINAL, "int8", "bf16"})

    run(shop, work)
    assert {each.name: bool(each.refused) for each in shop.kept} == {
        "onnx": False,
        ORIGINAL: False,
        "int8": True,
        "bf16": True,
    }


def test_an_order_that_waited_when_the_server_stopped_is_carried_out_by_its_next_life(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.reply = None

    async def stopped() -> None:
        wishes = VariantWishes(max_accuracy_loss=0.2, threads=(1, 2))
        await shop.orders.order("net", replace(wishes, only=("int8", "onnx-2t")), shop.catalog)
        await until(lambda: bool(shop.sent))

    run(shop, stopped)
    assert [one.variant for one in shop.kept_orders.orders] == ["int8", "onnx-2t"]  # one was under way

    shop.kept_orders.orders.append(replace(shop.kept_orders.orders[0], model="gone"))
    again = Shop(tmp_path, kept_orders=shop.kept_orders)

    async def goes_on() -> None:
        await until(lambda: {each.name for each in again.kept} == {"int8", "onnx-2t", ORIGINAL})
        await until(lambda: not again.kept_orders.orders)

    run(again, goes_on)
    assert not {each.name: each.refused for each in again.kept}["int8"]  # it may lose as much as was wished
    assert [each.threads for each in again.sent] == [1, 2]


def test_an_order_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.kept_orders.fault = Overloaded("the registry is locked", 1.0)
    with pytest.raises(Overloaded):
        asyncio.run(shop.orders.order("net", VariantWishes(only=("int8",)), shop.catalog))
    assert shop.orders.orders() == []


def test_an_order_that_failed_is_not_tried_again_by_the_next_life(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.reply = Failed(1, "bad_option", "it has an operator of its own")

    async def work() -> None:
        await shop.orders.order("net", VariantWishes(only=("int8",)), shop.catalog)
        await until(lambda: bool(shop.orders.ended) and not shop.kept_orders.orders)

    run(shop, work)


def test_a_variant_that_a_function_runs_is_not_made_anew_under_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.catalog.add_model(replace(shop.model, name="net~int8"))
    shop.users = ["udf_food"]
    with pytest.raises(BadOption, match="member of the function udf_food"):
        asyncio.run(shop.orders.order("net", VariantWishes(only=("int8",)), shop.catalog))
    with pytest.raises(UnknownFunction):
        asyncio.run(shop.orders.order("none", VariantWishes(), shop.catalog))
