"""The whole story in one run: `make demo`, or `python -m examples.foodlog.demo`.

    draw photos → start the server and a PostgreSQL → make datasets, train, deploy: in SQL → ask in SQL, on
    DuckDB and on PostgreSQL → compare with the truth, and the engines with each other → calories, trays and
    similar photos → the same without a server

Everything is kept in `.demo/`; a second run draws and trains nothing, one after an interruption goes on. The
exit status is 1 where the best model is less accurate than `--min-accuracy`, or where two engines answered
differently.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import duckdb
import psycopg
from rich.console import Console
from rich.markup import escape

from examples.foodlog.circle import (
    CALORIES_FILE,
    SIMILAR_FILE,
    TRAYS_FILE,
    Notes,
    Study,
    TrainingFailed,
    begin,
    deploy,
    deploy_features,
    freeze,
)
from examples.foodlog.draw import Album, draw_album, is_drawn
from examples.foodlog.engines import Engine, create_functions, open_duckdb, open_postgres
from examples.foodlog.freshness import show_fresh
from examples.foodlog.progress import bar
from examples.foodlog.queries import Query, read_queries
from examples.foodlog.report import (
    Measured,
    Timed,
    print_accuracies,
    print_answer,
    print_deployed,
    same,
    verdict,
)
from examples.foodlog.serving import ServerDidNotStart, serving
from ml_udf.cli.jobs import watch_jobs
from ml_udf.cli.pg_server import SetupError
from ml_udf.client import Client
from ml_udf.errors import MlUdfError
from ml_udf.training import TrainingCalls

ENSEMBLE = "udf_food_name"
MODELS = ("vgg", "small_cnn", "resnet")
ANOTHER = "inception"
CALORIES = "udf_calories"
FEATURES = "udf_food_features"
TRAY = "udf_tray"
EPOCHS = 40  # of each model: two whole trials
TRAY_EPOCHS = 3 / 4  # of the detector, for each of those
HOLDOUT = f"SELECT image_path, {ENSEMBLE}(image_path) FROM labels WHERE split = 'holdout' ORDER BY image_path"
LOCAL_ROWS = 40


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides; `epochs` are those that each model is trained in all."""

    folder: Path
    album: Album
    epochs: int
    min_accuracy: float
    postgres: bool
    stay: bool


def studies(epochs: int) -> tuple[Study, Study, Study, Study]:
    """The study that the queries ask, a small one for the other engine, one of numbers and one of boxes."""
    alone = {f"udf_food_{model}": model for model in MODELS}
    return (
        Study("food", MODELS, f"{epochs * len(MODELS)} epochs", {ENSEMBLE: "ensemble", **alone}),
        Study("food_again", (ANOTHER,), f"{max(1, epochs // 4)} epochs", {f"udf_food_{ANOTHER}": "best"}),
        Study("calories", (), "6 trials", {CALORIES: "best"}, CALORIES_FILE),
        Study("trays", (), f"{max(1, round(epochs * TRAY_EPOCHS))} epochs", {TRAY: "best"}, TRAYS_FILE),
    )


