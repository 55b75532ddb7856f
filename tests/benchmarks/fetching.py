"""How a model reaches a node that does not see the server's files: in pieces over our own socket, as it is or
encrypted, beside Ray's object store, and beside a copy on one disk.

Each writes the file to the node's folder, hashed and flushed. What rows wait meanwhile is asked of the same
worker, one row at a time. All contenders take turns in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from gpu_worker.wire.protocol import Answer, Infer, Load, Loaded
from server.workers.nodes import Node
from server.workers.pool import Worker
from server.workers.ray import NodeFiles
from tests.benchmarks.report import console, say, write_json
from tests.models import hashing_model
from tests.ray_machines import Machines, ray_machines
from tests.unit.server.pool_contract import served
from tests.waiting import until

_PIECE_BYTES = 1 << 22


class ObjectStoreActor:
    """Takes a file out of Ray's object store and puts it down."""

    def keep(self, data: Any, path: str) -> str:
        with open(path, "wb") as file:
            file.write(memoryview(data))
            os.fsync(file.fileno())
        return hashlib.sha256(memoryview(data)).hexdigest()


def model_of(folder: Path, name: str, nbytes: int) -> Path:
    """A model whose weights are noise, and are not read."""
    model = hashing_model(folder, name)
    weights = os.urandom(nbytes)
    (model / "w.safetensors").write_bytes(weights)
    manifest = json.loads((model / "model.json").read_text())
    manifest |= {"weights": "w.safetensors", "sha256": hashlib.sha256(weights).hexdigest()}
    (model / "model.json").write_text(json.dumps(manifest))
    return model


def copied(model: Path, to: Path) -> None:
    """As a worker beside the file would, if it had to."""
    digest = hashlib.sha256()
    with (model / "w.safetensors").open("rb") as source, to.open("wb") as file:
        while piece := source.read(_PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
        os.fsync(file.fileno())


async def rows_beside(worker: Worker, over: asyncio.Event) -> list[float]:
    """Milliseconds that each of them took, until it is over."""
    took_ms = []
    while not over.is_set():
        began_s = time.perf_counter()
        reply = await worker.call(Infer(0, ["warm"], "text", [b"x" * 1000]))
        assert isinstance(reply, Answer), reply
        took_ms.append((time.perf_counter() - began_s) * 1e3)
        await asyncio.sleep(0.001)
    return took_ms


async def compare(rounds: int, mbytes: int, folder: Path) -> dict[str, Any]:
    with ray_machines() as machines:
        import ray  # it reads its variables as it is imported

        for _ in range(3):
            machines.add()
        ray.init(address=machines.address, log_to_driver=False)
        async with AsyncExitStack() as stack:
            stack.callback(ray.shutdown)
            warm = hashing_model(folder / "models", "warm")
            workers = {
                name: await worker_of(stack, machines, folder, name, warm, encrypted=name.endswith("TLS"))
                for name in ("our pieces", "our pieces, TLS")
            }
            actor = ray.remote(ObjectStoreActor).options(num_cpus=0, resources={"ml_udf_device": 1}).remote()
            seconds: dict[str, list[float]] = {}
            beside_ms: dict[str, list[float]] = {}

            async def by_pieces(name: str, model: Path) -> None:
                over = asyncio.Event()
                rows = asyncio.ensure_future(rows_beside(workers[name], over))
                loaded = await workers[name].call(Load(0, model.parent.name, str(model)))
                over.set()
                assert isinstance(loaded, Loaded), loaded
                beside_ms.setdefault(name, []).extend(await rows)

            async def by_store(_: str, model: Path) -> None:
                import numpy as np

                data = np.fromfile(model / "w.safetensors", np.uint8)
                await actor.keep.remote(ray.put(data), str(folder / "kept"))

            async def by_copy(_: str, model: Path) -> None:
                await asyncio.to_thread(copied, model, folder / "kept")

            ways: Sequence[tuple[str, Callable[[str, Path], Awaitable[None]]]] = [
                ("a copy, hashed", by_copy),
                ("our pieces", by_pieces),
                ("our pieces, TLS", by_pieces),
                ("Ray's object store", by_store),
            ]
            for number in range(rounds):
                for place in range(len(ways)):
                    name, way = ways[(place + number) % len(ways)]
                    model = model_of(folder / "models", f"m{number}{place}", mbytes << 20)
                    began_s = time.perf_counter()
                    await way(name, model)
                    seconds.setdefault(name, []).append(time.perf_counter() - began_s)
            for name, worker in workers.items():
                over = asyncio.Event()
                asyncio.get_running_loop().call_later(1.0, over.set)
                beside_ms[f"{name}, nothing beside"] = await rows_beside(worker, over)
    return {"mbytes": mbytes, "seconds": seconds, "rows_beside_ms": beside_ms}


async def worker_of(
    stack: AsyncExitStack, machines: Machines, folder: Path, name: str, warm: Path, *, encrypted: bool
) -> Worker:
    """A real one, on a node that sees nothing of the server's, with a model to ask."""
    own = folder / name.replace(", ", "-").replace(" ", "-")

    def command(index: int, node: Node) -> Sequence[str]:
        return ["-m", "gpu_worker", "--fd={fd}", "--device=cpu", "--threads=1", f"--fetched={own}"]

    files = NodeFiles(lambda node: False)
    pool = machines.pool(command, files=files, always_encrypted=encrypted)
    # Two pools on one cluster do not know of each other's workers.
    pool._hosts.drained.update(machines.by_name.keys() - {"n2" if encrypted else "n1"})
    _, listener = await stack.enter_async_context(served(pool))
    await until(lambda: listener.up)
    loaded = await listener.up[0].call(Load(0, "warm", str(warm)))
    assert isinstance(loaded, Loaded), loaded
    return listener.up[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--mbytes", type=int, default=64, help="of a model; the nodes' object stores have 80")
    flags = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fetching-"))
    try:
        result = uvloop.run(compare(flags.rounds, flags.mbytes, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"a model of {flags.mbytes} MB; seconds, and MB/s:")
    for name, took_s in result["seconds"].items():
        rates = sorted(flags.mbytes / each for each in took_s)
        say(f"  {name}: {median(took_s):.2f} s, {median(rates):.0f} MB/s ({rates[0]:.0f} to {rates[-1]:.0f})")
    say("a row beside it, on the same connection; ms:")
    for name, took_ms in result["rows_beside_ms"].items():
        ordered = sorted(took_ms)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        say(f"  {name}: {median(ordered):.2f}, p99 {p99:.2f} ({len(ordered)} rows)")
    console.print()
    write_json("fetching", result)


if __name__ == "__main__":
    main()
