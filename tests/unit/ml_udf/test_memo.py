"""What a statement remembers: answers by input, the latest first, in a bounded share of memory."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from ml_udf.client.memo import Memo, Outcome, memo_key, memo_keys
from ml_udf.errors import ConnectionLost, InputNotFound

LIMIT_BYTES = 1 << 20


def learn_many(memo: Memo, first: int, count: int, *, call_rows: int = 100) -> None:
    for start in range(first, first + count, call_rows):
        memo.learn({f"input {n}": Outcome(f"answer {n}", 0.5) for n in range(start, start + call_rows)})


def test_what_was_learnt_is_remembered() -> None:
    memo = Memo(LIMIT_BYTES)
    memo.learn({"a": Outcome("b", 0.5), 7: Outcome(None, None)})
    assert memo.get("a") == Outcome("b", 0.5)
    assert memo.get(7) == Outcome()
    assert "a" in memo
    assert memo.get("c") is None


def test_the_oldest_are_forgotten_and_the_latest_stay() -> None:
    memo = Memo(LIMIT_BYTES)
    learn_many(memo, 0, 20_000)
    assert memo.get("input 0") is None
    assert all(memo.get(f"input {n}") == Outcome(f"answer {n}", 0.5) for n in range(19_000, 20_000))


def test_what_is_asked_for_now_and_then_stays() -> None:
    memo = Memo(LIMIT_BYTES)
    memo.learn({"often": Outcome("asked")})
    for first in range(0, 20_000, 1_000):
        learn_many(memo, first, 1_000)
        assert memo.get("often") == Outcome("asked")


def test_the_answers_of_one_call_stay_whatever_their_size() -> None:
    memo = Memo(1_000)
    learn_many(memo, 0, 500, call_rows=500)
    assert all(f"input {n}" in memo for n in range(500))
    learn_many(memo, 500, 500, call_rows=500)
    assert all(f"input {n}" in memo for n in range(500, 1_000))


@pytest.mark.parametrize("form", ["texts", "vectors", "faults"])
def test_the_bound_is_that_of_the_memory_it_takes(form: str) -> None:
    memo = Memo(LIMIT_BYTES)
    tracemalloc.start()
    try:
        for first in range(0, 20_000, 100):
            numbers = range(first, first + 100)
            if form == "texts":
                memo.learn({f"input {n}": Outcome(f"answer {n}", n + 0.5) for n in numbers})
            elif form == "faults":
                memo.learn(
                    {
                        f"input {n}": Outcome(error=InputNotFound(f"/images/{n}.jpg is missing"))
                        for n in numbers
                    }
                )
            else:
                rows = {n: [n + 0.5 + i for i in range(100)] for n in numbers}
                memo.learn({memo_key(row): Outcome(row, n + 0.5) for n, row in rows.items()})
        held_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert LIMIT_BYTES / 4 < held_bytes < 1.25 * LIMIT_BYTES
    assert most_bytes < 1.75 * LIMIT_BYTES  # with the call that is learnt


def test_a_remembered_error_holds_none_of_the_rows_it_was_raised_over() -> None:
    class Rows:
        pass

    def fail() -> weakref.ref[Rows]:
        rows = Rows()
        try:
            try:
                raise TimeoutError
            except TimeoutError as cause:
                raise ConnectionLost("broke") from cause
        except ConnectionLost as error:
            memo.learn({"a": Outcome(error=error)})
        return weakref.ref(rows)

    memo = Memo(LIMIT_BYTES)
    held = fail()
    assert held() is None
    answer = memo.get("a")
    assert answer is not None
    assert isinstance(answer.error, ConnectionLost)


def test_long_inputs_are_kept_as_hashes_and_equal_ones_are_one() -> None:
    assert memo_key("short") == "short"
    assert memo_key("é" * 300) == memo_key("é" * 300) != memo_key("é" * 301)
    assert memo_key(b"x" * 300) == memo_key(bytearray(b"x" * 300)) != memo_key(b"y" * 300)
    vector = [n + 0.5 for n in range(768)]
    assert memo_key(vector) == memo_key(tuple(vector)) != memo_key([*vector[:-1], 0.0])
    assert memo_key([1.0, 2.0]) == (1.0, 2.0)


def test_long_vectors_of_whole_numbers_keep_all_their_digits() -> None:
    one, other = [2**53] * 100, [2**53] * 99 + [2**53 + 1]
    assert memo_key(one) != memo_key(other)


def test_short_inputs_are_their_own_keys_and_long_ones_hashes() -> None:
    assert memo_key("x" * 256) == "x" * 256
    assert memo_key(b"x" * 256) == b"x" * 256
    for long in ("x" * 257, b"x" * 257, bytearray(b"x" * 257)):
        key = memo_key(long)
        assert isinstance(key, tuple)
        assert key[0] == 257
        assert len(key[1]) == 16  # 128 bits
    assert memo_key("x" * 257) == memo_key(b"x" * 257)
    assert memo_key("x" * 257) != memo_key("y" * 257)


@pytest.mark.parametrize(
    "values",
    [[], ["a", "b"], ["a", None, ""], ["a", "x" * 300, None], ["a", b"b", 3, 4.5, None], [[1.0], None, "a"]],
)
def test_the_keys_of_a_column_are_those_of_its_values(values: list[Any]) -> None:
    assert list(memo_keys(values)) == [memo_key(value) for value in values]


def test_vectors_are_keys_by_their_numbers_long_ones_by_a_hash() -> None:
    assert memo_key([1.0] * 32) == (1.0,) * 32
    long = memo_key([1.0] * 33)
    assert isinstance(long, tuple)
    assert long[:2] == ("float", 33 * 8)
    assert memo_key([1.0] * 33) != memo_key([2.0] * 33)
    assert memo_key([1] * 33) == (1,) * 33


def test_an_old_answer_that_is_asked_for_becomes_young() -> None:
    memo = Memo(4_000)
    memo.learn({"first": Outcome("x")})
    learn_many(memo, 0, 100, call_rows=1)
    for number in range(100, 400):
        memo.learn({f"input {number}": Outcome("y")})
        if number % 3 == 0 and "kept" in memo:
            assert memo.get("kept") == Outcome("z")
        elif number == 100:
            memo.learn({"kept": Outcome("z")})
    assert memo.get("kept") == Outcome("z")
    assert memo.get("first") is None


def test_about_as_many_are_remembered_as_the_bound_has_room_for() -> None:
    memo = Memo(100_000)
    for number in range(2_000):
        memo.learn({f"input {number:5}": Outcome("answer", 0.5)})
    remembered = sum(f"input {number:5}" in memo for number in range(2_000))
    assert 100 < remembered < 350  # of about 300 bytes each


def test_what_half_of_the_bound_has_room_for_is_remembered_at_any_time() -> None:
    memo = Memo(100_000)
    for number in range(1_000):
        memo.learn({f"input {number:5}": Outcome("answer", 0.5)})
        latest = range(max(0, number - 140), number + 1)  # of about 315 bytes each
        assert all(f"input {each:5}" in memo for each in latest)


def test_a_remembered_error_has_lost_its_frames_and_those_of_its_causes() -> None:
    try:
        try:
            raise ConnectionLost("broke")
        except ConnectionLost as exc:
            raise InputNotFound("gone") from exc
    except InputNotFound as exc:
        error = exc
    memo = Memo()
    memo.learn({"a": Outcome(error=error)})
    assert error.__traceback__ is None
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is None


def test_a_remembered_error_has_lost_the_frames_of_what_it_was_raised_over() -> None:
    try:
        try:
            raise ConnectionLost("broke")
        except ConnectionLost:
            raise InputNotFound("gone")  # noqa: B904 - its context, and no cause, is what counts
    except InputNotFound as exc:
        error = exc
    Memo().learn({"a": Outcome(error=error)})
    assert error.__cause__ is None
    assert error.__context__ is not None
    assert error.__context__.__traceback__ is None


def test_numbers_and_nothing_are_their_own_keys() -> None:
    assert [memo_key(None), memo_key(7), memo_key(2.5)] == [None, 7, 2.5]


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        (lambda number: f"{number:5}", Outcome("x" * 2_000)),
        (lambda number: f"{number:2000}", Outcome("x")),
        (lambda number: tuple([float(number)] * 80), Outcome("x")),
        (lambda number: f"{number:5}", Outcome([0.5] * 80)),
        (lambda number: f"{number:5}", Outcome(error=InputNotFound("x" * 2_000))),
    ],
    ids=["values", "keys", "vectors as keys", "vectors as values", "messages"],
)
def test_large_entries_count_for_what_they_take(key: Callable[[int], Hashable], answer: Outcome) -> None:
    memo = Memo(200_000)
    for number in range(1_000):
        memo.learn({key(number): answer})
    remembered = sum(key(number) in memo for number in range(1_000))
    assert 30 < remembered < 110  # of about 2,300 to 3,000 bytes each


def test_old_answers_that_are_asked_for_count_again() -> None:
    memo = Memo(100_000)
    for number in range(2_000):
        memo.learn({f"input {number:5}": Outcome("answer", 0.5)})
        for earlier in range(max(0, number - 300), number, 7):
            memo.get(f"input {earlier:5}")
    assert sum(f"input {number:5}" in memo for number in range(2_000)) < 400
