"""`ml-udf sql`: a query on DuckDB with the server's functions, from the shell."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ml_udf.cli.console import INTERRUPTED, console, fail, note
from ml_udf.cli.ctrl_c import ctrl_c_until_heard
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.cli.unknown_function import unknown_function
from ml_udf.errors import MlUdfError

if TYPE_CHECKING:
    from ml_udf.duckdb.rewrite import Rewrite

__all__ = ["sql"]

_WHOLE: Literal["fold"] = "fold"  # a word that is wider than its column goes on in the next line

_QUOTED = re.compile(r'[",\r\n]|^\s|\s$')
_ESCAPED = b"\"'\\"  # of what is printable


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@asks_a_server
def sql(
    query: Annotated[str | None, typer.Argument(help="SQL; read from standard input when left out")] = None,
    database: Annotated[str, typer.Option("--database", "-d", help="a DuckDB file")] = ":memory:",
    form: Annotated[Format, typer.Option("--format", "-f", help="how rows are printed")] = Format.TABLE,
    max_rows: Annotated[int, typer.Option(min=0, help="rows that a table shows at most")] = 40,
    on_error: Annotated[
        str, typer.Option(help="error: a faulty row fails; null: it is NULL, counted")
    ] = "error",
    show_rewrite: Annotated[
        bool, typer.Option("--show-rewrite", help="print the query as it would run, and run nothing")
    ] = False,
    rewrite: Annotated[
        bool, typer.Option(help="ask models only for rows that cheap conditions leave, or run it as it is")
    ] = True,
    *,
    server: ServerOptions,
) -> None:
    """Run SQL on DuckDB with the functions of an inference server.

    ml-udf sql "SELECT udf_food_name(image_path) AS food, count(*) FROM 'foodlog.csv' GROUP BY food"
    """
    with ctrl_c_until_heard():
        try:
            import duckdb

            import ml_udf.duckdb
            from ml_udf.config import Options
            from ml_udf.duckdb.cheap_first import asked
            from ml_udf.duckdb.interrupts import interruptible_by_ctrl_c
        except ModuleNotFoundError as exc:
            fail(f"{exc.name} is missing", "pip install 'ml_udf[duckdb]'")
        text = query if query is not None else sys.stdin.read()
        try:
            options = Options().overridden({"on_error": on_error})
            con = duckdb.connect(database)
            registration = ml_udf.duckdb.register(
                con, server.endpoint, token=server.token, options=options, user=server.user, **server.security
            )
        except MlUdfError as error:
            fail(error.message, error.hint)
        except duckdb.Error as error:
            fail(str(error), "name a DuckDB file that exists, or one to be made, with --database")
    try:
        with ctrl_c_until_heard(), interruptible_by_ctrl_c(con):
            for statement in con.extract_statements(text):
                if show_rewrite:
                    _show(ml_udf.duckdb.rewritten(con, statement.query))
                    continue
                if rewrite:
                    asked(ml_udf.duckdb.rewritten(con, statement.query), statement.query, con.execute)
                else:
                    con.execute(statement)
                if con.description:
                    _print(con, form, max_rows)
    except MlUdfError as error:
        fail(error.message, error.hint)
    except duckdb.Error as error:
        fault = registration.last_error
        if fault and fault.message in str(error):
            fail(fault.report())
        fail(*(unknown_function(str(error), registration.functions) or (str(error),)))
    except KeyboardInterrupt:
        fail("interrupted", status=INTERRUPTED)
    finally:
        with contextlib.suppress(duckdb.Error):  # else a BEGIN that has failed lets nothing be done
            con.rollback()
        registration.flush_warnings()
        registration.close()


def _show(told: Rewrite) -> None:
    sys.stdout.write(told.query.strip() + "\n")
    for each in told.left:
        note(f"as it was: {each.condition}: {each.reason}")


def _print(con: Any, form: Format, max_rows: int) -> None:  # noqa: ANN401  # a DuckDBPyConnection; imported late
    columns = [column[0] for column in con.description]
    if form is Format.CSV:
        sys.stdout.write(_csv_line(columns))
        while rows := con.fetchmany(10_000):
            sys.stdout.writelines(map(_csv_line, rows))
    elif form is Format.JSON:
        names = _told_apart(columns)
        while rows := con.fetchmany(10_000):
            for row in rows:
                sys.stdout.write(_json(dict(zip(names, row, strict=True))) + "\n")
    else:
        rows = con.fetchmany(max_rows + 1)
        _print_table(
            columns, [["" if value is None else str(value) for value in row] for row in rows[:max_rows]]
        )
        if len(rows) > max_rows:
            console.print(f"the first {max_rows} rows; --max-rows shows more, --format csv all")


def _told_apart(columns: Sequence[str]) -> list[str]:
    """Their names; of those alike all but the first have a number, as DuckDB gives them."""
    names: list[str] = []
    for column in columns:
        name, number = column, 0
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _csv_line(row: Sequence[object]) -> str:
    r"""A line as both engines read it: NULL is nothing, an empty text "", and a lone NULL no empty line."""
    line = ",".join(map(_csv_field, row))
    return (line or '""') + "\r\n"


def _csv_field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _json(value) if isinstance(value, dict | list | tuple) else _text(value)
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def _text(value: object) -> str:
    """Bytes as DuckDB writes and reads them."""
    if not isinstance(value, bytes):
        return str(value)
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in _ESCAPED else f"\\x{byte:02X}" for byte in value
    )


def _json(value: object) -> str:
    return json.dumps(_plain(value), default=_text)


def _plain(value: object) -> object:
    """The same as JSON has it: keys that are texts (a MAP may have others), no numbers that are none."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str | int | None) else str(key): _plain(each)
            for key, each in value.items()
        }
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    """A line for each row; one for each value where not even the columns' names fit beside each other."""
    from rich.table import Column, Table

    if sum(len(column) + 3 for column in columns) < console.width:
        table = Table(*(Column(column, overflow=_WHOLE) for column in columns))
        for row in rows:
            table.add_row(*row)
    else:
        table = Table(Column(overflow=_WHOLE), Column(overflow=_WHOLE), show_header=False)
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                table.add_row(column, value)
            table.add_section()
    console.print(table)