def run(options: Options, console: Console) -> bool:
    """The demo, top to bottom. Answers whether everything came out as it should."""
    folder = options.folder
    queries = read_queries()
    with ExitStack() as stack:
        album = options.album
        console.rule(f"[bold]1 · {album.images} photos of meals, {album.trays} of trays, {album.rows} rows")
        draw(folder, album, console)

        console.rule("[bold]2 · An inference server and a PostgreSQL")
        with console.status("Starting the server"):
            server = serving(folder / "home", folder / "images", folder / "server.log")
            url = stack.enter_context(server)
        console.print(f"{url} has workers that train and that answer.")
        postgres = find_postgres(stack, folder, url, console) if options.postgres else None

        console.rule("[bold]3 · From labelled photos to SQL functions, in SQL")
        deployed = train_and_deploy(folder, url, postgres, options.epochs, console)

        console.rule("[bold]4 · The same SQL on DuckDB and on PostgreSQL")
        engines = [open_duckdb(stack, folder, url)]
        if postgres is not None:
            create_functions(postgres, deployed)
            engines.append(postgres)
        agree = ask_everything(queries, engines, console)

        console.rule("[bold]5 · Is it true?")
        photos = count_holdout(engines[0])
        dishes = [name for name in deployed if name not in (CALORIES, FEATURES, TRAY)]
        measured = {name: measure(engines[0], name, photos) for name in dishes}
        print_accuracies(console, measured, photos)
        console.print(verdict(ENSEMBLE, measured, deployed[ENSEMBLE]["models"]))
        best = max(each.accuracy for name, each in measured.items() if name != ENSEMBLE)
        accurate = best >= options.min_accuracy
        if not accurate:
            console.print(f"[red]The best model has {best:.3f}; {options.min_accuracy:g} was asked for.")
        agree &= compare(engines, console)

        console.rule("[bold]6 · More than names: calories, trays, and photos that look alike")
        more = [query for file in (CALORIES_FILE, TRAYS_FILE) for query in read_queries(file)[3:]]
        more += read_queries(SIMILAR_FILE)[1:]
        agree &= ask_everything(more, engines, console)

        if postgres is not None and postgres.uri is not None:
            console.print("A search that stays fresh while the album changes, on PostgreSQL:\n")
            agree &= show_fresh(postgres.uri, url, folder / "watch.log", console)

        console.rule("[bold]7 · The same function without a server")
        agree &= compare_local(stack, folder, engines[0], console)

        console.rule("[bold]What next")
        suggest(folder, console)
        if options.stay:
            stay(url, postgres, console)
    return accurate and agree


def draw(folder: Path, album: Album, console: Console) -> None:
    """Draw the album, unless it is there."""
    if is_drawn(folder, album):
        console.print(f"{folder / 'images'} has them from an earlier run.")
        return
    with bar("Drawing", album.images + album.trays, console) as advance:
        draw_album(folder, album, advance)


def find_postgres(stack: ExitStack, folder: Path, url: str, console: Console) -> Engine | None:
    """A private PostgreSQL with the tables; None, said aloud, where there can be none."""
    try:
        with console.status("Starting a private PostgreSQL"):
            engine = open_postgres(stack, folder, url)
    except SetupError as error:
        console.print(f"[yellow]PostgreSQL is left out: {error}[/yellow]")
        return None
    console.print(f"{engine.name} runs beside it, gone when the demo ends.\n")
    return engine


def train_and_deploy(
    folder: Path, url: str, postgres: Engine | None, epochs: int, console: Console
) -> dict[str, Mapping[str, Any]]:
    """All studies, at the same time; by function, what the training service said of it.

    The large one is PostgreSQL's, the others DuckDB's. Without PostgreSQL DuckDB has the large one, not the
    small one.
    """
    notes = Notes(folder / "trained.json")
    with ExitStack() as stack:
        # Closed afterwards: functions that the other engine deploys are for a connection that comes later.
        there = open_duckdb(stack, folder, url)
        large, small, numbers, boxes = studies(epochs)
        first = [(there, large)] if postgres is None else [(postgres, large), (there, small)]
        work = [*first, (there, numbers), (there, boxes)]
        # All datasets first: workers that train look at photos between two epochs alone.
        snapshots = [freeze(engine, study, console) for engine, study in work]
        jobs = [
            begin(engine, study, snapshot, notes, console)
            for (engine, study), snapshot in zip(work, snapshots, strict=True)
        ]
        with contextlib.closing(Client(url)) as client:
            watch_jobs(TrainingCalls(client), jobs, console)
        console.print()
        deployed: dict[str, Mapping[str, Any]] = {}
        for (engine, study), job in zip(work, jobs, strict=True):
            deployed |= deploy(engine, study, job, notes, console)
        deploy_features(work[0][0], FEATURES, jobs[0], notes, console)
    print_deployed(console, {name: told for name, told in deployed.items() if name not in (CALORIES, TRAY)})
    return {**deployed, FEATURES: notes.function(FEATURES)}


def ask_everything(queries: Sequence[Query], engines: Sequence[Engine], console: Console) -> bool:
    """Run every query on every engine and print the answers; whether the engines agreed on all."""
    agree = True
    with bar("Asking", len(queries) * len(engines), console) as advance:
        for query in queries:
            answers = {}
            for engine in engines:
                began_s = time.perf_counter()
                answers[engine.name] = Timed(engine.ask(query.sql), time.perf_counter() - began_s)
                advance()
            print_answer(console, query, answers)
            agree &= same([timed.answer for timed in answers.values()])
    return agree


