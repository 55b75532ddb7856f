"""Faults under load: the best member's worker is slowed, then killed, then its weights are spoilt.

Each member lives on a worker of its own, and the function follows `value`. Throughout rows come at a part of
what the best member could answer. After each fault: whether answers went on, how long none came at most, how
many were right, and what an operator would read. Spoilt, the member is sure and wrong; then 100 rows are
labelled, and the accuracy must be back.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file, save_file

from ml_udf.client import Client
from ml_udf.errors import MlUdfError
from server.ensemble.fit import combined
from server.scheduling.simulation.arrivals import poisson
from tests.benchmarks.ensembles_live_food import FUNCTION, FoodEnsemble
from tests.benchmarks.ensembles_live_load import ask_by, capacities, goal_ms
from tests.benchmarks.ensembles_live_rows import Asking, Row, Summary, live_rows, summary
from tests.benchmarks.load_generator import replay
from tests.benchmarks.report import say
from tests.benchmarks.throttle import throttled
from tests.inference_server import ANEW, InferenceServer, inference_server

__all__ = ["Spans", "faults"]

_LOAD = 0.4  # of the best member's capacity
_GIVES_UP_S = 30.0
_LABELLED = 100
_AT_ONCE = 10  # labelled rows in a request
_BACK = 0.9  # of the accuracy that was there before
_SLOWER = 10.0
_BEGINS_S = 0.5  # into the rows that come
_READY_S = 60.0
_SHOWN_LINES = 6
_STATIC = {  # of a function: what does not change while it is served
    "batch_sizes",
    "classes",
    "default",
    "features",
    "format",
    "input",
    "inputs",
    "is_model",
    "max_batch",
    "media_roots",
    "min_confidence",
    "models",
    "outputs",
    "policy",
    "policy_options",
    "slo_ms",
    "task",
    "version",
    "versions",
}


@dataclass(frozen=True)
class Spans:
    """How long rows come in each part; of a capacity."""

    each_s: float
    capacity_s: float


@dataclass
class _Bench:
    server: InferenceServer
    food: FoodEnsemble
    home: Path
    spans: Spans
    rate: float
    within_s: float
    asking: Asking
    log_at: int
    shown: dict[str, Any] = field(default_factory=dict)  # of the function, when it was last looked at

    @property
    def member(self) -> str:
        """The model that fails, NAME/VERSION."""
        return self.food.models[self.food.best]

    def get(self, path: str) -> Any:  # JSON
        with contextlib.closing(Client(self.server.url)) as client:
            return client.get(path)

    def worker(self) -> dict[str, Any] | None:
        """The worker that holds the member; None while none does."""
        for worker in self.get("/v1/workers")["workers"]:
            if self.member in worker["resident"] and worker["state"] == "up":
                return dict(worker)
        return None

    def pid(self) -> int:
        """Of the member's worker. Raises TimeoutError if none comes to hold it."""
        end_s = time.monotonic() + _READY_S
        while (worker := self.worker()) is None:
            if time.monotonic() > end_s:
                raise TimeoutError(f"no worker held {self.member} within {_READY_S:g} s")
            time.sleep(0.1)
        return int(worker["pid"])

    def rows(self, seconds: float, act: Callable[[], None] | None = None) -> list[Row]:
        """Rows come for so long; `act` is called meanwhile, soon after they begin, and waited for."""
        random = Random(1)  # the same photos in every part, so that parts are paired
        arrivals_s = poisson(random, self.rate, seconds)
        picks = [random.randrange(_LABELLED, len(self.food.photos)) for _ in arrivals_s]
        requests = self.asking.requests([self.food.photos[pick] for pick in picks])
        failed: list[Exception] = []

        def acting() -> None:
            time.sleep(_BEGINS_S)
            try:
                assert act is not None
                act()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=acting)
        if act is not None:
            thread.start()
        found = asyncio.run(replay(self.server.url, arrivals_s, requests, keeps_answers=True))
        if act is not None:
            thread.join()
        if failed:
            raise failed[0]
        return live_rows(found.outcomes, [self.food.labels[pick] for pick in picks])


