"""`make soak-front`: is a server's memory flat over millions of requests, and are bodies ever over the limit?

One server on the native front, with a function whose model does nothing. The load generator of `make
bench-serving` asks it for rows in several forms over kept connections, as fast as the server can, up to
`--rate` (slower where answers come late); beside it clients come and vanish. Four times a second `/metrics`
is asked how many clients are connected and what is held of their bodies, and the memory of the server's
process is looked at.

Writes bench-results/soak-front.json; ends with 1 if something is not as it should be.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.benchmarks.report import say, write_json
from tests.benchmarks.resident_memory import resident_bytes
from tests.benchmarks.serving import environments, load
from tests.benchmarks.serving.cases import CASES
from tests.benchmarks.serving.contenders import CONTENDERS
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.stress.outcome import Samples
from tests.stress.vanishing_clients import VanishingClients

__all__ = ["HELD_BYTES", "Sample", "Soak", "growth_bytes"]

_MiB = 1 << 20
HELD_BYTES = 8 * _MiB  # the limit; a wave of vanishing clients sends two to three times as much
_CONNECTIONS = 17_000  # more than the load opens: one too many is refused so that its reply may be lost
_LIMITS = (f"--max-held-bytes={HELD_BYTES}", f"--max-connections={_CONNECTIONS}")
_STRETCH_S = 10.0  # of load, before its rate is thought over
_TOGETHER = 16  # rows
_LEAST_RATE, _FIRST_RATE = 200.0, 3000.0
_FASTER, _SLOWER = 1.03, 0.7  # what comes over the server's rate waits: little does, and not for long
_LATE_S = 0.05
_PATIENCE_S = 60.0
_EVERY_S = 0.25
_WARM_UP_SHARE, _WARM_UP_S = 0.25, 600.0  # the longer; until then collections find their level
_BIN_S = 5.0
_GROWTH_SHARE, _GROWTH_LEAST = 0.03, 8 * _MiB  # since the warm-up; less is flat
_ALIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Sample:
    """At a time since the beginning: what the server's process and its worker hold, and its gauges."""

    at_s: float
    server_bytes: int
    worker_bytes: int
    connections: int
    held_bytes: int


@dataclass
class Soak:
    """What a run has shown.

    statuses: of the load's requests; 0 = no answer · connections_left, held_bytes_left: when all were gone
    errors: tracebacks in the server's log
    """

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    vanished: int = 0
    samples: list[Sample] = field(default_factory=list)
    connections_left: int = 0
    held_bytes_left: int = 0
    errors: int = 0

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    @property
    def most_held_bytes(self) -> int:
        return max(sample.held_bytes for sample in self.samples)

    def warm(self) -> list[Sample]:
        """Those after the warm-up."""
        since_s = max(_WARM_UP_SHARE * self.seconds, min(_WARM_UP_S, self.seconds / 2))
        return [sample for sample in self.samples if sample.at_s >= since_s]

    def faults(self) -> list[str]:
        """What is not as it should be; empty if all is well."""
        found = []
        wrong = {status: count for status, count in self.statuses.items() if status not in (200, 503)}
        if wrong:
            found.append(f"{sum(wrong.values()):,} requests were lost or answered wrong, by status: {wrong}")
        if not self.statuses[200] > 0.9 * self.requests:
            found.append(f"of {self.requests:,} requests {self.statuses[200]:,} were answered")
        if self.most_held_bytes > HELD_BYTES:
            found.append(f"{self.most_held_bytes:,} bytes of bodies were held, over {HELD_BYTES:,}")
        elif self.most_held_bytes < HELD_BYTES / 2:
            found.append(f"only {self.most_held_bytes:,} bytes of bodies were held: nothing shown")
        warm = self.warm()
        grown = growth_bytes([sample.at_s for sample in warm], [sample.server_bytes for sample in warm])
        middle = statistics.median(sample.server_bytes for sample in warm)
        if grown > max(_GROWTH_LEAST, _GROWTH_SHARE * middle):
            found.append(f"the server's memory grew by {grown / _MiB:.1f} MiB after the warm-up")
        if self.connections_left or self.held_bytes_left:
            found.append(
                f"{self.connections_left} connections and {self.held_bytes_left:,} bytes of bodies are left"
            )
        if self.errors:
            found.append(f"{self.errors} tracebacks are in the server's log")
        return found


def growth_bytes(at_s: Sequence[float], held_bytes: Sequence[int]) -> float:
    """By the median slope between all stretches of 5 s (Theil and Sen), over the whole of the time."""
    bins: dict[int, list[int]] = {}
    for when_s, held in zip(at_s, held_bytes, strict=True):
        bins.setdefault(int(when_s / _BIN_S), []).append(held)
    if len(bins) < 2:
        return 0.0
    when = np.array(list(bins)) * _BIN_S
    medians = np.array([statistics.median(each) for each in bins.values()])
    first, second = np.triu_indices(len(when), 1)
    slopes = (medians[second] - medians[first]) / (when[second] - when[first])
    return float(np.median(slopes) * (when[-1] - when[0]))


