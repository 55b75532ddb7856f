"""How long a fuzzer may run: bounded in the test run, longer where somebody asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

__all__ = ["FUZZ_SECONDS", "rounds"]

FUZZ_SECONDS = float(os.environ.get("ML_UDF_FUZZ_SECONDS", "0"))


def rounds(least: int) -> Iterator[int]:
    """0, 1, 2, …: `least` of them, and more until `FUZZ_SECONDS` have passed. Each is a seed."""
    begin_s = time.monotonic()
    seed = 0
    while seed < least or time.monotonic() - begin_s < FUZZ_SECONDS:
        yield seed
        seed += 1
