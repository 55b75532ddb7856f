"""Bodies of `POST /v1/feedback`, right and wrong: each gets a reply, and no input counts twice."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from sqlalchemy import Engine

from server.access.view import WHOLE
from server.errors import ServiceError
from server.http.large_json import LargeJson
from server.routes.feedback import give_feedback
from server.store.database import migrate, open_database
from tests.fuzz.budget import rounds
from tests.unit.server.test_feedback import Place

pytestmark = pytest.mark.security

_ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    float("nan"),
    10**400,
    "",
    "x",
    "laksa",
    "pizza",
    "broken",
    "\x00",
    "\ud800",
    "é" * 50,
    [],
    [[]],
    {},
    {"a": [1]},
]
_FUNCTIONS: list[Any] = ["f", "g", *_ODD]
_INPUTS: list[Any] = ["text", "text", None, "image", "pixels", "row", *_ODD]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    yield engine
    engine.dispose()


def body_of(draw: random.Random) -> bytes:
    count = draw.choice([0, 1, 1, 2, 3, 5])
    body: dict[str, Any] = {
        "function": "f" if draw.random() < 0.8 else draw.choice(_FUNCTIONS),
        "inputs": [draw.choice(_ODD) for _ in range(count)],
        "labels": [draw.choice(["laksa", "pizza", "laksa", None, *_ODD[6:14]]) for _ in range(count)],
    }
    if draw.random() < 0.2:
        body["predictions"] = body["inputs"]
        if draw.random() < 0.8:
            del body["inputs"]
    for field in ("inputs", "labels"):
        if draw.random() < 0.1:
            body[field] = draw.choice(_ODD)
    if draw.random() < 0.3:
        body["input"] = draw.choice(_INPUTS)
    if draw.random() < 0.3:
        body["context"] = draw.choice(["me", "you", *_ODD])
    if draw.random() < 0.05:
        body[draw.choice(["user", "", "\ud800"])] = draw.choice(_ODD)
    if draw.random() < 0.05:
        del body[draw.choice(list(body))]
    text = json.dumps(body).encode()
    return text[: draw.randrange(len(text))] if draw.random() < 0.05 else text


def test_every_body_gets_a_reply_and_each_input_counts_once(registry: Engine) -> None:
    place, large = Place(registry), LargeJson()
    services: Any = SimpleNamespace(
        catalog=place.catalog,
        feedback=place.service,
        contexts=place.contexts,
        large=large,
        settings=SimpleNamespace(max_rows=4),
    )
    replied = refused = 0

    async def ask(body: bytes) -> dict[str, Any] | ServiceError:
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.sleep(3600)
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {"type": "http", "method": "POST", "headers": []}
        try:
            giving = give_feedback(services, WHOLE, services.catalog, Request(scope, receive))
            response = await asyncio.wait_for(giving, 20)
        except ServiceError as error:
            return error
        return dict(json.loads(bytes(response.body)))

    async def scenario() -> None:
        nonlocal replied, refused
        for seed in rounds(300):
            body = body_of(random.Random(seed))
            told = await ask(body)
            if isinstance(told, ServiceError):
                assert 400 <= told.status < 500, (body, told)
                assert told.message
                told.wire_text.encode()
                refused += 1
                continue
            asked = json.loads(body)
            given = asked.get("predictions", asked.get("inputs"))
            assert len(told["outcomes"]) == len(given)
            at_fault = {error["row"] for error in told["errors"]}
            for row, (value, label) in enumerate(zip(given, asked["labels"], strict=True)):
                null = value is None or label is None
                assert (told["outcomes"][row] is None) == (null or row in at_fault)
            replied += 1

    asyncio.run(scenario())
    large.close()
    assert replied > 20
    assert refused > 20
    inputs = place.metrics.feedback["f", "counted"]
    assert place.function.feedback is not None
    assert place.function.feedback.rows == inputs < 100, "there are no more inputs that can be read"
