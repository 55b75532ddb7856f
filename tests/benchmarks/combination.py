"""`make bench-combination`: rules of combination, on rows that nothing was fitted on.

Real members of scikit-learn: trained on one part of the rows, fitted on another (the validation rows that a
study has), judged on a third, over splits that nothing was chosen by. For every subset of two and more: the
share of test rows that each rule answers rightly, and how far its confidence is from that. Digits are split
by image, whatever was made of them.

`served` is what a deployment would choose by its validation rows (`choose_combination`).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from server.ensemble.fit import combined, fit_combination
from server.ensemble.log_pool import at_temperatures
from server.training.promotion.combination import choose_combination
from tests.benchmarks.report import console, write_json

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.intp]
RULES = ("best member", "majority_vote", "mean", "calibrated mean", "log_pool", "served")


@dataclass(frozen=True)
class Member:
    """A model and the columns that it sees; None = all."""

    model: Any
    columns: Sequence[int] | None = None


@dataclass(frozen=True)
class Rows:
    """groups: rows of one number are never in two parts."""

    inputs: Floats
    labels: Ints
    groups: Ints


@dataclass(frozen=True)
class Case:
    """What is asked, and of whom, for one split."""

    rows: Callable[[np.random.Generator], Rows]
    members: Callable[[np.random.Generator], list[Member]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rules of combination on held-out rows.")
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--fitted-on", type=int, nargs="+", default=[0, 100], help="rows; 0 = all there are")
    options = parser.parse_args()
    measured = []
    for name in options.cases:
        predicted = [predict(CASES[name], seed) for seed in range(options.splits)]
        for most in options.fitted_on:
            found = [judge(*one, most) for one in predicted]
            one = {"case": name, "members": len(predicted[0][0]), **_mean_of(found)}
            measured.append(one)
            _show(one, options.splits)
    write_json("combination", {"splits": options.splits, "rules": list(RULES), "cases": measured})


def predict(case: Case, seed: int) -> tuple[Floats, Ints, Ints, Floats, Ints]:
    """What the members say: validation [members, rows, classes], labels, groups; test, labels."""
    rng = np.random.default_rng(seed)
    rows = case.rows(rng)
    part = rng.permutation(int(rows.groups.max()) + 1)[rows.groups] % 10
    train, validation, test = part < 4, (part >= 4) & (part < 7), part >= 7
    told: tuple[list[Floats], list[Floats]] = ([], [])
    for member in case.members(rng):
        columns = slice(None) if member.columns is None else list(member.columns)
        model = make_pipeline(StandardScaler(), member.model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a weak member has not converged is what makes it weak
            model.fit(rows.inputs[train][:, columns], rows.labels[train])
        for found, those in zip(told, (validation, test), strict=True):
            found.append(model.predict_proba(rows.inputs[those][:, columns]))
    return (
        np.array(told[0]),
        rows.labels[validation],
        rows.groups[validation],
        np.array(told[1]),
        rows.labels[test],
    )


def judge(told: Floats, labels: Ints, groups: Ints, fresh: Floats, truth: Ints, most: int) -> dict[str, Any]:
    """The mean over all subsets of two and more: what each rule answers rightly, and how far off it is."""
    if 0 < most < len(labels):
        told, labels, groups = told[:, :most], labels[:most], groups[:most]
    began_s = time.perf_counter()
    fit = fit_combination(told, labels, groups=groups)
    fit_s = time.perf_counter() - began_s
    alone = (told.argmax(axis=2) == labels).mean(axis=1)
    names = [str(place) for place in range(len(told))]
    heated = at_temperatures(fresh, fit.temperatures)
    right: dict[str, list[float]] = {rule: [] for rule in RULES}
    off: dict[str, list[float]] = {rule: [] for rule in ("mean", "log_pool")}
    chosen = []
    for size in range(2, len(told) + 1):
        for subset in combinations(range(len(told)), size):
            places = list(subset)
            pool = combined(fit, subset, fresh[places])
            mean = fresh[places].mean(axis=0)
            # The better member wins ties: by what is known before the test rows.
            ranked = sorted(places, key=lambda place: -alone[place])
            vote = _vote([fresh[place].argmax(axis=1) for place in ranked], told.shape[2])
            answers = {
                "best member": fresh[ranked[0]].argmax(axis=1),
                "majority_vote": vote,
                "mean": mean.argmax(axis=1),
                "calibrated mean": heated[places].mean(axis=0).argmax(axis=1),
                "log_pool": pool.argmax(axis=1),
            }
            found = choose_combination({names[place]: told[place] for place in places}, labels, groups=groups)
            chosen.append(found.rule)
            answers["served"] = answers[found.rule]
            for rule, answer in answers.items():
                right[rule].append(float((answer == truth).mean()))
            off["mean"].append(_off(mean, truth))
            off["log_pool"].append(_off(pool, truth))
    return {
        "fitted_on": len(labels),
        "test_rows": len(truth),
        "fit_s": fit_s,
        "alone": [float(each) for each in (fresh.argmax(axis=2) == truth).mean(axis=1)],
        "right": {rule: float(np.mean(shares)) for rule, shares in right.items()},
        "off": {rule: float(np.mean(gaps)) for rule, gaps in off.items()},
        "served_log_pool": float(np.mean([rule == "log_pool" for rule in chosen])),
    }


def _vote(ballots: Sequence[Ints], classes: int) -> Ints:
    """Rafiki's: the ballots of the most accurate members first; they part ties and nothing else."""
    votes = np.zeros((len(ballots[0]), classes))
    for place, ballot in enumerate(ballots):
        votes[np.arange(len(ballot)), ballot] += 1 + 0.5 ** (place + 2)
    winners: Ints = votes.argmax(axis=1)
    return winners


