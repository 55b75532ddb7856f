"""The whole story in one run: `make demo`, or `python -m examples.foodlog.demo`.

    draw photos → train three models → start the server → deploy functions → ask in SQL, on DuckDB and on
    PostgreSQL → compare with the truth, and the engines with each other → the same without a server

Everything is kept in `.demo/`; a second run draws and trains nothing. The exit status is 1 where the best
model is less accurate than `--min-accuracy`, or where two engines answered differently.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import duckdb
import psycopg
from rich.console import Console

import ml_udf.duckdb
from examples.foodlog.draw import Album, draw_album, is_drawn
from examples.foodlog.progress import bar
from examples.foodlog.queries import Query, read_queries
from examples.foodlog.report import Timed, print_accuracies, print_answer, same
from examples.foodlog.serving import ENSEMBLE, function_of, publish, serving
from examples.foodlog.tables import Answer, ask_duckdb, ask_postgres, load_duckdb, load_postgres
from examples.foodlog.training import train_models
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError

Ask = Callable[[str], Answer]

HOLDOUT = f"SELECT image_path, {ENSEMBLE}(image_path) FROM labels WHERE split = 'holdout' ORDER BY image_path"
LOCAL_ROWS = 40


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides; `epochs` is None for each model's own."""

    folder: Path
    album: Album
    epochs: int | None
    min_accuracy: float
    postgres: bool
    stay: bool


def run(options: Options, console: Console) -> bool:
    """The demo, top to bottom. Answers whether everything came out as it should."""
    folder, photos, home = options.folder, options.folder / "images", options.folder / "home"
    queries = read_queries()
    with ExitStack() as stack:
        console.rule(f"[bold]1 · {options.album.images} photos of meals, {options.album.rows} rows")
        if is_drawn(folder, options.album):
            console.print(f"{photos} has them from an earlier run.")
        else:
            with bar("Drawing", options.album.images, console) as advance:
                draw_album(folder, options.album, advance)

        console.rule("[bold]2 · Three models learn what is on the photos")
        models = train_models(folder, options.epochs, console)

        console.rule("[bold]3 · An inference server, and functions on it")
        with console.status("Starting the server"):
            url = stack.enter_context(serving(home, photos, folder / "server.log"))
            publish(url, models)
        console.print(f"{url} answers {ENSEMBLE}, a majority vote, and one function per model.")

        console.rule("[bold]4 · The same SQL on DuckDB and on PostgreSQL")
        functions = [ENSEMBLE, *map(function_of, models)]
        engines: dict[str, Ask] = {"DuckDB": open_duckdb(stack, folder, url)}
        cluster = open_postgres(stack, folder, url, functions, console) if options.postgres else None
        if cluster is not None:
            engines["PostgreSQL"] = ask_postgres(stack.enter_context(psycopg.connect(cluster)))
        agree = ask_everything(queries, engines, console)

        console.rule("[bold]5 · Is it true?")
        accuracies = {name: accuracy(engines["DuckDB"], name) for name in functions}
        print_accuracies(console, accuracies, count_holdout(engines["DuckDB"]))
        best = max(accuracies[function_of(model)] for model in models)
        accurate = best >= options.min_accuracy
        if not accurate:
            console.print(f"[red]The best model has {best:.3f}; {options.min_accuracy:g} was asked for.")
        agree &= compare(engines, console)

        console.rule("[bold]6 · The same function without a server")
        agree &= compare_local(stack, folder, engines["DuckDB"], console)

        console.rule("[bold]What next")
        suggest(folder, console)
        if options.stay:
            stay(url, cluster, console)
    return accurate and agree


def open_duckdb(stack: ExitStack, folder: Path, endpoint: str) -> Ask:
    """A DuckDB connection that has the tables and all functions of the endpoint."""
    con = duckdb.connect()
    load_duckdb(con, folder)
    stack.callback(ml_udf.duckdb.register(con, endpoint).close)
    return ask_duckdb(con)


def open_postgres(
    stack: ExitStack, folder: Path, url: str, functions: Sequence[str], console: Console
) -> str | None:
    """The URI of a database in a private PostgreSQL cluster with tables and functions; None without one."""
    try:
        with console.status("Starting a private PostgreSQL"):
            cluster = Sandbox.start(PostgresServer.find(), batching=None)
            stack.callback(cluster.stop)
            database = cluster.database("food", url=url, functions=functions)
    except SetupError as error:
        console.print(f"[yellow]PostgreSQL is left out: {error}[/yellow]")
        return None
    with psycopg.connect(database) as connection:
        load_postgres(connection, folder)
    console.print(f"PostgreSQL {cluster.server.version} runs beside it, gone when the demo ends.\n")
    return database


