"""The private memory of a backend while a query runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg

from tests.benchmarks.report import console

__all__ = ["backend_memory"]

SAMPLE_EVERY_S = 0.05


def backend_memory(connection: psycopg.Connection, name: str, query: str, rows: int) -> dict[str, Any]:
    """Run a query over `rows` rows; what its backend held after a tenth of the time, at the end, at most."""
    samples = sampled(connection, query)
    settled = samples[len(samples) // 10 :]
    result = {
        "query": name,
        "rows": rows,
        "private_mib_least": min(settled) / 1024,
        "private_mib_most": max(settled) / 1024,
        "private_mib_first_tenth": samples[len(samples) // 10] / 1024,
        "private_mib_end": samples[-1] / 1024,
        "private_mib_by_tenth": [samples[len(samples) * tenth // 10] / 1024 for tenth in range(10)],
    }
    console.print(
        f"{name:22} {rows:,} rows: {result['private_mib_first_tenth']:.1f} MiB after a tenth,"
        f" {result['private_mib_end']:.1f} at the end, most {result['private_mib_most']:.1f}"
    )
    return result


def sampled(connection: psycopg.Connection, query: str) -> list[int]:
    """Run a query; its backend's RssAnon in KiB, over time."""
    status = Path(f"/proc/{connection.info.backend_pid}/status")
    samples: list[int] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_EVERY_S):
            (line,) = (line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
            samples.append(int(line.split()[1]))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        connection.execute(query.encode()).fetchall()
    finally:
        done.set()
        sampler.join()
    return samples
