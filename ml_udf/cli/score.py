"""`ml-udf score`: a function's answers for all rows of a table, on PostgreSQL or DuckDB, as they come."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ml_udf.cli.console import (
    INTERRUPTED,
    check_dsn,
    console,
    fail,
    note,
)
from ml_udf.cli.score_every import every as again_and_again
from ml_udf.cli.score_every import interval_of
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.client import Client
from ml_udf.client.transport import Abort
from ml_udf.config import Options
from ml_udf.errors import SKIPS_ROWS, MlUdfError
from ml_udf.scoring import ScoreProgress, ScoreRequest
from ml_udf.scoring.request import BATCH_ROWS, PATIENCE_S, rescore_of

__all__ = ["score"]

LANES = 2
_RECONNECT_S = 0.5
_LOG_S = 10.0  # between lines where there is no terminal
_DUCKDB = {"checkpoint_threshold": "256MB"}  # each writes the file's last part anew, up to 122,880 rows
_GO_ON = "what was stored stays; run the same command again to go on"

RunScoring = Callable[[Callable[[ScoreProgress], None]], ScoreProgress]


class OnError(StrEnum):
    """What a faulty row does."""

    ERROR = "error"
    NULL = "null"


@asks_a_server
def score(
    table: Annotated[str | None, typer.Argument(help="table or view, as SQL writes it")] = None,
    function: Annotated[
        str | None, typer.Argument(help="function, or model, of the inference server")
    ] = None,
    column: Annotated[str | None, typer.Argument(help="column that the function gets to see")] = None,
    postgres: Annotated[
        str | None, typer.Option(envvar="ML_UDF_POSTGRES", help="a PostgreSQL connection string")
    ] = None,
    duckdb: Annotated[Path | None, typer.Option("--duckdb", "-d", help="a DuckDB file")] = None,
    output: Annotated[
        str | None, typer.Option("--to", help="column of the table that takes the answers")
    ] = None,
    result_table: Annotated[
        str | None, typer.Option("--into", help="table that takes them beside the key; created where absent")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="column that tells rows apart; may be repeated; default: primary key"),
    ] = None,
    where: Annotated[str | None, typer.Option(help="SQL condition: score such rows alone")] = None,
    limit: Annotated[int | None, typer.Option(help="most rows of this run")] = None,
    batch_rows: Annotated[int, typer.Option(help="rows per commit")] = BATCH_ROWS,
    on_error: Annotated[
        OnError | None,
        typer.Option(
            help="error: a faulty row ends the run; null: its error is stored;"
            " default: error, with --every null"
        ),
    ] = None,
    rescore: Annotated[
        str | None,
        typer.Option(
            help="why to score again: none, or some of changed,version,errors; default: changed,"
            " with --every changed,version"
        ),
    ] = None,
    version: Annotated[str | None, typer.Option(help="of the function; default: the current one")] = None,
    patience: Annotated[
        float, typer.Option(help="seconds for which a server that does not answer is waited for")
    ] = PATIENCE_S,
    every: Annotated[
        str | None, typer.Option(help="go on for ever: score what is new or changed every 30s, 1m, 2h")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="keep all of a PostgreSQL database's watches fresh, until stopped")
    ] = False,
    foreign_server: Annotated[
        str, typer.Option("--server", help="with --watch: the foreign server whose watches are answered")
    ] = "ml_udf",
    lanes: Annotated[
        int, typer.Option(min=1, max=64, help="with --watch: batches on the way at once")
    ] = LANES,
    *,
    server: ServerOptions,
) -> None:
    """Store a function's answers for all rows of a table that have none yet. Run again, it goes on.

    ml-udf score foodlog udf_food_name image_path --to food_name --postgres postgresql:///food

    With --every, it goes on by itself:

    ml-udf score foodlog udf_food_name image_path --into food_names --duckdb food.db --every 1m

    With --watch: keep fresh what CALL ml_udf.score_table(…, watch => true) asked for.

    ml-udf score --watch --postgres postgresql:///food
    """
    if watch:
        if table is not None or duckdb is not None or postgres is None:
            fail(
                "--watch answers all watches of a PostgreSQL database, and takes no table",
                "ml-udf score --watch --postgres DSN; score_table(…, watch => true) makes a watch",
            )
        check_dsn(postgres)
        _watch_postgres(postgres, server, foreign_server, lanes)
        return
    if table is None or function is None or column is None:
        fail("what is to be scored is missing", "ml-udf score TABLE FUNCTION COLUMN --to COLUMN …")
    if (postgres is None) == (duckdb is None):
        fail("the table's database is missing", "give --postgres DSN, or --duckdb FILE")
    check_dsn(postgres or "")
    if bool(output) == bool(result_table):
        places = "--to COLUMN of the same table, or --into TABLE of their own"
        fail("the answers need one place" + (", not two" if output else ""), f"give {places}")
    try:
        request = ScoreRequest(
            relation=table,
            function=function,
            input=column,
            output=output,
            result_table=result_table,
            key=tuple(key or ()),
            condition=where,
            row_limit=limit,
            batch_rows=batch_rows,
            on_error=on_error.value if on_error else "error" if every is None else "null",
            rescore=rescore_of(rescore or (None if every is None else "changed,version")),
            version=version,
            patience_s=patience,
        )
        with contextlib.closing(server.client()) as client:

            def run() -> ScoreProgress:
                with _bar() as show:
                    if postgres is not None:
                        return _on_postgres(postgres, client, request, show)
                    return _on_duckdb(duckdb, client, request, show)

            if every is not None:
                again_and_again(interval_of(every), run, console.print)
                return
            so_far = run()
    except MlUdfError as error:
        fail(
            f"{error.message} [{error.code}]" + (f"\n  {error.detail}" if error.detail else ""),
            error.hint.replace(SKIPS_ROWS, "--on-error null") or _GO_ON,
        )
    except KeyboardInterrupt:
        console.print(f"interrupted: {_GO_ON}")
        raise typer.Exit(INTERRUPTED) from None
    _tell(so_far)


def _on_postgres(
    dsn: str, client: Client, request: ScoreRequest, show: Callable[[ScoreProgress], None]
) -> ScoreProgress:
    try:
        import psycopg

        from ml_udf.cli.score_postgres import lost_connection, score_postgres
    except ModuleNotFoundError as exc:
        fail(f"{exc.name} is missing", "pip install 'psycopg[binary]'")
    try:
        return _reconnecting(
            lambda told: score_postgres(dsn, client, request, Options(), told),
            lost=psycopg.OperationalError,
            is_lost=lost_connection,
            show=show,
            patience_s=request.patience_s,
        )
    except psycopg.Error as error:
        fail(str(error).strip(), _GO_ON)


def _watch_postgres(dsn: str, server: ServerOptions, foreign_server: str, lanes: int) -> None:
    try:
        import psycopg

        from ml_udf.cli.score_watch import WatchWorker
    except ModuleNotFoundError as exc:
        fail(f"{exc.name} is missing", "pip install 'psycopg[binary]'")
    stop = Abort()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with contextlib.closing(server.client()) as client:
            WatchWorker(dsn, client, server=foreign_server, lanes=lanes, stop=stop, say=note).run()
    except MlUdfError as error:
        fail(f"{error.message} [{error.code}]", error.hint)
    except psycopg.Error as error:
        fail(str(error).strip(), "what was noted stays; run the same command again to go on")


def _on_duckdb(
    file: Path | None, client: Client, request: ScoreRequest, show: Callable[[ScoreProgress], None]
) -> ScoreProgress:
    try:
        import duckdb

        from ml_udf.duckdb.scoring import score_connection
    except ModuleNotFoundError as exc:
        fail(f"{exc.name} is missing", "pip install 'ml_udf[duckdb]'")
    if file is None or not file.exists():
        fail(f"there is no DuckDB file {file}", "name the file that holds the table")
    try:
        with duckdb.connect(str(file), config=dict(_DUCKDB)) as connection:
            return score_connection(connection, client, request, Options(), on_progress=show)
    except duckdb.Error as error:
        fail(str(error).strip(), _GO_ON)


def _reconnecting(
    run: RunScoring,
    *,
    lost: type[Exception],
    is_lost: Callable[[Exception], bool],
    show: Callable[[ScoreProgress], None],
    patience_s: float,
) -> ScoreProgress:
    """`run`, begun again when its connection is lost after it stood. Tallies add up to one."""
    whole = ScoreProgress(0, began_s=time.monotonic())
    give_up_s: float | None = None  # a connection that never stood is not waited for
    while True:
        base = (whole.answered, whole.failed)

        def told(so_far: ScoreProgress, base: tuple[int, int] = base) -> None:
            nonlocal give_up_s
            give_up_s = time.monotonic() + patience_s
            whole.due = sum(base) + so_far.due
            whole.answered, whole.failed = base[0] + so_far.answered, base[1] + so_far.failed
            whole.missed, whole.first_fault = so_far.missed, whole.first_fault or so_far.first_fault
            show(whole)

        try:
            told(run(told))
        except lost as error:
            if not is_lost(error) or give_up_s is None or time.monotonic() > give_up_s:
                raise
            time.sleep(_RECONNECT_S)
        else:
            return whole


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[ScoreProgress], None]]:
    if not console.is_terminal:  # where no bar can be drawn anew
        yield _log()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("counting", total=None, rate="")

        def show(so_far: ScoreProgress) -> None:
            progress.update(
                task,
                description="scoring",
                total=max(so_far.due, so_far.stored),
                completed=so_far.stored,
                rate=f"{so_far.rows_per_s:,.0f} rows/s",
            )

        yield show


def _log() -> Callable[[ScoreProgress], None]:
    """Says how far it is: a line now and then, so that a night's run leaves a log that can be read."""
    due_s = time.monotonic() + _LOG_S

    def show(so_far: ScoreProgress) -> None:
        nonlocal due_s
        if time.monotonic() < due_s:
            return
        due_s = time.monotonic() + _LOG_S
        of = max(so_far.due, so_far.stored)
        console.print(
            f"{so_far.stored:,} of {of:,} rows scored, {so_far.rows_per_s:,.0f} rows/s", highlight=False
        )

    return show


def _tell(so_far: ScoreProgress) -> None:
    seconds = time.monotonic() - so_far.began_s
    console.print(
        f"{so_far.answered:,} rows answered, {so_far.failed:,} hold an error; {seconds:,.1f} s,"
        f" {so_far.rows_per_s:,.0f} rows/s",
        highlight=False,
    )
    if so_far.first_fault is not None:
        fault = so_far.first_fault
        console.print(
            f"the first error: {fault.code}: {fault.message}; {fault.detail}", markup=False, soft_wrap=True
        )
    if so_far.missed:
        console.print(
            f"{so_far.missed:,} times a row had changed meanwhile; run it again for those still due"
        )
