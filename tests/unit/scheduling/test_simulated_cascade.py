"""A cascade in the simulator: rows that proved nothing are answered as promised, in less device time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from server.ensemble.log_pool import calibrated, log_floored
from server.ensemble.policies.proxied import Proxied, ProxyPlace, proxy_evidence
from server.ensemble.proxy import ProxyFit, fit_proxy
from server.ensemble.selection import Ensemble, EnsembleMember
from server.scheduling.simulation.ensembles import (
    EnsembleLoad,
    EnsembleResult,
    MemberOutcomes,
    simulate_ensemble,
)

AGREEMENT = 0.95
FULL_S = 0.010  # of a row
PROXY, FULL = 0b01, 0b10
PLACE = ProxyPlace(0, FULL)
ROWS = 2000


def told(rows: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """(the proxy's probabilities, the full function's answers): of hard rows it knows little, and says so."""
    draw = np.random.default_rng(seed)
    answers = draw.integers(0, 3, rows)
    strength = draw.choice([0.3, 4.0], rows, p=[0.4, 0.6])
    logits = draw.normal(0, 0.8, (rows, 3))
    logits[np.arange(rows), answers] += strength
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True), answers


def simulated(proxy_s: float) -> tuple[ProxyFit, EnsembleResult]:
    """A proxy that takes so long for a row, shown by some rows and asked of others."""
    scores, answers = told(1500, 1)
    fit = fit_proxy("small", ["large"], scores, answers.astype(np.int64), AGREEMENT)
    assert isinstance(fit, ProxyFit)
    others, right = told(ROWS, 2)
    sure = np.exp(calibrated(log_floored(others), fit.temperature, axis=-1).max(axis=1))
    agrees = others.argmax(axis=1) == right
    always, certain = [True] * ROWS, [1.0] * ROWS
    outcomes = MemberOutcomes(
        {PROXY: sure.tolist(), FULL: certain, PROXY | FULL: certain},
        {PROXY: agrees.tolist(), FULL: always, PROXY | FULL: always},
    )
    costs_s = (proxy_s, FULL_S)
    members = tuple(
        EnsembleMember(name, 0.9, 0.0, cost_s)
        for name, cost_s in zip(("small", "large"), costs_s, strict=True)
    )
    ensemble = Ensemble(members, proxy_evidence(fit, PLACE, 2))
    load = EnsembleLoad(
        [number * 2 * FULL_S for number in range(ROWS)],
        100 * FULL_S,
        [linear(cost_s) for cost_s in costs_s],
        outcomes,
    )
    return fit, simulate_ensemble(load, ensemble, Proxied(ensemble, fit, PLACE))


def linear(row_s: float) -> Callable[[int], float]:
    return lambda rows: rows * row_s


@pytest.mark.parametrize("proxy_s", [0.1 * FULL_S, 0.3 * FULL_S])
def test_rows_are_answered_as_promised_for_less_time(proxy_s: float) -> None:
    fit, result = simulated(proxy_s)
    share = fit.levels[0].share
    assert share > 0.4
    assert result.answered == ROWS
    assert result.accuracy >= AGREEMENT, "of agreement: right is what the full function says"
    assert result.accuracy < 1
    expected_s = ROWS * (proxy_s + (1 - share) * FULL_S)
    assert result.busy_s == pytest.approx(expected_s, rel=0.1)
    assert result.busy_s < ROWS * FULL_S


def test_a_proxy_that_would_save_nothing_takes_no_time() -> None:
    _, result = simulated(0.9 * FULL_S)
    assert result.busy_s == pytest.approx(ROWS * FULL_S)
    assert result.accuracy == 1
