"""What it costs to reach a worker: on this machine, on a Ray node by our frames, and by Ray's own actor
calls.

Workers compute nothing, so that what is seen is the way there and back: rows of 15 KB in batches of 1, 32 and
256, two batches in flight, as the dispatcher has them. All contenders take turns in one run. The processor's
time is that of the asking process, of the worker, and of what stands between them (the host that does TLS;
for actor calls, the node's raylet).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import uvloop

from gpu_worker.wire.protocol import Answer, Infer
from server.workers.local import LocalPool
from server.workers.supervised_pool import SupervisedPool
from tests.benchmarks.pool_worker import reply_to
from tests.benchmarks.processor_time import processor_s
from tests.benchmarks.report import Series, console, print_series, ratio, say, write_json
from tests.ray_machines import ray_machines
from tests.unit.server.pool_contract import pid_of, served
from tests.waiting import until

ROW_BYTES = 15_000
SIZES = (1, 32, 256)
IN_FLIGHT = 2
WORKER = ["-m", "tests.benchmarks.pool_worker", "{fd}"]


@dataclass
class Contender:
    """ask: a batch of rows, to its answers' count. pids: whose time counts beside this process's."""

    name: str
    ask: Callable[[Sequence[bytes]], Awaitable[int]]
    pids: Sequence[int]
    series: dict[int, Series] = field(default_factory=dict)  # by rows a batch
    cpu_us: dict[int, list[float]] = field(default_factory=dict)


class EchoActor:
    """What a worker would be if rows went to it as an actor's calls."""

    def pid(self) -> int:
        return os.getpid()

    def infer(self, rows: list[bytes]) -> int:
        answer = reply_to(Infer(0, ["m"], "image", rows))
        assert isinstance(answer, Answer)
        return len(answer.members[0].columns)


async def turn(contender: Contender, size: int, for_s: float) -> None:
    """Ask for so long; what came out goes into its series."""
    rows = [os.urandom(ROW_BYTES) for _ in range(size)]
    ends_s, answered = time.perf_counter() + for_s, 0

    async def one() -> None:
        nonlocal answered
        while time.perf_counter() < ends_s:
            answered += await contender.ask(rows)

    began_s, own_s = time.perf_counter(), time.process_time()
    others_s = sum(map(processor_s, contender.pids))
    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
    took_s = time.perf_counter() - began_s
    used_s = time.process_time() - own_s + sum(map(processor_s, contender.pids)) - others_s
    series = contender.series.setdefault(size, Series(contender.name, answered))
    series.rows_per_s.append(answered / took_s)
    contender.cpu_us.setdefault(size, []).append(used_s / max(1, answered) * 1e6)


async def by_frames(stack: AsyncExitStack, name: str, pool: SupervisedPool, *, relayed: bool) -> Contender:
    running, listener = await stack.enter_async_context(served(pool))
    await until(lambda: listener.up)
    worker = listener.up[0]
    host = running.states()[0].pid
    assert host is not None

    async def ask(rows: Sequence[bytes]) -> int:
        reply = await worker.call(Infer(0, ["m"], "image", list(rows)))
        assert isinstance(reply, Answer), reply
        return len(rows)

    return Contender(name, ask, [pid_of(worker), host] if relayed else [pid_of(worker)])


def by_actor(node: Any) -> Contender:
    import ray

    actor = ray.remote(EchoActor).options(num_cpus=0, resources={"ml_udf_device": 0.001}).remote()
    pid = ray.get(actor.pid.remote())
    raylets = [node.all_processes["raylet"][0].process.pid]

    async def ask(rows: Sequence[bytes]) -> int:
        await actor.infer.remote(list(rows))
        return len(rows)

    return Contender("actor calls", ask, [pid, *raylets])


async def compare(rounds: int, for_s: float) -> list[Contender]:
    with ray_machines() as machines:
        import ray  # it reads its variables as it is imported

        nodes = plain, secured, called = [machines.add() for _ in range(3)]

        def but(own: Any) -> list[str]:
            return [node.node_id for node in nodes if node is not own]

        ray.init(address=machines.address, log_to_driver=False)
        local = LocalPool(1, lambda index, fd: [sys.executable, *WORKER[:-1], str(fd)])
        near = machines.pool(WORKER, drained=but(plain))
        encrypted = machines.pool(WORKER, always_encrypted=True, drained=but(secured))
        async with AsyncExitStack() as stack:
            stack.callback(ray.shutdown)
            contenders = [
                await by_frames(stack, "local", local, relayed=False),
                await by_frames(stack, "our frames", near, relayed=False),
                await by_frames(stack, "our frames, TLS", encrypted, relayed=True),
                by_actor(called),
            ]
            for contender in contenders:
                await turn(contender, 32, 0.3)  # warm
                contender.series.clear()
                contender.cpu_us.clear()
            for size in SIZES:
                for number in range(rounds):
                    # In another order each round, so that none always has the same before it.
                    for place in range(len(contenders)):
                        await turn(contenders[(place + number) % len(contenders)], size, for_s)
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    flags = parser.parse_args()
    contenders = uvloop.run(compare(flags.rounds, flags.seconds))
    result: dict[str, Any] = {"row_bytes": ROW_BYTES, "in_flight": IN_FLIGHT, "sizes": {}}
    local = contenders[0]
    for size in SIZES:
        print_series(
            f"{size} rows a batch", [each.series[size] for each in contenders], against=local.series[size]
        )
        told = {}
        for each in contenders:
            cpu_us = sorted(each.cpu_us[size])
            say(
                f"  {each.name}: {cpu_us[len(cpu_us) // 2]:.1f} CPU µs a row "
                f"({cpu_us[0]:.1f} to {cpu_us[-1]:.1f})"
            )
            told[each.name] = {
                "rows_per_s": each.series[size].rows_per_s,
                "of_local": ratio(each.series[size], local.series[size]),
                "cpu_us_a_row": each.cpu_us[size],
            }
        result["sizes"][size] = told
    console.print()
    write_json("pool", result)


if __name__ == "__main__":
    main()