def _off(p: Floats, truth: Ints) -> float:
    """The expected calibration error of the confidence, in ten bins of as many rows (Guo et al. 2017)."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == truth
    bins = np.array_split(np.argsort(confidence), 10)
    return float(
        sum(len(rows) * abs(confidence[rows].mean() - right[rows].mean()) for rows in bins if len(rows))
        / len(truth)
    )


def _mean_of(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    return {
        "fitted_on": round(mean([one["fitted_on"] for one in found])),
        "test_rows": round(mean([one["test_rows"] for one in found])),
        "fit_s": mean([one["fit_s"] for one in found]),
        "alone": [mean(each) for each in zip(*(one["alone"] for one in found), strict=True)],
        "right": {rule: mean([one["right"][rule] for one in found]) for rule in RULES},
        "right_by_split": [one["right"] for one in found],
        "off": {rule: mean([one["off"][rule] for one in found]) for rule in found[0]["off"]},
        "served_log_pool": mean([one["served_log_pool"] for one in found]),
    }


def _show(one: Mapping[str, Any], splits: int) -> None:
    alone = " ".join(f"{100 * share:.1f}" for share in one["alone"])
    table = Table(
        *("", "best", "vote", "mean", "cal. mean", "log_pool", "served", "off: mean", "off: pool"),
        title=f"{one['case']}: {one['members']} members ({alone}), fitted on {one['fitted_on']} rows, "
        f"judged on {one['test_rows']}, {splits} splits",
    )
    shares = [f"{100 * one['right'][rule]:.1f}" for rule in RULES]
    table.add_row("% right", *shares, *(f"{100 * gap:.1f}" for gap in one["off"].values()))
    vote = [
        100 * (np.array([split[rule] - split["majority_vote"] for split in one["right_by_split"]]))
        for rule in RULES
    ]
    table.add_row("− vote, ± 95 %", *(f"{d.mean():+.1f} ± {_half(d):.1f}" for d in vote), "", "")
    console.print(table)


def _half(differences: Floats) -> float:
    return float(2 * differences.std(ddof=1) / len(differences) ** 0.5) if len(differences) > 1 else 0.0


# ── cases ───────────────────────────────────────────────────────────────────────────────────────────


def _digits(copies: int, noise: float) -> Callable[[np.random.Generator], Rows]:
    """Digits, of each image so many copies with noise of their own."""

    def drawn(rng: np.random.Generator) -> Rows:
        images, labels = load_digits(return_X_y=True)
        base = np.tile(np.arange(len(labels)), copies)
        return Rows(images[base] + rng.normal(0, noise, (len(base), 64)), labels[base].astype(np.intp), base)

    return drawn


def _table(load: Callable[..., Any]) -> Callable[[np.random.Generator], Rows]:
    def drawn(_: np.random.Generator) -> Rows:
        inputs, labels = load(return_X_y=True)
        return Rows(inputs, labels.astype(np.intp), np.arange(len(labels)))

    return drawn


def _made(rng: np.random.Generator) -> Rows:
    inputs, labels = make_classification(
        4000,
        20,
        n_informative=10,
        n_redundant=4,
        n_classes=4,
        n_clusters_per_class=2,
        class_sep=1.2,
        flip_y=0.05,
        random_state=int(rng.integers(1 << 31)),
    )
    return Rows(inputs, labels.astype(np.intp), np.arange(len(labels)))


def _unequal(rng: np.random.Generator) -> list[Member]:
    """Four that see parts of an image, and err on 5 to 25 % of them."""
    seed = int(rng.integers(1 << 31))
    rows = np.arange(64).reshape(8, 8)
    return [
        Member(MLPClassifier((32,), max_iter=60, random_state=seed)),
        Member(RandomForestClassifier(30, random_state=seed), rows[:5].ravel().tolist()),
        Member(LogisticRegression(max_iter=200), rows[3:].ravel().tolist()),
        Member(GaussianNB()),
    ]


def _peers(rng: np.random.Generator) -> list[Member]:
    seed = int(rng.integers(1 << 31))
    return [
        Member(LogisticRegression(C=0.05, max_iter=200)),
        Member(RandomForestClassifier(60, random_state=seed)),
        Member(MLPClassifier((24,), alpha=1.0, max_iter=30, random_state=seed)),
    ]


def _kinds(rng: np.random.Generator) -> list[Member]:
    seed = int(rng.integers(1 << 31))
    return [
        Member(LogisticRegression(max_iter=300)),
        Member(DecisionTreeClassifier(max_depth=8, random_state=seed)),
        Member(GradientBoostingClassifier(n_estimators=40, random_state=seed)),
        Member(KNeighborsClassifier(9)),
        Member(GaussianNB()),
    ]


def _views(width: int) -> Callable[[np.random.Generator], list[Member]]:
    """Five kinds, each of which sees a few columns that were drawn."""

    def drawn(rng: np.random.Generator) -> list[Member]:
        of = {2: 13, 3: 30}[width]
        return [Member(one.model, rng.choice(of, width, replace=False).tolist()) for one in _kinds(rng)]

    return drawn


CASES: Mapping[str, Case] = {
    "digits, unequal members": Case(_digits(1, 0.0), _unequal),
    "noisy digits, peers": Case(_digits(3, 5.0), _peers),
    "tables, kinds of models": Case(_made, _kinds),
    "cancer, three columns each": Case(_table(load_breast_cancer), _views(3)),
    "wine, two columns each": Case(_table(load_wine), _views(2)),
}


if __name__ == "__main__":
    main()
