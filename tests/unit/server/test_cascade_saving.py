"""What is said of a proxy: what it saves by the latencies that are known now, and why it is kept off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from server.catalog.functions import Function, Proxy
from server.catalog.selections import Selections
from server.ensemble.gearing import FollowedPlans
from server.ensemble.places import MemberPlace
from server.ensemble.policies.proxied import Proxied
from server.ensemble.proxy import ProxyFit, ProxyLevel
from server.serving.plans import ensemble_of
from tests.unit.server.served import function, text_model

FIT = ProxyFit("small", ("large",), 0.9, 1.0, (ProxyLevel(0.9, 0.5, 0.75, 0.95, 0.92),), 0.8, 400, 600)


def cascading() -> Function:
    plain = function(text_model("large"))
    proxy = Proxy.of(text_model("small"), plain.members, FIT)
    return replace(plain, proxy=proxy, cascade={"is_used": True, "agreement": 0.9})


@pytest.mark.parametrize(("small_ms", "saved"), [(1.0, 0.65), (7.0, 0.05), (8.0, -0.05)])
def test_a_proxy_is_kept_off_with_the_numbers_while_it_saves_nothing(small_ms: float, saved: float) -> None:
    asked = cascading()
    took_ms = {"small": small_ms, "large": 10.0}

    def latency_of(model: object) -> Callable[[int], float]:
        return lambda rows: rows * took_ms[model.name] / 1000  # type: ignore[attr-defined]

    place = MemberPlace(0, ("cpu",))
    ensemble = ensemble_of(asked, latency_of, [place, place], asked.form)
    assert asked.proxy is not None
    policy = Proxied(ensemble, asked.proxy.fit, asked.proxy.place)
    followed = FollowedPlans(policy.plans, policy.init()["gear"])
    house = SimpleNamespace(followed=lambda function, form: followed, served=lambda: [asked])
    told = Selections(house, lambda model, form: latency_of(model)).of(asked).cascade
    assert told is not None
    assert told["saved_share"] == pytest.approx(saved)
    if saved > 0:
        assert told["kept_off"] is None
    else:
        assert told["kept_off"] == (
            "small takes 8 ms of a row and leaves 25.0% of the rows to what takes 10 ms:"
            " the full function's 10 ms are no more"
        )
