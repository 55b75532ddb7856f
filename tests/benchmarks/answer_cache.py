"""`make bench-cache`: a dashboard's query asked again, and what the cache costs who asks something new.

    again   SELECT udf(image_path), count(*) … GROUP BY over distinct photos, in a new session each time: the
            first time after a deployment, when every row is computed, against the times after it
    changed one photo is replaced: the time after that, and how many rows were computed
    miss    distinct texts, short and long, through a model that costs nothing, in turn with the cache and
            without it, on a server with each store that is built: the server's own CPU time a row, and beside
            it the steps of a miss alone, in this process

How many rows were computed is read from the server's own counts; what an answer says is compared with the
first time's.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import duckdb
import psycopg

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album
from gpu_worker.wire.protocol import Column
from ml_udf.client import Client, Options
from server.cache.choice import StoreMissing, choose_store
from server.cache.counts import CacheCounts
from server.cache.entry import kind_of
from server.cache.files import FileStamps
from server.cache.in_flight import InFlight
from server.cache.stores import new_store
from tests.benchmarks.report import console, say, write_json
from tests.benchmarks.sql import fill, postgres_database
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, image_model

FUNCTION, NOOP = "udf_bench", "udf_noop"
GROUPED = f"SELECT {FUNCTION}(image_path) AS answer, count(*) FROM files GROUP BY answer"
SHORT = "a review of some forty letters"
LONG = "a review of some hundreds of letters, " + 8 * "rich and hot, and we would come again, "
GOAL_TIMES, GOAL_MISS_US = 20.0, 3.0
MISS_ROUNDS = 4  # of each of the others: they are short, and what is measured is the difference of two
_TICK_S = 0.5

Ask = Callable[[], dict[str, int]]


@dataclass
class AskedAgain:
    """One engine: seconds of the query the first time, again, and after one photo was replaced."""

    engine: str
    first_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    changed_s: list[float] = field(default_factory=list)
    computed_again: int = 0
    computed_changed: list[int] = field(default_factory=list)

    @property
    def times(self) -> float:
        return median(self.first_s) / median(self.again_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="A query asked again, and what a new one costs.")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--architecture", default="squeezenet")
    parser.add_argument("--parts", nargs="+", default=["again", "miss"], choices=["again", "miss"])
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
        work.chmod(0o755)
        run(stack, work, options.rows, options.rounds, options.architecture, options.parts)


def run(
    stack: ExitStack, work: Path, rows: int, rounds: int, architecture: str, parts: Sequence[str]
) -> None:
    files = photos(work, rows)
    asked = dashboards(stack, work, files, rounds, architecture) if "again" in parts else []
    misses, steps = {}, {}
    for store in stores_built() if "miss" in parts else ():
        server = stack.enter_context(inference_server(work / store, flags=[f"--answer-store={store}"]))
        server.deploy(hashing_model(work / f"made for {store}", "noop"), NOOP)
        for text in (SHORT, LONG):
            misses[store, text] = cost_of_misses(server, rows, rounds, text)
        steps[store] = steps_of_a_miss(store, rows, files)
    report(asked, misses, steps, rows, architecture)


def dashboards(
    stack: ExitStack, work: Path, files: Sequence[str], rounds: int, architecture: str
) -> list[AskedAgain]:
    server = stack.enter_context(inference_server(work / "home", media_roots=[work / "files"]))
    server.deploy(image_model(work / "made", "bench", architecture), FUNCTION)
    server.deploy(hashing_model(work / "made", "noop"), NOOP)
    dsn, _ = postgres_database(stack, server.url)
    asked = [asked_again(server, "duckdb", duckdb_way(server.url, files), files, rounds)]
    if dsn is not None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill(connection.cursor(), "files", "image_path", files)
        asked.append(asked_again(server, "postgres", postgres_way(dsn), files, rounds))
    return asked


def stores_built() -> list[str]:
    try:
        return [choose_store("native").name, "python"]
    except StoreMissing as error:
        say(str(error))
        return ["python"]


def photos(work: Path, rows: int) -> list[str]:
    """Files of their own: a link is the same file, and would be answered by what is known of it."""
    draw_album(work / "drawn", Album(images=min(rows, 1_000), rows=1))
    drawn = sorted((work / "drawn").rglob("*.jpg"))
    folder = work / "files"
    folder.mkdir()
    paths = [folder / f"{number:06}.jpg" for number in range(rows)]
    for number, path in enumerate(paths):
        shutil.copyfile(drawn[number % len(drawn)], path)
    time.sleep(_TICK_S)
    return [str(path) for path in paths]


def duckdb_way(url: str, files: Sequence[str]) -> Ask:
    def ask() -> dict[str, int]:
        with duckdb.connect() as con, closing(ml_udf.duckdb.register(con, url, functions=[FUNCTION])):
            con.execute("CREATE TABLE files AS SELECT unnest(?) AS image_path", [files])
            return timed(lambda: dict(con.execute(GROUPED).fetchall()))

    return ask


def postgres_way(dsn: str) -> Ask:
    def ask() -> dict[str, int]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT ml_udf.predict(%s, 'a session has begun')", [NOOP])
            return timed(lambda: dict(connection.execute(GROUPED).fetchall()))

    return ask


took_s = [0.0]  # by the query that was asked last


def timed(ask: Ask) -> dict[str, int]:
    began_s = time.perf_counter()
    found = ask()
    took_s[0] = time.perf_counter() - began_s
    return found


def asked_again(
    server: InferenceServer, engine: str, ask: Ask, files: Sequence[str], rounds: int
) -> AskedAgain:
    found = AskedAgain(engine)
    for number in range(rounds):
        with server.client() as client:
            client.put(f"/v1/functions/{FUNCTION}", {"models": ["bench"]})
        answer = ask()
        found.first_s.append(took_s[0])
        expect(computed(server), len(files), "rows computed the first time")
        for _ in range(3):
            expect(ask(), answer, "the answer asked again")
            found.again_s.append(took_s[0])
        found.computed_again += computed(server) - len(files)
        path = Path(files[number])
        shutil.copyfile(files[-1 - number], path)
        time.sleep(_TICK_S)
        ask()
        found.changed_s.append(took_s[0])
        found.computed_changed.append(computed(server) - len(files))
    return found


def computed(server: InferenceServer) -> int:
    """Rows of the version that answers now that were computed."""
    with server.client() as client:
        version = client.describe(FUNCTION).version
        stats = client.get(f"/v2/models/{FUNCTION}/versions/{version}/stats")["model_stats"][0]
    return sum(int(one["batch_size"]) * int(one["compute_infer"]["count"]) for one in stats["batch_stats"])


def expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        sys.exit(f"{what}: {found}, expected {expected}")


def cost_of_misses(server: InferenceServer, rows: int, rounds: int, text: str) -> dict[str, list[float]]:
    """By whether the cache was asked, the server's own CPU microseconds of a row, round by round."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    with closing(Client(server.url)) as client:
        for number in range(MISS_ROUNDS * rounds + 1):
            for cache in ("on", "off"):
                texts = [f"{cache} {number} of {text} {row}" for row in range(rows)]
                began_s = cpu_s(server.pid)
                client.predict(NOOP, texts, Options(answer_cache="on" if cache == "on" else "off"))
                if number:  # the first round warms up
                    found[cache].append((cpu_s(server.pid) - began_s) / rows * 1e6)
    return found


