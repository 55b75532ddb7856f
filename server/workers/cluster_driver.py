"""The process that speaks to a cluster for the server: it asks for nodes, and has hosts started and ended.

    server → driver   {"id": 1, "op": "nodes"}                            one JSON object a line,
    driver → server   {"id": 1, "nodes": [...]}  or  {"id": 1, "error": "…"}   in any order
    driver → server   {"lost": host, "reason": "…"}                       unasked, once for each host

A process of its own, because a cluster's library may end the process that uses it, as Ray does when its head
stays away, and because its calls block. It ends with its socket. Rows never pass here. Knows no cluster by
name: `ray_driver` has Ray's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Protocol

from server.workers.nodes import Node

__all__ = ["Cluster", "drive"]

log = logging.getLogger("ml_udf.workers.driver")

_THREADS = 16


class Cluster(Protocol):
    """What a driver needs of a cluster. Its calls may block, in any thread, and raise anything."""

    def connect(self) -> None:
        """Called once, before anything else."""
        ...

    def nodes(self) -> list[Node]:
        """Those that are alive."""
        ...

    def start(self, host: str, node: str, gpu: bool, order: bytes, start_s: float) -> bytes:
        """Start host `host` on that node, with a GPU or without, and have it serve; its `Place`."""
        ...

    def end(self, host: str) -> None:
        """End a host by force; nothing for one that has ended."""
        ...

    def close(self) -> None:
        """Leave the cluster; hosts that are still there end."""
        ...


def drive(connection: socket.socket, make: Callable[[Callable[[str, str], None]], Cluster]) -> None:
    """Serve the server at `connection` until it hangs up. make: of a cluster, given what to call with a host
    that was lost, and why.
    """
    said = threading.Lock()

    def say(answer: dict[str, Any]) -> None:
        line = json.dumps(answer).encode() + b"\n"
        with said, contextlib.suppress(OSError):  # the server has gone; the reader sees it too
            connection.sendall(line)

    cluster = make(lambda host, reason: say({"lost": host, "reason": reason}))

    def carry_out(asked: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": asked["id"]}
        try:
            answer |= _answer(cluster, asked)
        except BaseException as exc:  # of a library's calls: whatever it was, the server is told
            answer["error"] = f"{type(exc).__name__}: {_first_line(exc)}"
        say(answer)

    with contextlib.suppress(OSError), connection.makefile("rb") as lines:
        work = ThreadPoolExecutor(_THREADS, "driver")
        for line in lines:
            work.submit(carry_out, json.loads(line))
    # A call that blocks would keep the process; what the cluster started ends with its connection.
    closing = threading.Thread(target=cluster.close, daemon=True)
    closing.start()
    closing.join(5.0)
    os._exit(0)


def _answer(cluster: Cluster, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["op"] == "connect":
        cluster.connect()
        return {}
    if asked["op"] == "nodes":
        return {"nodes": [asdict(node) for node in cluster.nodes()]}
    if asked["op"] == "start":
        place = cluster.start(
            asked["host"], asked["node"], asked["gpu"], asked["order"].encode(), asked["start_s"]
        )
        return {"place": json.loads(place)}
    cluster.end(asked["host"])
    return {}


def _first_line(exc: BaseException) -> str:
    """Ray's errors bring the traceback of the node; its last line says what was wrong."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[-1] if len(lines) > 1 and "Traceback" in str(exc) else " ".join(lines))[:500]
