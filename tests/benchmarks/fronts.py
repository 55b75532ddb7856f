"""`make bench-fronts`: what a row costs the server's process on either front, in CPU µs, with its sockets.

Two servers, one for each front, in turns: rows of the no-op and of the light model come over kept
connections, one by one at `--rate`, or a thousand at once on a thousand connections; what their process takes
of a processor meanwhile (`/proc/PID/stat`), by row. It holds beside a busy machine too, where times do not;
these are told as they were.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass
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
_AT_ONCE = 1000  # rows on as many connections
_GAP_S = 0.5  # between two such
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Turn:
    """cpu_us: of the server's process for a row · p50_ms, p99_ms: from when a row was due to its answer"""

    cpu_us: float
    p50_ms: float
    p99_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0, help="rows a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="no-op,light")
    flags = parser.parse_args()
    found: dict[str, dict[str, list[_Turn]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-fronts-")))
        servers = {front: stack.enter_context(_server(folder / front, front)) for front in _FRONTS}
        program = load.build(environments.ROOT)
        ours = CONTENDERS[0]
        assert ours.urgent is not None
        pictures = photos()
        bodies = {
            "raw": [ours.request(one) for one in pictures],
            "binary, with a deadline": [ours.urgent(one, 20_000) for one in pictures],
        }
        one_by_one = (np.arange(int(flags.rate * flags.seconds)) / flags.rate).tolist()
        at_once = np.repeat(np.arange(0, flags.seconds, _GAP_S), _AT_ONCE).tolist()
        for case in (one for one in CASES if one.name in flags.cases.split(",")):
            model = case.model(folder / "models")
            for server in servers.values():
                server.deploy(model, "photo", slo_ms=20_000, max_batch=32)
            for form, requests in bodies.items():
                loads = {
                    front: load.Load(program, folder, server.port, requests)
                    for front, server in servers.items()
                }
                for one in loads.values():
                    one.replay((np.arange(_WARM_UP) / flags.rate).tolist(), 20.0)
                for name, arrivals in ((form, one_by_one), (f"{form}, {_AT_ONCE:,} at once", at_once)):
                    if case.name != "no-op" and arrivals is at_once:
                        continue  # its worker is what they would wait for
                    for _ in range(flags.rounds):
                        for front, one in loads.items():
                            turn = _turn(servers[front], one, arrivals)
                            found.setdefault(f"{case.name}: {name}", {}).setdefault(front, []).append(turn)
    _show(found)
    told = {
        name: {front: list(map(asdict, turns)) for front, turns in each.items()}
        for name, each in found.items()
    }
    write_json("fronts", {"rate": flags.rate, "seconds": flags.seconds, "turns": told})


def _server(home: Path, front: str) -> contextlib.AbstractContextManager[InferenceServer]:
    return inference_server(home, flags=[ANEW, "--workers=1", f"--front={front}"])


def _turn(server: InferenceServer, sender: load.Load, arrivals_s: list[float]) -> _Turn:
    """Raises `SystemExit` where rows fail."""
    before_s = _processor_s(server.pid)
    replay = sender.replay(arrivals_s, 20.0)
    took_s = _processor_s(server.pid) - before_s
    failed = [one.status for one in replay.outcomes if one.status != 200]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(arrivals_s)} rows failed, the first with {failed[0]}")
    p50_s, p99_s = np.quantile([one.latency_s for one in replay.outcomes], (0.5, 0.99))
    return _Turn(took_s * 1e6 / len(arrivals_s), p50_s * 1000, p99_s * 1000)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _show(found: dict[str, dict[str, list[_Turn]]]) -> None:
    table = Table(
        "requests", "front", "CPU µs a row", "least", "greatest", "python / it", "p50, ms", "p99, ms"
    )
    for name, fronts in found.items():
        for front, turns in fronts.items():
            costs = [one.cpu_us for one in turns]
            ratios = [a.cpu_us / b for a, b in zip(fronts["python"], costs, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            figures = (f"{value:.1f}" for value in (statistics.median(costs), min(costs), max(costs)))
            times = (
                f"{statistics.median(each):.1f}"
                for each in ([one.p50_ms for one in turns], [one.p99_ms for one in turns])
            )
            table.add_row(name, front, *figures, spread, *times)
    console.print(table)


if __name__ == "__main__":
    main()
