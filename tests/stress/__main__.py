"""`python -m tests.stress`: see serving.py.

Writes bench-results/stress_serving.json; ends with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import sys

from tests.benchmarks.report import write_json
from tests.stress.faults import Plan
from tests.stress.serving import stressed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--locked-s", type=float, default=20.0, help="how long the registry is locked")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    outcome = stressed(60.0 * flags.minutes, Plan(locked_s=flags.locked_s), flags.seed)
    outcome.show()
    write_json("stress_serving", outcome.to_json())
    return 1 if outcome.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