class _Sampler:
    """Looks at a server again and again, on a thread of its own, until the block ends."""

    def __init__(self, server: InferenceServer) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._workers = server.worker_pids()
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_PATIENCE_S)
        self._began_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=_PATIENCE_S)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began_s

    def close(self) -> None:
        self._connection.close()

    def look(self) -> Sample:
        """What there is now; for one thread at a time."""
        self._connection.request("GET", "/metrics")
        told = Samples(self._connection.getresponse().read().decode())
        return Sample(
            self.seconds,
            resident_bytes(self._server.pid),
            sum(map(resident_bytes, self._workers)),
            int(told.total("ml_udf_connections")) - 1,  # without this one
            int(told.total("ml_udf_held_body_bytes")),
        )

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.samples.append(self.look())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="at most")
    parser.add_argument("--requests", type=int, default=10_000_000, help="that are enough")
    parser.add_argument("--rate", type=float, default=5000.0, help="requests a second, at most")
    parser.add_argument("--vanishing", type=float, default=40.0, help="vanishing clients a second")
    flags = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-soak-")))
        server = stack.enter_context(
            inference_server(
                folder / "home",
                flags=[ANEW, "--workers=1", "--front=native", *_LIMITS],
            )
        )
        server.deploy(CASES[0].model(folder / "models"), "photo", slo_ms=20_000, max_batch=32)
        soak = _soak(
            server, load.Load(load.build(environments.ROOT), folder, server.port, _requests()), flags
        )
        soak.errors = server.log.count("Traceback (most recent call last)")
    _say(soak)
    faults = soak.faults()
    result = asdict(replace(soak, statuses=Counter(), samples=[]))
    write_json(
        "soak-front",
        {
            **result,
            "statuses": dict(soak.statuses),
            "samples": _thinned(soak.samples),
            "flags": vars(flags),
            "faults": faults,
        },
    )
    return 1 if faults else 0


def _soak(server: InferenceServer, sender: load.Load, flags: argparse.Namespace) -> Soak:
    soak, ours = Soak(), CONTENDERS[0]
    sender.replay([0.0], _PATIENCE_S)  # the worker is there
    rate = min(flags.rate, _FIRST_RATE)
    with _Sampler(server) as sampler:
        with VanishingClients(server.port, ours.request, per_second=flags.vanishing) as vanishing:
            while sampler.seconds < flags.seconds and soak.requests < flags.requests:
                replay = sender.replay(_arrivals_s(rate), _PATIENCE_S)
                soak.statuses.update(one.status for one in replay.outcomes)
                is_late = statistics.median(one.latency_s for one in replay.outcomes) > _LATE_S
                is_late = is_late or any(one.status != 200 for one in replay.outcomes)
                rate = max(_LEAST_RATE, rate * _SLOWER) if is_late else min(flags.rate, rate * _FASTER)
                say(f"{sampler.seconds:,.0f} s: {soak.requests:,} requests, {sampler.samples[-1]}")
        soak.vanished = vanishing.count
        soak.seconds = sampler.seconds
    soak.samples = sampler.samples
    deadline_s = time.monotonic() + _PATIENCE_S
    last = sampler.look()
    while (last.connections or last.held_bytes) and time.monotonic() < deadline_s:
        time.sleep(_EVERY_S)
        last = sampler.look()
    sampler.close()
    soak.connections_left, soak.held_bytes_left = last.connections, last.held_bytes
    return soak


def _arrivals_s(rate: float) -> list[float]:
    """Of one stretch, several rows at a time."""
    arrivals_s: list[float] = np.repeat(np.arange(0, _STRETCH_S, _TOGETHER / rate), _TOGETHER).tolist()
    return arrivals_s


def _requests() -> list[bytes]:
    """The load's, in turn: rows as bytes and as tensors with a deadline, heads with more in them, no rows."""
    ours, random_ = CONTENDERS[0], np.random.default_rng(1)
    assert ours.urgent is not None
    made = []
    for number in range(256):
        body = random_.bytes(int(random_.choice([50, 500, 2000, 20_000], p=[0.4, 0.4, 0.15, 0.05])))
        request = ours.request(body) if number % 2 else ours.urgent(body, 20_000)
        if number % 16 == 3:
            request = request.replace(b"\r\n", b"\r\ntraceparent: %032x\r\n" % number, 1)
        made.append(_ALIVE if number % 64 == 5 else request)
    return made


def _thinned(samples: Sequence[Sample], least: int = 200) -> list[dict[str, float]]:
    """At equal distances; of those between, the most that was held and connected."""
    step = max(1, len(samples) // least)
    parts = [samples[at : at + step] for at in range(0, len(samples), step)]
    return [
        {
            **asdict(part[0]),
            "held_bytes": max(sample.held_bytes for sample in part),
            "connections": max(sample.connections for sample in part),
        }
        for part in parts
    ]


def _say(soak: Soak) -> None:
    warm = soak.warm()
    at_s = [sample.at_s for sample in warm]
    server = [sample.server_bytes for sample in warm]
    worker = [sample.worker_bytes for sample in warm]
    say(
        f"{soak.requests:,} requests in {soak.seconds:,.0f} s ({soak.requests / soak.seconds:,.0f}/s):"
        f" {soak.statuses[200]:,} answered, {soak.statuses[503]:,} refused;"
        f" {soak.vanished:,} clients vanished"
    )
    for name, held in (("server", server), ("worker", worker)):
        say(
            f"memory of the {name} after the warm-up: {min(held) / _MiB:.1f} to {max(held) / _MiB:.1f} MiB,"
            f" {growth_bytes(at_s, held) / _MiB:+.2f} MiB by its slope"
        )
    say(
        f"held of bodies: {soak.most_held_bytes:,} bytes at most, of {HELD_BYTES:,} allowed, in"
        f" {len(soak.samples):,} looks; {max(sample.connections for sample in soak.samples):,} connections"
    )
    for fault in soak.faults() or ["all is as it should be"]:
        say(fault)


if __name__ == "__main__":
    sys.exit(main())