def faults(food: FoodEnsemble, spans: Spans) -> dict[str, Any]:
    """Run all parts, print each, and say what is kept as JSON."""
    with ExitStack() as stack:
        home = stack.enter_context(food.home())
        flags = [f"--workers={len(food.fit.members)}", "--resident-models=1", "--threads=1"]
        server = stack.enter_context(
            inference_server(home, media_roots=[food.media_root], flags=[ANEW, *flags])
        )
        found = capacities(server, food, spans.capacity_s)
        capacity = found[food.fit.members[food.best]]
        slo_ms = goal_ms(capacity)
        input_name = ask_by(server, food, "value", slo_ms)
        asking = Asking(server.url, FUNCTION, input_name, timeout_s=_GIVES_UP_S)
        within_s = slo_ms / 1000 + 0.02
        bench = _Bench(server, food, home, spans, _LOAD * capacity, within_s, asking, len(server.log))
        say(f"{bench.rate:.0f} rows/s, goal {slo_ms} ms; {bench.member} fails, of {', '.join(food.models)}")
        return {"rows_per_s": bench.rate, "slo_ms": slo_ms, "member": bench.member, **_parts(bench)}


def _parts(bench: _Bench) -> dict[str, Any]:
    each_s, told = bench.spans.each_s, dict[str, Any]()

    def part(name: str, rows_of: Callable[[], Sequence[Row]]) -> float:
        """The accuracy; NaN where the part failed, which is said."""
        try:
            rows = rows_of()
        except Exception as error:
            told[name] = {"failed": repr(error)}
            say(f"\n{name}: failed: {error!r}")
            return math.nan
        found = summary(rows, bench.within_s)
        told[name] = {**found.to_json(), "refused_as": _refusals(rows)}
        _say(name, found, rows)
        _read(bench)
        return found.accuracy

    def slowed() -> list[Row]:
        with contextlib.ExitStack() as slow:
            return bench.rows(each_s, lambda: slow.enter_context(throttled(bench.pid(), _SLOWER)))

    def killed() -> list[Row]:
        rows = bench.rows(each_s, lambda: os.kill(bench.pid(), signal.SIGKILL))
        bench.pid()  # the next part begins when it is back
        return rows

    def killed_and_spoilt() -> list[Row]:
        _spoil(bench.home / "models" / bench.member, len(bench.food.classes))
        return killed()

    took_s: list[float] = []
    bench.rows(each_s / 2)
    healthy = part("healthy", lambda: bench.rows(each_s))
    part(f"its worker is {_SLOWER:g} times slower", slowed)
    part("its worker is as fast as before", lambda: bench.rows(each_s / 2))
    part("its worker is killed", killed)
    part("killed, and loaded again with spoilt weights", killed_and_spoilt)
    spoilt = part("it answers with spoilt weights", lambda: bench.rows(each_s))
    part(f"{_LABELLED} rows are labelled", lambda: bench.rows(each_s, lambda: took_s.append(_label(bench))))
    back = part("afterwards", lambda: bench.rows(each_s))
    share, others = back / healthy, _without(bench)
    say(
        f"\naccuracy {100 * healthy:.1f} % healthy, {100 * spoilt:.1f} % spoilt, {100 * back:.1f} % after"
        f" {_LABELLED} labels ({sum(took_s):.1f} s): {share:.3f} of it is back; goal {_BACK:g}:"
        f" {'met' if share >= _BACK else 'MISSED'}"
    )
    say(f"without {bench.member} the others name {100 * others:.1f} % of the held-out photos, by the fit")
    return {
        "parts": told,
        "labelled_rows": _LABELLED,
        "labelling_s": sum(took_s),
        "accuracy_back": share,
        "accuracy_of_the_others": others,
    }


