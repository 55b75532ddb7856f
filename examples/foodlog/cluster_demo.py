"""Workers on two nodes that share nothing, one of which is killed: `make demo-cluster`.

    draw photos → train a model on this machine, in SQL → ask in SQL → the same question of two nodes of a Ray
    cluster on this machine, each with a folder of its own; one is killed in the middle → the same answer

Nodes are sent the model and the photos: they see no folder of the server's. Everything is kept in
`.demo/cluster`; a second run draws and trains nothing. The exit status is 1 where the answers differ.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import duckdb
from rich.console import Console
from rich.markup import escape

from examples.foodlog.circle import Notes, Study, TrainingFailed, begin, deploy, freeze
from examples.foodlog.demo import draw, ends_cleanly
from examples.foodlog.draw import Album
from examples.foodlog.engines import open_duckdb
from examples.foodlog.nodes import Nodes, nodes_of_this_machine
from examples.foodlog.queries import Query, read_queries
from examples.foodlog.report import Timed, print_answer, same
from examples.foodlog.serving import ServerDidNotStart, serving
from examples.foodlog.tables import Answer
from ml_udf.cli.jobs import watch_jobs
from ml_udf.client import Client
from ml_udf.errors import MlUdfError
from ml_udf.training import TrainingCalls

FUNCTION = "udf_food_name"
MODEL = "small_cnn"
ALBUM = Album(images=600, rows=5_000)
_ROOT = Path(__file__).parents[2]
_LOOK_S = 0.02
_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class Killed:
    """A node that was killed as a statement ran. rows: that were answered by then. still_s: after which the
    next row was answered.
    """

    rows: int
    still_s: float


def run(folder: Path, album: Album, epochs: int, console: Console) -> bool:
    """The demo, top to bottom. Answers whether both answers are the same."""
    query = read_queries()[0]
    console.rule(f"[bold]1 · {album.images} photos of meals, {album.rows} rows")
    draw(folder, album, console)
    flags = ["--answer-cache-bytes=0"]  # so that each photo is computed each time

    console.rule("[bold]2 · A model from labelled photos, on this machine")
    with serving(folder / "home", folder / "images", folder / "server.log", flags) as url:
        train(folder, url, epochs, console)
        alone = ask(folder, url, query)
    print_answer(console, query, {"this machine": alone})

    console.rule("[bold]3 · Two nodes with a folder each")
    shutil.rmtree(folder / "nodes", ignore_errors=True)
    with nodes_of_this_machine(_ROOT, Nodes) as nodes, ExitStack() as stack:
        with console.status("Starting two nodes"):
            for _ in range(2):
                nodes.add()
        first, second = nodes.by_name
        own = f"{folder.resolve()}/nodes/{{node}}"
        flags += ["--pool=ray", f"--ray-address={nodes.address}", f"--node-folder={own}"]
        with console.status("Starting the server, and a worker on each node"):
            server = serving(folder / "home", folder / "images", folder / "cluster.log", flags, workers=2)
            url = stack.enter_context(server)
            client = stack.enter_context(closing(Client(url)))
            until_up(client, 2)
        print_workers(client, console)
        answered = counting(client)
        before = answered()
        both = ask(folder, url, query)
        began = answered()
        print_answer(console, query, {"this machine": alone, "two nodes": both})
        fetched = sorted((folder / "nodes").glob("*/*/*/*/*.safetensors"))
        console.print(f"The model was sent to each: {', '.join(map(str, fetched))}\n", highlight=False)

        console.rule(f"[bold]4 · {second} is killed in the middle, {first} goes on")
        quarter = began + (began - before) // 4
        one, killed = ask_and_kill(
            lambda: ask(folder, url, query), answered, (quarter, lambda: nodes.kill(second))
        )
        print_answer(console, query, {"this machine": alone, "a node less": one})
        console.print(
            f"{second} was killed after {killed.rows - began} of {began - before} rows; "
            f"the next was answered {killed.still_s:.2f} s later.",
            highlight=False,
        )
        until_up(client, 1)
        print_workers(client, console)
    return same([alone.answer, both.answer, one.answer])


def train(folder: Path, url: str, epochs: int, console: Console) -> None:
    """A model of the labelled photos, behind the function that the query asks; an earlier run's is found."""
    study = Study("food", (MODEL,), f"{epochs} epochs", {FUNCTION: "best"})
    notes = Notes(folder / "trained.json")
    with ExitStack() as stack:
        engine = open_duckdb(stack, folder, url)
        job = begin(engine, study, freeze(engine, study, console), notes, console)
        with closing(Client(url)) as client:
            watch_jobs(TrainingCalls(client), [job], console)
        deploy(engine, study, job, notes, console)


