"""What is asked to see how good answers are is no sample of what people ask."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.observability.metrics import Metrics
from server.serving.call_service import CallService
from server.serving.calls import Call, PendingReply, Reply
from server.serving.outcomes import Outcomes
from tests.unit.server.served import function


@pytest.mark.parametrize("is_traffic", [True, False])
def test_only_traffic_is_sampled(is_traffic: bool) -> None:
    heard: list[str] = []
    recent = SimpleNamespace(answered=lambda call, reply: heard.append("recent"))
    shadow_rows = SimpleNamespace(answered=lambda call: heard.append("shadow rows"))

    async def asked() -> None:
        call = Call(function(), "text", [b"a"], 1, is_traffic=is_traffic)
        pending = PendingReply(Outcomes(), 1, call, 0.0)
        dispatcher = SimpleNamespace(begin=lambda call: pending, end=lambda pending: None)
        calls = CallService(
            cast(Any, dispatcher), Metrics(), shadow_rows=cast(Any, shadow_rows), recent=cast(Any, recent)
        )
        over: asyncio.Future[Any] = asyncio.Future()
        calls.begin(call, cast(Any, SimpleNamespace(came_s=0.0, over=over.set_result)))
        pending.finish(Reply(call.function, 1, {}, {}, [], set()))
        assert isinstance(await asyncio.wait_for(over, 5), Reply)

    asyncio.run(asked())
    assert sorted(heard) == (["recent", "shadow rows"] if is_traffic else [])
