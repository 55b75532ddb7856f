"""`ml_udf.context` on both engines: labels teach the context in which they are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ml_udf.client import Client
from ml_udf.errors import error_from_code
from server.ensemble.fit import Fit, SubsetFit
from tests.engines import Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.models import text_model

MEMBERS = ("text_one", "text_two")
EQUAL = Fit(
    MEMBERS,
    (1.0, 1.0),
    # How often each is right alone is not known: else one would count as broken where a context says so.
    (SubsetFit((0, 1), (0.7, 0.7), 0.5, 1.0),),
    100,
    4,
)
TAUGHT = "range(120)", "generate_series(0, 119)"
ASKED = "range(200, 300)", "generate_series(200, 299)"
TEXT = "'soup ' || i || ' of bread ' || (7 * i) % 13"


@pytest.fixture(scope="module")
def dishes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """`udf_dish`, of two members that differ, neither of which it believes more than the other."""
    made = tmp_path_factory.mktemp("made")
    with inference_server(tmp_path_factory.mktemp("home")) as server:
        for seed, name in enumerate(MEMBERS):
            server.deploy(text_model(made, name, seed=seed))
        client = Client(server.url)
        client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "log_pool"})
        client.close()
        server.keep_fit(EQUAL.to_json())
        yield server


@pytest.fixture
def engine(engine_name: str, dishes: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, dishes.url, request, ["udf_dish", *MEMBERS])
    yield made
    made.close()


def rows(engine: Engine, series: tuple[str, str]) -> str:
    return f"(SELECT {TEXT} AS input FROM {series[engine.name != 'duckdb']} AS t(i)) AS asked"


def teach(engine: Engine, context: str, believed: str) -> None:
    """Say that this member is right, in that context."""
    engine.set("context", context)
    query = f"SELECT count(ml_udf.feedback('udf_dish', input, {believed}(input))) FROM {rows(engine, TAUGHT)}"
    assert engine.query(query) == [(120,)]


def share(engine: Engine, context: str, member: str) -> float:
    """How often the function answers there as that member does alone."""
    engine.set("context", context)
    query = f"SELECT count(*) FROM {rows(engine, ASKED)} WHERE udf_dish(input) = {member}(input)"
    return int(engine.query(query)[0][0]) / 100


def test_each_context_is_answered_by_what_it_was_taught(engine: Engine) -> None:
    ours, theirs = f"user:1 {engine.name}", f"Größe 2 {engine.name}"
    everybody = answers(engine)
    engine.set("context", ours)
    assert answers(engine) == everybody, "it was taught nothing"
    teach(engine, ours, "text_one")
    teach(engine, theirs, "text_two")
    assert share(engine, ours, "text_one") > 0.8
    assert share(engine, theirs, "text_two") > 0.8
    assert share(engine, ours, "text_two") < 0.8


def answers(engine: Engine) -> list[tuple[str]]:
    return engine.query(f"SELECT udf_dish(input) FROM {rows(engine, ASKED)}")


def test_a_transaction_may_ask_in_one_context_after_another(engine: Engine) -> None:
    ours, theirs = f"first {engine.name}", f"second {engine.name}"
    teach(engine, ours, "text_one")
    teach(engine, theirs, "text_two")
    engine.query("BEGIN")
    found = []
    for context in (ours, theirs, ours):
        engine.set("context", context)
        found.append(answers(engine))
    engine.query("COMMIT")
    assert found[0] == found[2] != found[1]


def test_an_input_has_a_label_of_its_own_in_each_context(engine: Engine) -> None:
    ask = f"SELECT ml_udf.feedback('udf_dish', 'my soup of {engine.name}', '{{}}')"
    assert engine.query(ask.format("pizza")) == [("counted",)]
    engine.set("context", "me")
    assert engine.query(ask.format("satay")) == [("counted",)]
    assert engine.query(ask.format("satay")) == [("repeated",)]
    engine.set("context", "")
    assert engine.query(ask.format("pizza")) == [("repeated",)]


@pytest.mark.parametrize("call", ["udf_dish('a')", "ml_udf.feedback('udf_dish', 'a', 'pizza')"])
@pytest.mark.parametrize("context", ["x" * 201, "two\nlines", "\x1fx"])
def test_what_is_no_context_is_refused_in_the_same_words(engine: Engine, call: str, context: str) -> None:
    engine.set("context", context)
    with pytest.raises(SqlError) as caught:
        engine.query(f"SELECT {call}")
    assert caught.value.sqlstate == error_from_code("bad_option", "").sqlstate
    assert "ml_udf.context is not a short text" in caught.value.text
    assert "use up to 200 characters, none of them a control character" in caught.value.text
    assert context not in caught.value.text


@pytest.mark.security
def test_views_and_metrics_name_no_context(engine: Engine, dishes: InferenceServer) -> None:
    engine.set("context", f"Ada of {engine.name}")
    engine.query(f"SELECT ml_udf.feedback('udf_dish', 'tea of {engine.name}', 'pizza'), udf_dish('a')")
    shown = str(engine.query("SELECT * FROM ml_udf.functions"))
    client = Client(dishes.url)
    shown += str(client.get("/v1/functions/udf_dish"))
    client.close()
    assert "udf_dish" in shown
    assert "Ada" not in shown
    assert "Ada" not in dishes.log


def test_a_label_may_be_given_by_the_id_of_an_answer_and_is_the_inputs(engine: Engine) -> None:
    engine.set("context", f"by id {engine.name}")
    engine.set("row_class", "bulk")
    texts = ", ".join(f"('porridge {number} {engine.name}')" for number in range(30))
    asked = f"(SELECT t, ml_udf.detail('udf_dish', t) AS d FROM (VALUES {texts}) AS v(t)) AS told"
    ids = engine.query(f"SELECT t, (d).prediction FROM {asked}")
    assert all(id_ for _, id_ in ids)
    engine.set("context", "")
    listed = ", ".join(f"('{id_}', 'pizza')" for _, id_ in ids)
    query = f"SELECT ml_udf.feedback_by_id('udf_dish', id, label) FROM (VALUES {listed}) AS v(id, label)"
    assert engine.query(query) == [("counted",)] * 30
    assert engine.query(query) == [("repeated",)] * 30
    again = f"SELECT ml_udf.feedback('udf_dish', '{ids[0][0]}', 'pizza')"
    assert engine.query(again) == [("counted",)], "the ids were of answers in a context"
    engine.set("context", f"by id {engine.name}")
    assert engine.query(again) == [("repeated",)]
    assert engine.query("SELECT ml_udf.feedback_by_id('udf_dish', NULL, 'pizza')") == [(None,)]


@pytest.mark.security
def test_what_is_no_id_is_refused_in_the_same_words(engine: Engine) -> None:
    ask = "SELECT (d).prediction FROM (SELECT ml_udf.detail('{}', 'x') AS d) AS told"
    ((other,),) = engine.query(ask.format("udf_dish"))
    changed = ("B" if other[0] == "A" else "A") + other[1:]
    for id_ in ("17", changed, other[:-1]):
        with pytest.raises(SqlError) as caught:
            engine.query(f"SELECT ml_udf.feedback_by_id('udf_dish', '{id_}', 'pizza')")
        assert caught.value.sqlstate == error_from_code("unknown_prediction", "").sqlstate
        assert "no id" in caught.value.text
        assert error_from_code("unknown_prediction", "").usual_hint in caught.value.text
    assert engine.query(ask.format("text_one")) == [(None,)], "a model takes no feedback"