def cpu_s(pid: int) -> float:
    """Of all threads of a process, so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def steps_of_a_miss(name: str, rows: int, files: Sequence[str]) -> dict[str, float]:
    """Microseconds a row of each step that a row goes which is not known, in this process: the least of 5."""
    scope = b"k" * 16
    texts = [f"a review of some forty letters and more {row}".encode() for row in range(rows)]
    columns = [
        Column("label", "BYTES", (), ["ramen"] * rows),
        Column("confidence", "FP32", (), b"abcd" * rows),
    ]
    kinds = tuple([kind_of(column) for column in columns])
    paths = [path.encode() for path in files]
    media = str(Path(files[0]).parent)
    least: dict[str, float] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        least[name] = min(least.get(name, math.inf), (time.perf_counter() - began_s) / rows * 1e6)

    for _ in range(5):
        store, flights = new_store(name, 1 << 28), InFlight[object]()
        source = store.sources.of("udf/1", kinds, "net", CacheCounts(), has_told=False)
        with step("hash"):
            keys = store.keys_of(scope, texts)
        with step("look up"):
            store.find(keys)
        with step("lead"):
            flight = flights.lead(keys, is_urgent=True)
        with step("land"):
            flights.land(flight)
        with step("keep"):
            store.keep_columns(source, keys, columns)
        with step("a hit: look up"):
            source.unpack([row for row in store.find(keys) if row is not None])
        with step("a path: stamp, in a thread"):
            stamps = asyncio.run(_stamps(media, paths))
        with step("a path: hash"):
            store.keys_of_files(scope, stamps)
    return least


async def _stamps(media: str, paths: Sequence[bytes]) -> list[bytes]:
    stamps = FileStamps([media], patience_s=60.0)
    try:
        return await stamps.of(paths, None, None)
    finally:
        stamps.close()


def report(
    asked: Sequence[AskedAgain],
    misses: dict[tuple[str, str], dict[str, list[float]]],
    steps: dict[str, dict[str, float]],
    rows: int,
    architecture: str,
) -> None:
    console.rule(f"{rows:,} distinct photos, {architecture}: a query asked again")
    for one in asked:
        verdict = "met" if one.times >= GOAL_TIMES else "MISSED"
        say(
            f"{one.engine}: first {spread(one.first_s)} s, again {spread(one.again_s)} s: {one.times:.0f} "
            f"times as fast; goal {GOAL_TIMES:g}: {verdict}; rows computed again: {one.computed_again}"
        )
        say(
            f"{one.engine}: after one photo was replaced {spread(one.changed_s)} s, rows computed: "
            f"{one.computed_changed}"
        )
    for (store, text), us in misses.items():
        each = [on - off for on, off in zip(us["on"], us["off"], strict=True)]
        verdict = "met" if median(each) <= GOAL_MISS_US else "MISSED"
        say(
            f"{store} store, a miss of {len(text)} letters: the server takes {median(us['on']):.2f} µs a row "
            f"with the cache, {median(us['off']):.2f} without: {median(each):.2f} more, quartiles "
            f"{quartiles(each)}; "
            f"goal {GOAL_MISS_US:g}: {verdict}"
        )
    for store, took in steps.items():
        say(f"{store} store, steps, µs a row: " + ", ".join(f"{name} {us:.2f}" for name, us in took.items()))
    path = write_json(
        "answer_cache",
        {
            "rows": rows,
            "architecture": architecture,
            "asked": {
                one.engine: {
                    "first_s": one.first_s,
                    "again_s": one.again_s,
                    "changed_s": one.changed_s,
                    "rows_computed_again": one.computed_again,
                    "rows_computed_after_one_change": one.computed_changed,
                }
                for one in asked
            },
            "server_us_a_row": {f"{store} {len(text)}": us for (store, text), us in misses.items()},
            "steps_us_a_row": steps,
        },
    )
    say(f"written to {path}")


def quartiles(values: Sequence[float]) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{low:.2f} to {high:.2f}"


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
