"""A study whose records lie in PostgreSQL, and whose connections are cut between messages and within them."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import InMemoryStorage, RDBStorage
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from ml_udf.cli.pg_sandbox import Sandbox
from server.training.ledger import open_storage
from server.training.study import Master
from tests.unit.training.simulation import ParameterStore, run, spec_of
from tests.unit.training.test_recovery import run_from, whole

Cut = Callable[[], int]


@pytest.fixture(scope="module")
def url(cluster: Sandbox) -> str:
    cluster.sql("CREATE DATABASE studies")
    return cluster.dsn("studies")


@pytest.fixture(scope="module")
def cut(cluster: Sandbox, url: str) -> Iterator[Cut]:
    """Ends every connection to the studies; how many there were."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:

        def cut_all() -> int:
            ended = admin.execute(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
                " WHERE datname = 'studies'"
            ).fetchall()
            return int(ended[0][0])

        yield cut_all


@pytest.mark.parametrize("policy", ["study", "costudy", "branch"])
def test_a_connection_cut_before_every_message_changes_nothing(url: str, cut: Cut, policy: str) -> None:
    spec = spec_of(policy, name=f"cut before {policy}", budget_epochs=15, max_epochs=9)
    steady = Master(spec, InMemoryStorage())
    run(steady)
    master = Master(spec, open_storage(url))
    ended = []

    class Cutting:
        """Every message comes over a connection that has just been cut."""

        def __getattr__(self, name: str) -> Any:
            ended.append(cut())
            return getattr(master, name)

    run(Cutting())  # type: ignore[arg-type]
    assert sum(ended) >= 15, "there was a connection to cut before each epoch at least"
    assert master.trials() == steady.trials()
    assert Master(spec, open_storage(url)).trials() == steady.trials()


def test_a_connection_cut_at_any_write_leaves_a_study_that_ends_whole(
    url: str, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)  # times which Optuna rests before it tries again
    budget = 3
    storage, next_storage = open_storage(url), open_storage(url)
    assert isinstance(storage, RDBStorage)
    left = 0

    def before_statement(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal left
        if statement.startswith(("INSERT", "UPDATE")):
            left -= 1
            if not left:
                cut()

    event.listen(storage.engine, "before_cursor_execute", before_statement)
    for place in itertools.count(1):
        spec = spec_of("costudy", name=f"cut at {place}", budget_epochs=budget, lease_s=5, max_epochs=2)
        master, store = Master(spec, storage), ParameterStore()
        left = place
        # Where Optuna tries again by itself, the master lives on.
        with contextlib.suppress(StorageInternalError, SQLAlchemyError):
            run_from(master, "before", store, 0.0)
        again = Master(spec, next_storage)
        # The worker of before is gone with its master; its lease runs out.
        again.sweep(100.0)
        run_from(again, "after", store, 100.0)
        whole(again, budget)
        if left > 0:
            assert place > 2 * budget, "every write of the study was cut once"
            return
