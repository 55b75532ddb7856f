"""A search that stays fresh: the statements of fresh.sql on PostgreSQL, and the watcher that they need.

Owns the order of things: what changes is followed before the next question is asked.
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
from rich.console import Console

from examples.foodlog.queries import read_queries
from examples.foodlog.report import Timed, print_answer, print_asked
from examples.foodlog.serving import watching
from examples.foodlog.tables import ask_postgres

__all__ = ["FRESH_FILE", "show_fresh"]

FRESH_FILE = Path(__file__).with_name("fresh.sql")
FRESH_S = 60.0
_STATE = "SELECT state, last_error FROM ml_udf.watches WHERE relation = 'album'"


def show_fresh(uri: str, url: str, log_file: Path, console: Console) -> bool:
    """Ask everything; whether each photo had its vector at the end. Raises psycopg's errors."""
    with psycopg.connect(uri, autocommit=True) as connection, watching(uri, url, log_file):
        ask = ask_postgres(connection)
        answer = None
        for query in read_queries(FRESH_FILE):
            if query.sql.startswith("SELECT"):
                began_s = time.perf_counter()
                answer = ask(query.sql)
                print_answer(console, query, {"PostgreSQL": Timed(answer, time.perf_counter() - began_s)})
            else:
                print_asked(console, "PostgreSQL", query.title, query.sql)
                connection.execute(query.sql.encode())
                if query.sql.split()[0] != "CREATE":
                    _await_fresh(connection, console)
    assert answer is not None
    ((photos, seen, left_over),) = answer[1]
    return bool(photos == seen and left_over == 0)


def _await_fresh(connection: psycopg.Connection, console: Console) -> None:
    """Until the watch has answered all that was noted; after a minute the demo goes on, and says so."""
    began_s = time.monotonic()
    state, error = "", None
    while time.monotonic() < began_s + FRESH_S:
        ((state, error),) = connection.execute(_STATE).fetchall()
        if state == "fresh":
            console.print(f"→ fresh after {time.monotonic() - began_s:.1f} s\n", highlight=False)
            return
        time.sleep(0.05)
    console.print(f"[red]still {state} after {FRESH_S:g} s: {error}")
