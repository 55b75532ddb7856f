"""The inference server as a child process, and what the example deploys on it.

Owns the child's life: it is gone when the `with` block ends, however it ends. Knows no SQL engine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ml_udf.client import Client

__all__ = ["ENSEMBLE", "function_of", "publish", "serving"]

ENSEMBLE = "udf_food_name"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class ServerDidNotStart(Exception):
    """The server ended, or said nothing for two minutes; the text holds the end of its log."""


@contextmanager
def serving(home: Path, media_root: Path, log_file: Path) -> Iterator[str]:
    """Run the server on a free loopback port; gives its URL. Raises `ServerDidNotStart`."""
    home.mkdir(parents=True, exist_ok=True)
    port_file = home / "port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "server", "--port=0", f"--port-file={port_file}"]
    command += [f"--home={home}", f"--media-root={media_root}"]
    with log_file.open("wb") as log:
        # In a group of its own: Ctrl-C reaches this process alone, which then ends the server, once.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{_port(process, port_file, log_file)}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def publish(url: str, models: Sequence[Path]) -> None:
    """Register the version folders, then deploy one function per model and the ensemble of all.

    What the server already has is left as it is, so that versions count changes, not runs.
    """
    members = [f"{model.parent.name}/{model.name}" for model in models]
    functions: dict[str, list[str]] = {
        ENSEMBLE: members,
        **{function_of(model): [member] for model, member in zip(models, members, strict=True)},
    }
    client = Client(url)
    try:
        known = {_key(model["name"], model["version"]) for model in client.get("/v1/models")["models"]}
        for model, member in zip(models, members, strict=True):
            if member not in known:
                client.post("/register", {"directory": str(model.resolve())})
        deployed = {
            function["name"]: {_key(member["model"], member["version"]) for member in function["members"]}
            for function in client.get("/v1/functions")["functions"]
        }
        for name, wanted in functions.items():
            if deployed.get(name) != set(wanted):
                client.put(f"/v1/functions/{name}", {"models": wanted, "combine": "majority_vote"})
    finally:
        client.close()


def function_of(model: Path) -> str:
    """The SQL function that one model alone answers: of food_vgg/1, udf_food_vgg."""
    return f"udf_{model.parent.name}"


def _key(model: str, version: int) -> str:
    return f"{model}/{version}"


def _port(process: subprocess.Popen[bytes], port_file: Path, log_file: Path) -> int:
    end_s = time.monotonic() + START_TIMEOUT_S
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > end_s:
            log = log_file.read_text(errors="replace")
            raise ServerDidNotStart(f"the server did not start; {log_file} ends with:\n{log[-2000:]}")
        time.sleep(0.05)
    return int(port_file.read_text())
