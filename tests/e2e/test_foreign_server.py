"""SQL functions of a server that is not ours: MLServer, as its own package runs it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest

import ml_udf.duckdb
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.client import Client
from ml_udf.errors import MlUdfError

MLSERVER = Path(os.environ.get("MLSERVER", ".build/mlserver/bin/mlserver"))
MODEL = Path(__file__).parent / "mlserver_upper"
VALUES = "(VALUES (1, 'laksa'), (2, NULL), (3, 'ü🍜'), (4, 'laksa')) AS v(n, t)"
ANSWERS = [("LAKSA",), (None,), ("Ü🍜",), ("LAKSA",)]


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not MLSERVER.exists():
        pytest.skip(f"MLServer is left out: {MLSERVER} is not there; `make foreign` installs it")
    folder = tmp_path_factory.mktemp("mlserver")
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([MLSERVER.absolute(), "start", "."], cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{ports['http_port']}"
    try:
        wait_until_ready(url, process, folder / "log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + 60
    client = Client(url)
    while True:
        try:
            client.describe("upper", timeout_s=2)
        except MlUdfError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"MLServer did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.2)
        else:
            client.close()
            return


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_duckdb_calls_a_server_that_is_not_ours(mlserver: str):
    con = duckdb.connect()
    registration = ml_udf.duckdb.register(con, mlserver, functions={"shout": "upper"})
    try:
        assert con.execute(f"SELECT shout(t) FROM {VALUES} ORDER BY n").fetchall() == ANSWERS
        with pytest.raises(duckdb.Error, match="42704 unknown_function"):
            con.execute("SELECT ml_udf.predict('nothing', 'x')")
    finally:
        registration.close()


def test_postgres_calls_a_server_that_is_not_ours(mlserver: str, cluster: Sandbox):
    cluster.sql("CREATE DATABASE elsewhere")
    cluster.sql("CREATE EXTENSION ml_udf CASCADE", "elsewhere")
    with psycopg.connect(cluster.dsn("elsewhere"), autocommit=True) as con:
        con.execute(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{mlserver}')")
        con.execute("SELECT ml_udf.create_function('shout', function => 'upper')")
        assert con.execute(f"SELECT shout(t) FROM {VALUES} ORDER BY n").fetchall() == ANSWERS
        with pytest.raises(psycopg.Error) as caught:
            con.execute("SELECT ml_udf.predict('nothing', 'x')")
        assert caught.value.sqlstate == "42704"
