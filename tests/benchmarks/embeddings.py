"""`make bench-embeddings`: rows/s of storing a text's embedding, beside a bare loop over the same texts.

The model is a table of 32,000 × 256 with a tokenizer of WordPiece, made here; wordllama's own where that is
installed. Distinct texts of twelve words, rounds in turn so that the machine's mood falls on all alike:
    bare loop        the same network in one thread, at its best batch size: nothing is sent or stored
    bare, all cores  the same in as many threads as there are cores
    bare, DuckDB     the loop that stores, in the same thread: 65,536 rows by an Arrow table and an UPDATE
    bare, PostgreSQL the same: by a binary COPY into a temporary table and an UPDATE
    duckdb           score_table(con, …) into a FLOAT[256] beside the texts, in a file
    ml-udf score     from outside PostgreSQL into a vector(256), a real[] where pgvector is not installed
    CALL             ml_udf.score_table inside PostgreSQL, into the same
Loops take no more than 100,000 of the texts: their rate is the same for more. Beside the rates: what each
process held after each quarter of the last round, and what it used of the processor for a row.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import struct
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa

from gpu_worker.device import find_device
from gpu_worker.importing import recognised, staged
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import GivesFeatures
from ml_udf.cli.pg_sandbox import sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.cli.score_postgres import score_postgres
from ml_udf.config import Options
from ml_udf.duckdb import score_table
from ml_udf.postgres.binary import binary_reals
from ml_udf.scoring import ScoreProgress, ScoreRequest
from tests.benchmarks.processor_time import processor_s
from tests.benchmarks.report import Series, console, print_series, ratio, say, write_json
from tests.benchmarks.resident_memory import MemoryByTime
from tests.inference_server import ANEW, InferenceServer, inference_server

FUNCTION = "udf_embed"
GOAL = 0.9  # of the bare loop
_TOKENS, _WIDTH = 32_000, 256
_WORDS_OF_A_TEXT = 12
_BATCHES = (64, 256, 1024)
_LOOK_S = 0.2
_CHECKED = 50  # of a round's rows
_FILL_ROWS = 20_000
_LOOP_ROWS = 100_000
_STORED_TOGETHER = 65_536
_DUCKDB = {"memory_limit": "512MB"}  # else what it keeps of the file would look like growth


@dataclass
class StoringLoop:
    """The bare loop that stores too. prepare: as of `Way`; store: vectors [n, width] from a row on."""

    series: Series
    prepare: Callable[[Sequence[str]], None]
    store: Callable[[int, np.ndarray], None]

    def run(self, bare: Bare, texts: Sequence[str], batch: int) -> None:
        self.prepare(texts)
        began_s = time.perf_counter()
        for first in range(0, len(texts), _STORED_TOGETHER):
            last = min(first + _STORED_TOGETHER, len(texts))
            parts = [
                bare.features([text.encode() for text in texts[at : min(at + batch, last)]])
                for at in range(first, last, batch)
            ]
            self.store(first, np.concatenate(parts))
        self.series.rows_per_s.append(len(texts) / (time.perf_counter() - began_s))


@dataclass
class Way:
    """One way to have embeddings stored. prepare: a table without any, before the clock runs."""

    series: Series
    prepare: Callable[[Sequence[str]], None]
    texts: Sequence[str]
    loop: StoringLoop
    store: Callable[[], None]
    stored: Callable[[Sequence[int]], Sequence[Any]]  # the embeddings of these rows
    groups: dict[str, list[int]]  # name → its processes
    held_mb: list[tuple[float, list[float]]] = field(default_factory=list)  # of the last round
    processor_us: dict[str, float] = field(default_factory=dict)  # of a row, by process; of the last round

    def run(self, expected: np.ndarray, rows: Sequence[int]) -> None:
        self.prepare(self.texts)
        before_s = self._processor_s()
        with MemoryByTime(*self.groups.values(), every_s=_LOOK_S) as memory:
            began_s = time.perf_counter()
            self.store()
            took_s = time.perf_counter() - began_s
        self.series.rows_per_s.append(self.series.rows / took_s)
        self.held_mb = memory.quarters()
        used_s = zip(self._processor_s().items(), before_s.values(), strict=True)
        self.processor_us = {
            name: 1e6 * (after - before) / self.series.rows for (name, after), before in used_s
        }
        np.testing.assert_allclose(np.array(self.stored(rows), np.float32), expected, rtol=1e-5, atol=1e-6)

    def _processor_s(self) -> dict[str, float]:
        return {name: sum(map(processor_s, pids)) for name, pids in self.groups.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows/s of storing embeddings, beside a bare loop.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--made", action="store_true", help="the table made here, though wordllama is there")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
        run(stack, work, options.rows, options.rounds, made=options.made)


def run(stack: ExitStack, work: Path, rows: int, rounds: int, *, made: bool) -> None:
    theirs = None if made else wordllama()
    name = "wordllama" if theirs else "a made table of 32,000 × 256"
    folder = work / "words" / "1"
    folder.mkdir(parents=True)
    source = theirs or made_table(work / "source")
    bare = Bare(staged(recognised(source, {}), "words", folder))
    texts = list(itertools.islice(distinct_texts(), rows))
    batch = bare.calibrate(texts[:4096])
    server = stack.enter_context(inference_server(work / "home", flags=[ANEW]))
    server.deploy(folder, FUNCTION)
    checked = np.linspace(0, rows - 1, min(rows, _CHECKED)).astype(int).tolist()
    expected = bare.features([texts[row].encode() for row in checked])

    looped = texts[:_LOOP_ROWS]
    one = Series("bare loop", len(looped), note=f"one thread, batches of {batch}")
    all_cores = Series("bare, all cores", len(looped))
    places = [in_duckdb(stack, work, server, texts), *in_postgres(stack, server, texts)]
    loops = [place.loop for place in places]
    ways = [way for place in places for way in place.ways]
    load = []
    for _ in range(rounds):
        load.append(os.getloadavg()[0])
        one.rows_per_s.append(bare.rows_per_s(looped, batch, 1))
        all_cores.rows_per_s.append(bare.rows_per_s(looped, batch, len(os.sched_getaffinity(0))))
        for loop in loops:
            loop.run(bare, looped, batch)
        for way in ways:
            way.run(expected, checked)
    report(name, [one, all_cores, *(loop.series for loop in loops)], ways, load)


def wordllama() -> Path | None:
    """Its own folder, where it is installed."""
    found = importlib.util.find_spec("wordllama")
    folders = None if found is None else found.submodule_search_locations
    return Path(folders[0]) if folders else None


def vocabulary() -> list[str]:
    """[UNK], whole words, and pieces of the ends of words."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "ir")]
    words = map("".join, itertools.product(syllables, syllables, syllables))
    whole = list(itertools.islice(words, 0, 3 * (_TOKENS - 1000), 3))
    ends = ["##" + "".join(pair) for pair in itertools.product(syllables, syllables[:20])]
    return ["[UNK]", *whole, *ends][:_TOKENS]