def _without(bench: _Bench) -> float:
    """How accurate the other members are together, as they were fitted: what can be back."""
    food = bench.food
    others = tuple(member for member in range(len(food.models)) if member != food.best)
    answers = combined(food.fit, others, food.scores[list(others)]).argmax(axis=1)
    return float((answers == food.truth).mean())


def _label(bench: _Bench) -> float:
    """Say what is right of the photos that nobody asks about; seconds."""
    began_s = time.perf_counter()
    photos, labels = bench.food.photos[:_LABELLED], bench.food.labels[:_LABELLED]
    with contextlib.closing(Client(bench.server.url)) as client:
        for at in range(0, _LABELLED, _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            body = {"function": FUNCTION, "inputs": list(photos[part]), "labels": list(labels[part])}
            told = client.post("/v1/feedback", body)
            if told["outcomes"] != ["counted"] * _AT_ONCE:
                raise RuntimeError(f"labels were not counted: {told['outcomes']}, {told['errors']}")
    return time.perf_counter() - began_s


def _spoil(folder: Path, classes: int) -> None:
    """Each class gets the next one's weights: as sure as before, and wrong.

    As somebody would who replaces a model's file in its place, and knows of the checksum.
    """
    manifest = json.loads((folder / "model.json").read_text())
    weights = folder / manifest["weights"]
    state = load_file(weights)
    last = [name for name, tensor in state.items() if tensor.shape[:1] == (classes,)]
    if not last:
        raise RuntimeError(f"no tensor of {weights} has {classes} rows")
    save_file({name: each.roll(1, 0) if name in last else each for name, each in state.items()}, weights)
    manifest["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(manifest))


def _refusals(rows: Sequence[Row]) -> dict[str, int]:
    """Statuses and words of the rows that were not answered, and how many of each; the most frequent ones."""
    said = Counter(f"{row.status} {row.said[:160]}".strip() for row in rows if row.status != 200)
    return dict(said.most_common(3))


def _say(name: str, found: Summary, rows: Sequence[Row]) -> None:
    say(f"\n{name}")
    say(
        f"  {found.rows:,} rows, {100 * (1 - found.refused):.2f} % answered,"
        f" {100 * found.in_time:.1f} % in time, the slowest after {found.slowest_s:.2f} s,"
        f" {1000 * found.longest_gap_s:.0f} ms at most without an answer (at {found.gap_at_s:.1f} s);"
        f" accuracy {100 * found.accuracy:.1f} %, {found.members:.2f} members"
    )
    for said, count in _refusals(rows).items():
        say(f"  {count} rows: {said}")


def _read(bench: _Bench) -> None:
    """What an operator would read now; of the function what is new."""
    try:
        function = bench.get(f"/v1/functions/{FUNCTION}")
        workers = bench.get("/v1/workers")["workers"]
    except MlUdfError as error:
        say(f"  the server does not say how it is: {error}")
        return
    shown = {name: value for name, value in function.items() if name not in _STATIC and value is not None}
    new = {name: value for name, value in shown.items() if bench.shown.get(name) != value}
    gone = [name for name in bench.shown if name not in shown]
    bench.shown = shown
    if new or gone:
        say(f"  function: {json.dumps(new)}" + (f"; no more {', '.join(gone)}" if gone else ""))
    for worker in workers:
        held = ", ".join(worker["resident"]) or "nothing"
        why = f"; at {worker['last_error_at']}: {worker['last_error']}" if worker["last_error"] else ""
        text = f"  {worker['name']}: {worker['state']}, {worker['restarts']} restarts, holds {held}{why}"
        say(text)
    log = bench.server.log
    since, bench.log_at = log[bench.log_at :], len(log)
    told = [line for line in since.splitlines() if " WARNING " in line or " ERROR " in line]
    for line in told[:_SHOWN_LINES]:
        say(f"  log: {line[:300]}")
    if len(told) > _SHOWN_LINES:
        say(f"  log: … {len(told) - _SHOWN_LINES} more")
