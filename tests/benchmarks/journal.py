"""What an interrupted benchmark of simulations leaves behind: one line per simulation.

The file's name carries a digest of the code that was simulated, so that a run never goes on from what other
code did. Knows neither cells nor rules, only their keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.benchmarks.report import RESULTS

__all__ = ["Journal"]

_CODE = Path(__file__).parents[2] / "server"


class Journal:
    """Outcomes, as JSON has them, by key, on disk as they come. cases: the module of what is simulated,
    with `packages` of the server.
    """

    def __init__(
        self,
        benchmark: str,
        cases: ModuleType,
        folder: Path = RESULTS,
        packages: Sequence[str] = ("scheduling", "placement"),
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / f"{benchmark}-{_digest(cases, packages)}.jsonl"
        self.known: dict[str, Any] = {}
        if self._path.exists():
            whole, _, _ = self._path.read_text().rpartition("\n")  # a run may have ended within a line
            self.known.update(map(json.loads, whole.splitlines()))
            self._path.write_text(f"{whole}\n" if whole else "")

    def keep(self, outcomes: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Write each outcome as it comes, and yield its key."""
        with self._path.open("a") as file:
            for key, outcome in outcomes:
                self.known[key] = outcome
                file.write(json.dumps([key, outcome]) + "\n")
                file.flush()
                yield key

    def forget(self) -> None:
        """Remove the file: the run is complete, or is to begin anew."""
        self._path.unlink(missing_ok=True)
        self.known.clear()


def _digest(cases: ModuleType, packages: Sequence[str]) -> str:
    digest = hashlib.sha256(Path(cases.__file__ or "").read_bytes())
    for package in packages:
        for path in sorted((_CODE / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
