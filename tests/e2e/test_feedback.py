"""Labels that a running server is given: counted once each, learned from, and still known after a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ml_udf.client import Client, Options
from ml_udf.client.transport import HttpRequest
from ml_udf.errors import BadOption, Forbidden, MlUdfError, UnknownFunction
from server.ensemble.fit import Fit, SubsetFit
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import text_model

MEMBERS = ("text_loud", "text_right", "text_other")
TEXTS = [f"{word} {number}" for number in range(100) for word in ("soup", "noodles", "bread")]
UNSEEN = [f"{word} {number}" for number in range(100, 160) for word in ("soup", "noodles", "bread")]
# As if the first had been the best on held-out rows: it answers alone for all of them. Of so few rows that
# nothing is expected of a member: weights learn, and nothing is fitted anew.
FIT = Fit(
    MEMBERS,
    (1.0, 1.0, 1.0),
    (
        *(SubsetFit((member,), (1.0,), 0.5, 1.0) for member in range(3)),
        SubsetFit((0, 1), (1.5, 0.1), 0.5, 1.0),
        SubsetFit((0, 1, 2), (1.5, 0.1, 0.1), 0.5, 1.0),
    ),
    1,
    4,
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    made = tmp_path_factory.mktemp("made")
    with inference_server(tmp_path_factory.mktemp("home"), flags=[ANEW]) as server:
        for seed, name in enumerate(MEMBERS):
            server.deploy(text_model(made, name, seed=seed))
        yield server


@pytest.fixture
def server(running: InferenceServer) -> InferenceServer:
    """With `udf_dish`, deployed anew: it has learned nothing."""
    client = Client(running.url)
    client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "log_pool"})
    client.close()
    running.keep_fit(FIT.to_json(), forget=["feedback"])
    return running


def give(server: InferenceServer, inputs: list[Any], labels: list[Any], **more: Any) -> dict[str, Any]:
    client = Client(server.url)
    try:
        body = {"function": "udf_dish", "inputs": inputs, "labels": labels, **more}
        return client.post("/v1/feedback", body)
    finally:
        client.close()


def answers(server: InferenceServer, function: str, texts: list[str], context: str = "") -> list[Any]:
    client = Client(server.url)
    try:
        return list(client.predict(function, texts, Options(context=context)).values)
    finally:
        client.close()


def known(server: InferenceServer) -> dict[str, Any]:
    client = Client(server.url)
    try:
        return dict(client.get("/v1/functions/udf_dish")["feedback"])
    finally:
        client.close()


def share(found: list[Any], wanted: list[Any]) -> float:
    return sum(bool(a == b) for a, b in zip(found, wanted, strict=True)) / len(wanted)


def test_feedback_makes_answers_better_and_a_restart_forgets_nothing(server: InferenceServer) -> None:
    right, truth = answers(server, "text_right", TEXTS), answers(server, "text_right", UNSEEN)
    before = share(answers(server, "udf_dish", UNSEEN), truth)
    told = give(server, TEXTS, right)
    assert told["learns"] is True
    assert told["outcomes"] == ["counted"] * len(TEXTS)
    after = answers(server, "udf_dish", UNSEEN)
    assert share(after, truth) > 0.9 > before + 0.2
    shown = known(server)
    assert (shown["rows"], shown["recent_rows"]) == (len(TEXTS), 100)
    assert shown["by_member"]["text_right"] == 1.0
    assert shown["by_member"]["text_loud"] < 0.7
    assert shown["accuracy"] > 0.9
    assert shown["weights"]["text_right"] > 5 * shown["weights"]["text_loud"]
    server.stop()
    server.start()
    assert known(server) == shown
    assert answers(server, "udf_dish", UNSEEN) == after


def test_each_context_is_answered_by_what_it_was_taught_also_after_a_restart(server: InferenceServer) -> None:
    loud, right = answers(server, "text_loud", TEXTS), answers(server, "text_right", TEXTS)
    for first in range(0, len(TEXTS), 100):
        part = slice(first, first + 100)
        for context, labels in (("user:17", right), ("user:18", loud)):
            told = give(server, TEXTS[part], labels[part], context=context)
            assert told["outcomes"] == ["counted"] * 100
    truth = {
        "user:17": answers(server, "text_right", UNSEEN),
        "user:18": answers(server, "text_loud", UNSEEN),
    }
    found = {context: answers(server, "udf_dish", UNSEEN, context) for context in truth}
    for context, labels in truth.items():
        assert share(found[context], labels) > 0.9
    everybody = answers(server, "udf_dish", UNSEEN)
    assert all(share(everybody, labels) > 0.1 for labels in truth.values())
    assert answers(server, "udf_dish", UNSEEN, "user:19") == everybody
    server.stop()
    server.start()
    assert {context: answers(server, "udf_dish", UNSEEN, context) for context in truth} == found
    assert "user:1" not in server.log
    client = Client(server.url)
    client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "log_pool"})
    client.close()
    assert answers(server, "udf_dish", UNSEEN, "user:17") == answers(server, "udf_dish", UNSEEN)


def test_labels_by_the_ids_of_answers_teach_also_after_a_restart(server: InferenceServer) -> None:
    right, truth = answers(server, "text_right", TEXTS), answers(server, "text_right", UNSEEN)
    before = share(answers(server, "udf_dish", UNSEEN), truth)
    client = Client(server.url)
    details = client.predict("udf_dish", TEXTS, Options(context="user:17"), detail=True).details
    ids = [detail.prediction if detail else None for detail in details]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    server.stop()
    server.start()
    for first in range(0, len(ids), 100):
        part = slice(first, first + 100)
        body = {"function": "udf_dish", "predictions": ids[part], "labels": right[part]}
        assert client.post("/v1/feedback", body)["outcomes"] == ["counted"] * 100
    assert give(server, TEXTS[:5], right[:5], context="user:17")["outcomes"] == ["repeated"] * 5
    assert give(server, TEXTS[:5], right[:5])["outcomes"] == ["counted"] * 5, "not in that context"
    assert share(answers(server, "udf_dish", UNSEEN, "user:17"), truth) > 0.9 > before + 0.2
    client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "log_pool"})
    told = client.post("/v1/feedback", {"function": "udf_dish", "predictions": ids[:1], "labels": right[:1]})
    client.close()
    assert told["outcomes"] == [None]
    assert told["errors"][0]["code"] == "unknown_prediction"
    assert "it has expired: version" in told["errors"][0]["message"]


def test_what_is_told_again_counts_once_and_the_last_label_wins(server: InferenceServer) -> None:
    labels = answers(server, "text_right", TEXTS[:20])
    give(server, TEXTS[:20], labels)
    first = known(server)
    again = give(server, TEXTS[:20], labels)
    assert again["outcomes"] == ["repeated"] * 20
    assert known(server) == first
    other = ["pizza" if label != "pizza" else "sushi" for label in labels]
    assert give(server, TEXTS[:20], other)["outcomes"] == ["changed"] * 20
    assert known(server)["rows"] == 20
    twice = give(server, ["new", "new", "new"], ["pizza", "sushi", "pizza"])
    assert twice["outcomes"] == ["repeated", "repeated", "counted"]
    assert known(server)["rows"] == 21
    with contextlib.closing(sqlite3.connect(server.home / "registry.db")) as registry:
        columns = {row[1] for row in registry.execute("PRAGMA table_info(feedback)")}
        kept = dict(registry.execute("SELECT label, count(*) FROM feedback GROUP BY 1").fetchall())
    assert columns == {"function", "digest", "version", "label", "number", "labelled_at"}
    assert sum(kept.values()) == 21
    last = [*other, "pizza"]
    assert kept == {label: last.count(label) for label in last}


def test_a_server_that_is_killed_in_the_middle_and_asked_again_counts_each_once(
    server: InferenceServer,
) -> None:
    labels = answers(server, "text_right", TEXTS)
    parts = [(TEXTS[at : at + 20], labels[at : at + 20]) for at in range(0, len(TEXTS), 20)]
    under_way = threading.Event()

    def send() -> None:
        with contextlib.suppress(MlUdfError):
            for texts, of_texts in parts:
                give(server, texts, of_texts)
                under_way.set()

    sending = threading.Thread(target=send)
    sending.start()
    assert under_way.wait(30)
    os.kill(server.pid, signal.SIGKILL)
    sending.join(60)
    assert not sending.is_alive()
    server.wait()
    server.start()
    outcomes = [outcome for part in parts for outcome in give(server, *part)["outcomes"]]
    assert set(outcomes) <= {"counted", "repeated"}
    assert outcomes[:20] == ["repeated"] * 20
    assert known(server)["rows"] == len(TEXTS)


def test_a_new_deployment_begins_at_its_fit(server: InferenceServer) -> None:
    texts, labels = TEXTS[:50], answers(server, "text_right", TEXTS[:50])
    before = answers(server, "udf_dish", UNSEEN)
    give(server, TEXTS, answers(server, "text_right", TEXTS))
    assert answers(server, "udf_dish", UNSEEN) != before
    client = Client(server.url)
    anew = client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "log_pool"})
    client.close()
    assert anew["fitted"]["rows"] == FIT.rows
    assert anew["feedback"] is None
    assert answers(server, "udf_dish", UNSEEN) == before
    assert give(server, texts, labels)["outcomes"] == ["counted"] * 50, "it has learned from none of them"


def test_null_counts_nothing_and_each_fault_is_of_its_own_row(server: InferenceServer) -> None:
    told = give(server, ["a", None, "b", "c", 7, "d"], ["pizza", "pizza", None, "pasta", "pizza", "sushi"])
    assert told["outcomes"] == ["counted", None, None, None, None, "counted"]
    (label, number) = told["errors"]
    assert (label["row"], label["code"]) == (3, "unknown_label")
    assert label["message"] == "'pasta' is no class of udf_dish; there are laksa, pizza, satay, sushi"
    assert (number["row"], number["code"]) == (4, "input_invalid")
    client = Client(server.url)
    metrics = client._send(HttpRequest("GET", "/metrics"), 10.0).body.decode()
    client.close()
    assert 'ml_udf_feedback_rows_total{function="udf_dish",outcome="counted"} 2.0' in metrics
    assert 'ml_udf_feedback_rows_total{function="udf_dish",outcome="refused"} 2.0' in metrics


def test_what_cannot_be_fed_back_is_refused_in_words(server: InferenceServer) -> None:
    with pytest.raises(UnknownFunction, match="there is no function or model 'udf_dishes' here"):
        give(server, ["a"], ["pizza"], function="udf_dishes")
    with pytest.raises(BadOption, match="text_right is a model; feedback is given on a function"):
        give(server, ["a"], ["pizza"], function="text_right")
    with pytest.raises(BadOption, match="lists of one length"):
        give(server, ["a"], [])
    with pytest.raises(BadOption, match="unknown field 'user'"):
        give(server, ["a"], ["pizza"], user="me")
    with pytest.raises(BadOption, match="a context must be a text of up to 200 characters"):
        give(server, ["a"], ["pizza"], context=17)


def test_a_function_that_votes_keeps_feedback_and_says_that_it_does_not_learn(
    server: InferenceServer,
) -> None:
    client = Client(server.url)
    client.put("/v1/functions/udf_dish", {"models": list(MEMBERS), "combine": "majority_vote"})
    client.close()
    texts = TEXTS[:40]
    labels = answers(server, "udf_dish", texts)
    before = answers(server, "udf_dish", UNSEEN)
    told = give(server, texts, labels)
    assert (told["learns"], told["outcomes"]) == (False, ["counted"] * 40)
    assert answers(server, "udf_dish", UNSEEN) == before
    shown = known(server)
    assert (shown["learns"], shown["rows"], shown["accuracy"]) == (False, 40, 1.0)
    assert shown["weights"] is None


@pytest.mark.security
def test_feedback_is_for_the_full_token(tmp_path: Path) -> None:
    for name in ("full", "ask"):
        (tmp_path / name).write_text(f"{name}-token-of-some-length\n")
        (tmp_path / name).chmod(0o600)
    flags = [f"--token-file={tmp_path / 'full'}", f"--ask-token-file={tmp_path / 'ask'}"]
    with inference_server(tmp_path / "home", flags=[ANEW, *flags]) as server:
        body = {"function": "udf_dish", "inputs": ["a"], "labels": ["pizza"]}
        asking = Client(server.url, token="ask-token-of-some-length")
        with pytest.raises(Forbidden):
            asking.post("/v1/feedback", body)
        asking.close()
        full = Client(server.url, token="full-token-of-some-length")
        with pytest.raises(UnknownFunction):
            full.post("/v1/feedback", body)
        full.close()
