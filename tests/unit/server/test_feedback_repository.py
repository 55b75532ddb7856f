"""Labels and what they taught are kept together, each input once: on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from server.errors import VersionGone
from server.store.feedback import (
    DeploymentState,
    FeedbackBounds,
    FeedbackRepository,
    LabelledRow,
    Learned,
)
from server.store.repository import Repository


@pytest.fixture
def repository(database: Engine) -> FeedbackRepository:
    Repository(database, Path("/home")).deploy("f", {})
    return FeedbackRepository(database)


def row(digest: str, label: str) -> LabelledRow:
    return LabelledRow(digest, label, b"\0" * 8)


def count(kept: Learned, teaching: Sequence[int], new: int) -> Learned:
    """What is learned here: how often anybody taught, and how many inputs there are."""
    before = kept.deployment or {"taught": 0, "rows": 0}
    return learned(before["taught"] + len(teaching), before["rows"] + new)


def count_in_context(kept: Learned, teaching: Sequence[int], new: int) -> Learned:
    """The same, and how often the context taught."""
    before = kept.context or {"taught": 0}
    return Learned(count(kept, teaching, new).deployment, {"taught": before["taught"] + len(teaching)})


def learned(taught: int, rows: int) -> Learned:
    return Learned({"taught": taught, "rows": rows})


def test_the_last_label_of_an_input_counts_and_the_same_again_teaches_nothing(
    repository: FeedbackRepository,
) -> None:
    keep = repository.keep
    assert keep("f", 1, [row("a", "x"), row("b", "x")], count) == (
        ["counted", "counted"],
        learned(2, 2),
    )
    assert keep("f", 1, [row("a", "x"), row("b", "y"), row("c", "x")], count) == (
        ["repeated", "changed", "counted"],
        learned(4, 3),
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
    assert repository.keep("f", 2, [row("a", "x")], count) == (["counted"], learned(1, 1))
    first, second = deployments.served()
    assert (first.feedback, second.feedback) == ({"taught": 1, "rows": 1}, {"taught": 1, "rows": 1})
    deployments.delete_function("f")
    while repository.forget_old():
        pass
    with database.connect() as connection:
        for table in ("feedback", "feedback_answers"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0


def test_a_label_for_the_deployment_before_takes_none_from_the_newer_one(
    repository: FeedbackRepository, database: Engine
) -> None:
    Repository(database, Path("/home")).deploy("f", {})
    repository.keep("f", 2, [row("a", "x"), row("b", "x")], count)
    late = [row("a", "y"), row("b", "x"), row("c", "x")]  # of a server that serves version 1 alone yet
    assert repository.keep("f", 1, late, count) == (["counted"] * 3, learned(3, 3))
    assert repository.labels("f", 2, ["a", "b", "c"]) == {"a": "x", "b": "x"}
    assert len(repository.newest("f", 2, 10)) == 2
    again = [row("a", "x"), row("b", "y"), row("c", "x")]
    assert repository.keep("f", 2, again, count) == (["repeated", "changed", "counted"], learned(4, 3))


def test_what_cannot_be_learned_is_not_kept(repository: FeedbackRepository) -> None:
    def fails(*_: object) -> Learned:
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


def test_what_a_context_has_learned_is_kept_beside_what_everybody_has(
    repository: FeedbackRepository, database: Engine
) -> None:
    keep = repository.keep
    assert keep("f", 1, [row("a", "x"), row("b", "x")], count_in_context, "me")[1] == Learned(
        {"taught": 2, "rows": 2}, {"taught": 2}
    )
    assert keep("f", 1, [row("c", "x")], count_in_context, "you")[1].context == {"taught": 1}
    assert keep("f", 1, [row("d", "x")], count)[1] == learned(4, 4)
    assert keep("f", 1, [row("e", "x")], count_in_context, "me")[1].context == {"taught": 3}
    first = repository.contexts("f", 1)
    assert [(digest, state) for digest, state, _ in first] == [("you", {"taught": 1}), ("me", {"taught": 3})]
    keep("f", 1, [row("g", "x")], count_in_context, "new")
    ((digest, _, turn),) = repository.contexts("f", 1, after=first[-1][2])
    assert digest == "new"
    assert repository.contexts("f", 1, after=turn) == []
    deployments = Repository(database, Path("/home"))
    deployments.deploy("f", {})
    assert repository.contexts("f", 2) == [], "a new deployment begins at its fit"
    assert repository.state("f", 1) == DeploymentState({"taught": 6, "rows": 6}, None)
    assert repository.state("f", 2) == DeploymentState(None, None)
    deployments.deploy("f", {})
    assert repository.contexts("f", 1) == [], "it is no longer served"
    keep("f", 3, [row("h", "x")], count_in_context, "me")
    deployments.delete_function("f")
    assert repository.contexts("f", 3) == []


def test_of_more_contexts_than_there_is_room_for_those_taught_last_are_kept(database: Engine) -> None:
    Repository(database, Path("/home")).deploy("f", {})
    repository = FeedbackRepository(database, FeedbackBounds(contexts=3))
    for number, context in enumerate("abcadbe"):
        repository.keep("f", 1, [row(f"{number}", "x")], count_in_context, context)
        assert len(repository.contexts("f", 1)) <= 3
    assert [digest for digest, _, _ in repository.contexts("f", 1)] == ["d", "b", "e"]
    outcomes, found = repository.keep("f", 1, [row("new", "x")], count_in_context, "c")
    assert (outcomes, found.context) == (["counted"], {"taught": 1}), "it begins anew"


def test_every_server_on_a_registry_has_its_key_and_no_other_has_it(
    repository: FeedbackRepository, database: Engine
) -> None:
    assert len(repository.key()) == 32
    assert FeedbackRepository(database).key() == repository.key()


def test_the_newest_labels_and_answers_are_kept_and_the_oldest_forgotten_some_at_a_time(
    repository: FeedbackRepository, database: Engine
) -> None:
    bounded = FeedbackRepository(database, FeedbackBounds(answers=100, labels=250))
    for first in range(0, 600, 60):
        rows = [LabelledRow(f"{number}", f"{number}", b"\1" * 8) for number in range(first, first + 60)]
        bounded.keep("f", 1, rows, count)
    found = bounded.newest("f", 1, 1000)
    assert [each.label for each in found] == [str(number) for number in range(500, 600)]
    assert bounded.newest("f", 1, 30) == found[-30:]
    digests = [f"{number}" for number in range(600)]
    assert bounded.labels("f", 1, digests) == {each: each for each in digests[350:]}
    assert bounded.keep("f", 1, [LabelledRow("599", "599", b"\1" * 8)], count)[0] == ["repeated"]
    assert bounded.keep("f", 1, [LabelledRow("0", "0", b"\1" * 8)], count)[0] == ["counted"], "long forgotten"
    smaller = FeedbackRepository(database, FeedbackBounds(answers=10, labels=20))
    while smaller.forget_old():
        pass
    assert len(smaller.labels("f", 1, digests)) == 20
    assert len(smaller.newest("f", 1, 1000)) == 10


def test_a_label_that_changes_is_among_the_newest_and_its_old_answers_go(
    repository: FeedbackRepository,
) -> None:
    for label, digest in (("x", "a"), ("x", "b"), ("y", "a")):
        repository.keep("f", 1, [LabelledRow(digest, label, (digest + label).encode())], count)
    assert [(each.label, each.probabilities) for each in repository.newest("f", 1, 9)] == [
        ("x", b"bx"),
        ("y", b"ay"),
    ]


def test_what_is_revised_is_there_whole_and_others_see_that_it_changed(
    repository: FeedbackRepository, database: Engine
) -> None:
    repository.keep("f", 1, [row("a", "x")], count)
    before = repository.revisions()
    assert before.keys() == {("f", 1)}
    assert repository.revise("f", 1, lambda kept: None) is False
    assert repository.revisions() == before
    assert repository.revise("f", 1, lambda kept: ({"before": kept}, {"made": "anew"})) is True
    assert repository.revisions()["f", 1] > before["f", 1]
    assert repository.state("f", 1) == DeploymentState({"before": {"taught": 1, "rows": 1}}, {"made": "anew"})
    (served,) = Repository(database, Path("/home")).served()
    assert (served.feedback, served.refit) == ({"before": {"taught": 1, "rows": 1}}, {"made": "anew"})
    assert repository.state("g", 1) is None
    with pytest.raises(VersionGone):
        repository.revise("g", 1, lambda kept: ({}, None))
