"""Ids of predictions: they say what was answered, to the registry that gave them, and cannot be made."""

from __future__ import annotations

import base64
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.wire.protocol import Answer, RowError
from server.serving.calls import Reply
from server.serving.prediction_ids import (
    PredictionId,
    PredictionIds,
    UnknownPrediction,
    ids_of,
    input_digest,
)
from tests.answers import classified, label_columns
from tests.unit.server.served import CLASSES, function, text_model

IDS = PredictionIds(b"key")
TOLD = PredictionId(
    3,
    "ab" * 32,
    "cd" * 16,
    1,
    np.array([[0.1, 0.7, 0.2, 0.0, 0.0, 0.0], [0.3, 0.1, 0.1, 0.1, 0.2, 0.2]]),
    (0, 1),
)


def test_an_id_says_what_was_answered() -> None:
    text = IDS.written("f", TOLD)
    assert text.isascii()
    assert len(text) < 200
    found = IDS.read("f", 3, 6, text)
    assert (found.version, found.digest, found.context, found.answer) == (3, "ab" * 32, "cd" * 16, 1)
    np.testing.assert_allclose(found.scores, TOLD.scores, atol=1e-4)
    plain = PredictionId(3, "ab" * 32, "", None, TOLD.scores, (0, 1))
    found = IDS.read("f", 3, 6, IDS.written("f", plain))
    assert (found.context, found.answer) == ("", None)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(2, 300), st.integers(0, 2**32 - 1))
def test_of_many_classes_the_likeliest_are_said_and_the_rest_share_what_is_left(
    members: int, classes: int, seed: int
) -> None:
    scores = np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), members)
    found = IDS.read(
        "f", 1, classes, IDS.written("f", PredictionId(1, "00" * 32, "", 0, scores, tuple(range(members))))
    ).scores
    assert found.shape == scores.shape
    assert found.sum(axis=1) == pytest.approx(1.0, abs=1e-3)
    assert (found.argmax(axis=1) == scores.argmax(axis=1)).all()
    top = np.sort(scores, axis=1)[:, -min(4, classes) :]
    np.testing.assert_allclose(np.sort(found, axis=1)[:, -min(4, classes) :], top, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.data())
def test_an_id_says_who_answered_and_of_the_others_nothing(members: int, data: st.DataObject) -> None:
    by = tuple(sorted(data.draw(st.sets(st.integers(0, members - 1)))))
    scores = np.random.default_rng(members).dirichlet(np.ones(3), members)
    found = IDS.read("f", 1, 3, IDS.written("f", PredictionId(1, "00" * 32, "", 2, scores, by)), members)
    assert (found.members, found.answer) == (by, 2)
    np.testing.assert_allclose(found.scores[list(by)], scores[list(by)], atol=1e-4)
    assert not np.delete(found.scores, by, axis=0).any()


@given(st.floats(allow_nan=False), st.lists(st.floats(), min_size=1, max_size=9), st.data())
def test_an_id_of_a_number_says_it_to_the_last_digit(
    value: float, said: list[float], data: st.DataObject
) -> None:
    by = tuple(sorted(data.draw(st.sets(st.integers(0, len(said) - 1)))))
    told = PredictionId(4, "ab" * 32, "cd" * 16, value, np.array(said)[:, None], by)
    found = IDS.read("f", 4, None, IDS.written_number("f", told), len(said))
    assert (found.answer, found.members, found.context) == (value, by, "cd" * 16)
    np.testing.assert_array_equal(found.scores[list(by)], told.scores[list(by)])


def test_an_id_of_a_number_is_none_of_a_class_and_the_other_way() -> None:
    number = PredictionId(3, "ab" * 32, "", 1.5, np.array([[1.0], [2.0]]), (0, 1))
    for text, classes in ((IDS.written_number("f", number), 6), (IDS.written("f", TOLD), None)):
        with pytest.raises(UnknownPrediction, match="another deployment of that number"):
            IDS.read("f", 3, classes, text)


