"""`make bench-tables`: rows/s of SQL with a model of tables, against the estimator itself and the usual ways.

A scikit-learn pipeline (HistGradientBoosting, 100 trees) over distinct rows of eight columns: all numbers, or
six numbers and two texts. Rounds in turn so that the machine's mood falls on all alike:
    bare loop        estimator.predict on frames of 65,536 rows, which are there already: the ceiling
    duckdb, arrow    a Python function of DuckDB's own (type="arrow") that runs the estimator in the process
    duckdb           SELECT avg(udf(…)) FROM rows, through an inference server
    duckdb, local:   the same in DuckDB's own process, without a server
    plpython by row  the same model by ONNX Runtime in the backend, one row at a time
    postgres         SELECT avg(udf(…)) FROM rows on PostgreSQL: plain SQL through the plan node
Beside the rates: what each process of ours used of the processor for a row.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import psycopg
import pyarrow as pa
from duckdb.func import ARROW
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

import ml_udf.duckdb
import ml_udf.sdk
from ml_udf.cli.pg_sandbox import sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from tests.benchmarks.processor_time import processor_s
from tests.benchmarks.report import Series, console, print_series, ratio, say, write_json
from tests.benchmarks.sql import python_path
from tests.inference_server import ANEW, InferenceServer, inference_server

FUNCTION = "udf_table"
FRAME_ROWS = 65_536
BY_ROW_ROWS = 5_000  # of the slow way: a rate needs no more
TAUGHT_ROWS = 20_000
CITIES = ("Bedok", "Katong", "Raffles Place", "Tampines", "Yishun")


@dataclass
class Contender:
    """One way to the mean of all answers. groups: its processes, by their names."""

    series: Series
    ask: Callable[[], float]
    groups: Mapping[str, list[int]] = field(default_factory=dict)
    processor_us: dict[str, float] = field(default_factory=dict)  # of a row, by process; of the last round

    def run(self, answers: np.ndarray) -> None:
        before_s = self._processor_s()
        began_s = time.perf_counter()
        mean = self.ask()
        self.series.rows_per_s.append(self.series.rows / (time.perf_counter() - began_s))
        self.processor_us = {
            name: 1e6 * (after_s - before_s[name]) / self.series.rows
            for name, after_s in self._processor_s().items()
        }
        # Trees in single precision go another way now and then.
        np.testing.assert_allclose(mean, answers[: self.series.rows].mean(), atol=1e-3)

    def _processor_s(self) -> dict[str, float]:
        return {name: sum(map(processor_s, pids)) for name, pids in self.groups.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows/s of SQL with a model of tables.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = {}
    for name in ("numbers", "numbers and texts"):
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
            results[name] = run(stack, work, name, options.rows, options.rounds)
    write_json("tables", results)


def run(stack: ExitStack, work: Path, name: str, rows: int, rounds: int) -> dict[str, Any]:
    frame = made_rows(rows, texts=0 if name == "numbers" else 2)
    estimator = taught(frame)
    answers = np.concatenate([estimator.predict(part) for part in frames(frame)])
    server = stack.enter_context(inference_server(work / "home", flags=[ANEW]))
    ml_udf.sdk.register(estimator, frame.head(1000), "table", endpoint=server.url)
    with server.client() as client:
        client.put(f"/v1/functions/{FUNCTION}", {"models": ["table"]})

    def bare() -> float:
        return float(np.concatenate([estimator.predict(part) for part in frames(frame)]).mean())

    loop = Contender(Series("bare loop", rows), bare)
    contenders = [loop, *in_duckdb(stack, server, estimator, frame), *in_postgres(stack, work, server, frame)]
    for _ in range(rounds):
        for contender in contenders:
            contender.run(answers)
    return report(name, contenders)


def made_rows(rows: int, texts: int) -> pd.DataFrame:
    """Eight columns; the last `texts` of them texts of a few values."""
    draw = np.random.default_rng(1)
    columns: dict[str, Any] = {f"x{at}": draw.normal(size=rows) for at in range(8 - texts)}
    columns |= {f"t{at}": draw.choice(CITIES, rows) for at in range(texts)}
    return pd.DataFrame(columns)


def taught(frame: pd.DataFrame) -> Any:  # scikit-learn ships no types
    some = frame.head(TAUGHT_ROWS)
    target = 2 * some["x0"] + np.sin(3 * some["x1"]) + some["x2"] * some["x3"]
    texts = [name for name in frame.columns if name.startswith("t")]
    if texts:
        target = target + some[texts[0]].map({city: at for at, city in enumerate(CITIES)})
    codes = make_column_transformer((OrdinalEncoder(), texts), remainder="passthrough")
    trees = HistGradientBoostingRegressor(max_iter=100, random_state=0)
    return (make_pipeline(codes, trees) if texts else trees).fit(some, target)


def frames(frame: pd.DataFrame) -> list[pd.DataFrame]:
    return [frame.iloc[at : at + FRAME_ROWS] for at in range(0, len(frame), FRAME_ROWS)]


def in_duckdb(
    stack: ExitStack,
    server: InferenceServer,
    estimator: Any,  # scikit-learn ships no types
    frame: pd.DataFrame,
) -> list[Contender]:
    con = duckdb.connect()
    con.execute("CREATE TABLE rows AS SELECT * FROM frame")
    names = list(frame.columns)

    def predict(*columns: Any) -> pa.Array:  # pyarrow ships no types
        made = {name: column.to_numpy() for name, column in zip(names, columns, strict=True)}
        return pa.array(estimator.predict(pd.DataFrame(made)))

    con.create_function("own", predict, None, "DOUBLE", type=ARROW)  # of as many arguments as there are
    stack.callback(ml_udf.duckdb.register(con, server.url, functions=[FUNCTION]).close)
    here = duckdb.connect()
    here.execute("CREATE TABLE rows AS SELECT * FROM frame")
    stack.callback(ml_udf.duckdb.register(here, f"local:{server.home}", functions=[FUNCTION]).close)

    def ask(con: duckdb.DuckDBPyConnection, function: str) -> Callable[[], float]:
        query = f"SELECT avg({function}({', '.join(names)})) FROM rows"

        def asked() -> float:
            found = con.execute(query).fetchone()
            assert found is not None
            return float(found[0])

        return asked

    groups = {"this process": [os.getpid()], "server": [server.pid], "worker": server.worker_pids()}
    return [
        Contender(Series("duckdb, arrow", len(frame)), ask(con, "own")),
        Contender(Series("duckdb", len(frame)), ask(con, FUNCTION), groups),
        Contender(
            Series("duckdb, local:", len(frame)),
            ask(here, FUNCTION),
            {"this process": groups["this process"]},
        ),
    ]


BY_ROW = """
CREATE FUNCTION by_row({columns}) RETURNS float8 LANGUAGE plpython3u STABLE AS $$
    if 'run' not in SD:
        import sys; sys.path[:0] = {path!r}
        import numpy
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession({model!r}, options, providers=['CPUExecutionProvider'])
        inputs = session.get_inputs()
        if len(inputs) == 1:
            def fed(row):
                return {{inputs[0].name: numpy.array([row], numpy.float32)}}
        else:
            kinds = [object if each.type == 'tensor(string)' else numpy.float32 for each in inputs]
            def fed(row):
                return {{each.name: numpy.array([[value]], kind)
                        for each, kind, value in zip(inputs, kinds, row)}}
        SD['run'] = lambda row: float(session.run(None, fed(row))[0][0, 0])
    return SD['run']([{names}])