def ask(folder: Path, url: str, query: Query) -> Timed:
    """The query on a DuckDB of its own."""
    with ExitStack() as stack:
        engine = open_duckdb(stack, folder, url)
        began_s = time.perf_counter()
        answer: Answer = engine.ask(query.sql)
        return Timed(answer, time.perf_counter() - began_s)


def counting(client: Client) -> Callable[[], int]:
    """How many rows the function has answered so far, in all its versions."""

    def answered() -> int:
        versions = client.get(f"/v2/models/{FUNCTION}/stats")["model_stats"]
        return sum(int(version["inference_count"]) for version in versions)

    return answered


def ask_and_kill(
    ask_once: Callable[[], Timed], answered: Callable[[], int], kill: tuple[int, Callable[[], None]]
) -> tuple[Timed, Killed]:
    """Ask in a thread; once so many rows are answered, kill. Raises what asking raises, and
    `TrainingFailed` where it is over before.
    """
    outcome: list[Timed | BaseException] = []

    def asking() -> None:
        try:
            outcome.append(ask_once())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=asking)
    thread.start()
    at, act = kill
    while answered() < at and thread.is_alive():
        time.sleep(_LOOK_S)
    act()
    killed_s, rows = time.monotonic(), answered()
    while answered() <= rows and thread.is_alive():
        time.sleep(_LOOK_S)
    still_s = time.monotonic() - killed_s
    thread.join()
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    return found, Killed(rows, still_s)


def until_up(client: Client, count: int) -> None:
    """Returns once just so many workers are up. Raises `ServerDidNotStart`."""
    ends_s = time.monotonic() + _UP_S
    while sum(worker["state"] == "up" for worker in client.get("/v1/workers")["workers"]) != count:
        if time.monotonic() > ends_s:
            raise ServerDidNotStart(f"{count} workers were not up within {_UP_S:g} s")
        time.sleep(_LOOK_S)


def print_workers(client: Client, console: Console) -> None:
    """Each with its node."""
    for worker in client.get("/v1/workers")["workers"]:
        where = f"on node {worker['node']}" if worker["node"] else "on no node"
        console.print(f"  {worker['name']} is {worker['state']} {where}", highlight=False)
    console.print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo from the command line; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.foodlog.cluster_demo", description="Two nodes, of which one is killed."
    )
    parser.add_argument("--folder", type=Path, default=Path(".demo/cluster"), help="where all of it is kept")
    parser.add_argument("--images", type=int, default=ALBUM.images)
    parser.add_argument("--rows", type=int, default=ALBUM.rows)
    parser.add_argument("--epochs", type=int, default=6, help="of training")
    options, console = parser.parse_args(arguments), Console()
    began_s = time.perf_counter()
    try:
        with ends_cleanly():
            album = Album(options.images, options.rows)
            well = run(options.folder, album, options.epochs, console)
    except KeyboardInterrupt:
        console.print("Stopped; what was drawn and trained is kept, and the next run goes on.")
        return 130
    except (TrainingFailed, ServerDidNotStart, MlUdfError, duckdb.Error) as error:
        console.print(f"[red]Failed:[/red] {escape(str(error))}", highlight=False)
        return 1
    said = "The same answer each time" if well else "[red]The answers differ[/red]"
    console.print(f"{said}; {time.perf_counter() - began_s:.0f} s.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
