"""The feedback service: who is asked, which rows count, and what answers afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine

import server.serving.feedback as feedback_module
from gpu_worker.wire.protocol import Answer, RowError
from server.catalog.catalog import Catalog
from server.catalog.function_spec import feedback_form
from server.catalog.functions import Function, ModelVersion
from server.ensemble.contexts import Context
from server.ensemble.evidence import evidence_of_subsets
from server.ensemble.feedback import Feedback
from server.ensemble.fit import Fit, SubsetFit
from server.ensemble.selection import ENOUGH, Choice
from server.errors import BadOption, Overloaded, VersionGone
from server.observability.metrics import Metrics
from server.serving.answers import answers_of
from server.serving.calls import Call, Reply
from server.serving.contexts import Contexts
from server.serving.feedback import FeedbackService, Given
from server.serving.learned_state import LearnedState, with_feedback
from server.serving.prediction_ids import PredictionId, PredictionIds, input_digest
from server.store.database import migrate, open_database
from server.store.feedback import FeedbackRepository
from server.store.repository import Repository
from server.store.tables import Base
from tests.answers import classified
from tests.unit.server.served import CLASSES, function, text_model
from tests.waiting import until

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
# The same, where it is well known how often each is right.
SURE = replace(
    FIT,
    rows=1000,
    subsets=(SubsetFit((0,), (1.0,), 0.333, 2.0), SubsetFit((1,), (1.0,), 0.97, 0.1), FIT.subsets[2]),
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
        members = []
        for key in call.members or ():
            labels = [
                "laksa" if key == "loud/1" else RIGHT.get(row[-1:].decode("latin-1"), "laksa")
                for row in call.rows
            ]
            scores = np.full((len(labels), len(CLASSES)), 0.1, "<f4")
            scores[range(len(labels)), [CLASSES.index(label) for label in labels]] = 0.8
            members.append(classified(key, labels, [0.8] * len(labels), scores.tobytes()))
        faults = [
            RowError(number, "input_undecodable", "it is broken")
            for number, row in enumerate(call.rows)
            if row.startswith(b"broken")
        ]
        told = Answer(0, members, faults)
        answers = answers_of(call.function, told, len(call.rows))
        errors = {error.index: error for error in answers.errors}
        return Reply(
            call.function, len(call.rows), dict(answers.columns), errors, [], set(), told=[(0, told)]
        )


class Dispatched:
    """What of the dispatcher is used: by which function it answers."""

    def __init__(self) -> None:
        self.functions: list[Function] = []

    def answer_as(self, served: Function) -> None:
        self.functions.append(served)

    policy: Any = None  # that learns

    async def learner(self, served: Function) -> Any:
        return self.policy


class Place:
    """A server's service over a registry with one function, `f`; of several each is `beside` the first."""

    def __init__(
        self,
        database: Engine,
        *models: ModelVersion,
        is_beside: bool = False,
        members: Any = None,
        **fields: Any,
    ) -> None:
        self.database = database
        self.repository = Repository(database, Path("/home"))
        if not is_beside:
            self.repository.deploy("f", {}, fit=FIT.to_json())
        self.catalog = Catalog(lambda model: function(model, name=model.name, bare=True))
        fields = fields if models else {"combine": "log_pool", "fit": FIT, **fields}
        self.catalog.add_function(function(*(models or MEMBERS), **fields), 2)
        self.members, self.dispatched, self.metrics = members or Members(), Dispatched(), Metrics()
        self.contexts, self.ids = Contexts(b"key"), PredictionIds(b"key")
        labels = FeedbackRepository(database)
        self.learned_state = LearnedState(
            labels,
            self.catalog,
            self.dispatched,  # type: ignore[arg-type]  # as far as it is asked
            self.metrics,
            contexts=self.contexts,
            every_s=0.02,
        )
        self.service = FeedbackService(
            labels,
            self.learned_state,
            self.members,  # type: ignore[arg-type]
            self.metrics,
            self.ids,
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

    def give_by_id(self, ids: Sequence[Any], labels: Sequence[str | None]) -> Given:
        return asyncio.run(self.service.give_by_id(self.function, ids, labels))

    def answered(self, row: str, context: str = "", members: tuple[int, ...] = (0, 1)) -> str:
        """The id of an answer: what `loud` and `right`, or one of them, say of that row."""
        scores = np.full((2, len(CLASSES)), 0.1)
        scores[[0, 1], [CLASSES.index("laksa"), CLASSES.index(RIGHT[row[-1]])]] = 0.8
        digest = self.contexts.digest("f", context)
        told = PredictionId(
            self.function.version, input_digest("text", row.encode(), digest), digest, 0, scores, members
        )
        return self.ids.written("f", told)

    def shifts(self, context: str) -> tuple[float, ...] | None:
        return self.contexts.shifts(self.function, self.contexts.digest("f", context))


async def nobody() -> dict[str, Any]:
    await asyncio.sleep(3600)
    return {}


@pytest.fixture
def place(registry: Engine) -> Place:
    return Place(registry)


def labelled(count: int, first: int = 0) -> dict[str, str | None]:
    return {
        f"{number} {'lps'[number % 3]}": RIGHT["lps"[number % 3]] for number in range(first, first + count)
    }


def test_all_members_are_asked_at_once_as_bulk_and_the_next_answer_is_by_what_was_learned(
    place: Place,
) -> None:
    before = place.function.rule.fit
    given = place.give(labelled(60))
    assert given.outcomes == ["counted"] * 60
    assert [(call.members, call.row_class, call.outputs) for call in place.members.asked] == [
        (("loud/1", "right/1"), "bulk", ("scores",)),
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
    place.members.before_answers = lambda: place.repository.delete_function("f")
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
    asyncio.run(place.learned_state.refresh())
    assert place.function.feedback == other.function.feedback
    assert place.shifts("me") == pytest.approx(other.shifts("me"), rel=1e-3)
    other.give(labelled(5, first=60), "you")
    asyncio.run(place.learned_state.refresh())
    for context in ("you", "me"):
        assert place.shifts(context) == pytest.approx(other.shifts(context), rel=1e-3)
    mine = place.function
    asyncio.run(place.learned_state.refresh())
    assert place.function is mine, "nothing new came"


def test_what_was_taught_elsewhere_before_a_deployment_is_served_here_is_known_as_soon_as_it_is(
    place: Place, registry: Engine
) -> None:
    other = Place.__new__(Place)
    other.__init__(registry, version=2)  # type: ignore[misc]  # deploys the second version
    deployed = other.function
    other.give(labelled(30))
    other.give(labelled(30, first=30), "me")
    asyncio.run(place.learned_state.refresh())
    place.catalog.add_function(deployed, 2)
    asyncio.run(place.learned_state.refresh())
    assert place.function.feedback == other.function.feedback
    assert place.shifts("me") == pytest.approx(other.shifts("me"), rel=1e-3)


def test_contexts_are_there_after_a_restart(place: Place) -> None:
    place.give(labelled(30), "me")
    before = place.shifts("me")
    place.contexts.forget(place.function)
    assert place.shifts("me") is None

    async def restarted() -> None:
        state = LearnedState(
            FeedbackRepository(place.repository._engine),
            place.catalog,
            place.dispatched,  # type: ignore[arg-type]
            place.metrics,
            contexts=place.contexts,
        )
        await state.start()
        await state.close()

    asyncio.run(restarted())
    assert place.shifts("me") == pytest.approx(before, rel=1e-3)


def test_what_was_read_before_a_label_of_a_context_does_not_take_the_place_of_what_that_taught(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.give(labelled(5), "me")
    repository = place.learned_state._repository
    read = repository.contexts
    now: list[Any] = []

    async def followed() -> None:
        loop = asyncio.get_running_loop()

        def read_before(*about: Any) -> Any:
            found = read(*about)
            if not now:
                asyncio.run_coroutine_threadsafe(place.giving(labelled(30), "me"), loop).result()
                now.append(place.shifts("me"))
            return found

        monkeypatch.setattr(repository, "contexts", read_before)
        await place.learned_state.refresh()

    asyncio.run(followed())
    assert now == [place.shifts("me")]


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


def told_wrong(count: int, first: int) -> dict[str, str | None]:
    """Labels by which `right` is always wrong, and `loud` as often right as ever."""
    return {
        f"{number} {'lps'[number % 3]}": RIGHT["psl"[number % 3]] for number in range(first, first + count)
    }


def test_a_member_that_breaks_is_refitted_on_the_labels_since_and_everybody_sees_why(
    registry: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(registry, fit=SURE)

    async def scenario() -> None:
        for first in range(0, 120, 20):
            await place.giving(labelled(20, first))
        assert place.function.refit is None
        for first in range(200, 320, 20):
            await place.giving(told_wrong(20, first))
            await until(lambda: not place.learned_state.is_refitting)

    asyncio.run(scenario())
    feedback = place.function.feedback
    assert feedback is not None
    assert feedback.refit is not None
    assert feedback.refit.off == ("right",)
    assert feedback.refit.rows >= 60
    assert place.function.refit is not None
    assert place.function.fit == SURE, "what was fitted stays"
    assert "refitted function=f" in caplog.text
    assert str(feedback.refit).startswith("right wrong on ")
    assert place.metrics.refits["f", "refitted"] >= 1
    (kept,) = place.repository.served()
    again = with_feedback(function(*MEMBERS, combine="log_pool", fit=SURE), kept.feedback, kept.refit)
    assert again.feedback == feedback
    assert again.rule.fit == place.function.rule.fit
    shown = feedback_form(place.function)
    assert shown is not None
    assert shown["refit"]["members"] == ["right"]


def test_what_one_server_has_learned_the_others_answer_by_within_moments(registry: Engine) -> None:
    one = Place(registry, fit=SURE)
    other = Place(registry, is_beside=True, fit=SURE)

    async def scenario() -> None:
        await other.learned_state.start()
        await one.giving(labelled(30))
        await until(lambda: other.function.feedback is not None)
        assert other.function.rule.fit == one.function.rule.fit
        assert other.dispatched.functions[-1] is other.function
        for first in range(100, 220, 20):
            await one.giving(told_wrong(20, first))
            await until(lambda: not one.learned_state.is_refitting)
        assert one.function.refit is not None
        await until(lambda: other.function.feedback == one.function.feedback)
        assert other.function.refit == one.function.refit
        await other.learned_state.close()

    asyncio.run(scenario())


def test_a_server_that_does_not_know_of_a_refit_reads_it_before_it_learns(registry: Engine) -> None:
    one = Place(registry, fit=SURE)
    other = Place(registry, is_beside=True, fit=SURE)

    async def scenario() -> None:
        for first in range(0, 120, 20):
            await one.giving(told_wrong(20, first))
            await until(lambda: not one.learned_state.is_refitting)
        assert one.function.refit is not None
        assert other.function.refit is None
        given = await other.giving(told_wrong(20, 200))
        assert given.outcomes == ["counted"] * 20
        await until(lambda: not other.learned_state.is_refitting)
        assert other.function.refit is not None

    asyncio.run(scenario())


def test_a_registry_that_does_not_answer_costs_the_server_nothing_but_a_delay(registry: Engine) -> None:
    place = Place(registry, fit=SURE)
    other = Place(registry, is_beside=True, fit=SURE)

    async def scenario() -> None:
        fails, asked = False, 0
        revisions = other.learned_state._repository.revisions

        def sometimes() -> dict[tuple[str, int], int]:
            nonlocal asked
            asked += 1
            if fails:
                raise Overloaded("the registry is locked")
            return revisions()

        other.learned_state._repository.revisions = sometimes  # type: ignore[method-assign]
        await other.learned_state.start()
        fails = True
        await place.giving(labelled(30))
        await until(lambda: asked > 3)
        assert other.function.feedback is None
        fails = False
        await until(lambda: other.function.feedback is not None)
        await other.learned_state.close()

    asyncio.run(scenario())


def test_an_id_teaches_what_its_input_would_and_counts_once_with_it(registry: Engine, tmp_path: Path) -> None:
    rows = labelled(60)
    place = Place(registry)
    given = place.give_by_id([place.answered(row) for row in rows], list(rows.values()))
    assert given.outcomes == ["counted"] * 60
    assert place.members.asked == [], "nobody is asked: the id says what was answered"
    assert place.metrics.feedback == {("f", "counted"): 60}
    elsewhere = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    migrate(elsewhere)
    other = Place(elsewhere)
    other.give(rows)
    taught, by_input = place.function.rule.fit, other.function.rule.fit
    assert taught is not None
    assert by_input is not None
    assert taught.weights((0, 1)) == pytest.approx(by_input.weights((0, 1)), rel=0.05)
    elsewhere.dispose()
    assert place.give({"0 l": "laksa", "1 p": "satay"}).outcomes == ["repeated", "changed"]
    again = [place.answered("2 s"), None, place.answered("2 s"), place.answered("3 l")]
    given = place.give_by_id(again, ["pizza", "laksa", "satay", None])
    assert given.outcomes == ["repeated", None, "repeated", None]


def test_an_id_of_some_members_answer_counts_and_teaches_nothing_of_the_others(place: Place) -> None:
    before = place.function.rule.fit
    rows = [f"{number} p" for number in range(60)]
    by_one = [place.answered(row, members=(number % 2,)) for number, row in enumerate(rows)]
    assert place.give_by_id(by_one, ["pizza"] * 60).outcomes == ["counted"] * 60
    known = place.function.feedback
    assert known is not None
    assert (known.rows, known.whole, known.accuracy) == (60, 0, 0.0), "laksa was answered"
    assert known.by_member == {"loud": 0.0, "right": 1.0}
    assert known.was_wrong == {"loud": [], "right": []}, "who was asked depends on what was said"
    assert place.function.rule.fit == before, "one alone has nobody to be weighed against"
    assert place.service._repository.newest("f", 1, 100) == [], "nothing to be refitted on"
    assert place.give(dict.fromkeys(rows[:2], "pizza")).outcomes == ["repeated"] * 2
    mixed = [place.answered("a l"), place.answered("b l", "me", (1,)), place.answered("c l", "", ())]
    assert place.give_by_id(mixed, ["laksa"] * 3).outcomes == ["counted"] * 3
    known = place.function.feedback
    assert known is not None
    assert (known.rows, known.whole, known.was_wrong) == (63, 1, {"loud": [False], "right": [False]})
    assert Feedback.from_json(known.to_json(), FIT) == known


def test_an_id_brings_its_context(place: Place) -> None:
    place.give(labelled(60))
    rows = [f"{number} p" for number in range(60)]
    given = place.give_by_id(
        [place.answered(row, "me" if number % 2 else "") for number, row in enumerate(rows)], ["laksa"] * 60
    )
    assert set(given.outcomes) <= {"counted", "changed"}
    assert place.shifts("me") is not None
    assert place.shifts("you") is None


@pytest.mark.security
def test_what_is_no_id_of_the_functions_deployment_is_an_error_of_its_row(place: Place) -> None:
    good = place.answered("0 l")
    scores = np.full((2, 3), 1 / 3)
    old = place.ids.written("f", PredictionId(7, "00" * 32, "", 0, scores, (0, 1)))
    foreign = place.ids.written("g", PredictionId(1, "00" * 32, "", 0, scores, (0, 1)))
    forged = PredictionIds(b"guess").written("f", PredictionId(1, "00" * 32, "", 0, scores, (0, 1)))
    wider = place.ids.written("f", PredictionId(1, "00" * 32, "", 0, np.full((3, 3), 1 / 3), (0, 1, 2)))
    given = place.give_by_id(
        [good, old, foreign, forged, "17", 17, good[:-4], good, wider], [*["laksa"] * 7, "pasta", "laksa"]
    )
    assert given.outcomes == ["counted", *[None] * 8]
    assert {row: error.code for row, error in given.errors.items()} == {
        **dict.fromkeys(range(1, 7), "unknown_prediction"),
        7: "unknown_label",
        8: "unknown_prediction",
    }
    assert "it has expired: version 7 of f answered it, and 1 answers now" in given.errors[1].message
    assert "no id that this server has given for f" in given.errors[2].message
    assert place.metrics.feedback["f", "refused"] == 8


def test_of_a_function_that_votes_an_id_says_whether_its_answer_was_right(registry: Engine) -> None:
    place = Place(registry, combine="majority_vote", fit=None)
    rows = labelled(30)
    place.give_by_id([place.answered(row) for row in rows], list(rows.values()))
    assert place.function.feedback is not None
    assert place.function.feedback.accuracy == pytest.approx(1 / 3)
    assert place.function.feedback.by_member == {"loud": pytest.approx(1 / 3), "right": 1.0}


def test_a_context_of_what_is_served_no_longer_is_kept_in_no_memory(place: Place) -> None:
    place.give(labelled(20), "me")
    gone = place.function
    kept = Context((0.1, -0.1), 1, 1).to_json()
    place.contexts.forget(gone)
    place.learned_state.take_context(gone, "ab" * 16, kept)
    assert place.contexts._taught.keys() == {gone.key}
    place.catalog.remove_function("f")
    place.contexts.forget(gone)
    place.learned_state.take_context(gone, "ab" * 16, kept)
    asyncio.run(place.learned_state._follow_contexts(gone))
    assert not place.contexts._taught, "nobody forgets it any more"


def test_many_ids_are_read_in_parts_and_each_row_has_its_outcome(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    told = feedback_module._told

    def counted(ids: object, of: Function, predictions: Sequence[object], labels: Any) -> Any:
        read.append(len(predictions))
        return told(place.ids, of, predictions, labels)

    monkeypatch.setattr(feedback_module, "_told", counted)
    monkeypatch.setattr(feedback_module, "_NUMBERS_AT_ONCE", 2 * len(CLASSES) * 7)
    rows = labelled(17)
    ids: list[Any] = [place.answered(row) for row in rows]
    ids[9] = "none"
    given = place.give_by_id(ids, list(rows.values()))
    assert read == [7, 7, 3]
    assert given.outcomes == [*["counted"] * 9, None, *["counted"] * 7]
    assert {row: error.index for row, error in given.errors.items()} == {9: 9}
    assert place.metrics.feedback == {("f", "counted"): 16, ("f", "refused"): 1}
    assert place.give_by_id([], []).outcomes == []


def test_many_rows_are_kept_a_part_at_a_time_and_an_input_of_two_parts_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback_module, "_ROWS_A_PART", 4)
    rows = [*labelled(10).items(), ("0 l", "satay")]
    given = place.give(rows)
    assert given.outcomes == ["repeated", *["counted"] * 10], "its last label is the input's"
    assert [len(call.rows) for call in place.members.asked] == [4, 4, 2]
    assert place.function.feedback is not None
    assert place.function.feedback.rows == 10


def test_of_many_rows_those_kept_before_a_fault_are_repeated_when_they_are_given_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback_module, "_ROWS_A_PART", 4)

    def full_at_the_third() -> None:
        if len(place.members.asked) == 3:
            raise Overloaded("the queue is full")

    place.members.before_answers = full_at_the_third
    with pytest.raises(Overloaded):
        place.give(labelled(12))
    assert place.give(labelled(12)).outcomes == [*["repeated"] * 8, *["counted"] * 4]
    assert place.function.feedback is not None
    assert place.function.feedback.rows == 12


class Observing:
    """A selection policy of somebody's own: it counts what it observes."""

    name = "observing"

    def __init__(self) -> None:
        self.at_first: Callable[[], object] = lambda: None
        self.observed: list[tuple[list[int], int]] = []

    def init(self) -> dict[str, Any]:
        return {"seen": 0}

    def select(self, state: object, row: object) -> Choice:
        return ENOUGH

    def observe(
        self, state: dict[str, Any], context: str, evidence: Mapping[int, Any], label: int
    ) -> dict[str, Any]:
        self.observed.append((sorted(evidence), label))
        at_first, self.at_first = self.at_first, lambda: None
        at_first()
        return {"seen": state["seen"] + 1}


KNOWN = replace(FIT, evidence=evidence_of_subsets(2, {1: 0.5, 2: 0.5, 3: 0.5}))


def test_what_a_policy_observes_holds_no_lock_and_rests_on_what_other_servers_taught_meanwhile(
    registry: Engine,
) -> None:
    place = Place(registry, fit=KNOWN)
    other = Place(registry, is_beside=True, fit=KNOWN)
    place.dispatched.policy = policy = Observing()
    policy.at_first = lambda: other.give(labelled(3))
    assert place.give(labelled(5)).outcomes == [*["repeated"] * 3, *["counted"] * 2]
    (kept,) = place.repository.served()
    assert kept.feedback is not None
    assert kept.feedback["rows"] == 5
    assert kept.feedback["selection"] == {"policy": "observing", "state": {"seen": 2}}


def test_of_an_answer_of_some_members_a_policy_observes_just_these(registry: Engine) -> None:
    place = Place(registry, fit=KNOWN)
    place.dispatched.policy = policy = Observing()
    by_id = [place.answered("1 s", members=(1,)), place.answered("2 l", members=())]
    place.give_by_id(by_id, ["satay", "laksa"])
    assert policy.observed == [([1], CLASSES.index("satay"))]
    known = place.function.feedback
    assert known is not None
    assert known.selection == {"policy": "observing", "state": {"seen": 1}}
