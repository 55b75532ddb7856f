"""Every selection policy live: rows are answered, policies learn, and one that faults is put aside."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ml_udf.client import Client
from ml_udf.errors import BadOption
from server.ensemble.fit import Fit
from server.ensemble.policies.by_name import SELECTION_POLICIES
from server.training.promotion.combination import choose_combination
from tests.inference_server import InferenceServer, inference_server
from tests.models import CLASSES, text_model
from tests.waiting import wait_until

MEMBERS = ["text_one", "text_two", "text_three"]
TEXTS = [f"{word} {number}" for number in range(60) for word in ("soup", "noodles", "bread")]
UNTRAINED = [name for name in SELECTION_POLICIES if name != "actor_critic"]
OWN = "tests.unit.ensemble.own_policies"


def evidence() -> Fit:
    """As if the members had been so and so good on held-out rows."""
    draw = np.random.default_rng(1)
    labels = draw.integers(len(CLASSES), size=600)
    scores = {}
    for name, accuracy in zip(MEMBERS, (0.6, 0.7, 0.8), strict=True):
        named = np.where(draw.random(600) < accuracy, labels, draw.integers(len(CLASSES), size=600))
        told = draw.dirichlet(np.ones(len(CLASSES)), size=600) * 0.6
        told[np.arange(600), named] += 0.4
        scores[name] = (told / told.sum(axis=1, keepdims=True)).astype(np.float32)
    return choose_combination(scores, labels).fit


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    made = tmp_path_factory.mktemp("made")
    with inference_server(tmp_path_factory.mktemp("home"), flags=["--allow-import"]) as server:
        for seed, name in enumerate(MEMBERS):
            server.deploy(text_model(made, name, seed=seed))
        put(server, None)
        server.stop()
        with contextlib.closing(sqlite3.connect(server.home / "registry.db")) as registry, registry:
            registry.execute("UPDATE deployments SET fit = ?", [json.dumps(evidence().to_json())])
        server.start()
        yield server


def put(server: InferenceServer, select: str | None, **fields: Any) -> dict[str, Any]:
    client = Client(server.url)
    try:
        body = {"models": MEMBERS, "combine": "log_pool", "slo_ms": 2000, **fields}
        return dict(client.put("/v1/functions/udf_dish", {**body, "select": select}))
    finally:
        client.close()


def shown(server: InferenceServer) -> dict[str, Any]:
    client = Client(server.url)
    try:
        return dict(client.get("/v1/functions/udf_dish"))
    finally:
        client.close()


def answers(server: InferenceServer, texts: list[str], function: str = "udf_dish") -> list[Any]:
    client = Client(server.url)
    try:
        return list(client.predict(function, texts).values)
    finally:
        client.close()


def answered_by(server: InferenceServer, texts: list[str]) -> list[str]:
    client = Client(server.url)
    try:
        body = {
            "inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}],
            "outputs": [{"name": "label"}, {"name": "answered_by"}],
        }
        found = client.post("/v2/models/udf_dish/infer", body)
    finally:
        client.close()
    outputs = {output["name"]: output["data"] for output in found["outputs"]}
    assert set(outputs["label"]) <= set(CLASSES)
    return list(outputs["answered_by"])


def give(server: InferenceServer, texts: list[str], labels: list[Any]) -> dict[str, Any]:
    client = Client(server.url)
    try:
        return client.post("/v1/feedback", {"function": "udf_dish", "inputs": texts, "labels": labels})
    finally:
        client.close()


def followed(server: InferenceServer, select: str) -> None:
    """Deploy it with that policy, and wait until its plans are there."""
    before = server.log.count("plans fitted function=udf_dish")
    assert put(server, select)["select"] == select
    end_s = time.monotonic() + 30
    while server.log.count("plans fitted function=udf_dish") == before:
        assert time.monotonic() < end_s
        answers(server, TEXTS[:3])


def test_value_is_followed_where_nothing_is_said_and_an_idle_server_asks_all(server: InferenceServer) -> None:
    told = put(server, None)
    assert (told["select"], told["select_fault"]) == ("value", None)
    assert put(server, "all")["select"] == "all"
    everybody = [answers(server, [text])[0] for text in TEXTS[:20]]
    followed(server, "value")

    def at_rest() -> bool:
        time.sleep(0.3)
        return [who.count(",") for who in answered_by(server, TEXTS[:1])] == [2]

    wait_until(at_rest, 30)
    found = []
    for text in TEXTS[:20]:
        time.sleep(0.1)
        found += answers(server, [text])
    assert np.mean([one == other for one, other in zip(found, everybody, strict=True)]) >= 0.9


@pytest.mark.parametrize("select", [*UNTRAINED, f"{OWN}:the_first_two"])
def test_every_policy_answers_every_row(server: InferenceServer, select: str) -> None:
    put(server, select)
    for _ in range(5):
        assert len(answered_by(server, TEXTS)) == len(TEXTS)
    if select.endswith("the_first_two"):
        wait_until(lambda: set(answered_by(server, TEXTS)) == {"text_one,text_two"}, 30)


@pytest.mark.parametrize("fault", ["in_init", "in_select", "in_steer", "asks", "leaves"])
def test_one_that_faults_is_put_aside_for_value_and_says_so(server: InferenceServer, fault: str) -> None:
    select = f"{OWN}:{fault}"
    put(server, select)

    def is_told() -> bool:
        assert len(answered_by(server, TEXTS)) == len(TEXTS)
        return shown(server)["select_fault"] is not None

    wait_until(is_told, 30)
    told = shown(server)
    assert told["select"] == select
    assert select in told["select_fault"]
    assert "put aside for value" in told["select_fault"]
    assert f"policy={select}" in server.log
    assert put(server, "value")["select_fault"] is None


@pytest.mark.security
def test_what_cannot_be_imported_or_made_is_refused(server: InferenceServer) -> None:
    for select, why in (
        (f"{OWN}:nowhere", "cannot be imported"),
        (f"{OWN}:cannot_be_made", "cannot be made"),
        (f"{OWN}:nothing_at_all", "lacks"),
        ("dearest", "a policy"),
    ):
        with pytest.raises(BadOption, match=why):
            put(server, select)


def test_exp3_and_exp4_learn_from_labels_and_a_restart_forgets_nothing(server: InferenceServer) -> None:
    truth = answers(server, TEXTS, "text_three")
    unseen = [f"{text} unseen" for text in TEXTS]
    expected = answers(server, unseen, "text_three")
    for select in ("exp3", "exp4"):
        followed(server, select)
        before = answers(server, unseen)
        more = [f"{text} {select}" for text in TEXTS]
        give(server, more, answers(server, more, "text_three"))
        give(server, TEXTS, truth)
        after = answers(server, unseen)
        right = [np.mean([a == b for a, b in zip(found, expected, strict=True)]) for found in (before, after)]
        assert right[1] > max(0.8, right[0] + 0.1), select
        server.stop()
        server.start()
        for _ in range(3):
            answers(server, unseen)  # until the plans are there
            time.sleep(0.2)
        again = answers(server, unseen)
        assert np.mean([a == b for a, b in zip(again, expected, strict=True)]) > 0.8, select
