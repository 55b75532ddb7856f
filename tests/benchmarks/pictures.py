"""`make bench-pictures`: two functions of the same photos in one query, whose work is shared or not.

    python -m tests.benchmarks.pictures --rounds 3

Two servers, which differ in `--recent-bytes` alone (its default, and none), are asked by turns by DuckDB, of
photos that nobody asked before: one function; two functions of a model each, which share the decoding; two
heads on one backbone, which share its pass too; a head, and what the backbone sees, asked of that by its own
name. Photos of three sizes; untrained models of 64×64: what is measured is time. Files alike in content are
files of their own.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import duckdb
import httpx

import ml_udf.duckdb
from tests.benchmarks.gpu import photo
from tests.benchmarks.prefix import heads
from tests.benchmarks.report import Series, print_series, ratio, say, write_json
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import image_model

SIZES = {"128×128": (128, 128, 2_000), "400×300": (400, 300, 1_000), "1600×1200": (1600, 1200, 300)}
WAYS = {"each by itself": ["--recent-bytes=0"], "kept": []}
MODELS = ("resnet", "small_cnn")
BACKBONE = "xception"
QUERIES = {
    "one function": ("udf_resnet",),
    "two functions": ("udf_resnet", "udf_small_cnn"),
    "two heads of one backbone": ("udf_head0", "udf_head1"),
    "a head and its backbone": ("udf_head0", "udf_eyes"),
}
_MADE = 16  # different photos of a size
_YOUNG_S = 0.2  # so long a file that was just written is not known again


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a fifth of the photos, two rounds")
    flags = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ml_udf-pictures-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "photos").mkdir()
        connections = {way: _connection(stack, folder, way, flags) for way, flags in WAYS.items()}
        for size, (width, height, count) in SIZES.items():
            rows = count // 5 if flags.quick else count
            fresh = _fresh(folder / "photos", width, height, rows)
            found[size] = _measured(connections, size, fresh, rows, 2 if flags.quick else flags.rounds)
    write_json("pictures", found)


def _connection(
    stack: ExitStack, folder: Path, way: str, flags: list[str]
) -> tuple[InferenceServer, duckdb.DuckDBPyConnection]:
    home = folder / f"home {len(list(folder.iterdir()))}"
    flags = [ANEW, "--answer-cache-bytes=0", *flags]
    server = stack.enter_context(inference_server(home, media_roots=[folder / "photos"], flags=flags))
    made = folder / "models" / way
    for number, model in enumerate(MODELS):
        server.deploy(image_model(made, model, model, seed=number), f"udf_{model}")
    backbone = image_model(made, "eyes", BACKBONE)
    server.deploy(backbone, "udf_eyes", task="image-embedding")
    for head in heads(made, backbone, 2):
        server.deploy(head, f"udf_{head.parent.name}")
    con = stack.enter_context(duckdb.connect())
    asked = sorted({function for functions in QUERIES.values() for function in functions})
    stack.callback(ml_udf.duckdb.register(con, server.url, functions=asked).close)
    return server, con


def _fresh(folder: Path, width: int, height: int, rows: int) -> Iterator[list[str]]:
    """Paths of photos that nobody asked before, again and again."""
    made = [photo(seed, width, height) for seed in range(_MADE)]
    for turn in itertools.count():
        place = folder / f"{width}x{height}-{turn}"
        place.mkdir()
        paths = [place / f"{number}.jpg" for number in range(rows)]
        for number, path in enumerate(paths):
            path.write_bytes(made[number % _MADE])
        sleep(_YOUNG_S)
        yield [str(path) for path in paths]


def _measured(
    connections: dict[str, tuple[InferenceServer, duckdb.DuckDBPyConnection]],
    size: str,
    fresh: Iterator[list[str]],
    rows: int,
    rounds: int,
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    series = {(query, way): Series(way, rows) for query in QUERIES for way in connections}
    for turn in range(rounds + 1):
        for query, functions in QUERIES.items():
            text = f"SELECT {', '.join(f'count({function}(path))' for function in functions)} FROM photos"
            ways = list(connections) if turn % 2 else list(connections)[::-1]
            for way in ways:
                _, con = connections[way]
                con.execute("CREATE OR REPLACE TABLE photos AS SELECT unnest(?) AS path", [next(fresh)])
                began_s = perf_counter()
                answered = con.execute(text).fetchall()
                if set(answered[0]) != {rows}:
                    raise RuntimeError(f"{answered} of {rows} rows were answered")
                if turn:  # the first round warms up, and teaches l̂
                    series[query, way].rows_per_s.append(rows / (perf_counter() - began_s))
    for query in QUERIES:
        each = [series[query, way] for way in connections]
        print_series(f"photos of {size}, {query}", each, against=each[0])
        told[query] = {one.name: one.rows_per_s for one in each} | {"ratio": ratio(each[1], each[0])}
    server, _ = connections["kept"]
    say(f"spared so far: {_spared(server):,.0f} rows")
    return told


def _spared(server: InferenceServer) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    told = [line for line in lines if line.startswith("ml_udf_spared_rows_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in told)


if __name__ == "__main__":
    main()