$$
"""


def in_postgres(
    stack: ExitStack, work: Path, server: InferenceServer, frame: pd.DataFrame
) -> list[Contender]:
    try:
        cluster = stack.enter_context(sandbox(PostgresServer.find(), batching=None))
    except SetupError as error:
        console.print(f"[bold yellow]PostgreSQL's part is left out:[/] {error}")
        return []
    names = list(frame.columns)
    columns = ", ".join(f"{name} {'text' if name.startswith('t') else 'float8'}" for name in names)
    dsn = cluster.database("bench", url=server.url, functions=[FUNCTION])
    connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
    connection.execute(f"CREATE TABLE rows (id int, {columns})".encode())
    with connection.cursor().copy("COPY rows FROM STDIN") as copy:
        for row in frame.itertuples():
            copy.write_row(row)
    connection.execute("VACUUM ANALYZE rows")

    def ask(function: str, rows: int) -> Callable[[], float]:
        asked = f"SELECT avg({function}({', '.join(names)})) FROM (SELECT * FROM rows WHERE id < {rows}) AS r"

        def ask_it() -> float:
            found = connection.execute(asked.encode()).fetchone()
            assert found is not None
            return float(found[0])

        return ask_it

    contenders = []
    if closed := cluster.hides(python_path()):
        console.print(f"[bold yellow]'plpython by row' is left out:[/] {closed}")
    else:
        (found,) = (server.home / "models" / "table" / "1").glob("*.onnx")
        model = work / "table.onnx"  # the database's user reads it too
        model.write_bytes(found.read_bytes())
        model.chmod(0o644)
        work.chmod(0o755)
        made = BY_ROW.format(
            columns=columns, path=list(map(str, python_path())), model=str(model), names=", ".join(names)
        )
        connection.execute(made.encode())
        ask("by_row", 1)()  # what it imports is not its speed
        contenders.append(Contender(Series("plpython by row", BY_ROW_ROWS), ask("by_row", BY_ROW_ROWS)))
    backend = [connection.info.backend_pid]
    groups = {"backend": backend, "server": [server.pid], "worker": server.worker_pids()}
    return [*contenders, Contender(Series("postgres", len(frame)), ask(FUNCTION, len(frame)), groups)]


def report(name: str, contenders: list[Contender]) -> dict[str, Any]:
    by_name = {contender.series.name: contender.series for contender in contenders}
    every = list(by_name.values())
    print_series(f"SQL with a model of tables: {name}", every, against=every[0])
    pairs = [
        ("duckdb", "duckdb, arrow"),
        ("duckdb, local:", "duckdb, arrow"),
        ("postgres", "plpython by row"),
    ]
    ratios = {
        f"{ours} / {theirs}": ratio(by_name[ours], by_name[theirs])
        for ours, theirs in pairs
        if ours in by_name and theirs in by_name
    }
    for pair, (middle, low, high) in ratios.items():
        say(f"{pair}: {middle:.2f} ({low:.2f} to {high:.2f})")
    for contender in contenders:
        if contender.processor_us:
            used = ", ".join(f"{place} {us:.1f}" for place, us in contender.processor_us.items())
            say(f"{contender.series.name}: µs of the processor a row: {used}")
    return {
        "series": {s.name: {"rows": s.rows, "rows_per_s": s.rows_per_s} for s in every},
        "ratios": {pair: {"median": r[0], "min": r[1], "max": r[2]} for pair, r in ratios.items()},
        "processor_us": {c.series.name: c.processor_us for c in contenders if c.processor_us},
    }


if __name__ == "__main__":
    main()
