"""Through a full disk and a locked registry jobs tell the truth and go on, rows and deployments too."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

import ml_udf.duckdb
from ml_udf.client import Client
from tests.e2e.test_training_inputs import customers
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, label_of

JOB_S = 180.0
LOCKS_S = (20.0, 60.0)  # shorter and longer than a write waits for SQLite's lock
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
        job = train(server, 30)
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
            assert (ended["state"], ended["epochs_used"]) == ("done", 30)
        other = train(server, 4)
        assert wait_until(server, other, lambda known: known["state"] != "running")["state"] == "done"
        server.stop()
        server.start()
        assert shown(server, job)["state"] != "running", "what was ended stays so over a restart"


@contextlib.contextmanager
def locked(registry: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(registry, timeout=30.0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def slo_ms(server: InferenceServer) -> float:
    return float(httpx.get(f"{server.url}/v1/functions/udf_text").raise_for_status().json()["slo_ms"])


def deploy(server: InferenceServer, slo_ms: float) -> httpx.Response:
    body = {"models": ["text_hash"], "slo_ms": slo_ms}
    return httpx.put(f"{server.url}/v1/functions/udf_text", json=body, timeout=JOB_S)


def see_through_a_lock(home: Path, lock_s: float) -> None:
    """Rows are answered, a deployment is made or refused whole, and a job goes on or says why it waits."""
    with (
        inference_server(home / "home") as server,
        ThreadPoolExecutor(1) as pool,
        contextlib.closing(Client(server.url)) as client,
    ):
        server.deploy(hashing_model(home / "made", "text_hash"), "udf_text", slo_ms=400)
        push(server)
        job = train(server, 40)
        begun = wait_until(server, job, lambda known: known["epochs_used"] >= 3)
        with locked(home / "home" / "registry.db"):
            locked_s = time.monotonic()
            deploying = pool.submit(deploy, server, 300)
            number = 0
            known = begun
            while time.monotonic() < locked_s + lock_s:
                number += 1
                asked_s = time.monotonic()
                answer = client.predict("udf_text", [f"row {number}"])
                assert list(answer.values) == [label_of(f"row {number}")]
                assert time.monotonic() - asked_s < 5.0
                assert slo_ms(server) == 400
                known = shown(server, job)
                assert known["state"] == "running"
                time.sleep(0.5)
            assert known["epochs_used"] > begun["epochs_used"], "it went on while the lease held"
            if known["epochs_used"] < 40:
                assert "it waits: this server's lease" in known["reason"]
            else:
                assert any(why in known["reason"] for why in ("it is done, which", "it waits: this"))
        reply = deploying.result(JOB_S)
        if lock_s == max(LOCKS_S):
            assert (reply.status_code, slo_ms(server)) == (503, 400)
            assert "locked, and nothing was changed" in reply.json()["error"]
            reply = deploy(server, 300)
        assert (reply.status_code, slo_ms(server)) == (200, 300)
        assert wait_until(server, job, lambda known: known["state"] != "running")["state"] == "done"
        listed = httpx.get(f"{server.url}/v1/jobs").json()
        assert [(found["id"], found["epochs_used"]) for found in listed["jobs"]] == [(job, 40)]


def test_a_registry_locked_for_long_stops_no_rows_no_job_and_no_deployment_for_good(tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(LOCKS_S)) as pool:  # it is waiting for the most part: beside each other
        for each in [pool.submit(see_through_a_lock, tmp_path / f"{s:.0f}", s) for s in LOCKS_S]:
            each.result()