def ask_everything(queries: Sequence[Query], engines: dict[str, Ask], console: Console) -> bool:
    """Run every query on every engine and print the answers; whether the engines agreed on all."""
    agree = True
    with bar("Asking", len(queries) * len(engines), console) as advance:
        for query in queries:
            answers = {}
            for engine, ask in engines.items():
                began_s = time.perf_counter()
                answers[engine] = Timed(ask(query.sql), time.perf_counter() - began_s)
                advance()
            print_answer(console, query, answers)
            agree &= same([timed.answer for timed in answers.values()])
    return agree


def accuracy(ask: Ask, function: str) -> float:
    """The share of held-out photos that a function names rightly."""
    truth = f"sum(CASE WHEN {function}(image_path) = food_name THEN 1 ELSE 0 END)"
    ((right, photos),) = ask(f"SELECT {truth}, count(*) FROM labels WHERE split = 'holdout'")[1]
    return float(right) / float(photos)


def count_holdout(ask: Ask) -> int:
    """How many photos no model saw."""
    ((photos,),) = ask("SELECT count(*) FROM labels WHERE split = 'holdout'")[1]
    return int(photos)


def compare(engines: dict[str, Ask], console: Console) -> bool:
    """Whether all engines name every held-out photo alike."""
    answers = [ask(HOLDOUT) for ask in engines.values()]
    if len(answers) == 1:
        return True
    agree = same(answers)
    verdict = "[green]named each of them alike" if agree else "[red]did not name all of them alike"
    console.print(f"{' and '.join(engines)} {verdict}.")
    return agree


def compare_local(stack: ExitStack, folder: Path, ask: Ask, console: Console) -> bool:
    """Whether `local:`, in this very process, answers a few rows as the server does."""
    few = f"{HOLDOUT} LIMIT {LOCAL_ROWS}"
    endpoint = f"local:{folder.resolve() / 'home'}?media_root={folder.resolve() / 'images'}"
    with console.status("Loading the models into this process"):
        local = open_duckdb(stack, folder, endpoint)
        agree = same([ask(few), local(few)])
    verdict = "[green]the same answers" if agree else "[red]other answers"
    console.print(f"ml_udf.duckdb.register(con, 'local:…') gave {verdict}[/] for {LOCAL_ROWS} photos.")
    return agree


def suggest(folder: Path, console: Console) -> None:
    """Where to go from here."""
    console.print(
        f"  ml-udf serve --home {folder}/home --media-root {folder}/images\n"
        "      keep these functions served (make serve); then, in another terminal:\n"
        f'  ml-udf sql "SELECT {ENSEMBLE}(image_path) AS food, count(*)'
        f" FROM '{folder}/foodlog.csv' GROUP BY food\"\n"
        "  ml-udf postgres sandbox --function udf_food_name\n"
        "      psql on a throw-away PostgreSQL that calls the same server\n"
        "  python -m examples.foodlog.demo --stay\n"
        "      this run again, with server and PostgreSQL left running until Ctrl-C\n"
        "  examples/foodlog/queries.sql, docs/demo.md, docs/architecture.md\n",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def stay(url: str, cluster: str | None, console: Console) -> None:
    """Keep server and database until Ctrl-C."""
    console.print(f"Serving on {url} until Ctrl-C.", highlight=False)
    if cluster is not None:
        console.print(f"  psql '{cluster}'", highlight=False, markup=False, soft_wrap=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("Stopping.")


@contextmanager
def ends_cleanly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does: with every process it started."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def options_from(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; exits on nonsense."""
    default = Album()
    parser = argparse.ArgumentParser(
        prog="python -m examples.foodlog.demo", description="From photos to SQL, end to end."
    )
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where all of it is kept")
    parser.add_argument("--images", type=int, default=default.images)
    parser.add_argument("--rows", type=int, default=default.rows)
    parser.add_argument("--size", type=int, default=default.size_px, help="side of a photo in pixels")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--epochs", type=int, help="train every model for so many epochs")
    parser.add_argument(
        "--min-accuracy", type=float, default=0.85, help="what the best model must reach; 0 = anything"
    )
    parser.add_argument("--no-postgres", action="store_true", help="DuckDB alone")
    parser.add_argument(
        "--stay", action="store_true", help="leave server and PostgreSQL running until Ctrl-C"
    )
    args = parser.parse_args(arguments)
    album = Album(args.images, args.rows, args.size, args.seed)
    return Options(args.folder, album, args.epochs, args.min_accuracy, not args.no_postgres, args.stay)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo from the command line; its exit status."""
    options, console = options_from(arguments), Console()
    began_s = time.perf_counter()
    try:
        with ends_cleanly():
            well = run(options, console)
    except KeyboardInterrupt:
        console.print("Stopped; what was drawn and trained is kept.")
        return 130
    console.print(f"{'Done' if well else '[red]Failed[/red]'} in {time.perf_counter() - began_s:.0f} s.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
