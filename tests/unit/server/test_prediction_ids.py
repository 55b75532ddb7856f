"""Ids of predictions: they say what was answered, to the registry that gave them, and cannot be made."""

from __future__ import annotations

import base64
import random

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
    3, "ab" * 32, "cd" * 16, 1, np.array([[0.1, 0.7, 0.2, 0.0, 0.0, 0.0], [0.3, 0.1, 0.1, 0.1, 0.2, 0.2]])
)


def test_an_id_says_what_was_answered() -> None:
    text = IDS.written("f", TOLD)
    assert text.isascii()
    assert len(text) < 200
    found = IDS.read("f", 3, 6, text)
    assert (found.version, found.digest, found.context, found.answer) == (3, "ab" * 32, "cd" * 16, 1)
    np.testing.assert_allclose(found.scores, TOLD.scores, atol=1e-4)
    plain = PredictionId(3, "ab" * 32, "", None, TOLD.scores)
    found = IDS.read("f", 3, 6, IDS.written("f", plain))
    assert (found.context, found.answer) == ("", None)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(2, 300), st.integers(0, 2**32 - 1))
def test_of_many_classes_the_likeliest_are_said_and_the_rest_share_what_is_left(
    members: int, classes: int, seed: int
) -> None:
    scores = np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), members)
    found = IDS.read("f", 1, classes, IDS.written("f", PredictionId(1, "00" * 32, "", 0, scores))).scores
    assert found.shape == scores.shape
    assert found.sum(axis=1) == pytest.approx(1.0, abs=1e-3)
    assert (found.argmax(axis=1) == scores.argmax(axis=1)).all()
    top = np.sort(scores, axis=1)[:, -min(4, classes) :]
    np.testing.assert_allclose(np.sort(found, axis=1)[:, -min(4, classes) :], top, atol=1e-4)


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
    unsure = PredictionId(3, "ab" * 32, "", 5, np.full((1, 6), 1 / 6))
    with pytest.raises(UnknownPrediction, match="another deployment"):
        IDS.read("f", 3, 5, IDS.written("f", unsure), 1)
    assert IDS.read("f", 3, 6, text, 2).scores.shape == (2, 6)


def test_rows_that_a_label_could_not_teach_have_none() -> None:
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
    assert [bool(each) for each in found] == [True, False, True, True, False, False]
    told = IDS.read("f", 1, len(CLASSES), found[0])
    assert (told.digest, told.answer) == (input_digest("text", b"row 0", ""), CLASSES.index("laksa"))
    assert IDS.read("f", 1, len(CLASSES), found[3]).answer is None, "it got the default answer"
    bare = Reply(function(bare=True), 1, {}, {}, [], set(), [(0, Answer(0, both, []))])
    assert ids_of(IDS, bare, "text", [b"x"], "") == [""]
