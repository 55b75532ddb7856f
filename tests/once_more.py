"""What failed beside others is tried once more, alone.

    python -m tests.once_more -n 3 --dist loadfile        the arguments of pytest for the whole run

Ten thousand tests with real servers, databases and killed processes share two cores in the whole run, and
one of them may wait in vain for its turn. A few that fail there and pass alone are listed, to be mended, and
fail nobody. Many failures, or one that stays, are what they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["failed_before", "main", "worth_another_try"]

MOST = 10  # more than that is no matter of time
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failed_before(file: Path = LAST_FAILED) -> list[str]:
    """The tests that failed in the last run, as pytest keeps them; none where it kept nothing."""
    try:
        return sorted(json.loads(file.read_text()))
    except (OSError, ValueError):
        return []


def worth_another_try(status: int, failed: Sequence[str]) -> bool:
    """Whether a run ended with a few failed tests, and with nothing worse, as a file that cannot be read."""
    whole_files = [test for test in failed if "::" not in test]
    return status == 1 and 0 < len(failed) <= MOST and not whole_files


def main(arguments: Sequence[str]) -> int:
    """The exit status: of the whole run, or of the second try."""
    LAST_FAILED.unlink(missing_ok=True)
    status = _pytest(*arguments)
    failed = failed_before()
    if not worth_another_try(status, failed):
        return status
    _say(f"{len(failed)} failed beside others. Each is tried once more, alone:")
    status = _pytest("--last-failed", "--last-failed-no-failures=none")
    if status == 0:
        _say("\n  ".join([f"{len(failed)} failed beside others and passed alone; look at why:", *failed]))
    return status


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _say(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
