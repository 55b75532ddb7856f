"""A proxy: a cheap model that answers alone where it is sure to say what the whole function would say.

    a row's answer = the proxy's, where its calibrated confidence is at least t; else the full function's
    agreement      = the share of rows so answered as the full function alone would have answered them

No labels are needed: what is compared is the proxy's answer and the full function's, on rows that taught
neither. They are split. On the first part the proxy is calibrated (by temperature, to say how probable it is
that the full function agrees), and thresholds to be tried are taken from its confidences there. On the rest,
which chose nothing, each of them is tested, the safest first, and the first that fails ends it: the exact
binomial test that more rows disagree than may, at level 0.025. That is fixed-sequence testing as in "Learn
then Test" (Angelopoulos, Bates, Candès, Jordan & Lei 2021, §3): whatever the models and the rows, the
threshold that is left agrees less often than asked for with a chance of 0.025 at most. It is not lower than
the one that the first part would choose by itself, so that it seldom comes as close as that.

Rows of one group (one entity, equal inputs) are one observation, which disagrees where any of them does.
Pure; numpy alone. Knows neither members' places nor who asks them (policies/proxied.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.ensemble.log_pool import calibrated, fit_temperature, log_floored

__all__ = [
    "LEVEL",
    "ProxyFit",
    "ProxyLevel",
    "ProxyRefused",
    "chance_of_so_few",
    "fit_proxy",
    "least_agreement",
    "promised_share",
    "rows_needed",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEVEL = 0.025
OTHERWISE = -1  # in place of a class: the full function has no answer, or its default one
_CURVE = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)  # agreements for which thresholds are kept
_CHOSEN = 0.4  # of the rows: those that choose
_CANDIDATES = 100
_LEAST_SHARE = 0.02  # of the rows: a proxy that answers fewer saves nothing
_MOST_OFTEN = 5.0  # times as often as over all rows it may disagree on those that it answers
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ProxyLevel:
    """From which confidence on the proxy answers, if so many of the answers are to be the full function's.

    agreement: the one asked for · share, agrees: of the proof rows, those that the proxy answers, and those
    answered as the full function does · low: the least agreement, with 97.5 % confidence
    """

    agreement: float
    threshold: float
    share: float
    agrees: float
    low: float


@dataclass(frozen=True, slots=True)
class ProxyFit:
    """What was found of a proxy, by its model's name. members: of the full function it was compared with.

    agreement: the one asked for · levels: the curve, ascending, the first of them for that agreement ·
    alone: the share of all rows on which it agrees · chosen_rows, proof_rows: observations
    """

    proxy: str
    members: tuple[str, ...]
    agreement: float
    temperature: float
    levels: tuple[ProxyLevel, ...]
    alone: float
    chosen_rows: int
    proof_rows: int

    def to_json(self) -> dict[str, Any]:
        """As the registry keeps it; `from_json` reads it."""
        return {"format": _FORMAT, **asdict(self), "members": list(self.members)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> ProxyFit:
        """Raises ValueError for what is none, or one of another format."""
        try:
            if told["format"] != _FORMAT:
                raise ValueError(f"its format is {told['format']!r}, and {_FORMAT} is what can be read here")
            levels = tuple(
                ProxyLevel(**{name: float(value) for name, value in each.items()}) for each in told["levels"]
            )
            found = cls(
                str(told["proxy"]),
                tuple(str(name) for name in told["members"]),
                float(told["agreement"]),
                float(told["temperature"]),
                levels,
                float(told["alone"]),
                int(told["chosen_rows"]),
                int(told["proof_rows"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as exc:
            raise ValueError(f"{exc!r} is missing or wrong") from exc
        agreements = [level.agreement for level in levels]
        thresholds = [level.threshold for level in levels]
        if not levels or agreements != sorted(agreements) or thresholds != sorted(thresholds):
            raise ValueError("its thresholds do not ascend with the agreement")
        if not (found.temperature > 0 and all(map(math.isfinite, (*agreements, *thresholds)))):
            raise ValueError("a number of its is none")
        return found


@dataclass(frozen=True, slots=True)
class ProxyRefused:
    """A proxy that does not keep the agreement asked for, as far as so many rows show.

    share, agrees, low: as in `ProxyLevel`, at the threshold that the first part would choose; None where it
    would choose none · needed: the fewest observations in all by which any proxy could be proven
    """

    proxy: str
    agreement: float
    alone: float
    share: float | None
    agrees: float | None
    low: float | None
    chosen_rows: int
    proof_rows: int
    needed: int

    @property
    def reason(self) -> str:
        """In words, with the numbers."""
        rows = self.chosen_rows + self.proof_rows
        if rows < self.needed:
            return (
                f"an agreement of {self.agreement:g} is shown by {self.needed} held-out rows at the least, "
                f"and there are {rows}"
            )
        said = f"{self.proxy} agrees with the full function on {_percent(self.alone)} of {rows} held-out rows"
        if self.share is None or self.agrees is None or self.low is None:
            return f"{said}, and from no confidence on as often as {self.agreement:g} asks for"
        return (
            f"{said}; where it is sure it could answer {_percent(self.share)}, and then "
            f"{_percent(self.agrees)} of {self.proof_rows} rows that chose nothing would be answered as by "
            f"the full function, with {100 * (1 - LEVEL):g} % confidence {_percent(self.low)} at the least: "
            + (
                f"{self.agreement:g} is asked for"
                if self.low < self.agreement
                else "too few, or too often other answers, for what they save"
            )
        )

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def fit_proxy(
    proxy: str,
    members: Sequence[str],
    scores: NDArray[Any],
    answers: NDArray[np.integer[Any]],
    agreement: float,
    *,
    groups: NDArray[np.integer[Any]] | None = None,
    least: float = 0.0,
    seed: int = 0,
) -> ProxyFit | ProxyRefused:
    """Whether, and from which confidence on, the proxy answers as the full function does often enough.

    scores: [rows, classes], the proxy's probabilities, not a number where it has no answer · answers: [rows],
    the places of the full function's answers among the classes, −1 for none · agreement: asked for, in (0, 1)
    groups: [rows], rows of equal numbers are one observation · least: a confidence below which it never
    answers · seed: of the split. Raises ValueError for shapes that do not fit, and an agreement that is none.
    """
    if not 0 < agreement < 1:
        raise ValueError(f"an agreement lies between 0 and 1, and {agreement} does not")
    temperature, first, proof = _parted(scores, answers, groups, seed)
    count = first.rows + proof.rows
    alone = 1 - (first.disagreeing(-math.inf) + proof.disagreeing(-math.inf)) / max(1, count)
    candidates = _candidates(first.sure[first.sure >= least])
    asked = sorted({agreement, *(each for each in _CURVE if each > agreement)})
    levels = [level for each in asked if (level := _level(each, candidates, first, proof)) is not None]
    if levels and levels[0].agreement == agreement and _is_of_use(levels[0]):
        return ProxyFit(
            proxy,
            tuple(members),
            agreement,
            _rounded(temperature),
            tuple(level for level in levels if level.share > 0),
            _rounded(alone),
            first.rows,
            proof.rows,
        )
    is_shown = bool(levels) and levels[0].agreement == agreement
    at = levels[0].threshold if is_shown else first.chosen(candidates, 1 - agreement)
    reached = None if at is None else _reached(agreement, at, proof)
    return ProxyRefused(
        proxy,
        agreement,
        _rounded(alone),
        None if reached is None else reached.share,
        None if reached is None else reached.agrees,
        None if reached is None else reached.low,
        first.rows,
        proof.rows,
        rows_needed(agreement),
    )


def promised_share(
    scores: NDArray[Any],
    answers: NDArray[np.integer[Any]],
    agreement: float,
    *,
    groups: NDArray[np.integer[Any]] | None = None,
    least: float = 0.0,
    seed: int = 0,
) -> float:
    """The share of rows that a proxy would answer, by the first part alone: to choose among proxies by.

    As `fit_proxy`. What proves one is not looked at, and so not worn out by many.
    """
    _, first, _ = _parted(scores, answers, groups, seed)
    threshold = first.chosen(_candidates(first.sure[first.sure >= least]), 1 - agreement)
    return 0.0 if threshold is None else first.share(threshold)


def _parted(
    scores: NDArray[Any],
    answers: NDArray[np.integer[Any]],
    groups: NDArray[np.integer[Any]] | None,
    seed: int,
) -> tuple[float, _Observed, _Observed]:
    """The temperature, the rows that choose and those that prove. Raises ValueError as `fit_proxy`."""
    told, truth = np.asarray(scores, np.float64), np.asarray(answers, np.intp)
    if told.ndim != 2 or len(told) != len(truth):
        raise ValueError(f"scores of {list(told.shape)} and {len(truth)} answers: no fit")
    group = np.arange(len(truth)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(group.max()) + 1 if len(group) else 0
    order = np.random.default_rng(seed).permutation(count)
    chooses = (order < int(_CHOSEN * count))[group] if count else np.zeros(0, np.bool_)
    temperature = _temperature(told[chooses], truth[chooses])
    sure, wrong = _judged(told, truth, temperature)
    first = _Observed(sure[chooses], wrong[chooses], group[chooses])
    return temperature, first, _Observed(sure[~chooses], wrong[~chooses], group[~chooses])


class _Observed:
    """Rows by how sure the proxy is of them, and whether it is wrong: [rows] each, and their groups."""

    def __init__(self, sure: Floats, wrong: Bools, group: NDArray[np.intp]) -> None:
        self.sure = sure
        names, place = np.unique(group, return_inverse=True)
        self.rows = len(names)  # observations
        # Of each observation, the highest confidence at which a row of it would be answered wrongly.
        worst = np.full(len(names), -np.inf)
        np.maximum.at(worst, place[wrong], sure[wrong])
        self._faults = np.sort(worst[np.isfinite(worst)])

    def disagreeing(self, threshold: float) -> int:
        """How many observations are answered other than by the full function."""
        return len(self._faults) - int(np.searchsorted(self._faults, threshold, side="left"))

    def share(self, threshold: float) -> float:
        """Of the rows, those that the proxy answers."""
        return float((self.sure >= threshold).mean()) if len(self.sure) else 0.0

    def chosen(self, candidates: Sequence[float], allowed: float) -> float | None:
        """The lowest threshold that these rows would choose: with one more that disagrees it still holds."""
        able = [each for each in candidates if self.disagreeing(each) + 1 <= allowed * self.rows]
        return min(able, default=None)


def _level(
    agreement: float, candidates: Sequence[float], first: _Observed, proof: _Observed
) -> ProxyLevel | None:
    """The lowest threshold by which the proof rows show so much; None for none."""
    chosen = first.chosen(candidates, 1 - agreement)
    passed: float | None = None
    for each in candidates:  # the safest first
        if chosen is None or each < chosen:
            break
        if chance_of_so_few(proof.disagreeing(each), proof.rows, 1 - agreement) > LEVEL:
            break
        passed = each
    return None if passed is None else _reached(agreement, passed, proof)


def _is_of_use(level: ProxyLevel) -> bool:
    """Whether it answers rows because it knows them, and not a few blindly, as many as may be wrong."""
    wrong = (1 - level.agrees) / level.share if level.share else 1.0
    return level.share >= _LEAST_SHARE and wrong <= _MOST_OFTEN * (1 - level.agreement)


def _reached(agreement: float, threshold: float, proof: _Observed) -> ProxyLevel:
    faults = proof.disagreeing(threshold)
    return ProxyLevel(
        agreement,
        threshold,
        _rounded(proof.share(threshold)),
        _rounded(1 - faults / max(1, proof.rows)),
        _rounded(least_agreement(faults, proof.rows)),
    )


def chance_of_so_few(faults: int, rows: int, allowed: float) -> float:
    """The chance of so few disagreements, or fewer, if more than the share `allowed` of all rows disagreed.

    P(Bin(rows, allowed) ≤ faults): the exact p-value that the share is larger than allowed; 1 for no rows.
    """
    if rows <= 0 or faults >= rows:
        return 1.0
    if allowed <= 0:
        return 1.0
    if allowed >= 1:
        return 0.0
    log_in, log_out = math.log(allowed), math.log1p(-allowed)
    logs = [
        math.lgamma(rows + 1)
        - math.lgamma(each + 1)
        - math.lgamma(rows - each + 1)
        + each * log_in
        + (rows - each) * log_out
        for each in range(faults + 1)
    ]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(log - top) for log in logs))


def least_agreement(faults: int, rows: int, level: float = LEVEL) -> float:
    """The least agreement that so many disagreements of so many rows allow, by Clopper & Pearson (1934)."""
    low, high = 0.0, 1.0  # of the share that disagrees
    if rows <= 0 or faults >= rows:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance_of_so_few(faults, rows, middle) > level else (low, middle)
    return 1 - high


def rows_needed(agreement: float) -> int:
    """The fewest observations by which so much agreement can be shown: all of them agree."""
    proof = math.ceil(math.log(LEVEL) / math.log(agreement))
    chosen = math.ceil(1 / (1 - agreement) - 1e-9)
    return max(math.ceil(proof / (1 - _CHOSEN)), math.ceil(chosen / _CHOSEN))


def _temperature(scores: Floats, answers: NDArray[np.intp]) -> float:
    """By which the proxy's confidence says how probably the full function agrees; 1 if nothing tells."""
    known = (answers >= 0) & np.isfinite(scores).all(axis=1)
    if not known.any() or scores.shape[1] < 2:
        return 1.0
    return fit_temperature(log_floored(scores[known]).T, answers[known])


def _judged(scores: Floats, answers: NDArray[np.intp], temperature: float) -> tuple[Floats, Bools]:
    """By row: how sure the proxy is, −∞ where it has no answer; and whether the full function disagrees."""
    has_answer = np.isfinite(scores).all(axis=1)
    logs = calibrated(log_floored(np.nan_to_num(scores)), temperature, axis=-1)
    sure = np.where(has_answer, np.exp(logs.max(axis=1)), -np.inf)
    return sure, has_answer & (scores.argmax(axis=1) != answers)


def _candidates(sure: Floats) -> list[float]:
    """Thresholds to try, the highest first: quantiles of the confidences that there were."""
    finite = sure[np.isfinite(sure)]
    if not len(finite):
        return []
    shares = np.linspace(0, 1, _CANDIDATES, endpoint=False)
    found: list[float] = np.unique(np.quantile(finite, shares, method="lower")).tolist()
    return found[::-1]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
