"""Which unit test runs which line, and how long it takes: one run of the tests under coverage.

python -m tests.mutation.reach OUT FOLDER FILE…
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

__all__ = ["Reach", "measure"]


@dataclass(slots=True)
class Reach:
    """`tests`: by file and line the tests that run it. `seconds`: by test; the failed are left out."""

    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps({"tests": self.tests, "seconds": self.seconds}))

    @classmethod
    def load(cls, path: Path) -> Reach:
        """What `save` wrote."""
        told = json.loads(path.read_text())
        lines = {file: {int(line): ids for line, ids in by.items()} for file, by in told["tests"].items()}
        return cls(lines, told["seconds"])


class _Contexts:
    """Names each test to coverage while it runs, its fixtures included, and takes its time."""

    def __init__(self, cov: coverage.Coverage) -> None:
        self._cov = cov
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._cov.switch_context(item.nodeid)
        yield
        self._cov.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def measure(folders: Sequence[str], files: Sequence[Path]) -> Reach:
    """Run the tests of `folders` once and see which lines of `files` each of them runs, in this process."""
    cov = coverage.Coverage(data_file=None, include=[str(file.absolute()) for file in files])
    contexts = _Contexts(cov)
    cov.start()
    pytest.main([*folders, "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"], plugins=[contexts])
    cov.stop()
    data = cov.get_data()
    reach = Reach(
        seconds={test: took for test, took in contexts.seconds.items() if test not in contexts.failed}
    )
    for file in files:
        by_line = data.contexts_by_lineno(str(file.absolute()))
        reach.tests[str(file)] = {
            line: sorted(test for test in tests if test in reach.seconds) for line, tests in by_line.items()
        }
    return reach


if __name__ == "__main__":
    measure([sys.argv[2]], [Path(file) for file in sys.argv[3:]]).save(Path(sys.argv[1]))
