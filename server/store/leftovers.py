"""What processes left half written in the home folder that were killed meanwhile. Blocking.

    models/.installing-…               a version that was being stored
    functions/.…                       a function's form that was being written
    training/datasets/D/.taking-…      the rows of a snapshot that was being taken
    training/checkpoints/job-N/…       a checkpoint that was being written or fetched

Other servers of the home, and their workers, write there too: what has had a byte more within a day stays.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

__all__ = ["ABANDONED_S", "remove_leftovers"]

log = logging.getLogger("ml_udf.server.housekeeping")

ABANDONED_S = 86_400.0
_PLACES = (
    "models/.installing-*",
    "functions/.*",
    "training/datasets/*/.taking-*",
    "training/checkpoints/job-*/.coming-*",
    "training/checkpoints/job-*/.tensors-*",
    "training/checkpoints/job-*/.*.coming*",
)


def remove_leftovers(home: Path, now_s: float) -> int:
    """Remove what nobody writes any more; how many went. now_s: as `time.time`."""
    removed = 0
    for place in _PLACES:
        for path in home.glob(place):
            with contextlib.suppress(OSError):  # it has come to its place, or somebody else has removed it
                if now_s - _written_s(path) > ABANDONED_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed += 1
    if removed:
        log.info("removed what was left half written count=%d", removed)
    return removed


def _written_s(path: Path) -> float:
    """When a file was written last, of a folder any in it."""
    return max(each.stat().st_mtime for each in (path, *path.glob("*")))
