"""A server whose models come and go, for the live parts of bench-residency: its models, requests, what moved.

Models lie in its home folder before it starts, where it finds and registers them: a thousand take seconds.
They answer under their own names, by the server's defaults.
"""

from __future__ import annotations

import json
import re
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from server.scheduling.latency_model import LatencyModel
from server.store.latencies import LatencyFiles
from tests.benchmarks.load_generator import request_bytes
from tests.inference_server import InferenceServer
from tests.models import hashing_model
from tests.waiting import wait_until

__all__ = [
    "LoadTimes",
    "add_models",
    "evictions_logged",
    "infer_request",
    "l_hat_of",
    "load_times",
    "loads_logged",
    "loads_total",
    "resident",
    "wait_for_quiet",
    "warm_up",
]

_PATIENCE_S = 60.0
_TIMES = 3  # that each size runs, so that l̂ is known


@dataclass(frozen=True)
class LoadTimes:
    """Of what the server remembers of loads and evictions; medians, seconds."""

    loads: int
    load_s: float
    eviction_s: float

    @property
    def swap_s(self) -> float:
        """What a place stays empty for."""
        return self.load_s + self.eviction_s


def add_models(home: Path, names: Sequence[str], **options: Any) -> None:
    """Hashing models, for a server that has not been started yet."""
    for name in names:
        hashing_model(home / "models", name, **options)


def infer_request(server: InferenceServer, model: str, text: str, *, timeout_s: float = 0.0) -> bytes:
    """One row; timeout_s: after which nobody wants the answer, 0 = never."""
    parameters = {"timeout": int(timeout_s * 1e6)} if timeout_s else {}
    return request_bytes(server.url, _path(model), json.dumps(_body([text], parameters)).encode())


def warm_up(server: InferenceServer, models: Sequence[str], sizes: Sequence[int]) -> None:
    """Each model is loaded while no rows wait, which measures it, and asked for every size."""
    with server.client() as client:
        for model in models:
            client.post(f"/v2/repository/models/{model}/load", {})
            for rows in (*sizes,) * _TIMES:
                client.post(_path(model), _body([f"{rows} {row}" for row in range(rows)], {}))


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _body(texts: Sequence[str], parameters: dict[str, Any]) -> dict[str, Any]:
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    return {"parameters": parameters, "inputs": [tensor]}


# ── what is where, what moved ────────────────────────────────────────────────────────────────────────


def resident(server: InferenceServer) -> list[str]:
    """The names of the models on its device, used longest ago first."""
    with server.client() as client:
        rows = client.get("/v1/residency")["residency"]
    on_device = [row for row in rows if row["tier"] == "device"]
    on_device.sort(key=lambda row: (row["last_used"] or "", row["model"]))
    return [row["model"].partition("/")[0] for row in on_device]


def wait_for_quiet(server: InferenceServer, models: int = 0, for_s: float = 0.3) -> None:
    """Until nothing has moved for a while, and it holds that many models. Raises TimeoutError."""
    since_s = time.monotonic()

    def is_quiet() -> bool:
        nonlocal since_s
        with server.client() as client:
            workers = client.get("/v1/residency")["workers"]
        is_still = [one["moving"] is None and one["models"] >= models for one in workers]
        if not is_still or not all(is_still):
            since_s = time.monotonic()
        return time.monotonic() - since_s > for_s

    wait_until(is_quiet, _PATIENCE_S)


def load_times(server: InferenceServer) -> LoadTimes:
    """Of the last moves that were carried out."""
    with server.client() as client:
        events = client.get("/v1/residency")["residency_events"]
    took_s: dict[str, list[float]] = {"load": [], "eviction": []}
    for event in events:
        if event["outcome"] == "done":
            took_s[event["event"]].append(event["took_s"])
    loads, evictions = took_s["load"], took_s["eviction"]
    return LoadTimes(len(loads), statistics.median(loads or [0.0]), statistics.median(evictions or [0.0]))


def loads_total(server: InferenceServer) -> int:
    """Loads since it was started."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=_PATIENCE_S) as reply:
        lines = reply.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("ml_udf_loads_total")))


def loads_logged(server: InferenceServer) -> list[float]:
    """When a model was loaded: Unix times, all starts of the server together."""
    found = re.findall(r"^(\S+) .*model loaded ", server.log, re.M)
    return [datetime.fromisoformat(at).timestamp() for at in found]


def evictions_logged(server: InferenceServer, model: str) -> int:
    """How often that model has left."""
    return len(re.findall(rf"model evicted worker=\S+ model={re.escape(model)}/", server.log))


def l_hat_of(home: Path, model: str) -> LatencyModel:
    """l̂ of texts, as a server that has been stopped had learned it. Raises ValueError if it had not."""
    state = LatencyFiles(home).read(f"{model}/1")
    kinds = [] if state is None else LatencyModel.from_json(state).kinds("text")
    if len(kinds) != 1:
        raise ValueError(f"l̂ of {model} is known on {len(kinds)} kinds of device, not on one")
    return kinds[0]