def made_table(folder: Path) -> Path:
    """A folder such as sentence-transformers' StaticEmbedding is."""
    import tokenizers
    from safetensors.numpy import save_file

    folder.mkdir()
    words = vocabulary()
    model = tokenizers.models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(0).normal(0, 1, (len(words), _WIDTH)).astype(np.float32)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    modules = [{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def distinct_texts() -> Iterator[str]:
    """For ever: a number, and words of which every fifth is of two pieces."""
    random = np.random.default_rng(1)
    words = vocabulary()
    whole = [word for word in words if not word.startswith(("##", "["))]
    ends = [word[2:] for word in words if word.startswith("##")]
    for row in itertools.count():
        chosen = [whole[at] for at in random.integers(0, len(whole), _WORDS_OF_A_TEXT).tolist()]
        for at in range(0, _WORDS_OF_A_TEXT, 5):
            chosen[at] += ends[int(random.integers(len(ends)))]
        yield f"{row} {' '.join(chosen)}."


class Bare:
    """The network alone, in this process."""

    def __init__(self, manifest: Manifest) -> None:
        network = load_network(manifest, find_device("cpu", threads=1))
        warm_up(network, manifest)
        assert isinstance(network, GivesFeatures)
        self._network = network

    def features(self, rows: Sequence[bytes]) -> np.ndarray:
        return self._network.features(rows, lambda: False)

    def calibrate(self, texts: Sequence[str]) -> int:
        """The batch size that is fastest."""
        return max(_BATCHES, key=lambda batch: max(self.rows_per_s(texts, batch, 1) for _ in range(3)))

    def rows_per_s(self, texts: Sequence[str], batch: int, threads: int) -> float:
        def embed(first: int) -> int:
            return len(self.features([text.encode() for text in texts[first : first + batch]]))

        began_s = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            count = sum(pool.map(embed, range(0, len(texts), batch)))
        assert count == len(texts)
        return count / (time.perf_counter() - began_s)


@dataclass
class Place:
    """A database: what comes into it, and by which loop it would without us."""

    loop: StoringLoop
    ways: list[Way]


def in_duckdb(stack: ExitStack, work: Path, server: InferenceServer, texts: Sequence[str]) -> Place:
    con = stack.enter_context(duckdb.connect(str(work / "texts.duckdb"), config=dict(_DUCKDB)))

    def prepare(texts: Sequence[str]) -> None:
        con.execute(
            f"CREATE OR REPLACE TABLE texts (id INTEGER PRIMARY KEY, t VARCHAR, embedding FLOAT[{_WIDTH}])"
        )
        for first in range(0, len(texts), _FILL_ROWS):
            some = list(texts[first : first + _FILL_ROWS])
            filled = pa.table({"id": range(first, first + len(some)), "t": some})  # noqa: F841  # by DuckDB
            con.execute("INSERT INTO texts (id, t) SELECT id, t FROM filled")
        con.execute("CHECKPOINT")

    def store() -> None:
        _whole(score_table(con, server.url, "texts", FUNCTION, "t", output="embedding"), len(texts))

    def stored(rows: Sequence[int]) -> list[Any]:
        return [vector for (vector,) in con.execute(_STORED.format(list(rows))).fetchall()]

    def by_arrow(first: int, vectors: np.ndarray) -> None:
        made = pa.table(  # noqa: F841  # by DuckDB
            {
                "id": np.arange(first, first + len(vectors), dtype=np.int32),
                "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), _WIDTH),
            }
        )
        con.execute("UPDATE texts SET embedding = made.v FROM made WHERE texts.id = made.id")

    loop = StoringLoop(Series("bare, DuckDB", min(len(texts), _LOOP_ROWS)), prepare, by_arrow)
    series = Series("duckdb", len(texts))
    return Place(loop, [Way(series, prepare, texts, loop, store, stored, _groups(server))])


_STORED = "SELECT embedding FROM texts WHERE id = ANY(ARRAY{}) ORDER BY id"


def in_postgres(stack: ExitStack, server: InferenceServer, texts: Sequence[str]) -> list[Place]:
    try:
        cluster = stack.enter_context(sandbox(PostgresServer.find(), batching=None))
    except SetupError as error:
        console.print(f"[bold yellow]PostgreSQL's part is left out:[/] {error}")
        return []
    dsn = cluster.database("bench", url=server.url)
    connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
    client = stack.enter_context(server.client())
    kind, to_binary = f"vector({_WIDTH})", _pgvectors
    if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchall():
        kind, to_binary = "real[]", _real_arrays
    else:
        connection.execute("CREATE EXTENSION vector")
    connection.execute(f"CREATE TEMP TABLE made (id int, v {kind})".encode())
    backend_outside: list[int] = []

    def prepare(texts: Sequence[str]) -> None:
        connection.execute("DROP TABLE IF EXISTS texts")
        connection.execute(f"CREATE TABLE texts (id int PRIMARY KEY, t text, embedding {kind})".encode())
        with connection.cursor().copy("COPY texts (id, t) FROM STDIN") as copy:
            for row in enumerate(texts):
                copy.write_row(row)
        connection.execute("ANALYZE texts")

    def look_for_backend(_: ScoreProgress) -> None:
        found = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'ml-udf score%'"
        backend_outside[:] = backend_outside or [pid for (pid,) in connection.execute(found).fetchall()]

    def from_outside() -> None:
        request = ScoreRequest("texts", FUNCTION, "t", output="embedding")
        _whole(score_postgres(dsn, client, request, Options(), look_for_backend), len(texts))
        backend_outside.clear()

    def from_inside() -> None:
        call = (
            f"CALL ml_udf.score_table('texts', '{FUNCTION}', 't', output => 'embedding', server => 'ml_udf')"
        )
        found = connection.execute(call.encode()).fetchone()
        assert found is not None
        _whole(ScoreProgress(len(texts), *found), len(texts))

    def stored(rows: Sequence[int]) -> list[Any]:
        query = _STORED.replace("embedding", "embedding::real[]").format(list(rows))
        return [vector for (vector,) in connection.execute(query.encode()).fetchall()]

    def by_copy(first: int, vectors: np.ndarray) -> None:
        values = to_binary(vectors)
        rows = [struct.pack(">hiii", 2, 4, first + at, len(value)) + value for at, value in enumerate(values)]
        connection.execute("TRUNCATE made")
        with connection.cursor().copy("COPY made FROM STDIN (FORMAT binary)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"".join(rows) + b"\xff\xff")
        connection.execute("ANALYZE made")
        connection.execute("UPDATE texts SET embedding = made.v FROM made WHERE texts.id = made.id")

    loop = StoringLoop(Series("bare, PostgreSQL", min(len(texts), _LOOP_ROWS)), prepare, by_copy)
    outside = {**_groups(server), "backend": backend_outside}
    inside = {"backend": [connection.info.backend_pid], **_groups(server, own=False)}
    names = (f"ml-udf score, {kind}", f"CALL, {kind}")
    return [
        Place(
            loop,
            [
                Way(Series(names[0], len(texts)), prepare, texts, loop, from_outside, stored, outside),
                Way(Series(names[1], len(texts)), prepare, texts, loop, from_inside, stored, inside),
            ],
        )
    ]


def _real_arrays(vectors: np.ndarray) -> list[bytes]:
    """In PostgreSQL's binary format."""
    made = binary_reals([array("f", vector.tobytes()) for vector in vectors])
    size = len(made) // len(vectors)
    return [made[at : at + size] for at in range(0, len(made), size)]


def _pgvectors(vectors: np.ndarray) -> list[bytes]:
    """In pgvector's binary format."""
    head = struct.pack(">hh", vectors.shape[1], 0)
    return [head + vector.tobytes() for vector in vectors.astype(">f4")]


def _groups(server: InferenceServer, *, own: bool = True) -> dict[str, list[int]]:
    groups = {"server": [server.pid], "worker": server.worker_pids()}
    return {"this process": [os.getpid()], **groups} if own else groups


def _whole(so_far: ScoreProgress, rows: int) -> None:
    if (so_far.answered, so_far.failed, so_far.missed) != (rows, 0, 0):
        raise SystemExit(f"of {rows} rows {so_far}")


def report(name: str, bare: Sequence[Series], ways: Sequence[Way], load: Sequence[float]) -> None:
    one = bare[0]
    series = [*bare, *(way.series for way in ways)]
    print_series(f"Embeddings of texts, stored ({name})", series, against=one)
    ratios = {}
    for way in ways:
        for loop in (one, way.loop.series):
            middle, low, high = ratios[f"{way.series.name} / {loop.name}"] = ratio(way.series, loop)
            verdict = f"goal {GOAL:g}: {'met' if middle >= GOAL else 'MISSED'}"
            say(f"{way.series.name} / {loop.name}: {middle:.2f} ({low:.2f} to {high:.2f}); {verdict}")
    for way in ways:
        for place, group in enumerate(way.groups):
            held = ", ".join(f"{mb[place]:,.0f}" for _, mb in way.held_mb)
            say(f"{way.series.name}: {group} held {held} MB at the quarters of its last round")
        used = ", ".join(f"{place} {us:.1f}" for place, us in way.processor_us.items())
        say(f"{way.series.name}: µs of the processor a row: {used}")
    console.print(f"load average before each round: {', '.join(f'{each:.1f}' for each in load)}")
    write_json(
        "embeddings",
        {
            "model": name,
            "load": list(load),
            "series": {s.name: {"rows": s.rows, "rows_per_s": s.rows_per_s} for s in series},
            "ratios": {
                n: {"median": r[0], "min": r[1], "max": r[2], "goal": GOAL} for n, r in ratios.items()
            },
            "processor_us": {way.series.name: way.processor_us for way in ways},
            "held_mb": {
                way.series.name: {
                    group: [mb[place] for _, mb in way.held_mb] for place, group in enumerate(way.groups)
                }
                for way in ways
            },
        },
    )


if __name__ == "__main__":
    main()
