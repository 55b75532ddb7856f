"""The feedback service: who is asked, which rows count, and what answers afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine

from gpu_worker.wire.protocol import Answer, RowError
from server.catalog.catalog import Catalog
from server.catalog.functions import Function
from server.ensemble.contexts import Context
from server.ensemble.fit import Fit, SubsetFit
from server.errors import BadOption, Overloaded, VersionGone
from server.observability.metrics import Metrics
from server.serving.answers import answers_of
from server.serving.calls import Call, Reply
from server.serving.contexts import Contexts
from server.serving.feedback import FeedbackService, Given, with_feedback
from server.store.database import migrate, open_database
from server.store.feedback import FeedbackRepository
from server.store.repository import Repository
from server.store.tables import Base
from tests.answers import classified
from tests.unit.server.served import CLASSES, function, text_model

MEMBERS = (text_model("loud", accuracy=0.9), text_model("right", accuracy=0.5))
FIT = Fit(
    ("loud", "right"),
    (1.0, 1.0),
    (
        SubsetFit((0,), (1.0,), 0.5, 1.0),
        SubsetFit((1,), (1.0,), 0.5, 1.0),
        SubsetFit((0, 1), (1.5, 0.2), 0.5, 1.0),
    ),
    100,
    3,
)
# The last letter of a row is the class that is right; `loud` always says laksa.
RIGHT = {"l": "laksa", "p": "pizza", "s": "satay"}


class Members:
    """In place of the dispatcher: members that answer at once, but what they cannot read."""

    def __init__(self) -> None:
        self.asked: list[Call] = []
        self.before_answers: Callable[[], None] = lambda: None

    async def ask(self, call: Call, receive: object, began_s: float) -> Reply:
        self.asked.append(call)
        await asyncio.sleep(0)
        self.before_answers()
        assert call.members is not None
        (member,) = call.members
        labels = [
            "laksa" if member == "loud/1" else RIGHT.get(row[-1:].decode("latin-1"), "laksa")
            for row in call.rows
        ]
        scores = np.full((len(labels), len(CLASSES)), 0.1, "<f4")
        scores[range(len(labels)), [CLASSES.index(label) for label in labels]] = 0.8
        told = classified(member, labels, [0.8] * len(labels), scores.tobytes())
        faults = [
            RowError(number, "input_undecodable", "it is broken")
            for number, row in enumerate(call.rows)
            if row.startswith(b"broken")
        ]
        answers = answers_of(call.function, Answer(0, [told], faults), len(labels))
        errors = {error.index: error for error in answers.errors}
        return Reply(call.function, len(labels), dict(answers.columns), errors, [], set())


class Dispatched:
    """What of the dispatcher is used: by which function it answers."""

    def __init__(self) -> None:
        self.functions: list[Function] = []

    def answer_as(self, served: Function) -> None:
        self.functions.append(served)


class Place:
    """A service over a registry with one function, `f`."""

    def __init__(self, database: Engine, **fields: Any) -> None:
        self.repository = Repository(database, Path("/home"))
        self.repository.deploy("f", {}, fit=FIT.to_json())
        self.catalog = Catalog(lambda model: function(model, name=model.name, bare=True))
        self.catalog.add_function(function(*MEMBERS, **{"combine": "log_pool", "fit": FIT, **fields}), 2)
        self.members, self.dispatched, self.metrics = Members(), Dispatched(), Metrics()
        self.contexts = Contexts(b"key")
        self.service = FeedbackService(
            FeedbackRepository(database),
            self.catalog,
            self.dispatched,  # type: ignore[arg-type]  # as far as it is asked
            self.members,  # type: ignore[arg-type]
            self.metrics,
            self.contexts,
        )

    @property
    def function(self) -> Function:
        return self.catalog.resolve("f")

    def give(self, labelled: Mapping[str, str | None] | list[tuple[Any, Any]], context: str = "") -> Given:
        return asyncio.run(self.giving(labelled, context))

    async def giving(
        self, labelled: Mapping[str, str | None] | list[tuple[Any, Any]], context: str = ""
    ) -> Given:
        pairs = list(labelled.items()) if isinstance(labelled, Mapping) else labelled
        rows = [row.encode() if isinstance(row, str) else row for row, _ in pairs]
        labels = [label for _, label in pairs]
        digest = self.contexts.digest("f", context)
        return await self.service.give(self.function, "text", rows, labels, nobody, context=digest)

    def shifts(self, context: str) -> tuple[float, ...] | None:
        return self.contexts.shifts(self.function, self.contexts.digest("f", context))


async def nobody() -> dict[str, Any]:
    await asyncio.sleep(3600)
    return {}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def place(registry: Engine) -> Place:
    return Place(registry)


def labelled(count: int, first: int = 0) -> dict[str, str | None]:
    return {
        f"{number} {'lps'[number % 3]}": RIGHT["lps"[number % 3]] for number in range(first, first + count)
    }


def test_every_member_is_asked_alone_as_bulk_and_the_next_answer_is_by_what_was_learned(
    place: Place,
) -> None:
    before = place.function.rule.fit
    given = place.give(labelled(60))
    assert given.outcomes == ["counted"] * 60
    assert [(call.members, call.row_class, call.outputs) for call in place.members.asked] == [
        (("loud/1",), "bulk", ("scores",)),
        (("right/1",), "bulk", ("scores",)),
    ]
    (taught,) = place.dispatched.functions
    assert place.function is taught
    assert taught.fit == FIT == before, "what was fitted stays"
    assert taught.rule.fit is not None
    loud, right = taught.rule.fit.weights((0, 1))
    assert loud < 0.5 < right
    assert taught.rule.fit.weights((0,)) == (1.0,)
    assert taught.feedback is not None
    assert taught.feedback.by_member == {"loud": 20 / 60, "right": 1.0}


def test_what_has_this_label_already_is_asked_of_nobody(place: Place) -> None:
    place.give(labelled(10))
    place.members.asked.clear()
    given = place.give({**labelled(12), "0 l": "satay", "1 p": None})
    assert given.outcomes == ["changed", None, *["repeated"] * 8, "counted", "counted"]
    assert {len(call.rows) for call in place.members.asked} == {3}
    assert place.function.feedback is not None
    assert place.function.feedback.rows == 12
    assert place.metrics.feedback == {("f", "counted"): 12, ("f", "repeated"): 8, ("f", "changed"): 1}


def test_a_row_that_cannot_be_read_is_refused_alone_wherever_it_stands(place: Place) -> None:
    fault = RowError(2, "input_invalid", "no base64")
    rows = [("fine l", "laksa"), ("broken", "pizza"), (fault, "pizza"), ("broken", "satay"), ("0 p", "pasta")]
    given = place.give(rows)
    assert given.outcomes == ["counted", None, None, None, None]
    assert {row: error.code for row, error in given.errors.items()} == {
        1: "input_undecodable",
        2: "input_invalid",
        3: "input_undecodable",
        4: "unknown_label",
    }
    assert place.metrics.feedback["f", "refused"] == 4
    assert place.give({"broken": "pizza"}).outcomes == [None], "it was not kept"


def test_answers_that_are_not_sure_enough_count_all_the_same(registry: Engine) -> None:
    wishes: tuple[dict[str, Any], ...] = (
        {"default": "laksa"},
        {"default": None},
        {"default": "laksa", "combine": "mean"},
    )
    for number, fields in enumerate(wishes):
        place = Place(registry, min_confidence=0.99, version=number + 1, **fields)
        given = place.give(labelled(30, first=100 * number))
        assert (given.outcomes, given.errors) == (["counted"] * 30, {})
        assert place.function.feedback is not None
        assert place.function.feedback.by_member == {"loud": 1 / 3, "right": 1.0}


def test_requests_at_once_are_both_learned(place: Place) -> None:
    async def scenario() -> tuple[Given, Given]:
        return await asyncio.gather(place.giving(labelled(20)), place.giving(labelled(20, first=10)))

    both = asyncio.run(scenario())
    assert [len(given.outcomes) for given in both] == [20, 20]
    assert place.function.feedback is not None
    assert place.function.feedback.rows == 30
    (kept,) = place.repository.served()
    assert kept.feedback == place.function.feedback.to_json()


def test_a_function_that_is_gone_when_its_members_have_answered_keeps_nothing(place: Place) -> None:
    place.members.before_answers = lambda: place.repository.delete_function("f")  # type: ignore[assignment]
    with pytest.raises(VersionGone):
        place.give(labelled(3))
    assert place.dispatched.functions == []


def test_what_the_members_cannot_take_now_is_not_kept(place: Place) -> None:
    def full() -> None:
        raise Overloaded("the queue is full")

    place.members.before_answers = full
    with pytest.raises(Overloaded):
        place.give(labelled(3))
    place.members.before_answers = lambda: None
    assert place.give(labelled(3)).outcomes == ["counted"] * 3


def test_what_was_learned_is_there_after_a_restart_or_left_out_and_said(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.give(labelled(30))
    (kept,) = place.repository.served()
    fresh = function(*MEMBERS, combine="log_pool", fit=FIT)
    again = with_feedback(fresh, kept.feedback)
    assert again.rule.fit == place.function.rule.fit
    assert again.feedback == place.function.feedback
    assert kept.feedback is not None
    for wrong in ({}, {**kept.feedback, "members": ["loud", "other"]}, {**kept.feedback, "weights": None}):
        caplog.clear()
        served = with_feedback(fresh, wrong)
        assert served.rule.fit == FIT
        assert served.feedback is None
        assert "feedback not used" in caplog.text


def test_models_and_functions_without_classes_take_no_feedback(registry: Engine) -> None:
    place = Place(registry)
    place.catalog.add_model(MEMBERS[0])
    with pytest.raises(BadOption, match="loud is a model"):
        asyncio.run(place.service.give(place.catalog.resolve("loud"), "text", [b"a"], ["laksa"], nobody))
    assert place.members.asked == []


def test_labels_of_a_context_teach_it_and_everybody_and_no_other_context(place: Place) -> None:
    wrong = dict.fromkeys((f"{number} p" for number in range(60)), "laksa")  # there `loud` is right
    everybody = place.function.rule.fit
    assert place.shifts("user:17") is None
    assert place.give(wrong, "user:17").outcomes == ["counted"] * 60
    assert place.function.rule.fit != everybody
    place.give(labelled(60))
    assert place.shifts("user:18") is None
    own, others = place.function.rule, place.function.rule
    shifts = place.shifts("user:17")
    assert shifts is not None
    own = own.in_context(shifts)
    assert own.fit is not None
    assert others.fit is not None
    (loud, right), (loud_elsewhere, right_elsewhere) = own.fit.weights((0, 1)), others.fit.weights((0, 1))
    assert loud > 2 * loud_elsewhere
    assert right < right_elsewhere / 2


def test_an_input_counts_once_in_each_context(place: Place) -> None:
    assert place.give({"a l": "laksa"}).outcomes == ["counted"]
    assert place.give({"a l": "pizza"}, "me").outcomes == ["counted"], "it is so for me"
    assert place.give({"a l": "pizza"}, "you").outcomes == ["counted"]
    assert place.give({"a l": "pizza"}, "me").outcomes == ["repeated"]
    assert place.give({"a l": "satay"}, "me").outcomes == ["changed"]
    assert place.give({"a l": "laksa"}).outcomes == ["repeated"]


def test_a_function_that_does_not_learn_has_nothing_of_contexts(registry: Engine) -> None:
    place = Place(registry, combine="majority_vote", fit=None)
    assert place.give(labelled(5), "me").outcomes == ["counted"] * 5
    assert place.shifts("me") is None


def test_another_server_on_the_registry_answers_by_what_this_one_was_taught(
    place: Place, registry: Engine
) -> None:
    other = Place.__new__(Place)
    other.__init__(registry, version=2)  # type: ignore[misc]  # deploys the second version, which both serve
    place.catalog.add_function(other.function, 2)
    other.give(labelled(30))
    other.give(labelled(30, first=30), "me")
    asyncio.run(place.service.refresh())
    assert place.function.feedback == other.function.feedback
    assert place.shifts("me") == pytest.approx(other.shifts("me"), rel=1e-3)
    other.give(labelled(5, first=60), "you")
    asyncio.run(place.service.refresh())
    for context in ("you", "me"):
        assert place.shifts(context) == pytest.approx(other.shifts(context), rel=1e-3)
    mine = place.function
    asyncio.run(place.service.refresh())
    assert place.function is mine, "nothing new came"


def test_contexts_are_there_after_a_restart(place: Place) -> None:
    place.give(labelled(30), "me")
    before = place.shifts("me")
    place.contexts.forget(place.function)
    assert place.shifts("me") is None

    async def restarted() -> None:
        service = FeedbackService(
            FeedbackRepository(place.repository._engine),
            place.catalog,
            place.dispatched,  # type: ignore[arg-type]
            place.members,  # type: ignore[arg-type]
            place.metrics,
            place.contexts,
        )
        await service.start()
        await service.close()

    asyncio.run(restarted())
    assert place.shifts("me") == pytest.approx(before, rel=1e-3)


@pytest.mark.security
def test_no_name_of_a_context_lies_in_the_registry(place: Place, registry: Engine) -> None:
    place.give(labelled(10), "Ada Lovelace")
    found = []
    with registry.connect() as connection:
        for table in Base.metadata.sorted_tables:
            found += [repr(row) for row in connection.execute(table.select())]
    assert any(place.contexts.digest("f", "Ada Lovelace") in row for row in found)
    assert not any("Ada" in row or "Lovelace" in row for row in found)


@pytest.mark.security
def test_digests_of_contexts_differ_by_key_function_and_name() -> None:
    contexts = Contexts(b"key")
    digests = {
        contexts.digest("f", "me"),
        contexts.digest("g", "me"),
        contexts.digest("f", "you"),
        Contexts(b"other").digest("f", "me"),
    }
    assert len(digests) == 4
    assert contexts.digest("f", None) == contexts.digest("f", "") == ""
    for unfit in (17, True, ["me"], "x" * 201, "a\nb", "a\x00", "\ud800"):
        with pytest.raises(BadOption, match="a text of up to 200 characters"):
            contexts.digest("f", unfit)


def test_only_so_many_contexts_are_at_hand(place: Place) -> None:
    contexts = Contexts(b"key", most=3)
    place.give(labelled(3))
    served = place.function
    for name in "abcad":
        contexts.learn(served, [(name, Context((0.1, 0.2)))])
    known = [name for name in "abcd" if contexts.shifts(served, name) is not None]
    assert known == ["a", "c", "d"]
