"""A watch's worker begins once its database is there, and says so while it waits."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from ml_udf.cli import score_watch
from ml_udf.cli.score_watch import WatchWorker
from ml_udf.client.transport import Abort
from tests.waiting import wait_until

REFUSED = "connection failed: port 5432 failed: Connection refused"


class Databases:
    """In place of psycopg.connect: fails with one text after another."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked = 0

    def __call__(self, dsn: str, **told: Any) -> psycopg.Connection:
        self.asked += 1
        raise psycopg.OperationalError(self.texts.pop(0) if len(self.texts) > 1 else self.texts[0])


def worker(
    monkeypatch: pytest.MonkeyPatch, databases: Databases, stop: Abort, said: list[str]
) -> WatchWorker:
    monkeypatch.setattr(psycopg, "connect", databases)
    monkeypatch.setattr(score_watch, "RECONNECT_S", 0.001)
    client: Any = None  # nobody is asked
    return WatchWorker("postgresql:///food", client, server="ml_udf", lanes=1, stop=stop, say=said.append)


def test_a_database_that_is_not_there_is_awaited_and_said_once(monkeypatch):
    said: list[str] = []
    stop, databases = Abort(), Databases(REFUSED, "FATAL:  the database system is starting up")
    waits = threading.Thread(target=worker(monkeypatch, databases, stop, said).run)
    waits.start()
    wait_until(lambda: databases.asked > 5)
    stop.set()
    waits.join(60)
    assert not waits.is_alive()
    assert said == [f"the database is awaited for 15 s: {REFUSED}"]


def test_one_that_does_not_come_up_ends_the_worker(monkeypatch):
    monkeypatch.setattr(score_watch, "BEGINS_S", 0.0)
    with pytest.raises(psycopg.OperationalError, match="Connection refused"):
        worker(monkeypatch, Databases(REFUSED), Abort(), []).run()


@pytest.mark.parametrize(
    "refusal",
    [
        'FATAL:  password authentication failed for user "ann"',
        'FATAL:  database "fod" does not exist',
        'FATAL:  no pg_hba.conf entry for host "127.0.0.1"',
    ],
)
def test_a_database_that_refuses_is_not_asked_again(monkeypatch, refusal):
    said: list[str] = []
    databases = Databases(refusal)
    with pytest.raises(psycopg.OperationalError, match="FATAL"):
        worker(monkeypatch, databases, Abort(), said).run()
    assert (databases.asked, said) == (1, [])
