"""What an interrupted `make bench-schedule` leaves behind: one line per simulation.

The file's name carries a digest of the code that was simulated, so that a run never goes on from what other
code did. Knows neither cells nor rules, only their keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.benchmarks import schedule_cases
from tests.benchmarks.report import RESULTS

__all__ = ["Journal"]

_CODE = Path(__file__).parents[2] / "server" / "scheduling"


class Journal:
    """(goodput, goodput of the worst function) by key, on disk as they come."""

    def __init__(self, folder: Path = RESULTS) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / f"schedule-{_digest()}.jsonl"
        self.known: dict[str, tuple[float, float]] = {}
        if self._path.exists():
            whole, _, _ = self._path.read_text().rpartition("\n")  # a run may have ended within a line
            for line in whole.splitlines():
                key, share, least = json.loads(line)
                self.known[key] = (share, least)
            self._path.write_text(f"{whole}\n" if whole else "")

    def keep(self, outcomes: Iterable[tuple[str, tuple[float, float]]]) -> Iterator[str]:
        """Write each outcome as it comes, and yield its key."""
        with self._path.open("a") as file:
            for key, outcome in outcomes:
                self.known[key] = outcome
                file.write(json.dumps([key, *outcome]) + "\n")
                file.flush()
                yield key

    def forget(self) -> None:
        """Remove the file: the run is complete."""
        self._path.unlink(missing_ok=True)


def _digest() -> str:
    digest = hashlib.sha256()
    for path in (*sorted(_CODE.glob("*.py")), Path(schedule_cases.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
