"""A table to watch, a worker to answer it, and what must hold once nothing is noted any more."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.postgres.fixtures import Engine
from tests.postgres.oip_server import OipServer, label_of
from tests.waiting import wait_until

WATCH = "CALL ml_udf.score_table('foodlog', 'udf_food_name', 'image_path', output => 'food', watch => true"
INTO = WATCH.replace("output => 'food'", "result_table => 'scores'")

# How many notes the rings hold of watches that there are.
IN_RINGS = "SELECT count(*) FROM ml_udf._ring_notes() AS r JOIN ml_udf._watch AS w ON w.id = r.watch"
NOTED = f"""
    SELECT 1 FROM ml_udf._note UNION ALL SELECT 1 FROM ml_udf._new_note
    UNION ALL {IN_RINGS} HAVING count(*) > 0"""

# Notes not answered yet, and watches of which some may be lost.
PENDING = f"""
    SELECT (SELECT count(*) FROM ml_udf._new_note) + ({IN_RINGS})
         + (SELECT count(*) FROM ml_udf._note WHERE attempts = 0)
         + (SELECT count(*) FROM ml_udf._watch WHERE id NOT IN (SELECT watch FROM ml_udf._marked))"""

# Long: what a loaded machine may take.
FRESH_S = 90


@contextlib.contextmanager
def worker(engine: Engine, server: OipServer, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`ml-udf score --watch`, ended as a service is."""
    asked = ["score", "--watch", "--postgres", engine.dsn, "--endpoint", server.url, *more]
    running = subprocess.Popen(
        [sys.executable, "-m", "ml_udf.cli", *asked],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.terminate()
        _, err = running.communicate(timeout=60)
        assert "Traceback" not in err, err


def is_fresh(engine: Engine) -> bool:
    """Whether nothing is noted that is still to be answered, and no note was lost."""
    return bool(engine.value(PENDING) == 0)


def wait_until_fresh(engine: Engine) -> None:
    wait_until(lambda: is_fresh(engine), FRESH_S)


def wrong_answers(engine: Engine) -> list[tuple[int, str, str]]:
    """(id, input, answer) of the rows beside which is not the answer of their present input."""
    rows = engine.query("SELECT id, image_path, food FROM foodlog")
    return [row for row in rows if row[2] != (row[1] and label_of(row[1]))]


def wrong_scores(engine: Engine) -> list[tuple[int, str, str]]:
    """The same of a table of answers."""
    rows = engine.query("SELECT id, image_path, value FROM foodlog FULL JOIN scores USING (id)")
    return [row for row in rows if row[2] != (row[1] and label_of(row[1]))]
