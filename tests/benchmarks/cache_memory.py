"""`make bench-cache-memory`: what a store of answers takes while millions of inputs are asked for once each.

`native` is the store in C, which keeps by S3-FIFO; the others are rules of the one in Python. A process of
its own for each: what its resident memory grows by, beside the bytes that the store counts; the peak, which
an eviction rule's own memory and the allocator's holes are part of; what keeping an answer costs, its key
too; and the longest that a hundred took, since Python's collector looks at whole generations at once. Both
times are the thread's own: others on the machine do not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import struct
import subprocess
import sys
import time
from typing import Any

from rich.table import Table

from gpu_worker.wire.protocol import Column
from server.cache.contract import Store
from server.cache.counts import CacheCounts
from server.cache.entry import kind_of
from server.cache.rules.by_name import RULES
from server.cache.store import AnswerStore
from server.cache.stores import new_store
from tests.benchmarks.figures import give_way, wide
from tests.benchmarks.report import write_json
from tests.benchmarks.resident_memory import resident_bytes

_MIB = 1 << 20
_LOOKS = 100  # at the resident memory
_ROWS = 100  # of a request
_PACK = struct.Struct("<I").pack
_NATIVE = "native"
_SCOPE = b"k" * 16


def main() -> None:
    flags = _parser().parse_args()
    if flags.rule:
        print(json.dumps(measured(flags.rule, flags.inputs, flags.mib * _MIB)))
        return
    give_way()
    found = []
    columns = (
        "rule",
        "bound",
        "kept",
        "counted",
        "resident, at the end",
        "most",
        "µs an input",
        "longest, ms",
    )
    table = Table(*columns, title=f"{flags.inputs:,} distinct inputs, a label and a confidence each; MiB")
    for name in flags.rules:
        command = [sys.executable, "-m", "tests.benchmarks.cache_memory", f"--rule={name}"]
        command += [f"--inputs={flags.inputs}", f"--mib={flags.mib}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        one = json.loads(done.stdout)
        found.append(one)
        mib = [f"{one[each] / _MIB:.1f}" for each in ("counted_bytes", "resident_bytes", "most_bytes")]
        table.add_row(
            name, str(flags.mib), f"{one['kept']:,}", *mib, f"{one['us']:.2f}", f"{one['longest_ms']:.1f}"
        )
    wide.print(table)
    write_json("cache-memory", {"inputs": flags.inputs, "mib": flags.mib, "found": found})


def measured(rule: str, inputs: int, capacity: int) -> dict[str, Any]:
    """In this process, which should have done nothing else."""
    counts = CacheCounts()
    gc.collect()
    before = most = resident_bytes(os.getpid())
    store: Store = new_store(_NATIVE, capacity) if rule == _NATIVE else AnswerStore(capacity, RULES[rule])
    longest_s, began_s = 0.0, time.thread_time()
    last_s = began_s
    for first in range(0, inputs, _ROWS):
        numbers = range(first, min(first + _ROWS, inputs))
        # As a reply has them: of each row objects of its own.
        columns = [
            Column("label", "BYTES", (), [f"class {number % 1000}" for number in numbers]),
            Column("confidence", "FP32", (), b"".join([_PACK(number) for number in numbers])),
        ]
        keys = store.keys_of(_SCOPE, [b"an input of %d" % number for number in numbers])
        kinds = tuple([kind_of(column) for column in columns])
        source = store.sources.of("udf/1", kinds, "net", counts, has_told=False)
        store.keep_columns(source, keys, columns)
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
        if first // _ROWS % max(1, inputs // _ROWS // _LOOKS) == 0:
            most = max(most, resident_bytes(os.getpid()))
            last_s = time.thread_time()
    took_s = time.thread_time() - began_s
    after = resident_bytes(os.getpid())
    return {
        "rule": rule,
        "kept": len(store),
        "capacity_bytes": capacity,
        "counted_bytes": store.nbytes,
        "resident_bytes": after - before,
        "most_bytes": max(most, after) - before,
        "us": 1e6 * took_s / inputs,
        "longest_ms": 1e3 * longest_s,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--mib", type=int, default=256, help="the store's bound")
    parser.add_argument("--rules", nargs="+", default=[_NATIVE, "s3-fifo"], choices=[_NATIVE, *RULES])
    parser.add_argument("--rule", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
