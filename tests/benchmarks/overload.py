"""`make bench-overload`: rows in time at 1 to 10 times what a server stands, and when others are refused.

One server of ours with its defaults, and single rows over HTTP. First the rate is looked for at which 99 % of
all rows are in time; then so many times that rate is sent, for some seconds each, with the goal as the rows'
deadline and without any. What is in time is counted by the client, from the moment a row was due to leave.
The load generator runs on the same cores: so it is said what each took of them, and how many rows came in
time for each second that the workers had.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from rich.table import Table

from server.scheduling.simulation.arrivals import poisson
from tests.benchmarks.load_generator import Replay
from tests.benchmarks.processor_time import children_of, family_processor_s, processor_s
from tests.benchmarks.report import console, write_json
from tests.benchmarks.serving.cases import CASES, Case, photos
from tests.benchmarks.serving.contenders import CONTENDERS, FRONTS, Contender
from tests.benchmarks.serving.load import Load, build
from tests.benchmarks.serving.measure import spread, warm_up
from tests.benchmarks.serving.running import running
from tests.benchmarks.serving.search import Search

_GOOD = 0.99
_PROBE_S = 2.0
_PATIENCE_S = 12.0
_REST_S = 1.0
_FORMS = ("deadline", "no deadline")


@dataclass(frozen=True)
class Point:
    """One rate. Times in ms, rates in rows/s; `…_cpu_s`: of the processors, a second."""

    front: str
    case: str
    form: str
    times: float
    round: int
    capacity: float
    in_time_per_s: float
    late: float
    refused: float
    lost: float
    refused_p50_ms: float
    refused_p99_ms: float
    generator_cpu_s: float
    server_cpu_s: float
    workers_cpu_s: float

    @property
    def in_time_per_worker_s(self) -> float:
        """Rows in time for a second of a processor that the workers had."""
        return self.in_time_per_s / self.workers_cpu_s if self.workers_cpu_s else 0.0

    @property
    def share(self) -> float:
        """Rows in time, of the rate that the server stands."""
        return self.in_time_per_s / self.capacity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--fronts", default="native,python")
    parser.add_argument("--cases", default="light,no-op")
    parser.add_argument("--times", default="1,2,4,10")
    flags = parser.parse_args()
    fronts = [name for name, front in FRONTS.items() if front in flags.fronts.split(",")]
    cases = [case for case in CASES if case.name in flags.cases.split(",")]
    times = [float(each) for each in flags.times.split(",")]
    points: list[Point] = []
    program, pictures = build(Path(".build/serving")), photos()
    for number in range(flags.rounds):
        for case in cases:
            for contender in [one for one in CONTENDERS if one.name in fronts]:
                points += _measured(contender, case, times, number, flags.seconds, program, pictures)
    _print(points)
    write_json("overload", {"points": [asdict(point) for point in points]})


def _measured(
    contender: Contender,
    case: Case,
    times: Sequence[float],
    number: int,
    seconds: float,
    program: Path,
    pictures: Sequence[bytes],
) -> list[Point]:
    """One server, begun anew."""
    assert contender.urgent is not None, "ours knows deadlines"
    found: list[Point] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = case.model(folder / "models")
        with running(contender, Path(sys.executable), case, model, folder, pictures) as port:
            plain = Load(program, folder, port, [contender.request(photo) for photo in pictures])
            urgent = [contender.urgent(photo, int(case.slo_ms)) for photo in pictures]
            loads = {"deadline": Load(program, folder, port, urgent), "no deadline": plain}
            warm_up(plain, case)
            capacity = _capacity(plain, case)
            for form in _FORMS:
                for each in times:
                    arrivals_s = poisson(Random(100 + number), each * capacity, seconds)
                    before_s = _spent_s()
                    replay = loads[form].replay(arrivals_s, _PATIENCE_S)
                    cpu_s = tuple(
                        (after - before) / seconds for after, before in zip(_spent_s(), before_s, strict=True)
                    )
                    front = FRONTS[contender.name]
                    point = _point(front, case, form, each, number, capacity, replay, seconds, cpu_s)
                    console.print(
                        f"{front} {case.name} {form} {each:g} × {capacity:.0f}: {point.share:.2f} in time"
                    )
                    found.append(point)
                    time.sleep(_REST_S)
    return found


def _capacity(load: Load, case: Case) -> float:
    """The highest rate at which nearly all are in time."""
    search = Search(case.first_rate, 0.1)
    probes = 0
    while (rate := search.next_rate()) is not None:
        probe = load.replay(poisson(Random(probes), rate, _PROBE_S), 2 * case.slo_s)
        probes += 1
        good = probe.good(case.slo_s) / max(1, len(probe.outcomes))
        search = search.told(rate, passed=good >= _GOOD)
        time.sleep(_REST_S)
    return search.stood or 1.0


def _point(
    front: str,
    case: Case,
    form: str,
    times: float,
    number: int,
    capacity: float,
    replay: Replay,
    seconds: float,
    cpu_s: Sequence[float],
) -> Point:
    rows = max(1, len(replay.outcomes))
    refusals = sorted(1000 * one.latency_s for one in replay.outcomes if one.status in (503, 504)) or [0.0]
    return Point(
        front,
        case.name,
        form,
        times,
        number,
        capacity,
        in_time_per_s=replay.good(case.slo_s) / seconds,
        late=replay.late(case.slo_s) / rows,
        refused=replay.refused() / rows,
        lost=replay.lost() / rows,
        refused_p50_ms=refusals[len(refusals) // 2],
        refused_p99_ms=refusals[int(0.99 * (len(refusals) - 1))],
        generator_cpu_s=cpu_s[0],
        server_cpu_s=cpu_s[1],
        workers_cpu_s=cpu_s[2],
    )


def _spent_s() -> tuple[float, float, float]:
    """Processor time of the generators, which are children that have ended; of the server; of its workers."""
    spent = os.times()
    servers = children_of(os.getpid())
    workers = [worker for server in servers for worker in children_of(server)]
    return (
        spent.children_user + spent.children_system,
        sum(map(processor_s, servers)),
        sum(map(family_processor_s, workers)),
    )


def _print(points: Sequence[Point]) -> None:
    titles = ("", "rows", "times", "capacity", "in time/s", "of capacity", "late · refused · lost")
    table = Table(
        *titles,
        "refused after p50 · p99, ms",
        "cores: generator · server · workers",
        "in time a second of workers",
    )
    for key in dict.fromkeys((one.front, one.case, one.form, one.times) for one in points):
        those = [one for one in points if (one.front, one.case, one.form, one.times) == key]
        middle, least, most = spread([one.share for one in those])

        def median(name: str, those: Sequence[Point] = those) -> float:
            return spread([getattr(one, name) for one in those])[0]

        table.add_row(
            f"{key[1]}, {key[0]} front",
            key[2],
            f"{key[3]:g}",
            f"{median('capacity'):,.0f}",
            f"{median('in_time_per_s'):,.0f}",
            f"{middle:.2f} ({least:.2f} to {most:.2f})",
            f"{median('late'):.0%} · {median('refused'):.0%} · {median('lost'):.0%}",
            f"{median('refused_p50_ms'):.1f} · {median('refused_p99_ms'):.1f}",
            " · ".join(f"{median(f'{who}_cpu_s'):.2f}" for who in ("generator", "server", "workers")),
            f"{median('in_time_per_worker_s'):,.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
