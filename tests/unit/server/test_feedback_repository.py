"""Labels and what they taught are kept together, each input once: on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from server.errors import VersionGone
from server.store.feedback import FeedbackRepository, LabelledRow
from server.store.repository import Repository


@pytest.fixture
def repository(database: Engine) -> FeedbackRepository:
    Repository(database, Path("/home")).deploy("f", {})
    return FeedbackRepository(database)


def row(digest: str, label: str) -> LabelledRow:
    return LabelledRow(digest, label, b"\0" * 8)


def count(kept: dict[str, Any] | None, teaching: Sequence[int], new: int) -> dict[str, Any]:
    """What is learned here: how often anybody taught, and how many inputs there are."""
    before = kept or {"taught": 0, "rows": 0}
    return {"taught": before["taught"] + len(teaching), "rows": before["rows"] + new}


def test_the_last_label_of_an_input_counts_and_the_same_again_teaches_nothing(
    repository: FeedbackRepository,
) -> None:
    keep = repository.keep
    assert keep("f", 1, [row("a", "x"), row("b", "x")], count) == (
        ["counted", "counted"],
        {"taught": 2, "rows": 2},
    )
    assert keep("f", 1, [row("a", "x"), row("b", "y"), row("c", "x")], count) == (
        ["repeated", "changed", "counted"],
        {"taught": 4, "rows": 3},
    )
    assert repository.labels("f", 1, ["a", "b", "c", "d"]) == {"a": "x", "b": "y", "c": "x"}
    many = [row(f"{number:064x}", "x") for number in range(1200)]
    assert keep("f", 1, many, count)[0] == ["counted"] * 1200
    assert len(repository.labels("f", 1, [one.digest for one in many])) == 1200


def test_a_deployment_that_has_learned_nothing_of_an_input_counts_it(
    repository: FeedbackRepository, database: Engine
) -> None:
    repository.keep("f", 1, [row("a", "x")], count)
    deployments = Repository(database, Path("/home"))
    deployments.deploy("f", {})
    assert repository.labels("f", 2, ["a"]) == {}
    assert repository.keep("f", 2, [row("a", "x")], count) == (["counted"], {"taught": 1, "rows": 1})
    first, second = deployments.served()
    assert (first.feedback, second.feedback) == ({"taught": 1, "rows": 1}, {"taught": 1, "rows": 1})
    deployments.delete_function("f")
    with database.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM feedback")).scalar() == 0


def test_what_cannot_be_learned_is_not_kept(repository: FeedbackRepository) -> None:
    def fails(*_: object) -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        repository.keep("f", 1, [row("a", "x")], fails)
    assert repository.labels("f", 1, ["a"]) == {}
    for function, version in (("f", 2), ("g", 1)):
        with pytest.raises(VersionGone):
            repository.keep(function, version, [row("a", "x")], count)


def test_servers_that_keep_the_same_labels_at_once_count_each_once(
    repository: FeedbackRepository, database: Engine
) -> None:
    rows = [row(f"{number}", "x") for number in range(50)]
    failures: list[Exception] = []

    def send() -> None:
        try:
            for first in range(0, 50, 10):
                FeedbackRepository(database).keep("f", 1, rows[first : first + 10], count)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    (served,) = Repository(database, Path("/home")).served()
    assert served.feedback == {"taught": 50, "rows": 50}
