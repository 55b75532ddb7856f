"""`make bench-fronts`: what a row costs the server's process on either front, in CPU µs, with its sockets.

Two servers, one for each front, in turns: rows of the no-op model come over kept connections at one rate;
what their process takes of a processor meanwhile (`/proc/PID/stat`), by row. It holds beside a busy machine
too, where times do not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.table import Table

from tests.benchmarks.report import console, write_json
from tests.benchmarks.serving import environments, load
from tests.benchmarks.serving.cases import CASES, photos
from tests.benchmarks.serving.contenders import CONTENDERS
from tests.inference_server import ANEW, InferenceServer, inference_server

_FRONTS = ("python", "native")
_WARM_UP = 2000  # rows
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0, help="rows a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-fronts-")))
        model = CASES[0].model(folder / "models")
        servers = {front: stack.enter_context(_server(folder / front, front)) for front in _FRONTS}
        program = load.build(environments.ROOT)
        ours = CONTENDERS[0]
        assert ours.urgent is not None
        pictures = photos()
        bodies = {
            "raw": [ours.request(one) for one in pictures],
            "binary, with a deadline": [ours.urgent(one, 20_000) for one in pictures],
        }
        for server in servers.values():
            server.deploy(model, "photo", slo_ms=20_000, max_batch=32)
        for form, requests in bodies.items():
            loads = {
                front: load.Load(program, folder, server.port, requests) for front, server in servers.items()
            }
            for one in loads.values():
                _cost_us(None, one, flags.rate, _WARM_UP)
            for _ in range(flags.rounds):
                for front, one in loads.items():
                    cost_us = _cost_us(servers[front], one, flags.rate, int(flags.rate * flags.seconds))
                    found.setdefault(form, {}).setdefault(front, []).append(cost_us)
    _show(found)
    write_json("fronts", {"rate": flags.rate, "seconds": flags.seconds, "cpu_us_a_row": found})


def _server(home: Path, front: str) -> contextlib.AbstractContextManager[InferenceServer]:
    return inference_server(home, flags=[ANEW, "--workers=1", f"--front={front}"])


def _cost_us(server: InferenceServer | None, sender: load.Load, rate: float, rows: int) -> float:
    """CPU µs of the server's process for a row; 0 = nobody looks. Raises `SystemExit` where rows fail."""
    before_s = 0.0 if server is None else _processor_s(server.pid)
    replay = sender.replay((np.arange(rows) / rate).tolist(), 20.0)
    failed = [one.status for one in replay.outcomes if one.status != 200]
    if failed and server is not None:
        raise SystemExit(f"{len(failed)} of {rows} rows failed, the first with {failed[0]}")
    return 0.0 if server is None else (_processor_s(server.pid) - before_s) * 1e6 / rows


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _show(found: dict[str, dict[str, list[float]]]) -> None:
    table = Table("requests", "front", "CPU µs a row", "least", "greatest", "python / it")
    for form, fronts in found.items():
        for front, costs in fronts.items():
            ratios = [a / b for a, b in zip(fronts["python"], costs, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            figures = (f"{value:.1f}" for value in (statistics.median(costs), min(costs), max(costs)))
            table.add_row(form, front, *figures, spread)
    console.print(table)


if __name__ == "__main__":
    main()
