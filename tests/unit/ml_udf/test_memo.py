"""What a statement remembers: answers by input, the latest first, in a bounded share of memory."""

from __future__ import annotations

import tracemalloc
import weakref

import pytest

from ml_udf.errors import ConnectionLost, InputNotFound
from ml_udf.memo import Answer, Memo, memo_key

LIMIT_BYTES = 1 << 20


def learn_many(memo: Memo, first: int, count: int, *, call_rows: int = 100) -> None:
    for start in range(first, first + count, call_rows):
        memo.learn({f"input {n}": Answer(f"answer {n}", 0.5) for n in range(start, start + call_rows)})


def test_what_was_learnt_is_remembered() -> None:
    memo = Memo(LIMIT_BYTES)
    memo.learn({"a": Answer("b", 0.5), 7: Answer(None, None)})
    assert memo.get("a") == Answer("b", 0.5)
    assert memo.get(7) == Answer()
    assert "a" in memo
    assert memo.get("c") is None


def test_the_oldest_are_forgotten_and_the_latest_stay() -> None:
    memo = Memo(LIMIT_BYTES)
    learn_many(memo, 0, 20_000)
    assert memo.get("input 0") is None
    assert all(memo.get(f"input {n}") == Answer(f"answer {n}", 0.5) for n in range(19_000, 20_000))


def test_what_is_asked_for_now_and_then_stays() -> None:
    memo = Memo(LIMIT_BYTES)
    memo.learn({"often": Answer("asked")})
    for first in range(0, 20_000, 1_000):
        learn_many(memo, first, 1_000)
        assert memo.get("often") == Answer("asked")


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
                memo.learn({f"input {n}": Answer(f"answer {n}", n + 0.5) for n in numbers})
            elif form == "faults":
                memo.learn(
                    {
                        f"input {n}": Answer(error=InputNotFound(f"/images/{n}.jpg is missing"))
                        for n in numbers
                    }
                )
            else:
                rows = {n: [n + 0.5 + i for i in range(100)] for n in numbers}
                memo.learn({memo_key(row): Answer(row, n + 0.5) for n, row in rows.items()})
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
            memo.learn({"a": Answer(error=error)})
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
