"""What a run of the stress showed, and what of it is not as it should be."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from server.scheduling.latency_model import LatencyModel
from tests.benchmarks.report import console
from tests.benchmarks.resident_memory import resident_bytes
from tests.contract.oip_wire import call
from tests.inference_server import InferenceServer
from tests.stress.callers import Tally

__all__ = ["Held", "Outcome", "Samples", "learned_s"]

_MEMORY_SHARE = 0.10  # more than at the start, after every buffer has had its size once
_MEMORY_LEAST = 24 << 20
_LATENCY_SHARE = 0.15  # of a line through what a busy machine took: 0.12 was seen
_REGISTRY_FILES = 15
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Held:
    """What a server holds."""

    resident_bytes: int
    open_files: int  # but the registry's
    registry_files: int  # of the database's pool, which keeps five connections of up to three files
    threads: int

    @classmethod
    def by(cls, server: InferenceServer) -> Held:
        process = Path(f"/proc/{server.pid}")
        files = list(_open_files(process / "fd"))
        of_registry = sum("registry.db" in file for file in files)
        return cls(
            resident_bytes(server.pid),
            len(files) - of_registry,
            of_registry,
            len(os.listdir(process / "task")),
        )


def _open_files(folder: Path) -> Iterator[str]:
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(link)


class Samples:
    """What `/metrics` says: by name, labels and value."""

    def __init__(self, text: str) -> None:
        self._samples = [(name, labels, float(value)) for name, labels, value in _SAMPLE.findall(text)]

    @classmethod
    def of(cls, server: InferenceServer) -> Samples:
        return cls(call(server.port, "GET", "/metrics").body.decode())

    def by_labels(self, name: str) -> dict[str, float]:
        return {labels: value for known, labels, value in self._samples if known == name}

    def total(self, name: str, label: str = "") -> float:
        """Of those whose labels hold that text."""
        return sum(value for labels, value in self.by_labels(name).items() if label in labels)


def learned_s(home: Path, model: str, rows: int) -> float:
    """l̂ of a stopped server for rows of text, seconds; of kinds of device, the one that knows most."""
    state = json.loads((home / "latencies" / model / "1.json").read_text())
    kinds = {name: kind for name, kind in state["kinds"].items() if name.endswith("|text")}
    return LatencyModel.from_json(max(kinds.values(), key=lambda kind: len(kind["recent"])))(rows)


@dataclass
class Outcome:
    """Of one run."""

    seconds: float
    seed: int
    callers: dict[str, Tally]
    hung: int
    killed: int
    locked: int
    admin: list[tuple[int, float]]
    before: Held
    after: Held
    task_failures: dict[str, float]
    tasks: dict[str, float]
    queued_rows: float
    policies_put_aside: float
    worker_restarts: float
    slept_s: Mapping[int, float]  # rows → what the model itself takes for them
    waited_s: Mapping[int, float]  # the same with the way there and back, for a caller who is alone
    learned_s: Mapping[int, float]
    server_errors: list[str]  # tracebacks in its log, faulty policies' apart
    wrong: list[str] = field(default_factory=list)  # of admin calls

    def faults(self) -> list[str]:
        """What is not as it should be, in words; empty if all is well."""
        found = list(self.wrong)
        for kind, tally in self.callers.items():
            if tally.lost:
                found.append(f"{len(tally.lost)} callers ({kind}) got no answer: {tally.lost[0]}")
            if tally.wrong:
                found.append(f"{len(tally.wrong)} callers ({kind}) got a wrong one: {tally.wrong[0]}")
            if tally.asked != tally.accounted:
                found.append(f"of {tally.asked} requests ({kind}) {tally.accounted} are accounted for")
            if not tally.asked:
                found.append(f"nobody asked ({kind})")
        grown = self.after.resident_bytes - self.before.resident_bytes
        if grown > max(_MEMORY_LEAST, _MEMORY_SHARE * self.before.resident_bytes):
            found.append(f"the server holds {grown >> 20} MiB more than before")
        if self.after.open_files > self.before.open_files + 4:
            found.append(f"{self.after.open_files} files are open, {self.before.open_files} were before")
        if self.after.registry_files > _REGISTRY_FILES:
            found.append(f"{self.after.registry_files} files of the registry are open")
        failures = self.task_failures.items()
        found += [f"task {kind} failed {count:g} times" for kind, count in failures if count]
        found += [f"no task {kind} runs" for kind, count in self.tasks.items() if not count]
        if self.queued_rows:
            found.append(f"{self.queued_rows:g} rows wait though nobody asks")
        if self.policies_put_aside != 2:
            found.append(f"{self.policies_put_aside:g} faulty policies were put aside, of 2")
        for rows, learned_s in self.learned_s.items():
            least_s, most_s = self.slept_s[rows], self.waited_s[rows]  # the truth lies between them
            if not least_s * (1 - _LATENCY_SHARE) <= learned_s <= most_s * (1 + _LATENCY_SHARE):
                truth = f"{1000 * least_s:.1f} to {1000 * most_s:.1f} ms"
                found.append(f"l̂({rows}) is {1000 * learned_s:.1f} ms, and the truth {truth}")
        found += [f"the server's log: {line}" for line in self.server_errors[:3]]
        return found

    def to_json(self) -> dict[str, Any]:
        callers = {
            kind: {
                **{name: getattr(tally, name) for name in ("asked", "answered", "vanished", "slowest_s")},
                "refused": dict(tally.refused),
                "wrong": tally.wrong[:10],
                "lost": tally.lost[:10],
            }
            for kind, tally in self.callers.items()
        }
        return {**asdict(replace(self, callers={})), "callers": callers, "faults": self.faults()}

    def show(self) -> None:
        table = Table("callers", "asked", "answered", "refused", "vanished", "wrong", "lost", "slowest s")
        for kind, tally in self.callers.items():
            refused = ", ".join(f"{count:,} {code}" for code, count in sorted(tally.refused.items()))
            table.add_row(
                kind,
                f"{tally.asked:,}",
                f"{tally.answered:,}",
                refused,
                f"{tally.vanished:,}",
                str(len(tally.wrong)),
                str(len(tally.lost)),
                f"{tally.slowest_s:.1f}",
            )
        console.print(table)
        rest = Table("", "")
        rest.add_row(
            "workers that hung, were killed, started again",
            f"{self.hung}, {self.killed}, {self.worker_restarts:g}",
        )
        rest.add_row(
            "registry locked, and admin calls then",
            f"{self.locked} times; " + ", ".join(f"{s} after {t:.1f} s" for s, t in self.admin[:12]),
        )
        rest.add_row(
            "memory of the server, MiB",
            f"{self.before.resident_bytes / 2**20:.1f} → {self.after.resident_bytes / 2**20:.1f}",
        )
        rest.add_row(
            "open files, the registry's, threads",
            f"{self.before.open_files} → {self.after.open_files}, "
            f"{self.before.registry_files} → {self.after.registry_files}, "
            f"{self.before.threads} → {self.after.threads}",
        )
        rest.add_row("background tasks that failed", f"{sum(self.task_failures.values()):g}")
        rest.add_row(
            "l̂ of so many rows; the model's own time, a lone caller's, ms",
            ", ".join(
                f"{rows}: {1000 * took_s:.1f} ({1000 * self.slept_s[rows]:.0f}, {1000 * waited_s:.1f})"
                for (rows, took_s), waited_s in zip(
                    self.learned_s.items(), self.waited_s.values(), strict=True
                )
            ),
        )
        console.print(rest)
        for fault in self.faults():
            console.print(f"[red]{fault}")