def measure(engine: Engine, function: str, photos: int) -> Measured:
    """How a function does on the held-out photos."""
    truth = f"sum(CASE WHEN {function}(image_path) = food_name THEN 1 ELSE 0 END)"
    began_s = time.perf_counter()
    ((right,),) = engine.ask(f"SELECT {truth} FROM labels WHERE split = 'holdout'")[1]
    return Measured(float(right) / photos, 1000 * (time.perf_counter() - began_s) / photos)


def count_holdout(engine: Engine) -> int:
    """How many photos no model saw."""
    ((photos,),) = engine.ask("SELECT count(*) FROM labels WHERE split = 'holdout'")[1]
    return int(photos)


def compare(engines: Sequence[Engine], console: Console) -> bool:
    """Whether all engines name every held-out photo alike."""
    if len(engines) == 1:
        return True
    agree = same([engine.ask(HOLDOUT) for engine in engines])
    said = "[green]named each of them alike" if agree else "[red]did not name all of them alike"
    console.print(f"{' and '.join(engine.name for engine in engines)} {said}.")
    return agree


def compare_local(stack: ExitStack, folder: Path, engine: Engine, console: Console) -> bool:
    """Whether `local:`, in this very process, answers a few rows as the server does."""
    few = f"{HOLDOUT} LIMIT {LOCAL_ROWS}"
    endpoint = f"local:{folder.resolve() / 'home'}?media_root={folder.resolve() / 'images'}"
    with console.status("Loading the models into this process"):
        local = open_duckdb(stack, folder, endpoint)
        agree = same([engine.ask(few), local.ask(few)])
    said = "[green]the same answers" if agree else "[red]other answers"
    console.print(f"ml_udf.duckdb.register(con, 'local:…') gave {said}[/] for {LOCAL_ROWS} photos.")
    return agree


def suggest(folder: Path, console: Console) -> None:
    """Where to go from here."""
    ml_udf = command("ml-udf")
    console.print(
        f"  {ml_udf} serve --home {folder}/home --media-root {folder}/images\n"
        "      keep these functions served (make serve), with their pages at http://127.0.0.1:8080/ :\n"
        f"      http://127.0.0.1:8080/functions/{ENSEMBLE} names what is in a photo that you drop on it\n"
        "    Then, in another terminal:\n"
        f'  {ml_udf} sql "SELECT {ENSEMBLE}(image_path) AS food, count(*)'
        f" FROM '{folder}/foodlog.csv' GROUP BY food\"\n"
        f"  {ml_udf} jobs\n"
        "      what was trained; --watch follows what trains\n"
        f"  {ml_udf} postgres sandbox --function udf_food_name\n"
        "      psql on a throw-away PostgreSQL that calls the same server\n"
        f"  {command('python')} -m examples.foodlog.demo --stay\n"
        "      this run again, with server and PostgreSQL left running until Ctrl-C\n"
        "  examples/foodlog/*.sql, docs/demo.md, docs/training.md\n",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def command(name: str) -> str:
    """How the shell finds what lies beside this Python: by its name alone where that leads there."""
    here = Path(sys.executable).parent / name
    if shutil.which(name) == str(here):
        return name
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def stay(url: str, postgres: Engine | None, console: Console) -> None:
    """Keep server and database until Ctrl-C."""
    console.print(f"Serving on {url} until Ctrl-C.", highlight=False)
    console.print(
        f"  {url}/functions/{ENSEMBLE} names what is in a photo that you drop on it", highlight=False
    )
    if postgres is not None:
        console.print(f"  psql '{postgres.uri}'", highlight=False, markup=False, soft_wrap=True)
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
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help="of training for each model, in all its trials"
    )
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
        console.print("Stopped; what was drawn and trained is kept, and the next run goes on.")
        return 130
    except (TrainingFailed, ServerDidNotStart, MlUdfError, psycopg.Error, duckdb.Error) as error:
        console.print(f"[red]Failed:[/red] {escape(str(error))}", highlight=False)
        return 1
    console.print(f"{'Done' if well else '[red]Failed[/red]'} in {time.perf_counter() - began_s:.0f} s.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
