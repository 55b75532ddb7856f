"""A proxy's threshold holds on rows that nobody has seen, or the proxy is refused with its numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from server.ensemble.proxy import (
    LEVEL,
    ProxyFit,
    ProxyRefused,
    chance_of_so_few,
    fit_proxy,
    least_agreement,
    promised_share,
    rows_needed,
)

CLASSES = 5


def drawn(rows: int, seed: int, sharp: float = 4.0) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Scores of a proxy that is as sure as it should be, and the full function's answers."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(rows, CLASSES)) * sharp
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    answers = (random.random((rows, 1)) > scores.cumsum(axis=1)).sum(axis=1)
    return scores, np.minimum(answers, CLASSES - 1)


def agreement_of(found: ProxyFit, scores: NDArray[np.float64], answers: NDArray[np.intp]) -> float:
    """Of rows that are answered by that threshold."""
    logs = np.log(np.clip(scores, 1e-4, 1)) / found.temperature
    calibrated = np.exp(logs - logs.max(axis=1, keepdims=True))
    sure = calibrated.max(axis=1) / calibrated.sum(axis=1) >= found.levels[0].threshold
    return float((~sure | (scores.argmax(axis=1) == answers)).mean())


@pytest.mark.parametrize("agreement", [0.9, 0.95, 0.98])
@pytest.mark.parametrize("rows", [400, 1200])
def test_the_threshold_holds_on_new_rows_as_often_as_is_said(rows: int, agreement: float) -> None:
    used, missed = 0, 0
    for seed in range(120):
        scores, answers = drawn(rows + 8000, seed)
        found = fit_proxy("p", ["f"], scores[:rows], answers[:rows], agreement)
        if isinstance(found, ProxyFit):
            used += 1
            missed += agreement_of(found, scores[rows:], answers[rows:]) < agreement
    assert used > 100, "a proxy that is often sure is of use"
    assert missed <= LEVEL * used + 3 * (LEVEL * used) ** 0.5


def test_a_proxy_that_is_wrong_where_it_is_sure_is_refused_with_its_numbers() -> None:
    scores, answers = drawn(1000, 1)
    answers = np.where(np.random.default_rng(0).random(1000) < 0.2, (answers + 1) % CLASSES, answers)
    found = fit_proxy("head", ["f"], scores, answers, 0.98)
    assert isinstance(found, ProxyRefused)
    assert 0.6 < found.alone < 0.8
    assert (found.chosen_rows, found.proof_rows) == (400, 600)
    assert found.share is not None
    assert found.share < 0.1
    assert "head agrees with the full function on" in found.reason
    assert "too few, or too often other answers" in found.reason


def test_too_few_rows_show_nothing_and_it_is_said_how_many_would() -> None:
    scores, answers = drawn(100, 0)
    found = fit_proxy("p", ["f"], scores, scores.argmax(axis=1), 0.99)
    assert isinstance(found, ProxyRefused)
    assert found.needed == rows_needed(0.99) > 600
    assert str(found.needed) in found.reason
    assert "there are 100" in found.reason
    assert answers.shape == (100,)


@pytest.mark.parametrize("agreement", [0.9, 0.95, 0.98, 0.99])
def test_as_many_rows_as_are_needed_are_enough_where_all_agree(agreement: float) -> None:
    needed = rows_needed(agreement)
    scores, _ = drawn(needed, 3)
    same = scores.argmax(axis=1)
    assert isinstance(fit_proxy("p", ["f"], scores, same, agreement), ProxyFit)
    fewer = fit_proxy("p", ["f"], scores[: needed - 6], same[: needed - 6], agreement)
    assert isinstance(fewer, ProxyRefused)


def test_more_agreement_takes_a_higher_threshold() -> None:
    scores, answers = drawn(6000, 5)
    found = fit_proxy("p", ["f"], scores, answers, 0.9)
    assert isinstance(found, ProxyFit)
    agreements = [level.agreement for level in found.levels]
    thresholds = [level.threshold for level in found.levels]
    shares = [level.share for level in found.levels]
    assert agreements[:4] == [0.9, 0.95, 0.97, 0.98]
    assert thresholds == sorted(thresholds)
    assert shares == sorted(shares, reverse=True)
    assert all(level.low >= level.agreement for level in found.levels)


def test_rows_of_one_group_are_one_observation() -> None:
    scores, answers = drawn(80, 2)
    many = np.repeat(scores, 10, axis=0), np.repeat(answers, 10)
    alone = fit_proxy("p", ["f"], *many, 0.98)
    grouped = fit_proxy("p", ["f"], *many, 0.98, groups=np.repeat(np.arange(80), 10))
    assert isinstance(grouped, ProxyRefused)
    assert grouped.chosen_rows + grouped.proof_rows == 80
    assert isinstance(alone, ProxyFit | ProxyRefused)


def test_rows_without_an_answer_of_the_proxy_go_on_and_those_without_one_of_the_function_disagree() -> None:
    scores, _ = drawn(1000, 4)
    answers = scores.argmax(axis=1)
    scores = scores.copy()
    scores[::2] = np.nan
    found = fit_proxy("p", ["f"], scores, answers, 0.95)
    assert isinstance(found, ProxyFit)
    assert found.levels[0].share <= 0.6
    scores, _ = drawn(1000, 4)
    refused = fit_proxy("p", ["f"], scores, np.full(1000, -1), 0.95)
    assert isinstance(refused, ProxyRefused)
    assert refused.alone == 0.0


def test_below_the_least_confidence_it_never_answers() -> None:
    scores, answers = drawn(2000, 6)
    found = fit_proxy("p", ["f"], scores, answers, 0.9, least=0.99)
    assert isinstance(found, ProxyFit)
    assert all(level.threshold >= 0.99 for level in found.levels)


def test_proxies_are_chosen_by_rows_that_prove_none() -> None:
    scores, answers = drawn(1000, 7)
    shares = promised_share(scores, answers, 0.95)
    worse = promised_share(np.full_like(scores, 1 / CLASSES), answers, 0.95)
    assert shares > 0.3 > worse


@pytest.mark.parametrize(("faults", "rows"), [(0, 10), (3, 100), (7, 500), (40, 300)])
def test_the_bound_is_clopper_and_pearsons(faults: int, rows: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert chance_of_so_few(faults, rows, 0.05) == pytest.approx(stats.binom.cdf(faults, rows, 0.05))
    exact = stats.beta.ppf(1 - LEVEL, faults + 1, rows - faults)
    assert least_agreement(faults, rows) == pytest.approx(1 - exact, abs=1e-9)


def test_nothing_is_shown_by_no_rows_or_where_all_disagree() -> None:
    assert chance_of_so_few(0, 0, 0.1) == 1.0 == chance_of_so_few(5, 5, 0.1)
    assert least_agreement(0, 0) == 0.0 == least_agreement(5, 5)
    found = fit_proxy("p", ["f"], np.zeros((0, 3)), np.zeros(0, np.intp), 0.9)
    assert isinstance(found, ProxyRefused)


def test_what_was_found_is_the_same_when_it_is_read_back() -> None:
    scores, answers = drawn(2000, 8)
    found = fit_proxy("p", ["f", "g"], scores, answers, 0.95)
    assert isinstance(found, ProxyFit)
    assert ProxyFit.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert fit_proxy("p", ["f", "g"], scores, answers, 0.95) == found


@pytest.mark.parametrize(
    "spoilt",
    [
        {"format": 2},
        {"levels": []},
        {"temperature": 0.0},
        {"levels": [{"agreement": 0.9}]},
        {"levels": "none"},
        {"members": None},
    ],
)
def test_what_is_no_fit_is_not_read(spoilt: dict[str, object]) -> None:
    scores, answers = drawn(2000, 8)
    found = fit_proxy("p", ["f"], scores, answers, 0.95)
    assert isinstance(found, ProxyFit)
    with pytest.raises(ValueError, match=r"\w"):
        ProxyFit.from_json({**found.to_json(), **spoilt})
    backwards = replace(found, levels=tuple(reversed(found.levels)))
    with pytest.raises(ValueError, match="ascend"):
        ProxyFit.from_json(backwards.to_json())


@pytest.mark.parametrize("agreement", [0.0, 1.0, 1.5])
def test_an_agreement_lies_between_nothing_and_all(agreement: float) -> None:
    scores, answers = drawn(100, 0)
    with pytest.raises(ValueError, match="between"):
        fit_proxy("p", ["f"], scores, answers, agreement)
