"""`python fake_cluster.py driver FD NODES`: the driver of a cluster whose nodes are this machine, by JSON.

Hosts and workers are real processes; only the cluster is none. `host`: one host, as an actor runs it: its
order comes in by stdin, its place and then why it ended go out by stdout.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from server.workers.cluster_driver import drive
from server.workers.device_host import DeviceHost
from server.workers.nodes import Node


class FakeCluster:
    def __init__(self, nodes: list[Node], lost: Callable[[str, str], None]) -> None:
        self._nodes = nodes
        self._lost = lost
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}

    def connect(self) -> None:
        if not self._nodes:
            raise ConnectionError("nobody answers at this address")

    def nodes(self) -> list[Node]:
        return self._nodes

    def start(self, host: str, node: str, gpu: bool, order: bytes, start_s: float) -> bytes:
        process = self._hosts[host] = subprocess.Popen(
            [sys.executable, __file__, "host"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order)
        process.stdin.close()
        place = process.stdout.readline()
        threading.Thread(target=self._wait, args=(host, process), daemon=True).start()
        return place

    def end(self, host: str) -> None:
        if host in self._hosts:
            self._hosts[host].kill()

    def close(self) -> None:
        for process in self._hosts.values():
            process.kill()

    def _wait(self, host: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        reason = process.stdout.readline().decode().strip()
        if not reason:
            process.wait()
        self._lost(host, reason or "the host died")


async def run_host(order: bytes) -> None:
    host = DeviceHost(order)
    for said in (host.listen, host.serve):
        print((await said()).decode(), flush=True)  # noqa: T201  # its parent reads it
    await asyncio.sleep(60)  # it ends itself


if __name__ == "__main__":
    if sys.argv[1] == "host":
        asyncio.run(run_host(sys.stdin.buffer.read()))
    else:
        there = [Node(**told) for told in json.loads(sys.argv[3])]
        drive(socket.socket(fileno=int(sys.argv[2])), lambda lost: FakeCluster(there, lost))