@pytest.mark.security
def test_an_id_is_of_one_function_one_deployment_and_one_registry() -> None:
    text = IDS.written("f", TOLD)
    for ids, name, version, why in (
        (IDS, "g", 3, "no id that this server has given for g"),
        (PredictionIds(b"other"), "f", 3, "no id that this server has given for f"),
        (IDS, "f", 4, "it has expired: version 3 of f answered it, and 4 answers now"),
    ):
        with pytest.raises(UnknownPrediction, match=why):
            ids.read(name, version, 6, text)


@pytest.mark.security
def test_an_id_that_was_changed_anywhere_is_none() -> None:
    text = IDS.written("f", TOLD)
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for at in range(len(raw)):
        other = bytearray(raw)
        other[at] ^= 1 << at % 8
        with pytest.raises(UnknownPrediction):
            IDS.read("f", 3, 6, base64.urlsafe_b64encode(other).rstrip(b"=").decode())
    draw = random.Random(1)
    odd = ["", "=", "é", "a", "ab", "abc", "a b", "\x00", "\ud800", "A" * 5000]
    odd += [text[:-1], text + "A", text[1:]]
    odd += ["".join(draw.choices("ABCxyz019-_", k=draw.randrange(300))) for _ in range(300)]
    for other_text in odd:
        with pytest.raises(UnknownPrediction):
            IDS.read("f", 3, 6, other_text)


def test_an_id_from_before_the_registry_was_restored_is_of_another_deployment_of_that_number() -> None:
    text = IDS.written("f", TOLD)
    for classes, members in ((6, 3), (3, 2), (1, 2)):
        with pytest.raises(UnknownPrediction, match="another deployment of that number"):
            IDS.read("f", 3, classes, text, members)
    unsure = PredictionId(3, "ab" * 32, "", 5, np.full((1, 6), 1 / 6), (0,))
    with pytest.raises(UnknownPrediction, match="another deployment"):
        IDS.read("f", 3, 5, IDS.written("f", unsure), 1)
    assert IDS.read("f", 3, 6, text, 2).scores.shape == (2, 6)


def test_rows_that_got_no_answer_have_none_and_others_say_who_answered() -> None:
    served = function(text_model("a"), text_model("b"), combine="mean")
    scores = np.array([[0.8, 0.1, 0.1]] * 2, "<f4").tobytes()
    both = [classified(f"{name}/1", ["laksa"] * 2, [0.8] * 2, scores) for name in "ab"]
    reply = Reply(
        served,
        6,
        label_columns(["laksa"] * 6, [0.8] * 6),
        {1: RowError(1, "input_invalid", "bad")},
        [],
        {3},
        [(0, Answer(0, both, [])), (2, Answer(0, both[::-1], [])), (4, Answer(0, both[:1], []))],
    )
    rows = [f"row {number}".encode() for number in range(6)]
    found = ids_of(IDS, reply, "text", rows, "")
    assert [bool(each) for each in found] == [True, False, True, True, True, True]
    assert [IDS.read("f", 1, len(CLASSES), found[row], 2).members for row in (0, 3, 4)] == [
        (0, 1),
        (0, 1),
        (0,),
    ]
    told = IDS.read("f", 1, len(CLASSES), found[0])
    assert (told.digest, told.answer) == (input_digest("text", b"row 0", ""), CLASSES.index("laksa"))
    assert IDS.read("f", 1, len(CLASSES), found[3]).answer is None, "it got the default answer"
    masked = Answer(0, both, [], answered=[2, 0])  # the second alone; and nobody but a proxy
    reply = replace(reply, rows=2, errors={}, told=[(0, masked)])
    assert [IDS.read("f", 1, 3, each).members for each in ids_of(IDS, reply, "text", rows, "")] == [(1,), ()]
    bare = Reply(function(bare=True), 1, {}, {}, [], set(), [(0, Answer(0, both, []))])
    assert ids_of(IDS, bare, "text", [b"x"], "") == [""]
