"""`python -m tests.benchmarks.vanishing`: clients that connect, ask and vanish; what they leave behind.

A third of them sends a request and closes while its row waits, a third closes within the request, a third
says nothing at all. Counted afterwards: rows that wait, open files of the server, its memory; and how long
after the last one had gone the queue was empty.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from tests.benchmarks.report import console, write_json
from tests.benchmarks.resident_memory import resident_bytes
from tests.contract.oip_wire import metric
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import hashing_model

__all__ = ["FUNCTION", "Leavings", "deploy_slow", "leavings", "vanish"]

FUNCTION = "udf_slow"
_BODY = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["x"]}]}'
_REQUEST = (
    f"POST /v2/models/{FUNCTION}/infer HTTP/1.1\r\nHost: localhost\r\n"
    f"Content-Length: {len(_BODY)}\r\n\r\n".encode()
    + _BODY
)
_SENT = (_REQUEST, _REQUEST[:-20], b"")  # by turns
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Leavings:
    """What a server holds."""

    rows: float
    open_files: int
    resident_bytes: int
    empty_after_s: float = 0.0  # since the last client had gone


def deploy_slow(server: InferenceServer, folder: Path) -> None:
    """A function slow enough for rows to wait."""
    server.deploy(hashing_model(folder, "slow_hash", delay_ms=300), FUNCTION, max_batch=4)


def vanish(server: InferenceServer, clients: int, at_once: int = 100) -> Leavings:
    """So many clients come and go, `at_once` at a time; what is left when the last have been seen off."""
    for first in range(0, clients, at_once):
        wave = range(first, min(clients, first + at_once))
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in wave]
        for number, connection in zip(wave, connections, strict=True):
            connection.sendall(_SENT[number % len(_SENT)])
        _until_rows(server, wanted=True)
        for connection in connections:
            connection.close()
    gone_s = time.monotonic()
    _until_rows(server, wanted=False)
    return leavings(server, time.monotonic() - gone_s)


def leavings(server: InferenceServer, empty_after_s: float = 0.0) -> Leavings:
    """What the server holds now. Raises FileNotFoundError if it is gone."""
    return Leavings(
        rows=metric(server.port, "ml_udf_queue_rows", function=FUNCTION),
        open_files=len(os.listdir(f"/proc/{server.pid}/fd")),
        resident_bytes=resident_bytes(server.pid),
        empty_after_s=empty_after_s,
    )


def _until_rows(server: InferenceServer, *, wanted: bool) -> None:
    """Wait until rows wait, or none do. Raises TimeoutError."""
    ends_s = time.monotonic() + _PATIENCE_S
    while (metric(server.port, "ml_udf_queue_rows", function=FUNCTION) > 0) != wanted:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"rows {'never waited' if wanted else 'still wait'} after {_PATIENCE_S:g} s")
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10_000)
    flags = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ml_udf-vanish-") as folder,
        inference_server(Path(folder) / "home", flags=[ANEW, "--workers=1"]) as server,
    ):
        deploy_slow(server, Path(folder))
        before = vanish(server, 5000)  # warm: buffers and pools have their size
        after = vanish(server, flags.clients)
    table = Table("", "before", "after", title=f"{flags.clients:,} clients that vanish")
    table.add_row("rows that wait", f"{before.rows:.0f}", f"{after.rows:.0f}")
    table.add_row("open files of the server", str(before.open_files), str(after.open_files))
    table.add_row("its memory, MiB", *(f"{one.resident_bytes / 2**20:.1f}" for one in (before, after)))
    table.add_row("queue empty after, ms", *(f"{1000 * one.empty_after_s:.0f}" for one in (before, after)))
    console.print(table)
    write_json("vanishing", {"clients": flags.clients, "before": asdict(before), "after": asdict(after)})


if __name__ == "__main__":
    main()
