"""What `capacity_live --variants` serves: a network in float32 and int8, and functions that may ask both."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

import ml_udf.duckdb
from tests.benchmarks.capacity_live import GOAL_S
from tests.benchmarks.load_generator import request_bytes
from tests.benchmarks.report import say
from tests.benchmarks.variants import drawn, trained
from tests.inference_server import InferenceServer
from tests.waiting import wait_until

ARCHITECTURE = "vgg"  # some 2 ms a row of a core in float32, and less than half of that in int8
PHOTOS, EPOCHS = 400, 3
FUNCTION = "udf_dish"
ROWS = (1, 4, 16, 64)  # of the batches by which l̂ is known before the load
TIMES = 4
MADE_WITHIN_S = 300.0


def services_of(folder: Path) -> dict[str, Variants]:
    """The network, trained once: in float32 alone, behind a wish, and behind a choice row by row."""
    say(f"{ARCHITECTURE} is trained on {PHOTOS} drawn dishes for {EPOCHS} epochs")
    photos = drawn(folder, PHOTOS)
    model = trained(folder / "models", ARCHITECTURE, photos, EPOCHS)
    with photos.csv.open() as file:
        rows = [(row["path"], row["label"], row["split"]) for row in csv.DictReader(file)]
    kept = [(path, label) for path, label, split in rows if split == "test"]
    by_row = {"models": [ARCHITECTURE], "variants": ["original", "int8"]}
    specs = {"float32 by its name": {"models": [ARCHITECTURE]}, "by wish": None, "row by row": by_row}
    return {title: Variants(folder, model, kept, spec) for title, spec in specs.items()}


class Variants:
    """spec: of the function; None = a wish that both variants are accurate enough for.

    rows: paths and labels of photos that have not taught the network.
    """

    def __init__(
        self, folder: Path, model: Path, rows: Sequence[tuple[str, str]], spec: dict[str, Any] | None
    ) -> None:
        self.flags: Sequence[str] = (
            f"--media-root={folder}",
            f"--connections-file={folder / 'connections.toml'}",
        )
        self._model = model
        self._rows = rows
        self._spec = spec

    def deploy(self, server: InferenceServer) -> None:
        server.deploy(self._model)
        self._make_dataset(server)
        with server.client() as client:
            client.post(
                f"/v1/models/{ARCHITECTURE}/variants",
                {"only": ["int8"], "max_accuracy_loss": 0.1, "dataset": "dishes"},
            )
            wait_until(lambda: len(self._variants(server)) > 1, MADE_WITHIN_S)
            known = self._variants(server)
            least = min(one["accuracy_low"] for one in known)
            say(", ".join(f"{one['key']} right on {one['accuracy']:.3f}" for one in known))
            wants = {"purpose": ARCHITECTURE, "min_accuracy": least, "slo_ms": GOAL_S * 1e3}
            spec = {"wants": wants} if self._spec is None else {**self._spec, "slo_ms": GOAL_S * 1e3}
            client.put(f"/v1/functions/{FUNCTION}", spec)
            for one in known:
                name = one["key"].rpartition("/")[0]
                client.post(f"/v2/repository/models/{name}/load", {})
            for rows in ROWS * TIMES:
                client.post(f"/v2/models/{FUNCTION}/infer", self._body(range(rows)))

    def request(self, server: InferenceServer, number: int) -> bytes:
        body = json.dumps(self._body([number])).encode()
        return request_bytes(server.url, f"/v2/models/{FUNCTION}/infer", body)

    def _body(self, numbers: Sequence[int]) -> dict[str, Any]:
        paths = [self._rows[number % len(self._rows)][0] for number in numbers]
        return {
            "inputs": [{"name": "image_path", "shape": [len(paths)], "datatype": "BYTES", "data": paths}],
            "outputs": [{"name": "label"}, {"name": "answered_by"}],
        }

    def _make_dataset(self, server: InferenceServer) -> None:
        with contextlib.closing(duckdb.connect()) as con:
            con.execute("CREATE TABLE dishes (image_path VARCHAR, label VARCHAR)")
            con.executemany("INSERT INTO dishes VALUES (?, ?)", list(self._rows))
            registration = ml_udf.duckdb.register(con, server.url)
            con.execute(
                "SELECT ml_udf.create_dataset('dishes', $$SELECT image_path, label FROM dishes$$,"
                " target => 'label', key => 'image_path')"
            ).fetchall()
            registration.close()

    def _variants(self, server: InferenceServer) -> list[dict[str, Any]]:
        with server.client() as client:
            told = client.get(f"/v1/variants?model={ARCHITECTURE}")
        if told["failed"]:
            raise RuntimeError(f"a variant was not made: {told['failed']}")
        found: list[dict[str, Any]] = told["variants"]
        refused = [one for one in found if one["refused"]]
        if refused:
            raise RuntimeError(f"a variant is not offered: {refused}")
        return [one for one in found if one["accuracy"] is not None]
