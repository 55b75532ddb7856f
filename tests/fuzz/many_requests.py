"""`python -m tests.fuzz.many_requests`: waves of requests to the native front, counted over several runs.

A part of `make fuzz-front`. Each run goes on with the seed behind the last one of its lane, until so many
seconds have passed or all lanes together have answered so many requests; `--lane 1` is a second one, for
another core. What was seen is kept in bench-results/fuzz-front-LANE.json, for the sources of the C that are
here: when these change, the count begins anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from server.extensions import FRONT
from tests.benchmarks.report import RESULTS, say
from tests.benchmarks.resident_memory import resident_bytes
from tests.fuzz.front_waves import Seen, Waves
from tests.fuzz.sanitized import use_sanitized_front

_SEEDS_OF_A_LANE = 1_000_000_000
_KEPT_EVERY_S = 20.0


@dataclass
class _Lane:
    """What the runs of a lane have shown, until now.

    failed: seeds at which two had understood a request in two ways · memory_mb: of the last run, by time
    """

    sources: str
    sanitized: bool
    next_seed: int
    seconds: float = 0.0
    runs: int = 0
    at: str = ""
    seen: Seen = field(default_factory=Seen)
    failed: list[int] = field(default_factory=list)
    memory_mb: list[int] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--requests", type=int, default=10_000_000, help="that are enough, of all lanes")
    parser.add_argument("--lane", type=int, default=0)
    flags = parser.parse_args()
    sanitized = use_sanitized_front()
    sources = _sources()
    lane = _kept(flags.lane, sources, sanitized) or _Lane(sources, sanitized, flags.lane * _SEEDS_OF_A_LANE)
    lane.runs += 1
    lane.memory_mb = []
    try:
        uvloop.run(_run(lane, flags))
    finally:
        _keep(flags.lane, lane)
        _say(_lanes(sources, sanitized))


async def _run(lane: _Lane, flags: argparse.Namespace) -> None:
    waves = Waves()
    before, before_s = lane.seen, lane.seconds
    others = sum(one.seen.replied for one in _lanes(lane.sources, lane.sanitized)) - before.replied
    began_s = kept_s = time.monotonic()
    while True:
        lane.seen = _sum(before, waves.seen)
        now_s = time.monotonic()
        lane.seconds = before_s + now_s - began_s
        if now_s - began_s > flags.seconds or others + lane.seen.replied >= flags.requests:
            break
        if now_s - kept_s > _KEPT_EVERY_S:
            kept_s = now_s
            lane.memory_mb.append(resident_bytes(os.getpid()) >> 20)
            _keep(flags.lane, lane)
            others = sum(one.seen.replied for one in _lanes(lane.sources, lane.sanitized))
            others -= lane.seen.replied
        try:
            await waves.run(lane.next_seed)
        except AssertionError:
            lane.failed.append(lane.next_seed)
            raise
        finally:
            lane.next_seed += 1
    await waves.close()


def _sum(one: Seen, other: Seen) -> Seen:
    values = asdict(other)
    return Seen(**{name: value + values[name] for name, value in asdict(one).items()})


def _sources() -> str:
    """Of the C that is fuzzed."""
    files = sorted([*FRONT.folder.glob("*.c"), *FRONT.folder.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _file(lane: int) -> Path:
    return RESULTS / f"fuzz-front-{lane}.json"


def _kept(lane: int, sources: str, sanitized: bool) -> _Lane | None:
    """What is kept of a lane, if it is of these sources and was watched as well."""
    try:
        content = json.loads(_file(lane).read_text())
    except FileNotFoundError:
        return None
    kept = _Lane(**{**content, "seen": Seen(**content["seen"])})
    return kept if (kept.sources, kept.sanitized) == (sources, sanitized) else None


def _lanes(sources: str, sanitized: bool) -> list[_Lane]:
    numbers = sorted(int(file.stem.rpartition("-")[2]) for file in RESULTS.glob("fuzz-front-*.json"))
    return [kept for number in numbers if (kept := _kept(number, sources, sanitized)) is not None]


def _keep(number: int, lane: _Lane) -> None:
    RESULTS.mkdir(exist_ok=True)
    lane.at = datetime.now(UTC).isoformat(timespec="seconds")
    file = _file(number)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(asdict(lane), indent=1) + "\n")
    beside.replace(file)  # another lane may be reading it


def _say(lanes: list[_Lane]) -> None:
    for lane in lanes:
        seen = lane.seen
        say(
            f"lane {lane.next_seed // _SEEDS_OF_A_LANE}: {seen.replied:,} requests in {lane.seconds:,.0f} s"
            f" ({seen.replied / max(lane.seconds, 1e-9):,.0f}/s), {lane.runs} runs, {seen.waves:,} waves;"
            f" memory, MB: {lane.memory_mb[:1] + lane.memory_mb[-1:]}; failed seeds: {lane.failed or 'none'}"
        )
    seen = Seen()
    for lane in lanes:
        seen = _sum(seen, lane.seen)
    watched = "ASan and UBSan" if all(lane.sanitized for lane in lanes) else "nothing: see `make fuzz-front`"
    say(
        f"watched by {watched}: {seen.replied:,} requests, {seen.read:,} of them read as llhttp and h11 read"
        f" them ({seen.h11_heads:,} distinct heads), the others refused; {seen.in_c:,} by C alone,"
        f" {seen.shaped:,} with their JSON; {seen.vanished:,} clients vanished"
    )


if __name__ == "__main__":
    main()
