"""Training through a full disk and a locked registry: jobs tell the truth, and go on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

import ml_udf.duckdb
from tests.e2e.test_training_inputs import customers
from tests.inference_server import InferenceServer, inference_server

JOB_S = 180.0
# Longer than SQLite itself waits for its lock; ML_UDF_LOCK_SECONDS=60 for longer.
LOCK_S = float(os.environ.get("ML_UDF_LOCK_SECONDS", "35"))
MODELS = ["gradient_boosting", "logistic_regression"]


def train(server: InferenceServer, budget: int, **more: Any) -> int:
    job = {"dataset": "churn", "models": MODELS, "budget": budget, **more}
    return int(httpx.post(f"{server.url}/v1/jobs", json=job).raise_for_status().json()["id"])


def push(server: InferenceServer) -> None:
    """Registers the dataset."""
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE customers"
        " (id INT, age INT, plan VARCHAR, member BOOL, spent DECIMAL(9,2), churned VARCHAR)"
    )
    con.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?, ?)", customers())
    registration = ml_udf.duckdb.register(con, server.url)
    con.execute(
        "SELECT ml_udf.create_dataset('churn', 'SELECT * FROM customers', target => 'churned', key => 'id',"
        " task => 'tabular-classification')"
    ).fetchall()
    registration.close()
    con.close()


def shown(server: InferenceServer, job: int) -> dict[str, Any]:
    reply = httpx.get(f"{server.url}/v1/jobs/{job}", timeout=60.0).raise_for_status()
    found: dict[str, Any] = reply.json()
    return found


def wait_until(server: InferenceServer, job: int, condition: Any) -> dict[str, Any]:
    end_s = time.monotonic() + JOB_S
    while not condition(known := shown(server, job)):
        assert time.monotonic() < end_s, known
        time.sleep(0.1)
    return known


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(where)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no filesystem may be mounted here: {mounted.stderr.decode()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(ballast: Path) -> None:
    """Every byte that is left."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_a_disk_that_fills_while_a_job_trains_stops_nothing_for_good(small_disk: Path) -> None:
    with inference_server(small_disk) as server:
        push(server)
        job = train(server, 60)
        wait_until(server, job, lambda known: known["epochs_used"] >= 3)
        ballast = small_disk / "ballast"
        fill(ballast)
        waiting = wait_until(server, job, lambda known: "pace" in known["reason"])
        assert waiting["state"] == "running"
        for verb in ("pause", "cancel"):
            reply = httpx.post(f"{server.url}/v1/jobs/{job}/{verb}", timeout=60.0)
            if reply.is_success:  # there was room for it after all
                assert shown(server, job)["state"] == reply.json()["state"]
                continue
            assert reply.status_code in (503, 507), reply.text
            assert "space" in reply.json()["error"], reply.text
            assert shown(server, job)["state"] == "running"
        ballast.unlink()
        if shown(server, job)["state"] == "running":
            ended = wait_until(server, job, lambda known: known["state"] != "running")
            assert (ended["state"], ended["epochs_used"]) == ("done", 60)
        other = train(server, 10)
        assert wait_until(server, other, lambda known: known["state"] != "running")["state"] == "done"
        server.stop()
        server.start()
        assert shown(server, job)["state"] != "running", "what was ended stays so over a restart"


def test_a_registry_locked_for_long_while_a_job_trains_fails_no_job(tmp_path: Path) -> None:
    with inference_server(tmp_path) as server:
        push(server)
        job = train(server, 40)
        wait_until(server, job, lambda known: known["epochs_used"] >= 3)
        with contextlib.closing(sqlite3.connect(tmp_path / "registry.db", timeout=30.0)) as registry:
            registry.isolation_level = None
            registry.execute("BEGIN IMMEDIATE")
            locked_s = time.monotonic()
            while time.monotonic() < locked_s + LOCK_S:
                known = shown(server, job)
                assert known["state"] == "running"
                time.sleep(0.5)
            assert known["epochs_used"] == 40, "training went on"
            assert "it is done, which" in known["reason"]
            registry.execute("ROLLBACK")
        assert wait_until(server, job, lambda known: known["state"] != "running")["state"] == "done"
        listed = httpx.get(f"{server.url}/v1/jobs").json()
        assert [(found["id"], found["epochs_used"]) for found in listed["jobs"]] == [(job, 40)]
