"""`make bench-cascade`: how often a proxy answers as the full function on rows never used; what it saves.

    python -m tests.benchmarks.cascade --demo .demo --seeds 40

photos    the demo's trained models (`make demo` makes them) on photos drawn anew: the ensemble's cheapest
          member before all of them, and before its dearest one
texts     a head on embeddings before a network that reads every character; both are trained here

A running server says once what every model answers to every row, and what a row takes of the device by its
learned latencies. Then, for each seed, other rows find the threshold, as a deployment does, and all the rest
judge it. A seed gives every proxy and every agreement the same rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.table import Table

from examples.foodlog.draw import Album, draw_album
from ml_udf.training import TrainingCalls
from server.ensemble.log_pool import calibrated, log_floored
from server.ensemble.proxy import ProxyFit, fit_proxy
from tests.benchmarks.report import console, write_json
from tests.inference_server import InferenceServer, inference_server
from tests.task_models import words_model

Floats = NDArray[np.float64]
AGREEMENTS = (0.9, 0.95, 0.98, 0.99)
_AT_A_TIME = 200
_WORDS = {
    "good": ["wonderful", "lovely", "delicious", "fine", "great", "warm", "crisp", "kind", "fresh", "bright"],
    "bad": ["awful", "bland", "burnt", "poor", "sad", "cold", "soggy", "rude", "stale", "dull"],
}


@dataclass(frozen=True)
class Case:
    """A proxy before a function. scores: [rows, classes] of the proxy; answers: [rows] of the function.

    proxy_s, full_s, rest_s: device seconds of a row: on the proxy, on the function, on what is asked after
    the proxy.
    """

    name: str
    scores: Floats
    answers: NDArray[np.intp]
    proxy_s: float
    full_s: float
    rest_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cascade")
    parser.add_argument("--demo", type=Path, default=Path(".demo"))
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--shown-by", type=int, default=800, help="rows that find the threshold")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--parts", nargs="+", choices=("photos", "texts"), default=["photos", "texts"])
    parser.add_argument("--larger", default="temporal_cnn", help="the network that reads texts")
    given = parser.parse_args(arguments)
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as folder:
        if "photos" in given.parts:
            cases += _photos(Path(folder) / "photos", given.demo, given.photos)
        if "texts" in given.parts:
            cases += _texts(Path(folder) / "texts", given.texts, given.larger)
    told = [
        _judged(case, agreement, given.shown_by, given.seeds) for case in cases for agreement in AGREEMENTS
    ]
    _print(told, given.shown_by, given.seeds)
    write_json("cascade", {"shown_by": given.shown_by, "seeds": given.seeds, "cases": told})


def _judged(case: Case, agreement: float, rows: int, seeds: int) -> dict[str, Any]:
    """Of a proxy, over the seeds: how often it was used, and what it did on the rows that were left."""
    agreements: list[float] = []
    shares: list[float] = []
    reasons: list[str] = []
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(case.answers))
        ours, others = order[:rows], order[rows:]
        found = fit_proxy("proxy", ["full"], case.scores[ours], case.answers[ours], agreement)
        if not isinstance(found, ProxyFit):
            reasons.append(found.reason)
            continue
        logs = calibrated(log_floored(case.scores[others]), found.temperature, axis=-1)
        sure = np.exp(logs.max(axis=1)) >= found.levels[0].threshold
        same = case.scores[others].argmax(axis=1) == case.answers[others]
        agreements.append(float((~sure | same).mean()))
        shares.append(float(sure.mean()))
    saved = [1 - (case.proxy_s + (1 - share) * case.rest_s) / case.full_s for share in shares]
    return {
        "case": case.name,
        "rows_judged": len(case.answers) - rows,
        "agreement": agreement,
        "alone": float((case.scores.argmax(axis=1) == case.answers).mean()),
        "used": len(shares),
        "refused": len(reasons),
        "kept": sum(each >= agreement for each in agreements),
        "agreements": agreements,
        "shares": shares,
        "saved": saved,
        "device_ms": {"proxy": case.proxy_s * 1e3, "full": case.full_s * 1e3, "rest": case.rest_s * 1e3},
        "a_reason": reasons[0] if reasons else None,
    }


def _print(told: Sequence[dict[str, Any]], rows: int, seeds: int) -> None:
    table = Table(
        "",
        "asked for",
        "used / refused",
        "kept on rows never used",
        "agreement there (least)",
        "answered by the proxy",
        "device time saved",
        title=f"{seeds} seeds, the threshold shown by {rows} rows",
    )
    for each in told:
        used = each["used"]
        mean = [
            float(np.mean(each[name])) if used else float("nan") for name in ("agreements", "shares", "saved")
        ]
        table.add_row(
            f"{each['case']} (alone {100 * each['alone']:.1f} %)",
            f"{each['agreement']:g}",
            f"{used} / {each['refused']}",
            f"{each['kept']} of {used}",
            f"{mean[0]:.4f} ({min(each['agreements'], default=float('nan')):.4f})",
            f"{100 * mean[1]:.0f} %",
            f"{100 * mean[2]:.0f} %",
        )
    console.print(table)


def _photos(folder: Path, demo: Path, count: int) -> list[Case]:
    models = demo / "home" / "models"
    told = json.loads((demo / "home" / "functions" / "udf_food_name.json").read_text())
    members = [f"{each['model']}/{each['version']}" for each in told["members"]]
    known = {path.name: path for path in models.iterdir()}
    found = dict.fromkeys([*members, *(f"{name}/1" for name in known if name.startswith("food_"))])
    names = [name for name in found if (models / name).is_dir() and "features" not in name]
    draw_album(folder, Album(images=count, rows=count, seed=20_261_123))
    with (folder / "labels.csv").open() as file:
        paths = [row["image_path"] for row in csv.DictReader(file)]
    with inference_server(folder / "served", media_roots=[folder / "images"]) as server:
        for name in names:
            server.deploy(models / name)
        asked = {name: _asked(server, name.partition("/")[0], "image_path", paths) for name in names}
    cost_s = {name: asked[name][1] for name in names}
    cheap, dear = min(names, key=lambda name: cost_s[name]), max(names, key=lambda name: cost_s[name])
    together = np.mean([asked[name][0] for name in names], axis=0).argmax(axis=1)
    all_s, classes = sum(cost_s.values()), asked[dear][0].argmax(axis=1)
    return [
        Case(
            f"photos: {cheap} of {len(names)} → all, their mean",
            asked[cheap][0],
            together,
            cost_s[cheap],
            all_s,
            all_s - cost_s[cheap],
        ),
        Case(
            f"photos: {cheap} → {dear}",
            asked[cheap][0],
            classes,
            cost_s[cheap],
            cost_s[dear],
            cost_s[dear],
        ),
    ]


def _texts(folder: Path, count: int, larger: str) -> list[Case]:
    rows = _opinions(2500, 1)
    texts = [text for text, _ in _opinions(count, 2)]
    with inference_server(folder / "served") as server, server.client() as client:
        server.deploy(words_model(folder / "made", [word for words in _WORDS.values() for word in words]))
        calls = TrainingCalls(client)
        batch = pa.record_batch({"t": [text for text, _ in rows], "m": [mood for _, mood in rows]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        calls.push(
            {"name": "moods", "query": "-", "target": "m", "key": "t", "task": "text-classification"},
            iter([sink.getvalue().to_pybytes()]),
        )
        small = _trained(calls, {"dataset": "moods", "backbone": "words", "budget": "4 trials"})
        large = _trained(
            calls, {"dataset": "moods", "models": [larger], "budget": "2 trials", "max_epochs": 8}
        )
        (head,) = calls.deploy(small, "head", choose="best")["models"]
        (full,) = calls.deploy(large, "full", choose="best")["models"]
        told, cost_s = _asked(server, head.partition("/")[0], "text", texts)
        answers, full_s = _asked(server, full.partition("/")[0], "text", texts)
    name = f"texts: a head on embeddings → {larger}"
    return [Case(name, told, answers.argmax(axis=1), cost_s, full_s, full_s)]


def _trained(calls: TrainingCalls, job: dict[str, Any]) -> int:
    number = int(calls.train(job)["id"])
    while (known := calls.job(number))["state"] == "running":
        time.sleep(0.5)
    assert known["state"] == "done", known["reason"]
    return number


def _opinions(count: int, seed: int) -> list[tuple[str, str]]:
    """(text, mood): of five words that tell, up to two of the other mood; of ten texts one denies them."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        mood, other = ("good", "bad") if number % 2 else ("bad", "good")
        against = draw.choices([0, 1, 2], [5, 3, 2])[0]
        denied = draw.random() < 0.1
        pairs = (other, mood) if denied else (mood, other)
        words = [draw.choice(_WORDS[pairs[place < against]]) for place in range(5)]
        draw.shuffle(words)
        told = f"not at all {' or '.join(words)}" if denied else " ".join(words)
        rows.append((f"{seed}/{number} {told}", mood))
    return rows


def _asked(server: InferenceServer, model: str, kind: str, rows: Sequence[str]) -> tuple[Floats, float]:
    """What a model says of all rows, [rows, classes], and the device seconds of a row at the end."""
    told: list[Floats] = []
    row_s = 0.0
    for first in range(0, len(rows), _AT_A_TIME):
        part = list(rows[first : first + _AT_A_TIME])
        body = {
            "inputs": [{"name": kind, "datatype": "BYTES", "shape": [len(part)], "data": part}],
            "outputs": [{"name": "scores"}, {"name": "device_seconds"}],
        }
        request = Request(
            f"{server.url}/v2/models/{model}/infer",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=600) as reply:
            scores, seconds = json.load(reply)["outputs"]
        told.append(np.array(scores["data"], np.float64).reshape(len(part), -1))
        row_s = float(seconds["data"][0])
    return np.concatenate(told), row_s


if __name__ == "__main__":
    main()
